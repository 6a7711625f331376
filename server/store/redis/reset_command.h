#ifndef SLUICE_SERVER_STORE_REDIS_RESET_COMMAND_H_
#define SLUICE_SERVER_STORE_REDIS_RESET_COMMAND_H_

#include <array>
#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "server/store/redis/rule_entry.h"
#include "server/store/redis/script_command.h"

namespace sluice::store::redis {

struct ResetCall {
  std::shared_ptr<const RuleEntry> rule;
  std::string key;
  void (*done)(void*, bool existed);
  void* context;
};

class ResetCommand final : public ScriptCommand {
 public:
  ResetCommand(Shard& shard, ResetCall call);

 protected:
  absl::Span<const Bucket> buckets() const override { return bucket_; }
  bool BuildScript(const Term& term, std::vector<std::string>* words) override;
  bool Handle(const Reply& reply) override;
  void AnswerAway() override { call_.done(call_.context, false); }
  // What is booked stands, by the newer figures.
  bool Stale(size_t, const std::shared_ptr<const RuleEntry>& newer) override;
  void DecideOpen(absl::Span<OpenBucket> open, int64_t now_ns) override;
  void AnswerOpen() override { call_.done(call_.context, existed_); }

 private:
  ResetCall call_;
  std::array<Bucket, 1> bucket_;
  bool existed_ = false;
};

}  // namespace sluice::store::redis

#endif  // SLUICE_SERVER_STORE_REDIS_RESET_COMMAND_H_
