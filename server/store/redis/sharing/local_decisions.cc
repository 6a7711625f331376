#include "server/store/redis/sharing/local_decisions.h"

#include <memory>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "server/store/redis/commands/operations.h"

namespace sluice::store::redis {
namespace {

// The places of an acquisition's charges, by where they are decided.
struct Places {
  std::vector<size_t> split;
  std::vector<size_t> other;
  bool if_unavailable = false;  // one of the others is on_store_failure: split
};

Places PlacesOf(absl::Span<const Charge> charges) {
  Places places;
  for (size_t i = 0; i < charges.size(); ++i) {
    const Rule& rule = *charges[i].rule;
    const bool split = rule.sharing == Sharing::kSplit;
    (split ? places.split : places.other).push_back(i);
    places.if_unavailable |= !split && rule.split_when_store_unavailable;
  }
  return places;
}

const ShareHistory& HistoryOf(const NodeRegistry::View& view, const Rule& rule) {
  return rule.split_when_store_unavailable ? view.membership.lenient() : view.membership.strict();
}

bool Holds(const NodeRegistry::View& view, const Rule& rule, int64_t now_ns) {
  const int64_t until_ns = rule.split_when_store_unavailable ? view.membership.lenient_until_ns()
                                                             : view.membership.strict_until_ns();
  return MayGrant(HistoryOf(view, rule), until_ns, now_ns);
}

}  // namespace

// An acquisition whose split charges this node has granted; Redis decides the rest.
class LocalDecisions::PartlyLocal final : private AcquireOperation {
 public:
  static void Start(LocalDecisions& local, const Caller& caller, Places places,
                    uint64_t receipt_id) {
    auto* const self = new PartlyLocal(local, caller, std::move(places), receipt_id);
    local.remote_.Begin(self, caller.acquisition->want_receipt ? receipt_id : 0);
  }

 private:
  PartlyLocal(LocalDecisions& local, const Caller& caller, Places places, uint64_t receipt_id)
      : local_(local),
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
    this->deadline_ns = caller.pending->deadline_ns;
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
    const bool granted = rest_.outcome == Outcome::kGranted;
    if (granted && acquisition.want_receipt) acquisition.receipt_id = receipt_id_;
    local_.EndSplit(acquisition, places_.split, receipt_id_, granted);
    local_.context_.acquires().Answer(caller_, rest_.outcome);
  }

  LocalDecisions& local_;
  Caller caller_;
  const Places places_;
  const uint64_t receipt_id_;
  std::vector<Charge> charges_;
  std::vector<ChargeResult> results_;
  Acquisition rest_;
};

algorithm::Moment LocalDecisions::Now() const {
  return {context_.clock().NowNs(), context_.clock().WallNs()};
}

bool LocalDecisions::NeedsNoRedis(const AcquireOperation& operation) const {
  const auto is_split = [](const Charge& charge) {
    return charge.rule->sharing == Sharing::kSplit;
  };
  return state_.nodes->started() &&
         absl::c_all_of(operation.acquisitions, [&](const Acquisition& acquisition) {
           return !acquisition.charges.empty() && absl::c_all_of(acquisition.charges, is_split);
         });
}

bool LocalDecisions::Acquire(Caller caller) {
  if (!state_.nodes->started()) return false;
  return AcquireByShare(caller) || AcquireRelaxed(caller);
}

bool LocalDecisions::AcquireByShare(Caller& caller) {
  PendingAcquires& acquires = context_.acquires();
  Acquisition& acquisition = *caller.acquisition;
  bool any = false;
  for (const Charge& charge : acquisition.charges) {
    any |= charge.rule->sharing == Sharing::kSplit || charge.rule->split_when_store_unavailable;
  }
  if (!any) return false;
  Places places = PlacesOf(acquisition.charges);
  const bool forced = acquisition.debit != Debit::kIfAllowed;
  if (acquisition.max_wait_ns > 0 || (forced && !places.split.empty())) {
    acquires.Answer(caller, Outcome::kUnsupported);
    return true;
  }
  // A share has no more permits to owe than its own.
  if (forced) return false;
  const std::shared_ptr<const NodeRegistry::View> view = state_.nodes->view();
  const int64_t now_ns = context_.clock().NowNs();
  acquisition.now_ns = context_.clock().WallNs();
  const bool exact = !places.if_unavailable || now_ns < view->membership.exact_until_ns();
  if (exact && places.split.empty()) return false;
  if (caller.pending->deadline_ns < now_ns) {
    acquires.Answer(caller, Outcome::kDeadlineExceeded);
    return true;
  }
  const uint64_t receipt_id =
      places.split.empty() || (exact && places.other.empty() && !acquisition.want_receipt) ? 0
      : caller.pending->receipt_id != 0 ? caller.pending->receipt_id
                                        : context_.ids().NewReceipt();
  if (!places.split.empty()) {
    // Until the others are decided it may have to be given back. Such acquisitions are bounded, as
    // callers that wait for Redis are.
    const auto kept = places.other.empty() ? LocalBuckets::Kept::kNo : LocalBuckets::Kept::kYes;
    const Outcome outcome = DecideSplit(acquisition, places.split, *view, receipt_id, kept);
    if (outcome != Outcome::kGranted || places.other.empty()) {
      if (outcome == Outcome::kGranted && acquisition.want_receipt) {
        acquisition.receipt_id = receipt_id;
      }
      acquires.Answer(caller, outcome);
      return true;
    }
  }
  if (exact) {
    PartlyLocal::Start(*this, caller, std::move(places), receipt_id);
    return true;
  }
  const Outcome outcome = DecideUnavailable(acquisition, places.other, *view);
  EndSplit(acquisition, places.split, receipt_id, outcome == Outcome::kGranted);
  acquires.Answer(caller, outcome);
  return true;
}

Outcome LocalDecisions::DecideSplit(Acquisition& acquisition, absl::Span<const size_t> places,
                                    const NodeRegistry::View& view, uint64_t receipt_id,
                                    LocalBuckets::Kept kept) {
  const algorithm::Moment at = Now();
  acquisition.source = Source::kLocal;
  acquisition.now_ns = at.wall_ns;
  std::vector<LocalBuckets::Part> parts;
  for (const size_t place : places) {
    const Charge& charge = acquisition.charges[place];
    const Rule& rule = *charge.rule;
    ChargeResult& result = acquisition.results[place];
    if (!Holds(view, rule, at.now_ns)) {
      if (!view.answered) return context_.acquires().DecideUnavailable(acquisition);
      // This node is new, and takes its share in a moment.
      result = {};
      result.level.capacity = algorithm::Capacity(rule.parameters);
      result.reason = rule.shadow ? Reason::kShadowDenied : Reason::kNotEnough;
      if (rule.shadow) continue;
      acquisition.retry_after_ns = state_.node_ttl_ns;
      const int64_t joins_at_ns = view.membership.joins_at_ns();
      if (joins_at_ns != kNever && joins_at_ns > at.now_ns) {
        acquisition.retry_after_ns = joins_at_ns - at.now_ns;
      }
      result.level.reset_after_ns = result.level.next_permit_after_ns = acquisition.retry_after_ns;
      return Outcome::kDenied;
    }
    parts.push_back(
        {context_.EntryOf(rule), charge.key, charge.permits, &result, &HistoryOf(view, rule)});
  }
  return state_.split.Acquire(parts, at, receipt_id, &acquisition.retry_after_ns, kept);
}

Outcome LocalDecisions::DecideUnavailable(Acquisition& acquisition, absl::Span<const size_t> places,
                                          const NodeRegistry::View& view) {
  const algorithm::Moment at = Now();
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
      parts.push_back({context_.EntryOf(rule), charge.key, charge.permits, &result, &view.local});
    } else if (!rule.shadow && !rule.allow_when_store_unavailable) {
      outcome = Outcome::kUnavailable;
    }
  }
  if (!MayGrant(view.local, view.membership.lenient_until_ns(), at.now_ns))
    outcome = Outcome::kUnavailable;
  if (outcome == Outcome::kGranted) {
    outcome = state_.unavailable.Acquire(parts, at, /*receipt_id=*/0, &acquisition.retry_after_ns);
  }
  (outcome == Outcome::kGranted ? context_.counters().allowed_unavailable
                                : context_.counters().denied_unavailable)
      .Add();
  return outcome;
}

void LocalDecisions::EndSplit(const Acquisition& acquisition, absl::Span<const size_t> places,
                              uint64_t receipt_id, bool granted) {
  const algorithm::Moment at = Now();
  for (const size_t place : places) {
    const Charge& charge = acquisition.charges[place];
    if (!granted) state_.split.Refund(*charge.rule, charge.key, receipt_id, at);
    if (granted && acquisition.receipt_id != 0) {
      state_.split.KeepReceiptNoLonger(*charge.rule, charge.key, receipt_id);
    } else {
      state_.split.CloseReceipt(*charge.rule, charge.key, receipt_id);
    }
  }
}

bool LocalDecisions::AcquireRelaxed(Caller& caller) {
  Acquisition& acquisition = *caller.acquisition;
  if (acquisition.charges.size() != 1 || acquisition.want_receipt || acquisition.max_wait_ns > 0 ||
      acquisition.debit != Debit::kIfAllowed) {
    return false;
  }
  const Charge& charge = acquisition.charges[0];
  const Rule& rule = *charge.rule;
  if (rule.sharing != Sharing::kRelaxed || context_.router().AllUnavailable()) return false;
  const int64_t now_ns = context_.clock().NowNs();
  if (caller.pending->deadline_ns < now_ns) return false;
  const uint64_t most = MaxUndebited(rule.parameters, state_.nodes->count(), state_.loops);
  RelaxedBuckets::Key* debit = nullptr;
  BucketLevel level;
  if (!relaxed_.TryTake(rule, charge.key, charge.permits, most, now_ns, &level, &debit)) {
    return false;
  }
  acquisition.source = Source::kLocal;
  acquisition.now_ns = context_.clock().WallNs();
  acquisition.results[0] = {};
  acquisition.results[0].level = level;
  if (debit != nullptr) Debit(*debit);
  context_.acquires().Answer(caller, Outcome::kGranted);
  return true;
}

void LocalDecisions::LearnRelaxed(const Acquisition& acquisition) {
  const Charge& charge = acquisition.charges[0];
  relaxed_.Learn(context_.EntryOf(*charge.rule), charge.key, acquisition.results[0].level,
                 context_.clock().NowNs());
}

void LocalDecisions::Debit(RelaxedBuckets::Key& key) {
  const uint64_t permits = RelaxedBuckets::BeginDebit(key);
  StartDebit(context_, key.rule, key.key, permits,
             [this, permits, limit_id = key.rule->rule->limit_id,
              name = key.key](const DebitResult& result) {
               const uint64_t over = result.known ? result.over : permits;
               if (over > 0) state_.overshoot.Add(limit_id, over);
               const int64_t now_ns = context_.clock().NowNs();
               RelaxedBuckets::Key* const more = relaxed_.Debited(limit_id, name, result, now_ns);
               if (more == nullptr) return;
               if (result.known) return Debit(*more);
               // Redis is unavailable: what was granted since is not sent either.
               state_.overshoot.Add(limit_id, RelaxedBuckets::BeginDebit(*more));
               relaxed_.Debited(limit_id, name, {}, now_ns);
             });
}

bool LocalDecisions::Query(QueryItem& item) {
  const Rule& rule = *item.rule;
  if (rule.sharing != Sharing::kSplit && !rule.split_when_store_unavailable) return false;
  const std::shared_ptr<const NodeRegistry::View> view = state_.nodes->view();
  const algorithm::Moment at = Now();
  if (rule.sharing == Sharing::kSplit) {
    item.source = Source::kLocal;
    if (Holds(*view, rule, at.now_ns)) {
      item.exists = state_.split.Query(context_.EntryOf(rule), item.key, HistoryOf(*view, rule), at,
                                       &item.level, &item.refundable);
    } else if (view->answered) {
      item.level.capacity = algorithm::Capacity(rule.parameters);
      item.level.next_permit_after_ns = item.level.reset_after_ns = state_.node_ttl_ns;
    } else {
      item.unavailable = true;
      item.source = Source::kStoreUnavailable;
    }
    return true;
  }
  if (at.now_ns < view->membership.exact_until_ns()) return false;
  item.source = Source::kStoreUnavailable;
  item.unavailable = !MayGrant(view->local, view->membership.lenient_until_ns(), at.now_ns);
  if (!item.unavailable) {
    item.exists = state_.unavailable.Query(context_.EntryOf(rule), item.key, view->local, at,
                                           &item.level, &item.refundable);
  }
  return true;
}

bool LocalDecisions::Refund(RefundOperation* operation) {
  Places places = PlacesOf(operation->charges);
  if (places.split.empty()) return false;
  const algorithm::Moment at = Now();
  bool given = false;
  for (const size_t place : places.split) {
    const Charge& charge = operation->charges[place];
    const auto permits = state_.split.Refund(*charge.rule, charge.key, operation->receipt_id, at);
    if (!permits.has_value()) continue;
    given = true;
    operation->refunded[place] = *permits;
  }
  if (!places.other.empty()) {
    // Redis refunds the rest. A caller that repeats it gets what is left, and nothing twice.
    remote_.Begin(new RefundPart(
        *operation, std::move(places.other), [operation, given](RefundOutcome outcome) {
          const bool to_repeat =
              outcome == RefundOutcome::kUnavailable || outcome == RefundOutcome::kStaleRule;
          operation->outcome = given && !to_repeat ? RefundOutcome::kRefunded : outcome;
          operation->Done();
        }));
    return true;
  }
  if (given) {
    context_.used_receipts().Add(operation->receipt_id);
    operation->outcome = RefundOutcome::kRefunded;
  } else {
    operation->outcome = context_.used_receipts().Contains(operation->receipt_id)
                             ? RefundOutcome::kAlreadyRefunded
                             : RefundOutcome::kExpired;
  }
  operation->Done();
  return true;
}

}  // namespace sluice::store::redis
