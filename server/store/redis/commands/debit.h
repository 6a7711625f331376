#ifndef SLUICE_SERVER_STORE_REDIS_COMMANDS_DEBIT_H_
#define SLUICE_SERVER_STORE_REDIS_COMMANDS_DEBIT_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "server/store/redis/commands/script_command.h"
#include "server/store/redis/wire/rule_entry.h"
#include "server/store/store.h"

namespace sluice::store::redis {

// What became of a report.
struct Reported {
  // It was executed. False: it may have been, or not.
  bool known = false;
  // Of those, what the bucket did not hold.
  uint64_t over = 0;
  BucketLevel level;  // afterwards
};

// Permits of one bucket that were granted without Redis.
struct ReportCall {
  std::shared_ptr<const RuleEntry> rule;
  std::string key;
  uint64_t permits = 0;
  absl::AnyInvocable<void(const Reported&)> done;  // runs once, on the loop
};

class ReportCommand final : public ScriptCommand {
 public:
  ReportCommand(Shard& shard, ReportCall call);

 protected:
  absl::Span<const Bucket> buckets() const override { return bucket_; }
  bool BuildScript(const FencingToken& term, std::vector<std::string>* words) override;
  bool Handle(const Reply& reply) override;
  void AnswerUnavailable() override { call_.done({}); }
  bool Stale(size_t, const std::shared_ptr<const RuleEntry>& newer) override;
  void DecideOpen(absl::Span<OpenBucket> open, int64_t now_ns) override;
  void AnswerOpen() override { call_.done(reported_); }

 private:
  ReportCall call_;
  std::array<Bucket, 1> bucket_;
  Reported reported_;
};

}  // namespace sluice::store::redis

#endif  // SLUICE_SERVER_STORE_REDIS_COMMANDS_DEBIT_H_
