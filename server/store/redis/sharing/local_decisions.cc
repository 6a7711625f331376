// What a shard decides without Redis: limits with sharing: split, and those with
// on_store_failure: split while it is away.
#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "server/store/redis/redis_store.h"
#include "server/store/redis/shard/shard.h"
#include "server/store/redis/sharing/share.h"

namespace sluice::store::redis {
namespace {

// Which of an acquisition's charges are decided where.
struct Places {
  std::vector<size_t> split;
  std::vector<size_t> away;   // on_store_failure: split
  std::vector<size_t> other;  // of these and all others that are not split
};

Places PlacesOf(absl::Span<const Charge> charges) {
  Places places;
  for (size_t i = 0; i < charges.size(); ++i) {
    const Rule& rule = *charges[i].rule;
    if (rule.sharing == Sharing::kSplit) {
      places.split.push_back(i);
      continue;
    }
    if (rule.split_when_store_unavailable) places.away.push_back(i);
    places.other.push_back(i);
  }
  return places;
}

const ShareHistory& HistoryOf(const Nodes::View& view, const Rule& rule) {
  return rule.split_when_store_unavailable ? view.lenient : view.strict;
}

bool Holds(const Nodes::View& view, const Rule& rule, int64_t now_ns) {
  const int64_t until_ns =
      rule.split_when_store_unavailable ? view.lenient_until_ns : view.strict_until_ns;
  return MayGrant(HistoryOf(view, rule), until_ns, now_ns);
}

}  // namespace

// An acquisition of which a part was granted by this node already; the rest is Redis'.
class PartlyLocal final : private AcquireOperation {
 public:
  static void Start(Shard& shard, const Caller& caller, Places places, uint64_t receipt_id) {
    auto* const self = new PartlyLocal(shard, caller, std::move(places), receipt_id);
    shard.Begin(self, caller.acquisition->want_receipt ? receipt_id : 0);
  }

 private:
  PartlyLocal(Shard& shard, const Caller& caller, Places places, uint64_t receipt_id)
      : shard_(shard),
        caller_(caller),
        places_(std::move(places)),
        receipt_id_(receipt_id),
        results_(places_.other.size()) {
    for (const size_t place : places_.other) {
      charges_.push_back(caller.acquisition->charges[place]);
    }
    rest_.charges = charges_;
    rest_.results = results_.data();
    rest_.want_receipt = caller.acquisition->want_receipt;
    this->acquisitions = absl::MakeSpan(&rest_, 1);
    this->deadline_ns = caller.job->deadline_ns;
  }

  void Done() override {
    const std::unique_ptr<PartlyLocal> self(this);
    Acquisition& acquisition = *caller_.acquisition;
    for (size_t i = 0; i < results_.size(); ++i) {
      acquisition.results[places_.other[i]] = results_[i];
    }
    acquisition.retry_after_ns = rest_.retry_after_ns;
    acquisition.may_be_debited = rest_.may_be_debited;
    acquisition.now_ns = rest_.now_ns != 0 ? rest_.now_ns : acquisition.now_ns;
    acquisition.source = rest_.source == Source::kStore ? Source::kLocal : rest_.source;
    if (rest_.outcome != Outcome::kGranted) {
      shard_.GiveBackSplit(acquisition, places_.split, receipt_id_);
    } else if (acquisition.want_receipt) {
      acquisition.receipt_id = receipt_id_;
    }
    shard_.Answer(caller_, rest_.outcome);
  }

  Shard& shard_;
  Caller caller_;
  const Places places_;
  const uint64_t receipt_id_;
  std::vector<Charge> charges_;
  std::vector<ChargeResult> results_;
  Acquisition rest_;
};

algorithm::Moment Shard::LocalMoment() const {
  return {store_.clock_.NowNs(), store_.clock_.WallNs()};
}

bool Shard::StartLocally(Caller caller) {
  Acquisition& acquisition = *caller.acquisition;
  bool any = false;
  for (const Charge& charge : acquisition.charges) {
    any |= charge.rule->sharing == Sharing::kSplit || charge.rule->split_when_store_unavailable;
  }
  if (!any) return false;
  if (acquisition.max_wait_ns > 0) {
    Answer(caller, Outcome::kUnsupported);
    return true;
  }
  Places places = PlacesOf(acquisition.charges);
  const std::shared_ptr<const Nodes::View> view = store_.nodes_->view();
  const int64_t now_ns = store_.clock_.NowNs();
  acquisition.now_ns = store_.clock_.WallNs();
  const bool exact = places.away.empty() || now_ns < view->exact_until_ns;
  if (exact && places.split.empty()) return false;
  if (caller.job->deadline_ns < now_ns) {
    Answer(caller, Outcome::kDeadlineExceeded);
    return true;
  }
  const uint64_t receipt_id =
      places.split.empty() || (exact && places.other.empty() && !acquisition.want_receipt) ? 0
      : caller.job->receipt_id != 0 ? caller.job->receipt_id
                                    : NewReceipt();
  if (!places.split.empty()) {
    const Outcome outcome = DecideSplit(acquisition, places.split, *view, receipt_id);
    if (outcome != Outcome::kGranted || places.other.empty()) {
      if (outcome == Outcome::kGranted && acquisition.want_receipt) {
        acquisition.receipt_id = receipt_id;
      }
      Answer(caller, outcome);
      return true;
    }
  }
  if (exact) {
    PartlyLocal::Start(*this, caller, std::move(places), receipt_id);
    return true;
  }
  const Outcome outcome = DecideLocal(acquisition, places.other, *view);
  if (outcome != Outcome::kGranted && !places.split.empty()) {
    GiveBackSplit(acquisition, places.split, receipt_id);
  }
  Answer(caller, outcome);
  return true;
}

Outcome Shard::DecideSplit(Acquisition& acquisition, absl::Span<const size_t> places,
                           const Nodes::View& view, uint64_t receipt_id) {
  const algorithm::Moment at = LocalMoment();
  acquisition.source = Source::kLocal;
  acquisition.now_ns = at.wall_ns;
  std::vector<LocalBuckets::Part> parts;
  for (const size_t place : places) {
    const Charge& charge = acquisition.charges[place];
    const Rule& rule = *charge.rule;
    ChargeResult& result = acquisition.results[place];
    if (!Holds(view, rule, at.now_ns)) {
      if (!view.answered) return DecideUnavailable(acquisition);
      // It is new, and takes its share in a moment.
      result = {};
      result.level.capacity = algorithm::Capacity(rule.parameters);
      result.reason = rule.shadow ? Reason::kShadowDenied : Reason::kNotEnough;
      if (rule.shadow) continue;
      acquisition.retry_after_ns = store_.options_.node_ttl_ns;
      if (view.joins_at_ns != kNever && view.joins_at_ns > at.now_ns) {
        acquisition.retry_after_ns = view.joins_at_ns - at.now_ns;
      }
      result.level.reset_after_ns = result.level.next_permit_after_ns = acquisition.retry_after_ns;
      return Outcome::kDenied;
    }
    parts.push_back({EntryOf(rule), charge.key, charge.permits, &result, &HistoryOf(view, rule)});
  }
  return store_.split_.Acquire(parts, at, receipt_id, &acquisition.retry_after_ns);
}

Outcome Shard::DecideLocal(Acquisition& acquisition, absl::Span<const size_t> places,
                           const Nodes::View& view) {
  const algorithm::Moment at = LocalMoment();
  acquisition.source = Source::kStoreUnavailable;
  acquisition.now_ns = at.wall_ns;
  std::vector<LocalBuckets::Part> parts;
  Outcome outcome = Outcome::kGranted;
  for (const size_t place : places) {
    const Charge& charge = acquisition.charges[place];
    const Rule& rule = *charge.rule;
    ChargeResult& result = acquisition.results[place];
    result = {};
    result.level.capacity = algorithm::Capacity(rule.parameters);
    result.reason = Reason::kStoreUnavailable;
    if (rule.split_when_store_unavailable) {
      parts.push_back({EntryOf(rule), charge.key, charge.permits, &result, &view.local});
    } else if (!rule.shadow && !rule.allow_when_store_unavailable) {
      outcome = Outcome::kUnavailable;
    }
  }
  if (!MayGrant(view.local, view.lenient_until_ns, at.now_ns)) outcome = Outcome::kUnavailable;
  if (outcome == Outcome::kGranted) {
    outcome = store_.away_.Acquire(parts, at, /*receipt_id=*/0, &acquisition.retry_after_ns);
  }
  (outcome == Outcome::kGranted ? counters_.allowed_away : counters_.denied_away).Add();
  return outcome;
}

void Shard::GiveBackSplit(const Acquisition& acquisition, absl::Span<const size_t> places,
                          uint64_t receipt_id) {
  const algorithm::Moment at = LocalMoment();
  for (const size_t place : places) {
    const Charge& charge = acquisition.charges[place];
    store_.split_.Refund(*charge.rule, charge.key, receipt_id, at);
  }
}

bool Shard::TakeRelaxed(Caller& caller) {
  Acquisition& acquisition = *caller.acquisition;
  if (acquisition.charges.size() != 1 || acquisition.want_receipt || acquisition.max_wait_ns > 0) {
    return false;
  }
  const Charge& charge = acquisition.charges[0];
  const Rule& rule = *charge.rule;
  if (rule.sharing != Sharing::kRelaxed || router_->AllUnavailable()) return false;
  const int64_t now_ns = NowNs();
  if (caller.job->deadline_ns < now_ns) return false;
  const uint64_t most =
      MostUnreported(rule.parameters, store_.nodes_->count(), store_.shards_.size());
  RelaxedBuckets::Key* report = nullptr;
  BucketLevel level;
  if (!relaxed_.TryTake(rule, charge.key, charge.permits, most, now_ns, &level, &report)) {
    return false;
  }
  acquisition.source = Source::kLocal;
  acquisition.now_ns = store_.clock_.WallNs();
  acquisition.results[0] = {};
  acquisition.results[0].level = level;
  if (report != nullptr) ReportRelaxed(*report);
  Answer(caller, Outcome::kGranted);
  return true;
}

void Shard::ReportRelaxed(RelaxedBuckets::Key& key) {
  const uint64_t permits = RelaxedBuckets::BeginReport(key);
  Begin(ReportCall{key.rule, key.key, permits,
                   [this, permits, limit_id = key.rule->rule->limit_id,
                    name = key.key](const Reported& reported) {
                     const uint64_t over = reported.known ? reported.over : permits;
                     if (over > 0) store_.AddOvershoot(limit_id, over);
                     RelaxedBuckets::Key* const more =
                         relaxed_.Reported(limit_id, name, reported, NowNs());
                     if (more == nullptr) return;
                     if (reported.known) return ReportRelaxed(*more);
                     // Away: what was granted since is not sent either.
                     const uint64_t rest = RelaxedBuckets::BeginReport(*more);
                     store_.AddOvershoot(limit_id, rest);
                     relaxed_.Reported(limit_id, name, {}, NowNs());
                   }});
}

bool Shard::QueryLocally(QueryItem& item) {
  const Rule& rule = *item.rule;
  if (rule.sharing != Sharing::kSplit && !rule.split_when_store_unavailable) return false;
  const std::shared_ptr<const Nodes::View> view = store_.nodes_->view();
  const algorithm::Moment at = LocalMoment();
  if (rule.sharing == Sharing::kSplit) {
    item.source = Source::kLocal;
    if (Holds(*view, rule, at.now_ns)) {
      item.exists =
          store_.split_.Query(EntryOf(rule), item.key, HistoryOf(*view, rule), at, &item.level);
    } else if (view->answered) {
      item.level.capacity = algorithm::Capacity(rule.parameters);
      item.level.next_permit_after_ns = item.level.reset_after_ns = store_.options_.node_ttl_ns;
    } else {
      item.unavailable = true;
      item.source = Source::kStoreUnavailable;
    }
    return true;
  }
  if (at.now_ns < view->exact_until_ns) return false;
  item.source = Source::kStoreUnavailable;
  item.unavailable = !MayGrant(view->local, view->lenient_until_ns, at.now_ns);
  if (!item.unavailable) {
    item.exists = store_.away_.Query(EntryOf(rule), item.key, view->local, at, &item.level);
  }
  return true;
}

namespace {

// The rest of a refund, of buckets in Redis.
class RestOfRefund final : public RefundOperation {
 public:
  RestOfRefund(RefundOperation* whole, std::vector<size_t> places, bool given)
      : whole_(whole), places_(std::move(places)), given_(given), permits_(places_.size()) {
    for (const size_t place : places_) charges_.push_back(whole->charges[place]);
    receipt_id = whole->receipt_id;
    grant_time_ns = whole->grant_time_ns;
    charges = charges_;
    refunded = permits_.data();
    deadline_ns = whole->deadline_ns;
  }
  void Done() override {
    const std::unique_ptr<RestOfRefund> self(this);
    for (size_t i = 0; i < places_.size(); ++i) whole_->refunded[places_[i]] = permits_[i];
    whole_->outcome = given_ ? RefundOutcome::kRefunded : outcome;
    whole_->Done();
  }

 private:
  RefundOperation* const whole_;
  const std::vector<size_t> places_;
  const bool given_;
  std::vector<Charge> charges_;
  std::vector<uint64_t> permits_;
};

}  // namespace

bool Shard::RefundLocally(RefundOperation* operation) {
  Places places = PlacesOf(operation->charges);
  if (places.split.empty()) return false;
  const algorithm::Moment at = LocalMoment();
  bool given = false;
  for (const size_t place : places.split) {
    const Charge& charge = operation->charges[place];
    const auto permits = store_.split_.Refund(*charge.rule, charge.key, operation->receipt_id, at);
    if (!permits.has_value()) continue;
    given = true;
    operation->refunded[place] = *permits;
  }
  if (!places.other.empty()) {
    Begin(
        static_cast<RefundOperation*>(new RestOfRefund(operation, std::move(places.other), given)));
    return true;
  }
  if (given) {
    store_.used_receipts_.Add(operation->receipt_id);
    operation->outcome = RefundOutcome::kRefunded;
  } else {
    operation->outcome = store_.used_receipts_.Contains(operation->receipt_id)
                             ? RefundOutcome::kAlreadyRefunded
                             : RefundOutcome::kExpired;
  }
  operation->Done();
  return true;
}

}  // namespace sluice::store::redis
