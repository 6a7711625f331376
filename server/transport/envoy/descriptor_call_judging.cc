// What the store's answers mean for the descriptors: see DescriptorCall.
#include <algorithm>
#include <cstring>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/bounds.h"
#include "common/errors.h"
#include "common/strings.h"
#include "server/service/decision_counter.h"
#include "server/service/key_usage.h"
#include "server/transport/envoy/descriptor_call.h"

namespace sluice::transport {
namespace {

namespace errors = common::errors;

// With more descriptors, a check does not look for later ones on its bucket.
constexpr size_t kMaxCompared = 64;

constexpr store::Reason kFits = store::Reason::kNone;

// Whether the call fails, since the limit's store is unavailable. Else the bucket counts as empty.
bool Fails(const store::QueryItem& item) {
  return item.unavailable && !item.rule->shadow && !item.rule->allow_when_store_unavailable;
}

// Whether a charge is within its limit as far as is known.
bool Fits(const store::ChargeResult& result) {
  return result.reason == kFits || result.reason == store::Reason::kStoreUnavailable;
}

}  // namespace

void DescriptorCall::Probed() {
  if (probes_.work > 0) slice_cost_ += probes_.work_in_decisions();
  if (probes_.undecided > 0) return EndSlice(Left::kProbes);
  const auto would_be_over = [this](size_t i) {
    const uint64_t counted = CountedHits(probe_items_[i].level, 0);
    const uint64_t limit = statuses_[probed_[i]].requests_per_unit;
    return counted > limit || items_[probed_[i]].hits > limit - counted;
  };
  bool any_over = false;
  for (size_t i = 0; i < probed_.size(); ++i) {
    if (Fails(probe_items_[i])) {
      return Fail(StoreError(/*may_be_debited=*/false));
    }
    any_over |= would_be_over(i);
  }
  for (size_t i = 0; i < probed_.size(); ++i) {
    const uint32_t d = probed_[i];
    if (any_over && !would_be_over(i)) items_[d].hits = 0;
    if (items_[d].hits == 0) {
      AddCheck(d, *probe_items_[i].rule);
    } else {
      items_[d].way = Way::kDebit;
      AddDebit(d, *probe_items_[i].rule);
    }
  }
  Send();
}

void DescriptorCall::Debited() {
  if (debits_.work_in_decisions() > slice_cost_) slice_cost_ = debits_.work_in_decisions();
  const size_t begin = std::exchange(debited_, acquisitions_.size() - debits_.undecided);
  absl::Status status = JudgeDebits(begin, debited_);
  if (!status.ok()) return Fail(std::move(status));
  if (debits_.undecided > 0) return EndSlice(Left::kDebits);
  if (todo_.empty()) return SendChecks();
  first_attempt_ = false;
  Decide();
}

absl::Status DescriptorCall::JudgeDebits(size_t begin, size_t end) {
  absl::Status status;
  for (size_t i = begin; i < end; ++i) {
    counted_ |= acquisitions_[i].outcome == store::Outcome::kGranted;
  }
  for (; judged_ < places_.size() && places_[judged_].acquisition < end; ++judged_) {
    const ChargePlace& place = places_[judged_];
    store::Acquisition& decided = acquisitions_[place.acquisition];
    if (decided.outcome == store::Outcome::kTooManyNewBuckets) {
      DenyNewKey(access::ClientBound::kNewKeysPerMinute, &decided);
    } else if (decided.outcome == store::Outcome::kTableShareUsedUp) {
      DenyNewKey(access::ClientBound::kTableShare, &decided);
    }
    if (decided.outcome == store::Outcome::kStaleRule && tables_.size() < service::kMaxAttempts) {
      todo_.push_back(place.descriptor);
    } else if (absl::Status error = ErrorOf(decided); !error.ok()) {
      status = std::move(error);
    } else {
      JudgeDebit(place);
    }
  }
  CountDecisions(absl::MakeConstSpan(acquisitions_).subspan(begin, end - begin));
  return status;
}

// Other descriptors of the request may be counted already, so it is no error of the call.
void DescriptorCall::DenyNewKey(access::ClientBound bound, store::Acquisition* refused) const {
  caller_->use()->Refuse(bound, 1, with_->service.clock.NowNs()).IgnoreError();
  refused->outcome = store::Outcome::kDenied;
  refused->source = store::Source::kOverflow;
  refused->retry_after_ns = store::kOverflowRetryNs;
  for (size_t c = 0; c < refused->charges.size(); ++c) {
    refused->results[c] = {.level = {}, .reason = store::Reason::kOverflow};
  }
}

absl::Status DescriptorCall::ErrorOf(const store::Acquisition& decided) const {
  switch (decided.outcome) {
    case store::Outcome::kGranted:
    case store::Outcome::kDenied:
      return absl::OkStatus();
    case store::Outcome::kStaleRule:
      return UnlessCounted(errors::LimitsKeepChanging(), "the limits changed again and again");
    case store::Outcome::kDeadlineExceeded:
      return UnlessCounted(errors::PastDeadline(), "the deadline passed");
    case store::Outcome::kNoRoomForEstimate:
      return absl::UnavailableError(
          "there is no room for another reservation in one of the limits; nothing was taken");
    case store::Outcome::kSeveralSlots:
      return absl::UnimplementedError(
          "the counters of the descriptors are in different slots of the Redis Cluster, and a "
          "reservation cannot span slots; use a Redis without Cluster");
    default:
      return StoreError(decided.may_be_debited);
  }
}

absl::Status DescriptorCall::UnlessCounted(absl::Status nothing, std::string_view what) const {
  if (!counted_) return nothing;
  return absl::Status(nothing.code(), absl::StrCat("a part of the call was counted before ",
                                                   common::ToAbsl(what), "; the rest was not"));
}

absl::Status DescriptorCall::StoreError(bool may_be_debited) const {
  const absl::Status error = may_be_debited ? errors::StoreAnswerLost()
                                            : UnlessCounted(errors::StoreUnavailable(),
                                                            "the shared store became unavailable");
  // A Reserve may be tried again: at worst the first one stays reserved. So may a Commit that
  // counted nothing.
  const bool again = method_ == Method::kReserve || (method_ == Method::kCommit && !may_be_debited);
  if (again) return absl::UnavailableError(error.message());
  // As envoyproxy/ratelimit answers an error of Redis.
  return absl::UnknownError(error.message());
}

void DescriptorCall::JudgeDebit(const ChargePlace& place) {
  const size_t d = place.descriptor;
  const Item& item = items_[d];
  store::Acquisition& decided = acquisitions_[place.acquisition];
  store::ChargeResult& result = results_[place.charge];
  const bool unknown = decided.source == store::Source::kStoreUnavailable;
  uint64_t counted = unknown ? 0 : CountedHits(result.level, result.forgiven);
  if (unknown && item.debit == store::Debit::kForced) counted = item.hits;
  bool over = false;
  switch (item.debit) {
    case store::Debit::kIfAllowed:
      over = !Fits(result) || (decided.outcome == store::Outcome::kDenied && !item.joint);
      break;
    case store::Debit::kForced:
      over = counted > statuses_[d].requests_per_unit || result.reason == store::Reason::kOverflow;
      break;
    case store::Debit::kGiveBack:
      break;
  }
  SetStatus(d, over, counted, result.level);
  if (over && item.window_ns == 0 && decided.retry_after_ns != algorithm::kNeverNs) {
    statuses_[d].reset_s = ResetSeconds(decided.retry_after_ns, 0, 0);
  }
  if (item.debit != store::Debit::kGiveBack) CountHits(d, counted);
  if (item.debit != store::Debit::kForced || unknown) return;
  // To the counters of all limits, a forced debit that does not fit is a denial.
  const bool shadow = statuses_[d].shadow_mode;
  result.reason = !over ? kFits : shadow ? store::Reason::kShadowDenied : store::Reason::kNotEnough;
  if (over && !shadow) decided.outcome = store::Outcome::kDenied;
}

void DescriptorCall::Checked() {
  if (checks_.work > 0) slice_cost_ += checks_.work_in_decisions();
  if (checks_.undecided > 0) return EndSlice(Left::kChecks);
  absl::Status status;
  for (size_t i = 0; i < queries_.size(); ++i) {
    if (Fails(queries_[i])) {
      status = StoreError(/*may_be_debited=*/false);
    } else {
      JudgeCheck(queried_[i], queries_[i]);
    }
  }
  if (!status.ok()) return Fail(std::move(status));
  Finish();
}

void DescriptorCall::JudgeCheck(size_t d, const store::QueryItem& found) {
  const Item& item = items_[d];
  uint64_t counted = CountedHits(found.level, 0);
  counted -= std::min(counted, CountedLater(d));
  // Negative hits that cannot be given back are no hits.
  const bool negative = request_.descriptors[d].negative_hits;
  const uint64_t hits = negative ? 0 : item.hits;
  const uint64_t limit = statuses_[d].requests_per_unit;
  const bool over = !negative && (counted > limit || hits > limit - counted);
  SetStatus(d, over, counted, found.level);
  if (method_ == Method::kShouldRateLimit && hits > 0) CountHits(d, counted);
}

uint64_t DescriptorCall::CountedLater(size_t d) const {
  if (items_.size() > kMaxCompared || places_.empty()) return 0;
  uint64_t later = 0;
  for (size_t other = d + 1; other < items_.size(); ++other) {
    const Item& item = items_[other];
    if (item.limit != items_[d].limit || item.key->view() != items_[d].key->view() ||
        item.way != Way::kDecided || item.debit != store::Debit::kForced || item.hits == 0) {
      continue;
    }
    later += std::min(item.hits, UINT64_MAX - later);
  }
  return later;
}

void DescriptorCall::SetStatus(size_t d, bool over, uint64_t counted,
                               const store::BucketLevel& level) {
  Item& item = items_[d];
  DescriptorStatus& status = statuses_[d];
  item.way = Way::kDecided;
  status.over = over;
  const uint64_t limit = status.requests_per_unit;
  status.remaining = over ? 0 : static_cast<uint32_t>(limit - std::min(limit, counted));
  const int64_t wall_ns = level.reset_after_ns > 0 ? 0 : with_->service.clock.WallNs();
  status.reset_s = ResetSeconds(level.reset_after_ns, item.window_ns, wall_ns);
}

// ---- The counters

void DescriptorCall::CountHits(size_t d, uint64_t counted) {
  const Item& item = items_[d];
  const DescriptorStatus& status = statuses_[d];
  envoy::HitCounters::Shard& shard = with_->counters.Local();
  // A requested limit has no name in the configuration.
  if (item.match == nullptr) return;
  envoy::HitCounts<common::OwnedCounter>* counts =
      item.match->metric_has_values ? DetailedCounts(d, shard) : nullptr;
  if (counts == nullptr) counts = &shard.OfLimit(item.limit->limit_id());
  counts->total_hits.Add(item.hits);
  // What was not counted is over the limit as a whole.
  const uint64_t limit = status.requests_per_unit;
  if (status.over && counted <= limit)
    counted = limit + item.hits < limit ? UINT64_MAX : limit + item.hits;
  const HitShares shares =
      ShareHits(item.hits, counted, status.requests_per_unit, with_->options.near_ratio);
  if (shares.over_limit != 0) counts->over_limit.Add(shares.over_limit);
  if (shares.near_limit != 0) counts->near_limit.Add(shares.near_limit);
  if (shares.within_limit != 0) counts->within_limit.Add(shares.within_limit);
  if (status.over && status.shadow_mode) counts->shadow_mode.Add(item.hits);
}

envoy::HitCounts<common::OwnedCounter>* DescriptorCall::DetailedCounts(
    size_t d, envoy::HitCounters::Shard& shard) const {
  const Item& item = items_[d];
  // A name that long would not be kept, and looking for it takes time.
  size_t bytes = 0;
  for (const envoy::Entry& entry : request_.EntriesOf(request_.descriptors[d])) {
    bytes += entry.value.size();
  }
  if (bytes > common::bounds::kMaxDescriptorBytes) return nullptr;
  char identity[sizeof(uint32_t) + common::bounds::kMaxKeyBytes];
  const uint32_t id = item.limit->limit_id();
  const std::string_view key = item.key->view();
  std::memcpy(identity, &id, sizeof(id));
  std::memcpy(identity + sizeof(id), key.data(), key.size());
  return shard.Detailed({identity, sizeof(id) + key.size()}, [&] {
    return matcher_->MetricName(request_.domain, request_.EntriesOf(request_.descriptors[d]));
  });
}

void DescriptorCall::CountDecisions(absl::Span<const store::Acquisition> slice) {
  common::Metrics::Shard& shard = with_->service.metrics.Local();
  with_->service.usage.Record([&](auto usage) {
    service::DecisionCounter counter(shard, usage);
    for (const store::Acquisition& decided : slice) {
      if (decided.outcome == store::Outcome::kUnavailable) {
        service::CountUnavailable(shard, decided);
      } else if (decided.debit != store::Debit::kGiveBack && ErrorOf(decided).ok()) {
        counter.Count(decided);
      }
    }
  });
}

}  // namespace sluice::transport
