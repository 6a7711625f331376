// RefundCommand: gives back, by its receipt, what an acquisition took from buckets of one slot.
#ifndef SLUICE_SERVER_STORE_REDIS_COMMANDS_REFUND_H_
#define SLUICE_SERVER_STORE_REDIS_COMMANDS_REFUND_H_

#include <string>
#include <vector>

#include "absl/types/span.h"
#include "server/store/redis/commands/optimistic_command.h"
#include "server/store/store.h"

namespace sluice::store::redis {

class RefundCommand final : public BucketOperation {
 public:
  // `remembered`: a second refund of the receipt is answered kAlreadyRefunded.
  RefundCommand(CommandContext& context, RefundOperation* operation, bool remembered = true);

 private:
  bool BuildScript(const FencingToken& token, std::vector<std::string>* words) override;
  Handled OnScriptReply(const Reply& reply, int64_t floor_us) override;
  void Decide(absl::Span<OpenBucket> open, int64_t now_ns) override;
  bool Writes() const override { return open_; }
  void OnDecided() override { AnswerExecuted(); }
  bool OnNewerRule(size_t, const std::shared_ptr<const RuleEntry>&) override;
  void OnUnavailable(bool) override;

  // By whether the receipt was open.
  void AnswerExecuted();

  RefundOperation* const operation_;
  const bool remembered_;
  bool open_ = false;
};

}  // namespace sluice::store::redis

#endif  // SLUICE_SERVER_STORE_REDIS_COMMANDS_REFUND_H_
