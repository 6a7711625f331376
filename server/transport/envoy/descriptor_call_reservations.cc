// Reserve and Commit of Kuadrant's service: see DescriptorCall.
#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "common/bounds.h"
#include "common/errors.h"
#include "common/strings.h"
#include "server/algorithm/make_parameters.h"
#include "server/service/settle_call.h"
#include "server/transport/envoy/descriptor_call.h"

namespace sluice::transport {

namespace bounds = common::bounds;
using common::ToAbsl;

absl::StatusOr<int64_t> DescriptorCall::TtlNs() const {
  auto ttl_ns = service::ToNanoseconds("ttl", request_.ttl);
  if (!ttl_ns.ok()) return ttl_ns;
  if (*ttl_ns < 0) {
    return common::errors::Invalid("ttl", request_.ttl.seconds,
                                   " s is before now; say 1s to 24h, or leave it out for 10 "
                                   "minutes");
  }
  return *ttl_ns == 0 ? kReservationNs : std::min(*ttl_ns, bounds::kMaxSettleWithinNs);
}

void DescriptorCall::PlanReservation(size_t d, const store::Rule& rule) {
  Item& item = items_[d];
  if (method_ == Method::kCommit) {
    item.hits = std::min(request_.amount, bounds::kMaxEnvoyHits);
    const bool settled = settling_ == Settling::kSettled && IsReserved(item);
    item.way = item.hits == 0 || settled ? Way::kDecided : Way::kDebit;
  } else {
    const uint64_t limit =
        std::min<uint64_t>(algorithm::MaxGrant(rule.parameters), statuses_[d].requests_per_unit);
    const auto most = static_cast<uint64_t>(
        std::ceil(static_cast<double>(limit) * double{with_->options.max_reservation}));
    // 0 asks whether anything can be taken.
    item.hits = std::clamp<uint64_t>(request_.amount, 1, std::max<uint64_t>(most, 1));
    if (request_.amount == 0 || item.hits > limit) {
      joint_impossible_ |= !rule.shadow;
      return AddCheck(d, rule);
    }
    item.way = Way::kDebit;
  }
  item.joint = item.way == Way::kDebit;
  item.debit = method_ == Method::kCommit ? store::Debit::kForced : store::Debit::kIfAllowed;
  joint_ |= item.joint;
}

absl::Status DescriptorCall::MakeEstimate(absl::Span<const store::Charge> charges,
                                          store::Acquisition* reserved) {
  for (const store::Charge& charge : charges) {
    if (!with_->service.store.Shared() || !charge.rule->split_when_store_unavailable) continue;
    return absl::UnimplementedError(absl::StrCat(
        "limit \"", ToAbsl(charge.rule->limit_name),
        "\" says on_store_failure: split, so another node could not commit what this one reserved; "
        "say deny or allow"));
  }
  reserved->want_receipt = true;
  reserved->settle_within_ns = *TtlNs();
  return absl::OkStatus();
}

bool DescriptorCall::Settle() {
  if (request_.reservation_id.empty() || settling_ != Settling::kNotTried) return false;
  settling_ = Settling::kTried;
  service::Receipt receipt;
  // What was not issued here counts as unknown: a server in memory that has started again knows
  // none of the reservations before.
  if (!absl::WebSafeBase64Unescape(ToAbsl(request_.reservation_id), &receipt_) ||
      !with_->service.signer.Open(receipt_, &receipt).ok() || !IsOfReservation(receipt)) {
    return false;
  }
  if (settle_ == nullptr) settle_ = std::make_unique<service::SettleCall>();
  settle_->Reset(service::SettleCall::Form::kUnary);
  // A shared store answers later, and takes no time of this thread.
  if (sliced_ && !with_->service.store.Shared()) settle_->DecideInSlices();
  settle_->BeginSettlement();
  settle_->SetReceipt(receipt_);
  for (const service::ReceiptCharge& charge : receipt.charges) {
    settle_->AddActual(charge.limit, charge.key, std::min(request_.amount, bounds::kMaxEnvoyHits));
  }
  settle_->Start(
      with_->service, deadline_ns_,
      [](void* context, service::SettleCall*) { static_cast<DescriptorCall*>(context)->Settled(); },
      this);
  return true;
}

// With the id of another reservation a caller would correct that instead of its own use.
bool DescriptorCall::IsOfReservation(const service::Receipt& receipt) const {
  if (receipt.kind != service::Receipt::Kind::kEstimate) return false;
  return std::all_of(receipt.charges.begin(), receipt.charges.end(),
                     [&](const service::ReceiptCharge& charge) {
                       return std::any_of(items_.begin(), items_.end(), [&](const Item& item) {
                         return item.limit != nullptr && item.limit->name() == charge.limit &&
                                item.key->view() == charge.key;
                       });
                     });
}

bool DescriptorCall::IsReserved(const Item& item) const {
  const service::SettleCall::Result& result = settle_->result(0);
  for (size_t c = result.first_charge; c < result.first_charge + result.charges; ++c) {
    const service::SettledCharge& charge = settle_->charge(c);
    if (item.limit->name() == charge.limit && item.key->view() == charge.key) return true;
  }
  return false;
}

void DescriptorCall::Settled() {
  if (!with_->service.store.Shared()) slice_cost_ += settle_->slice_cost();
  if (settle_->more()) return EndSlice(Left::kSettlement);
  const service::SettleCall::Result& result = settle_->result(0);
  const absl::Status& status = settle_->status().ok() ? result.status : settle_->status();
  if (absl::IsUnavailable(status)) {
    return Fail(absl::UnavailableError(
        "the shared store is unavailable, or its answer is lost; the reservation may have been "
        "committed; call Commit again: the same call changes nothing twice"));
  }
  if (!status.ok()) return Fail(status);
  // It is kept until ten minutes after its end; nothing is known of what it took.
  if (result.outcome == store::SettleOutcome::kUnknown) return PlanAll();
  if (result.outcome == store::SettleOutcome::kAlreadySettled) {
    return Fail(absl::FailedPreconditionError(
        "reservation_id: it was committed before with another actual_amount; nothing was changed"));
  }
  settling_ = Settling::kSettled;
  counted_ = true;
  // The reservation may lack a counter: of a limit that is new, or of a descriptor that Reserve did
  // not have.
  PlanAll();
}

void DescriptorCall::EndReservation() {
  auto& calls = with_->counters.Local().calls;
  if (method_ == Method::kCommit) {
    (settling_ == Settling::kSettled ? calls.committed : calls.reported).Add(1);
    return;
  }
  if (OverallCode(statuses_) == Code::kOverLimit) calls.not_reserved.Add(1);
  if (acquisitions_.empty() || acquisitions_[0].outcome != store::Outcome::kGranted ||
      acquisitions_[0].receipt_id == 0) {
    return;
  }
  calls.reserved.Add(1);
  receipt_.clear();
  with_->service.signer.Append(acquisitions_[0].receipt_id, /*grant_time_ns=*/0,
                               acquisitions_[0].charges, &receipt_,
                               service::Receipt::Kind::kEstimate);
  absl::WebSafeBase64Escape(receipt_, &reservation_id_);
}

}  // namespace sluice::transport
