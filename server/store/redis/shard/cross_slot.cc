#include "server/store/redis/shard/cross_slot.h"

#include <algorithm>
#include <deque>
#include <memory>
#include <string>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/net/event_loop.h"
#include "server/store/redis/commands/script_command.h"
#include "server/store/redis/scripts/scripts.h"
#include "server/store/redis/shard/receipt_closer.h"
#include "server/store/redis/shard/shard.h"
#include "server/store/redis/wire/reply_numbers.h"
#include "server/store/redis/wire/stored_bucket.h"

namespace sluice::store::redis {
namespace {

// A group's charges, which outlive their caller.
class OwnCharges {
 public:
  OwnCharges(const ChargeGroup& group, absl::Span<const Charge> charges) {
    for (size_t i = 0; i < group.places.size(); ++i) {
      const Charge& charge = charges[group.places[i]];
      keys_.push_back(std::make_unique<std::string>(charge.key));
      rules_.push_back(group.buckets[i].rule->rule);
      charges_.push_back({rules_.back().get(), *keys_.back(), charge.permits});
    }
  }

  absl::Span<const Charge> get() const { return charges_; }

 private:
  std::vector<std::unique_ptr<std::string>> keys_;  // which stay where they are
  std::vector<std::shared_ptr<const Rule>> rules_;
  std::vector<Charge> charges_;
};

// Gives back what a group took; nobody waits for it. What is lost on the way stays spent.
class GiveBack final : private RefundOperation {
 public:
  static void Start(Shard& shard, const ChargeGroup& group, absl::Span<const Charge> charges,
                    uint64_t receipt) {
    shard.GiveBack(new GiveBack(group, charges, receipt));
  }

 private:
  GiveBack(const ChargeGroup& group, absl::Span<const Charge> charges, uint64_t receipt)
      : own_(group, charges), permits_(own_.get().size()) {
    receipt_id = receipt;
    this->charges = own_.get();
    refunded = permits_.data();
  }
  void Done() override { delete this; }

  const OwnCharges own_;
  std::vector<uint64_t> permits_;
};

// What a group's buckets hold, and until when its charges fit.
class LookCommand final : public ScriptCommand {
 public:
  struct Looker {
    virtual void OnLooked() = 0;

   protected:
    ~Looker() = default;
  };
  struct Look {
    BucketLevel level;
    int64_t wait_ns = 0;
    bool known = false;
  };

  // `looks` has room for as many as there are buckets.
  LookCommand(Shard& shard, std::vector<Bucket> buckets, std::vector<uint64_t> permits,
              std::vector<Look>* looks, Looker& looker)
      : ScriptCommand(shard),
        buckets_(std::move(buckets)),
        permits_(std::move(permits)),
        looks_(*looks),
        looker_(looker) {}

 protected:
  absl::Span<const Bucket> buckets() const override { return buckets_; }
  bool BuildScript(const FencingToken& term, std::vector<std::string>* words) override {
    *words = shard_.ScriptWords(Script::kQuery, buckets_, term);
    for (size_t i = 0; i < buckets_.size(); ++i) {
      AppendCost(buckets_[i].rule->rule->parameters, permits_[i], words);
    }
    return true;
  }
  bool Handle(const Reply& reply) override {
    ReplyNumbers numbers(reply);
    const int64_t now_ns = numbers.NextTime();
    std::vector<Look> looks(buckets_.size());
    for (size_t i = 0; i < buckets_.size(); ++i) {
      numbers.Next();
      const Report report = numbers.NextReport();
      const algorithm::Parameters& parameters = buckets_[i].rule->rule->parameters;
      looks[i] = {LevelOf(parameters, report, now_ns, floor_us()),
                  WaitNs(parameters, permits_[i], report, now_ns, floor_us()), true};
    }
    if (!numbers.Good()) return false;
    looks_ = std::move(looks);
    looker_.OnLooked();
    return true;
  }
  void AnswerUnavailable() override { looker_.OnLooked(); }
  void DecideOpen(absl::Span<OpenBucket> open, int64_t now_ns) override {
    looks_.resize(open.size());
    for (size_t i = 0; i < open.size(); ++i) {
      const int64_t earliest_ns = open[i].EarliestNs(permits_[i], now_ns, /*set=*/0, now_ns);
      looks_[i] = {open[i].LevelAt(now_ns),
                   earliest_ns == algorithm::kNeverNs ? earliest_ns : earliest_ns - now_ns, true};
    }
  }
  bool Writes() const override { return false; }
  void AnswerOpen() override { looker_.OnLooked(); }
  bool Stale(size_t bucket, const std::shared_ptr<const RuleEntry>& newer) override {
    buckets_[bucket].rule = newer;
    return true;
  }

 private:
  std::vector<Bucket> buckets_;
  const std::vector<uint64_t> permits_;
  std::vector<Look>& looks_;
  Looker& looker_;
};

class Scattered final : private AcquireOperation, private LookCommand::Looker {
 public:
  Scattered(Shard& shard, std::vector<ChargeGroup> groups, const Caller& caller)
      : shard_(shard),
        caller_(caller),
        receipt_id_(shard.NewReceipt()),
        want_receipt_(caller.acquisition->want_receipt) {
    for (ChargeGroup& group : groups) {
      Part& part = parts_.emplace_back();
      part.group = std::move(group);
      for (const size_t place : part.group.places) {
        part.charges.push_back(caller.acquisition->charges[place]);
      }
      part.results.resize(part.charges.size());
      part.looks.resize(part.charges.size());
    }
    deadline_ns = caller.job->deadline_ns;
  }

  void TakeNext() {
    Part& part = parts_[at_];
    acquisition_ = Acquisition();
    acquisition_.charges = part.charges;
    acquisition_.results = part.results.data();
    // The last one is never given back.
    acquisition_.want_receipt = want_receipt_ || at_ + 1 < parts_.size();
    acquisitions = absl::MakeSpan(&acquisition_, 1);
    shard_.Take(this, receipt_id_);
  }

 private:
  struct Part {
    ChargeGroup group;
    std::vector<Charge> charges;
    std::vector<ChargeResult> results;
    std::vector<LookCommand::Look> looks;
    int64_t now_ns = 0;
    bool receipt = false;  // open there
  };

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
    for (const Part& part : parts_) {
      for (size_t i = 0; i < part.results.size(); ++i) {
        ChargeResult& result = acquisition.results[part.group.places[i]];
        result = part.results[i];
        if (part.now_ns != 0) result.debited_before_ns = acquisition.now_ns - part.now_ns;
      }
      if (!part.receipt) continue;
      if (want_receipt_) {
        acquisition.receipt_id = receipt_id_;
      } else {
        shard_.closer().Close(part.group.buckets, receipt_id_);
      }
    }
    acquisition.source = source_;
    Finish(Outcome::kGranted);
  }

  // Whether giving back succeeds is not waited for.
  bool AnyTaken() const {
    return std::any_of(parts_.begin(), parts_.end(), [](const Part& part) { return part.receipt; });
  }

  void GiveBackTaken() {
    for (const Part& part : parts_) {
      if (part.receipt) {
        GiveBack::Start(shard_, part.group, caller_.acquisition->charges, receipt_id_);
      }
    }
  }

  // Gives back, and looks how it stands then: behind what is given back, on the same connection.
  void Deny() {
    retry_after_ns_ = acquisition_.retry_after_ns;
    now_ns_ = acquisition_.now_ns;
    GiveBackTaken();
    looking_ = parts_.size();  // one for this function
    const int64_t left_ns = std::max<int64_t>(deadline_ns - shard_.NowNs(), 0);
    if (left_ns < net::TimerWheel::kNever - shard_.loop().now_ns()) {
      shard_.loop().ArmIn(deadline_timer_, left_ns);
    }
    for (size_t p = 0; p < parts_.size(); ++p) {
      if (p == at_) continue;
      Part& part = parts_[p];
      std::vector<uint64_t> permits;
      permits.reserve(part.charges.size());
      for (const Charge& charge : part.charges) permits.push_back(charge.permits);
      Command::Start(std::make_unique<LookCommand>(shard_, part.group.buckets, std::move(permits),
                                                   &part.looks,
                                                   static_cast<LookCommand::Looker&>(*this)));
    }
    OnLooked();
  }

  void OnLooked() override {
    if (--looking_ > 0) return;
    deadline_timer_.Cancel();
    AnswerDenied();
    delete this;
  }

  void OnDeadline() { AnswerDenied(); }

  void AnswerDenied() {
    if (caller_.job == nullptr) return;
    Acquisition& acquisition = *caller_.acquisition;
    acquisition.now_ns = now_ns_;
    acquisition.source = source_;
    for (size_t p = 0; p < parts_.size(); ++p) {
      const Part& part = parts_[p];
      for (size_t i = 0; i < part.results.size(); ++i) {
        ChargeResult& result = acquisition.results[part.group.places[i]];
        result = part.results[i];
        if (p == at_) continue;
        const Rule& rule = *part.group.buckets[i].rule->rule;
        const LookCommand::Look& look = part.looks[i];
        if (!look.known) {
          result.level = BucketLevel();
          result.level.capacity = algorithm::Capacity(rule.parameters);
          continue;
        }
        result.level = look.level;
        if (p > at_ && look.wait_ns > 0) {
          result.reason = rule.shadow ? Reason::kShadowDenied : Reason::kNotEnough;
        }
        if (!rule.shadow) retry_after_ns_ = std::max(retry_after_ns_, look.wait_ns);
      }
    }
    acquisition.retry_after_ns = retry_after_ns_;
    shard_.Answer(caller_, Outcome::kDenied);
  }

  void Finish(Outcome outcome) {
    if (outcome != Outcome::kGranted) {
      Acquisition& acquisition = *caller_.acquisition;
      acquisition.source = source_;
      for (const Part& part : parts_) {
        for (size_t i = 0; i < part.results.size(); ++i) {
          acquisition.results[part.group.places[i]] = part.results[i];
        }
      }
    }
    shard_.Answer(caller_, outcome);
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
  size_t looking_ = 0;
  int64_t retry_after_ns_ = 0;
  int64_t now_ns_ = 0;
  net::Timer deadline_timer_{net::Timer::To<&Scattered::OnDeadline>, this};
};

class ScatteredRefund {
 public:
  ScatteredRefund(std::vector<ChargeGroup> groups, RefundOperation* operation)
      : operation_(operation), open_(groups.size()) {
    for (ChargeGroup& group : groups) parts_.emplace_back(*this, std::move(group));
  }

  void Start(Shard& shard) {
    // The last one that is done destroys it.
    const size_t count = parts_.size();
    for (size_t i = 0; i < count; ++i) shard.Start(&parts_[i]);
  }

 private:
  struct Part final : RefundOperation {
    Part(ScatteredRefund& of, ChargeGroup its_group) : whole(of), group(std::move(its_group)) {
      for (const size_t place : group.places) own.push_back(whole.operation_->charges[place]);
      permits.resize(own.size());
      receipt_id = whole.operation_->receipt_id;
      grant_time_ns = whole.operation_->grant_time_ns;
      deadline_ns = whole.operation_->deadline_ns;
      charges = own;
      refunded = permits.data();
    }
    void Done() override { whole.OnDone(); }

    ScatteredRefund& whole;
    const ChargeGroup group;
    std::vector<Charge> own;
    std::vector<uint64_t> permits;
  };

  void OnDone() {
    if (--open_ > 0) return;
    bool unavailable = false, stale = false, refunded = false, already = false;
    for (const Part& part : parts_) {
      unavailable |= part.outcome == RefundOutcome::kUnavailable;
      stale |= part.outcome == RefundOutcome::kStaleRule;
      refunded |= part.outcome == RefundOutcome::kRefunded;
      already |= part.outcome == RefundOutcome::kAlreadyRefunded;
      for (size_t i = 0; i < part.own.size(); ++i) {
        operation_->refunded[part.group.places[i]] = part.permits[i];
      }
    }
    // Who asks again gets what is still to be had, and nothing twice.
    operation_->outcome = unavailable ? RefundOutcome::kUnavailable
                          : stale     ? RefundOutcome::kStaleRule
                          : refunded  ? RefundOutcome::kRefunded
                          : already   ? RefundOutcome::kAlreadyRefunded
                                      : RefundOutcome::kExpired;
    RefundOperation* const operation = operation_;
    delete this;
    operation->Done();
  }

  RefundOperation* const operation_;
  size_t open_;
  std::deque<Part> parts_;
};

}  // namespace

std::vector<ChargeGroup> GroupsOf(Shard& shard, absl::Span<const Charge> charges) {
  std::vector<ChargeGroup> groups;
  for (size_t place = 0; place < charges.size(); ++place) {
    const Charge& charge = charges[place];
    Bucket bucket = shard.BucketOf(*charge.rule, charge.key);
    const uint16_t slot = shard.router().GroupOf(bucket.keys[0]);
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

size_t ElsewhereThanFirst(absl::Span<const ChargeGroup> groups) {
  // Places are in order within a group.
  size_t elsewhere = 0;
  for (const ChargeGroup& group : groups) {
    const size_t first = group.places[0];
    if (first != 0 && (elsewhere == 0 || first < elsewhere)) elsewhere = first;
  }
  return elsewhere;
}

void StartScattered(Shard& shard, std::vector<ChargeGroup> groups, const Caller& caller) {
  (new Scattered(shard, std::move(groups), caller))->TakeNext();
}

void StartScattered(Shard& shard, std::vector<ChargeGroup> groups, RefundOperation* operation) {
  (new ScatteredRefund(std::move(groups), operation))->Start(shard);
}

}  // namespace sluice::store::redis
