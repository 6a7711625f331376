#ifndef SLUICE_SERVER_STORE_REDIS_COMMANDS_REFUND_H_
#define SLUICE_SERVER_STORE_REDIS_COMMANDS_REFUND_H_

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "server/store/redis/commands/script_command.h"
#include "server/store/redis/wire/rule_entry.h"
#include "server/store/store.h"

namespace sluice::store::redis {

class RefundCommand final : public ScriptCommand {
 public:
  // `remembered`: whoever refunds the receipt again is told that it was.
  RefundCommand(Shard& shard, RefundOperation* operation, bool remembered = true);

 protected:
  absl::Span<const Bucket> buckets() const override { return buckets_; }
  bool BuildScript(const FencingToken& term, std::vector<std::string>* words) override;
  bool Handle(const Reply& reply) override;
  void AnswerUnavailable() override;
  bool Stale(size_t bucket, const std::shared_ptr<const RuleEntry>& newer) override;

  void DecideOpen(absl::Span<OpenBucket> open, int64_t now_ns) override;
  bool Writes() const override { return open_; }
  void AnswerOpen() override;

 private:
  void Answer(RefundOutcome outcome);

  RefundOperation* const operation_;
  const bool remembered_;
  std::vector<Bucket> buckets_;
  bool open_ = false;  // as decided here
};

}  // namespace sluice::store::redis

#endif  // SLUICE_SERVER_STORE_REDIS_COMMANDS_REFUND_H_
