#include "server/store/settle.h"

#include <memory>

#include "server/store/redis/commands/operations.h"
#include "server/store/redis/commands/optimistic_command.h"

namespace sluice::store::redis {
namespace {

class SettleCommand final : public DecidedHere<SettleOperation, SettleOutcome> {
 public:
  SettleCommand(CommandContext& context, SettleOperation* operation)
      : DecidedHere(context, operation, context.BucketsOf(operation->charges)) {}

 private:
  void Decide(absl::Span<OpenBucket> open, int64_t now_ns) override {
    outcome_ = Settle(operation_, open, now_ns);
  }
  bool Writes() const override {
    return outcome_ == SettleOutcome::kSettled || outcome_ == SettleOutcome::kLate;
  }
};

}  // namespace

void StartSettle(CommandContext& context, SettleOperation* operation) {
  BucketOperation::Start(std::make_unique<SettleCommand>(context, operation));
}

}  // namespace sluice::store::redis
