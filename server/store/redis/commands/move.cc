#include "server/store/decide.h"
#include "server/store/redis/commands/bucket_operation.h"
#include "server/store/redis/commands/operations.h"

namespace sluice::store::redis {
namespace {

class MoveCommand final : public DecidedHere<MoveOperation, MoveOutcome> {
 public:
  MoveCommand(CommandContext& context, MoveOperation* operation)
      : DecidedHere(context, operation, context.BucketsOf(operation->charges)),
        from_ns_(operation->grant_time_ns) {}

 private:
  void Decide(absl::Span<OpenBucket> open, int64_t now_ns) override {
    grant_time_ns_ = from_ns_;
    outcome_ = Move(operation_->receipt_id, operation_->charges, open, now_ns, &grant_time_ns_);
  }
  bool Writes() const override { return outcome_ == MoveOutcome::kMoved; }
  void OnDecided() override {
    operation_->grant_time_ns = grant_time_ns_;
    DecidedHere::OnDecided();
  }

  const int64_t from_ns_;      // as it is booked
  int64_t grant_time_ns_ = 0;  // as decided
};

}  // namespace

void StartMove(CommandContext& context, MoveOperation* operation) {
  BucketOperation::Start(std::make_unique<MoveCommand>(context, operation));
}

}  // namespace sluice::store::redis
