#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "server/store/decide.h"
#include "server/store/redis/commands/bucket_operation.h"
#include "server/store/redis/commands/operations.h"

namespace sluice::store::redis {
namespace {

// The renewals of one operation. Destroys itself when the last command is done.
class RenewJob {
 public:
  explicit RenewJob(RenewOperation* operation) : operation_(operation) {}

  void Begin() { ++open_; }
  void End() {
    if (--open_ > 0) return;
    RenewOperation* const operation = operation_;
    delete this;
    operation->Done();
  }

 private:
  RenewOperation* const operation_;
  size_t open_ = 1;
};

// The better known of two outcomes of one renewal in different slots.
void Join(RenewOutcome outcome, int64_t held_for_ns, Renewal* renewal) {
  static constexpr RenewOutcome kFirstOf[] = {RenewOutcome::kGone, RenewOutcome::kStaleRule,
                                              RenewOutcome::kUnavailable, RenewOutcome::kRenewed};
  if (renewal->outcome == RenewOutcome::kPending) {
    renewal->outcome = outcome;
    renewal->held_for_ns = held_for_ns;
    return;
  }
  renewal->held_for_ns = std::min(renewal->held_for_ns, held_for_ns);
  const RenewOutcome both[] = {renewal->outcome, outcome};
  renewal->outcome = *std::find_first_of(std::begin(kFirstOf), std::end(kFirstOf), std::begin(both),
                                         std::end(both));
}

// Renewals of the same buckets, all in one slot.
class RenewCommand final : public BucketOperation {
 public:
  // A renewal, or its charges in this slot.
  struct Part {
    Renewal* whole = nullptr;
    std::vector<Charge> charges;
    Renewal decided;
  };

  RenewCommand(CommandContext& context, RenewJob& job, std::vector<Bucket> buckets,
               std::vector<Part> parts)
      : BucketOperation(context, std::move(buckets)), job_(job), parts_(std::move(parts)) {
    job_.Begin();
    command_.DecideHere();
  }
  ~RenewCommand() override { job_.End(); }

 private:
  void Decide(absl::Span<OpenBucket> open, int64_t now_ns) override {
    for (Part& part : parts_) {
      part.decided.receipt_id = part.whole->receipt_id;
      part.decided.charges = part.charges;
      part.decided.outcome = Renew(&part.decided, open, now_ns);
    }
  }
  void OnDecided() override {
    for (Part& part : parts_) Join(part.decided.outcome, part.decided.held_for_ns, part.whole);
  }
  bool OnNewerRule(size_t, const std::shared_ptr<const RuleEntry>&) override {
    for (Part& part : parts_) Join(RenewOutcome::kStaleRule, 0, part.whole);
    return false;
  }
  void OnUnavailable(bool) override {
    for (Part& part : parts_) Join(RenewOutcome::kUnavailable, 0, part.whole);
  }

  RenewJob& job_;
  std::vector<Part> parts_;
};

class HoldsCommand final : public DecidedHere<HoldsOperation, HoldsOperation::Outcome> {
 public:
  HoldsCommand(CommandContext& context, HoldsOperation* operation)
      : DecidedHere(context, operation, {context.BucketOf(*operation->rule, operation->key)}) {}

 private:
  void Decide(absl::Span<OpenBucket> open, int64_t now_ns) override {
    outcome_ = HoldsOperation::Outcome::kDone;
    operation_->listed.clear();
    operation_->ended = false;
    operation_->level = open[0].LevelAt(now_ns);
    if (operation_->receipt_id != 0) {
      operation_->ended = open[0].Refund(operation_->receipt_id, now_ns).has_value();
    } else {
      ListHolds(*open[0].slots(), now_ns, operation_);
    }
  }
  bool Writes() const override { return operation_->ended; }
};

bool SameBuckets(absl::Span<const Bucket> a, absl::Span<const Bucket> b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](const Bucket& x, const Bucket& y) {
    return x.keys[0] == y.keys[0] && x.rule == y.rule;
  });
}

}  // namespace

void StartRenew(CommandContext& context, RenewOperation* operation) {
  for (Renewal& renewal : operation->items) renewal.outcome = RenewOutcome::kPending;
  auto* const job = new RenewJob(operation);
  std::vector<Bucket> buckets;
  std::vector<RenewCommand::Part> parts;
  const auto start = [&] {
    if (parts.empty()) return;
    BucketOperation::Start(std::make_unique<RenewCommand>(context, *job, std::exchange(buckets, {}),
                                                          std::exchange(parts, {})));
  };
  const auto add = [&](Renewal& renewal, std::vector<Bucket> of, std::vector<Charge> charges) {
    if (!SameBuckets(buckets, of)) {
      start();
      buckets = std::move(of);
    }
    parts.push_back({&renewal, std::move(charges), {}});
  };
  for (Renewal& renewal : operation->items) {
    std::vector<Bucket> all = context.BucketsOf(renewal.charges);
    std::vector<bool> added(all.size());
    for (size_t first = 0; first < all.size(); ++first) {
      if (added[first]) continue;
      const uint16_t slot = context.router().GroupOf(all[first].keys[0]);
      std::vector<Bucket> of;
      std::vector<Charge> charges;
      for (size_t i = first; i < all.size(); ++i) {
        if (added[i] || context.router().GroupOf(all[i].keys[0]) != slot) continue;
        added[i] = true;
        of.push_back(all[i]);
        charges.push_back(renewal.charges[i]);
      }
      add(renewal, std::move(of), std::move(charges));
    }
  }
  start();
  job->End();
}

void StartHolds(CommandContext& context, HoldsOperation* operation) {
  BucketOperation::Start(std::make_unique<HoldsCommand>(context, operation));
}

}  // namespace sluice::store::redis
