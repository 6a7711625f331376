#include "server/store/redis/shard/cross_slot.h"

#include <algorithm>
#include <bit>
#include <iterator>
#include <memory>
#include <tuple>
#include <utility>

#include "server/store/decide.h"
#include "server/store/redis/commands/operations.h"
#include "server/store/redis/shard/receipt_closer.h"
#include "server/store/redis/shard/shard.h"
#include "server/store/settle.h"

namespace sluice::store::redis {
namespace {

// Gives back what a group took. No caller waits for it. If it is lost, the permits stay spent.
class GiveBack final : private RefundOperation {
 public:
  static void Start(Shard& shard, const ChargeGroup& group, uint64_t receipt) {
    StartRefund(shard, new GiveBack(group.buckets.size(), receipt), group.buckets,
                /*remembered=*/false);
  }

 private:
  GiveBack(size_t buckets, uint64_t receipt) : permits_(buckets) {
    receipt_id = receipt;
    refunded = permits_.data();
  }
  void Done() override { delete this; }

  std::vector<uint64_t> permits_;
};

class CrossSlotAcquire final : private AcquireOperation {
 public:
  CrossSlotAcquire(Shard& shard, std::vector<ChargeGroup> groups, const Caller& caller)
      : shard_(shard),
        caller_(caller),
        receipt_id_(shard.ids().NewReceipt()),
        want_receipt_(caller.acquisition->want_receipt) {
    for (ChargeGroup& group : groups) {
      Part& part = parts_.emplace_back();
      part.group = std::move(group);
      for (const size_t place : part.group.places) {
        part.charges.push_back(caller.acquisition->charges[place]);
      }
      part.results.resize(part.charges.size());
    }
    if (caller.acquisition->charged_by != nullptr &&
        caller.acquisition->debit != Debit::kIfAllowed) {
      PrepareForced();
    }
    deadline_ns = caller.pending->deadline_ns;
  }

  void TakeNext() {
    Part& part = parts_[at_];
    acquisition_ = Acquisition();
    acquisition_.charges = part.charges;
    acquisition_.results = part.results.data();
    // The last one is never given back.
    acquisition_.debit = caller_.acquisition->debit;
    acquisition_.behind_others = caller_.acquisition->behind_others;
    acquisition_.want_receipt =
        want_receipt_ || (at_ + 1 < parts_.size() && acquisition_.debit != Debit::kGiveBack);
    if (!part.charged_by.empty()) {
      acquisition_.charged_by = part.charged_by.data();
      acquisition_.own = part.own.data();
      LowerShares(part);
    }
    acquisitions = absl::MakeSpan(&acquisition_, 1);
    shard_.Begin(this, receipt_id_);
  }

 private:
  struct Part {
    ChargeGroup group;
    std::vector<Charge> charges;
    std::vector<ChargeResult> results;
    // Acquisition::charged_by, by the part's own charges; empty: it has none.
    std::vector<uint16_t> charged_by;
    std::vector<uint64_t> own;         // Acquisition::own, in the same way
    std::vector<QueriedBucket> found;  // once it is denied elsewhere; empty: not known
    int64_t now_ns = 0;
    bool receipt = false;  // open there
  };

  // A forced acquisition, whose charges depend on each other.
  void PrepareForced() {
    const uint16_t* const charged_by = caller_.acquisition->charged_by;
    const auto most = [&](const Part& part) {
      int most = 0;
      for (const size_t p : part.group.places) most = std::max(most, std::popcount(charged_by[p]));
      return most;
    };
    // A charge comes behind those that charge it, as far as slots allow.
    std::stable_sort(parts_.begin(), parts_.end(),
                     [&](const Part& a, const Part& b) { return most(a) < most(b); });
    const ForcedShares shares(*caller_.acquisition);
    for (Part& part : parts_) {
      const std::vector<size_t>& places = part.group.places;
      for (const size_t place : places) part.own.push_back(shares.own(place));
      part.charged_by.resize(places.size());
      for (size_t i = 0; i < places.size(); ++i) {
        for (size_t by = 0; by < places.size(); ++by) {
          part.charged_by[i] |=
              static_cast<uint16_t>((charged_by[places[i]] >> places[by] & 1) << by);
        }
      }
    }
  }

  // As ForcedShares::Of, for what charges of earlier parts counted.
  void LowerShares(Part& part) {
    for (size_t i = 0; i < part.charges.size(); ++i) {
      const uint16_t by = caller_.acquisition->charged_by[part.group.places[i]];
      for (size_t p = 0; p < at_; ++p) {
        for (size_t c = 0; c < parts_[p].charges.size(); ++c) {
          if ((by >> parts_[p].group.places[c] & 1) == 0) continue;
          const uint64_t counted = parts_[p].charges[c].permits - parts_[p].results[c].forgiven;
          const uint64_t own = parts_[p].own[c];
          part.charges[i].permits -=
              std::min(part.charges[i].permits, own - std::min(own, counted));
        }
      }
    }
  }

  // The part at_ was decided.
  void Done() override {
    Part& part = parts_[at_];
    part.now_ns = acquisition_.now_ns;
    if (acquisition_.source != Source::kStore) source_ = acquisition_.source;
    switch (acquisition_.outcome) {
      case Outcome::kGranted:
        part.receipt = acquisition_.receipt_id != 0;
        if (++at_ < parts_.size()) return TakeNext();
        return Grant();
      case Outcome::kDenied:
        return Deny();
      default:
        GiveBackTaken();
        caller_.acquisition->now_ns = acquisition_.now_ns;
        caller_.acquisition->may_be_debited = acquisition_.may_be_debited || AnyTaken();
        return Finish(acquisition_.outcome);
    }
  }

  void Grant() {
    Acquisition& acquisition = *caller_.acquisition;
    for (const Part& part : parts_) {
      if (part.now_ns != 0) acquisition.now_ns = part.now_ns;
    }
    for (Part& part : parts_) {
      for (ChargeResult& result : part.results) {
        if (part.now_ns != 0) result.debited_before_ns = acquisition.now_ns - part.now_ns;
      }
      if (!part.receipt) continue;
      if (want_receipt_) {
        acquisition.receipt_id = receipt_id_;
      } else {
        shard_.closer().Close(part.group.buckets, receipt_id_);
      }
    }
    Finish(Outcome::kGranted);
  }

  bool AnyTaken() const {
    return std::any_of(parts_.begin(), parts_.end(), [](const Part& part) { return part.receipt; });
  }

  // Does not wait for the refunds.
  void GiveBackTaken() {
    for (const Part& part : parts_) {
      if (part.receipt) GiveBack::Start(shard_, part.group, receipt_id_);
    }
  }

  // Gives back, and queries the levels afterwards: behind the refunds, on the same connection.
  void Deny() {
    retry_after_ns_ = acquisition_.retry_after_ns;
    now_ns_ = acquisition_.now_ns;
    GiveBackTaken();
    querying_ = parts_.size();  // one for this function
    const int64_t left_ns = std::max<int64_t>(deadline_ns - shard_.clock().NowNs(), 0);
    if (left_ns < net::TimerWheel::kNever - shard_.loop().now_ns()) {
      shard_.loop().ArmIn(deadline_timer_, left_ns);
    }
    for (size_t p = 0; p < parts_.size(); ++p) {
      if (p == at_) continue;
      Part& part = parts_[p];
      std::vector<uint64_t> permits;
      permits.reserve(part.charges.size());
      for (const Charge& charge : part.charges) permits.push_back(charge.permits);
      StartQuery(shard_, part.group.buckets, std::move(permits), deadline_ns,
                 [this, &part](absl::Span<const QueriedBucket> found) {
                   part.found.assign(found.begin(), found.end());
                   OnQueried();
                 });
    }
    OnQueried();
  }

  void OnQueried() {
    if (--querying_ > 0) return;
    deadline_timer_.Cancel();
    AnswerDenied();
    delete this;
  }

  void OnDeadline() { AnswerDenied(); }

  void AnswerDenied() {
    if (caller_.pending == nullptr) return;
    Acquisition& acquisition = *caller_.acquisition;
    acquisition.now_ns = now_ns_;
    for (size_t p = 0; p < parts_.size(); ++p) {
      if (p == at_) continue;
      Part& part = parts_[p];
      for (size_t i = 0; i < part.results.size(); ++i) {
        ChargeResult& result = part.results[i];
        const Rule& rule = *part.group.buckets[i].rule->rule;
        if (part.found.empty()) {
          result.level = BucketLevel();
          result.level.capacity = algorithm::Capacity(rule.parameters);
          continue;
        }
        const QueriedBucket& found = part.found[i];
        result.level = found.level;
        if (p > at_ && found.wait_ns > 0) {
          result.reason = rule.shadow ? Reason::kShadowDenied : Reason::kNotEnough;
        }
        if (!rule.shadow) retry_after_ns_ = std::max(retry_after_ns_, found.wait_ns);
      }
    }
    acquisition.retry_after_ns = retry_after_ns_;
    Answer(Outcome::kDenied);
  }

  void Answer(Outcome outcome) {
    caller_.acquisition->source = source_;
    for (const Part& part : parts_) {
      for (size_t i = 0; i < part.results.size(); ++i) {
        const size_t place = part.group.places[i];
        ChargeResult& result = caller_.acquisition->results[place];
        result = part.results[i];
        result.forgiven += caller_.acquisition->charges[place].permits - part.charges[i].permits;
      }
    }
    shard_.acquires().Answer(caller_, outcome);
  }

  void Finish(Outcome outcome) {
    Answer(outcome);
    delete this;
  }

  Shard& shard_;
  Caller caller_;
  const uint64_t receipt_id_;
  const bool want_receipt_;
  std::vector<Part> parts_;
  size_t at_ = 0;
  Acquisition acquisition_;  // of the part at_
  Source source_ = Source::kStore;
  // Once it is denied.
  size_t querying_ = 0;
  int64_t retry_after_ns_ = 0;
  int64_t now_ns_ = 0;
  net::Timer deadline_timer_{net::Timer::To<&CrossSlotAcquire::OnDeadline>, this};
};

}  // namespace

std::vector<ChargeGroup> GroupsOf(CommandContext& context, absl::Span<const Charge> charges) {
  std::vector<ChargeGroup> groups;
  for (size_t place = 0; place < charges.size(); ++place) {
    const Charge& charge = charges[place];
    Bucket bucket = context.BucketOf(*charge.rule, charge.key);
    const uint16_t slot = context.router().GroupOf(bucket.keys[0]);
    auto group = std::find_if(groups.begin(), groups.end(),
                              [&](const ChargeGroup& one) { return one.slot == slot; });
    if (group == groups.end()) {
      group = groups.insert(groups.end(), ChargeGroup());
      group->slot = slot;
    }
    group->shared |= charge.key.empty();
    group->places.push_back(place);
    group->buckets.push_back(std::move(bucket));
  }
  std::sort(groups.begin(), groups.end(), [](const ChargeGroup& a, const ChargeGroup& b) {
    return std::tie(a.shared, a.slot) < std::tie(b.shared, b.slot);
  });
  return groups;
}

size_t OtherSlotCharge(absl::Span<const ChargeGroup> groups) {
  // Places are in order within a group.
  size_t other = 0;
  for (const ChargeGroup& group : groups) {
    const size_t first = group.places[0];
    if (first != 0 && (other == 0 || first < other)) other = first;
  }
  return other;
}

void StartCrossSlot(Shard& shard, std::vector<ChargeGroup> groups, const Caller& caller) {
  (new CrossSlotAcquire(shard, std::move(groups), caller))->TakeNext();
}

void StartCrossSlot(Shard& shard, std::vector<ChargeGroup> groups, RefundOperation* operation) {
  // A caller that repeats the refund gets what is left, and nothing twice.
  static constexpr RefundOutcome kFirstOf[] = {
      RefundOutcome::kUnavailable, RefundOutcome::kStaleRule,       RefundOutcome::kSettled,
      RefundOutcome::kRefunded,    RefundOutcome::kAlreadyRefunded, RefundOutcome::kExpired};
  auto outcomes = std::make_shared<std::vector<RefundOutcome>>();
  const size_t parts = groups.size();
  for (ChargeGroup& group : groups) {
    shard.Begin(new RefundPart(
        *operation, std::move(group.places), [outcomes, parts, operation](RefundOutcome outcome) {
          outcomes->push_back(outcome);
          if (outcomes->size() < parts) return;
          operation->outcome = *std::find_first_of(std::begin(kFirstOf), std::end(kFirstOf),
                                                   outcomes->begin(), outcomes->end());
          operation->Done();
        }));
  }
}

namespace {

// Some charges of a settlement, settled by themselves. Deletes itself when it is done.
class SettlePart final : public SettleOperation {
 public:
  SettlePart(const SettleOperation& whole, const ChargeGroup& group,
             absl::AnyInvocable<void(SettleOutcome)> done)
      : actual_(group.places.size(), kAsTaken),
        settled_(group.places.size()),
        done_(std::move(done)) {
    for (const size_t place : group.places) charges_.push_back(whole.charges[place]);
    receipt_id = whole.receipt_id;
    grant_time_ns = whole.grant_time_ns;
    estimate = false;
    charges = charges_;
    actual = actual_.data();
    deadline_ns = whole.deadline_ns;
    settled = settled_.data();
  }
  void Done() override {
    const std::unique_ptr<SettlePart> self(this);
    done_(outcome);
  }

 private:
  std::vector<Charge> charges_;
  std::vector<uint64_t> actual_;
  std::vector<SettledPermits> settled_;
  absl::AnyInvocable<void(SettleOutcome)> done_;
};

}  // namespace

void StartCrossSlot(Shard& shard, const std::vector<ChargeGroup>& groups,
                    SettleOperation* operation) {
  // Slots of one part are no proof that the settlement of another part is the first one.
  if (operation->estimate || NamesActual(*operation)) {
    operation->outcome = SettleOutcome::kSeveralSlots;
    return operation->Done();
  }
  std::fill_n(operation->settled, operation->charges.size(), SettledPermits());
  static constexpr SettleOutcome kFirstOf[] = {
      SettleOutcome::kUnavailable, SettleOutcome::kStaleRule, SettleOutcome::kTooEarly,
      SettleOutcome::kSettled,     SettleOutcome::kRefunded,  SettleOutcome::kUnknown};
  auto outcomes = std::make_shared<std::vector<SettleOutcome>>();
  const size_t parts = groups.size();
  for (const ChargeGroup& group : groups) {
    const bool slots =
        std::any_of(group.buckets.begin(), group.buckets.end(), [](const Bucket& bucket) {
          return algorithm::IsConcurrency(bucket.rule->rule->parameters);
        });
    auto* const part =
        new SettlePart(*operation, group, [outcomes, parts, operation](SettleOutcome outcome) {
          outcomes->push_back(outcome);
          if (outcomes->size() < parts) return;
          operation->outcome = *std::find_first_of(std::begin(kFirstOf), std::end(kFirstOf),
                                                   outcomes->begin(), outcomes->end());
          operation->Done();
        });
    if (slots) {
      StartSettle(shard, part);
    } else {
      // Rates stay as they were taken, and can no longer be refunded. The script leaves the
      // receipts of buckets with bookings to the settlement.
      shard.closer().Close(group.buckets, operation->receipt_id,
                           [&shard, part] { StartSettle(shard, part, /*closes_rates=*/true); });
    }
  }
}

}  // namespace sluice::store::redis
