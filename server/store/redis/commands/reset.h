#ifndef SLUICE_SERVER_STORE_REDIS_COMMANDS_RESET_H_
#define SLUICE_SERVER_STORE_REDIS_COMMANDS_RESET_H_

#include <array>
#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "server/store/redis/commands/script_command.h"
#include "server/store/redis/wire/rule_entry.h"
#include "server/store/store.h"

namespace sluice::store::redis {

struct ResetCall {
  std::shared_ptr<const RuleEntry> rule;
  std::string key;
  Store::ResetDone done;
  void* context;
};

class ResetCommand final : public ScriptCommand {
 public:
  ResetCommand(Shard& shard, ResetCall call);

 protected:
  absl::Span<const Bucket> buckets() const override { return bucket_; }
  bool BuildScript(const FencingToken& term, std::vector<std::string>* words) override;
  bool Handle(const Reply& reply) override;
  void AnswerUnavailable() override {
    Answer(may_be_in_force() ? ResetOutcome::kUnknown : ResetOutcome::kUnavailable);
  }
  // What is booked stands, by the newer parameters.
  bool Stale(size_t, const std::shared_ptr<const RuleEntry>& newer) override;
  void DecideOpen(absl::Span<OpenBucket> open, int64_t now_ns) override;
  void AnswerOpen() override { AnswerExisted(existed_); }

 private:
  void Answer(ResetOutcome outcome) { call_.done(call_.context, outcome); }
  void AnswerExisted(bool existed) {
    Answer(existed ? ResetOutcome::kReset : ResetOutcome::kNotInUse);
  }

  ResetCall call_;
  std::array<Bucket, 1> bucket_;
  bool existed_ = false;
};

}  // namespace sluice::store::redis

#endif  // SLUICE_SERVER_STORE_REDIS_COMMANDS_RESET_H_
