// AcquireCommand: the callers of one batch queue, decided by one script in their order. For all
// that TokenBucketsCommand does not decide.
#ifndef SLUICE_SERVER_STORE_REDIS_COMMANDS_ACQUIRE_H_
#define SLUICE_SERVER_STORE_REDIS_COMMANDS_ACQUIRE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/types/span.h"
#include "server/store/redis/commands/bucket_operation.h"
#include "server/store/redis/commands/pending_acquires.h"
#include "server/store/redis/wire/number_codec.h"

namespace sluice::store::redis {

class AcquireCommand final : public BucketOperation, public SentCallers {
 public:
  // The queue that sends it.
  class Owner {
   public:
    // It is complete, and gone.
    virtual void OnAcquired() = 0;

   protected:
    ~Owner() = default;
  };

  // `buckets` and `owner` outlive it. `set` names the set of buckets in bookings.
  AcquireCommand(CommandContext& context, absl::Span<const Bucket> buckets, uint64_t set,
                 std::vector<Caller> callers, Owner& owner);
  ~AcquireCommand() override { owner_.OnAcquired(); }

  // This node decides, without the script.
  void DecideHere() { command_.DecideHere(); }

 private:
  bool MayBeExecuted() const override { return command_.may_be_executed(); }
  bool BuildScript(const FencingToken& token, std::vector<std::string>* words) override;
  Handled OnScriptReply(const Reply& reply, const FencingToken& token) override;
  bool CallersWait() override;
  void Decide(absl::Span<OpenBucket> open, int64_t now_ns) override;
  bool DecisionStands() const override;
  void OnDecided() override;
  void OnContended() override;
  bool OnNewerRule(size_t bucket, const std::shared_ptr<const RuleEntry>& newer) override;
  void OnUnavailable(bool may_be_executed) override;

  // Gives the request ids of the callers their places.
  void AddOnceKeys();
  // Appends what the number of charges ends with if the caller has a request id, and what follows.
  static void AppendOnce(const Caller& caller, std::vector<std::string>* words);
  void AppendForcedCharges(const Acquisition& acquisition, std::vector<std::string>* words) const;
  // Of a caller, as it was sent: it may have been answered since, and its acquisition gone.
  struct Sent {
    uint64_t receipt_id;
    bool forced;
  };
  // How many callers the script decided, the first ones. nullopt: the reply is not in its form.
  std::optional<size_t> DecidedBy(const Reply& reply) const;
  // They read the answer of a caller, behind its first number.
  void ReadCharges(Caller& caller, bool granted, const FencingToken& token, int64_t now_ns,
                   ReplyNumbers* numbers) const;
  void ReadForced(Caller& caller, const FencingToken& token, int64_t now_ns,
                  ReplyNumbers* numbers) const;
  Outcome ReadRepeated(Caller& caller, const FencingToken& token, int64_t now_ns,
                       ReplyNumbers* numbers) const;
  // Decides a caller with a request id by open buckets.
  Outcome DecideOnce(Caller& caller, absl::Span<OpenBucket> open, int64_t now_ns,
                     SearchBudget* budget, absl::FunctionRef<Outcome()> decide);

  const uint64_t set_;
  Owner& owner_;
  std::vector<Sent> sent_;         // by caller
  std::vector<Outcome> outcomes_;  // as decided here
};

}  // namespace sluice::store::redis

#endif  // SLUICE_SERVER_STORE_REDIS_COMMANDS_ACQUIRE_H_
