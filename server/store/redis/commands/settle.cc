#include "server/store/settle.h"

#include <memory>

#include "server/store/redis/commands/operations.h"
#include "server/store/redis/commands/optimistic_command.h"

namespace sluice::store::redis {
namespace {

class SettleCommand final : public BucketOperation {
 public:
  SettleCommand(CommandContext& context, SettleOperation* operation)
      : BucketOperation(context, context.BucketsOf(operation->charges)), operation_(operation) {
    command_.DecideHere();
  }

 private:
  void Decide(absl::Span<OpenBucket> open, int64_t now_ns) override {
    outcome_ = Settle(operation_, open, now_ns);
  }
  bool Writes() const override {
    return outcome_ == SettleOutcome::kSettled || outcome_ == SettleOutcome::kLate;
  }
  void OnDecided() override { Answer(outcome_); }
  bool OnNewerRule(size_t, const std::shared_ptr<const RuleEntry>&) override {
    Answer(SettleOutcome::kStaleRule);
    return false;
  }
  void OnUnavailable(bool) override { Answer(SettleOutcome::kUnavailable); }

  void Answer(SettleOutcome outcome) {
    operation_->outcome = outcome;
    operation_->Done();
  }

  SettleOperation* const operation_;
  SettleOutcome outcome_ = SettleOutcome::kPending;
};

}  // namespace

void StartSettle(CommandContext& context, SettleOperation* operation) {
  BucketOperation::Start(std::make_unique<SettleCommand>(context, operation));
}

}  // namespace sluice::store::redis
