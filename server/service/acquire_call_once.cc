// The part of AcquireCall that deals with request ids.
#include <algorithm>
#include <utility>

#include "common/errors.h"
#include "server/service/acquire_call.h"

namespace sluice::service {

void AcquireCall::SetRequestId(std::string_view bytes) {
  if (begun_ > common::bounds::kMaxBatch) return;
  items_.back().options.once = true;
  OnceRequest& request = once_.emplace_back();
  request.item = static_cast<uint32_t>(items_.size() - 1);
  request.bytes = bytes;
}

AcquireCall::OnceRequest& AcquireCall::OnceOf(const Item& item) {
  const auto number = static_cast<uint32_t>(&item - items_.data());
  return *std::lower_bound(
      once_.begin(), once_.end(), number,
      [](const OnceRequest& request, uint32_t number) { return request.item < number; });
}

uint64_t AcquireCall::FingerprintOf(const Item& item, const store::RequestId& id) const {
  store::Fingerprint fingerprint(id);
  for (size_t c = 0; c < item.asked; ++c) {
    const Asked& asked = asked_[item.first + c];
    fingerprint.Add(asked.limit);
    fingerprint.Add(asked.key);
    fingerprint.Add(asked.permits);
  }
  const AcquisitionOptions& options = item.options;
  fingerprint.Add(static_cast<uint64_t>(options.max_wait.seconds));
  fingerprint.Add(static_cast<uint64_t>(options.max_wait.nanos));
  const WireDuration settle_within = options.settle_within.value_or(WireDuration());
  fingerprint.Add(static_cast<uint64_t>(settle_within.seconds));
  fingerprint.Add(static_cast<uint64_t>(settle_within.nanos));
  fingerprint.Add((options.want_receipt ? 1u : 0u) | (options.force ? 2u : 0u));
  return fingerprint.value();
}

absl::Status AcquireCall::AddOnce(const Item& item, Attempt& attempt) {
  const FieldPath path = PathOf(item);
  OnceRequest& request = OnceOf(item);
  absl::Status status = CheckRequestId(path, request.bytes, item.options);
  if (status.ok() && with_->store.Shared()) status = CheckRemembers(path, attempt.last_merged());
  if (!status.ok()) return status;
  store::Once& once = request.once;
  once.id = store::RequestId::From(request.bytes);
  once.fingerprint = FingerprintOf(item, once.id);
  // An item that was left undecided, or whose limits changed meanwhile, has its place already.
  if (request.taken_ns < 0) {
    if (once_connection_ == nullptr) once_connection_ = places_.connection();
    request.owner.limit_id = attempt.last_merged()[0].rule->limit_id;
    request.owner.client = caller_ == nullptr ? nullptr : caller_->use();
    const int64_t now_ns = with_->clock.NowNs();
    once.may_remember = with_->room->Take(request.owner, GrantsOfConnection(), now_ns);
    if (once.may_remember) request.taken_ns = now_ns;
  }
  attempt.SetOnce(&once);
  return absl::OkStatus();
}

ConnectionGrants* AcquireCall::GrantsOfConnection() {
  return once_connection_ == nullptr ? nullptr : &once_connection_->grants();
}

bool AcquireCall::MayBeRemembered(const Item& item) const {
  if (item.index == kUndecided) return false;
  const store::Acquisition& decided = DecisionOf(item);
  if (decided.may_be_debited) return true;
  return decided.outcome == store::Outcome::kGranted && !decided.once->repeated &&
         decided.source != store::Source::kStoreUnavailable;
}

void AcquireCall::ReturnRoom() {
  for (OnceRequest& request : once_) {
    if (request.item < first_ || request.item >= end_ || request.taken_ns < 0) continue;
    const int64_t taken_ns = std::exchange(request.taken_ns, -1);
    if (MayBeRemembered(items_[request.item])) continue;
    with_->room->GiveBack(request.owner, GrantsOfConnection(), taken_ns);
  }
  if (!more()) once_connection_.reset();
}

}  // namespace sluice::service
