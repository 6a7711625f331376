// DebitCommand: debits from one bucket what a node granted without Redis, whether or not it fits.
#ifndef SLUICE_SERVER_STORE_REDIS_COMMANDS_DEBIT_H_
#define SLUICE_SERVER_STORE_REDIS_COMMANDS_DEBIT_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/types/span.h"
#include "server/store/redis/commands/optimistic_command.h"
#include "server/store/redis/wire/rule_entry.h"
#include "server/store/store.h"

namespace sluice::store::redis {

struct DebitResult {
  // It was executed. False: it may have been, or not.
  bool known = false;
  // Permits that the bucket did not hold.
  uint64_t over = 0;
  BucketLevel level;  // afterwards
};

class DebitCommand final : public BucketOperation {
 public:
  using Done = absl::AnyInvocable<void(const DebitResult&)>;

  static void Start(CommandContext& context, std::shared_ptr<const RuleEntry> rule,
                    std::string_view key, uint64_t permits, Done done);

 private:
  DebitCommand(CommandContext& context, Bucket bucket, uint64_t permits, Done done)
      : BucketOperation(context, std::vector<Bucket>{std::move(bucket)}),
        permits_(permits),
        done_(std::move(done)) {}

  bool BuildScript(const FencingToken& token, std::vector<std::string>* words) override;
  Handled OnScriptReply(const Reply& reply, int64_t floor_us) override;
  void Decide(absl::Span<OpenBucket> open, int64_t now_ns) override;
  void OnDecided() override { done_(result_); }
  void OnUnavailable(bool) override { done_({}); }

  const uint64_t permits_;
  Done done_;
  DebitResult result_;
};

}  // namespace sluice::store::redis

#endif  // SLUICE_SERVER_STORE_REDIS_COMMANDS_DEBIT_H_
