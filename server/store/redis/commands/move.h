#ifndef SLUICE_SERVER_STORE_REDIS_COMMANDS_MOVE_H_
#define SLUICE_SERVER_STORE_REDIS_COMMANDS_MOVE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "server/store/redis/commands/script_command.h"
#include "server/store/redis/wire/rule_entry.h"
#include "server/store/store.h"

namespace sluice::store::redis {

class MoveCommand final : public ScriptCommand {
 public:
  MoveCommand(Shard& shard, MoveOperation* operation);

 protected:
  absl::Span<const Bucket> buckets() const override { return buckets_; }
  // There is no script for it.
  bool BuildScript(const FencingToken&, std::vector<std::string>*) override { return false; }
  bool Handle(const Reply&) override { return false; }
  void AnswerUnavailable() override { Answer(MoveOutcome::kUnavailable); }
  bool Stale(size_t bucket, const std::shared_ptr<const RuleEntry>& newer) override;
  void DecideOpen(absl::Span<OpenBucket> open, int64_t now_ns) override;
  bool Writes() const override { return outcome_ == MoveOutcome::kMoved; }
  void AnswerOpen() override;

 private:
  void Answer(MoveOutcome outcome);

  MoveOperation* const operation_;
  std::vector<Bucket> buckets_;
  const int64_t from_ns_;      // where it is booked
  int64_t grant_time_ns_ = 0;  // as decided
  MoveOutcome outcome_ = MoveOutcome::kStays;
};

}  // namespace sluice::store::redis

#endif  // SLUICE_SERVER_STORE_REDIS_COMMANDS_MOVE_H_
