#include "server/store/redis/commands/move.h"

#include "server/store/decide.h"
#include "server/store/redis/shard/shard.h"

namespace sluice::store::redis {

MoveCommand::MoveCommand(Shard& shard, MoveOperation* operation)
    : ScriptCommand(shard), operation_(operation), from_ns_(operation->grant_time_ns) {
  for (const Charge& charge : operation->charges) {
    buckets_.push_back(shard.BucketOf(*charge.rule, charge.key));
  }
  DecideHere();
}

void MoveCommand::DecideOpen(absl::Span<OpenBucket> open, int64_t now_ns) {
  grant_time_ns_ = from_ns_;
  outcome_ = Move(operation_->receipt_id, operation_->charges, open, now_ns, &grant_time_ns_);
}

void MoveCommand::AnswerOpen() {
  operation_->grant_time_ns = grant_time_ns_;
  Answer(outcome_);
}

bool MoveCommand::Stale(size_t, const std::shared_ptr<const RuleEntry>&) {
  Answer(MoveOutcome::kStaleRule);
  return false;
}

void MoveCommand::Answer(MoveOutcome outcome) {
  operation_->outcome = outcome;
  operation_->Done();
}

}  // namespace sluice::store::redis
