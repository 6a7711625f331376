// AcquireCommand: the callers of one batch queue, decided by one script in their order.
#ifndef SLUICE_SERVER_STORE_REDIS_COMMANDS_ACQUIRE_H_
#define SLUICE_SERVER_STORE_REDIS_COMMANDS_ACQUIRE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "server/store/redis/commands/optimistic_command.h"
#include "server/store/redis/commands/pending_acquires.h"
#include "server/store/redis/wire/number_codec.h"

namespace sluice::store::redis {

class AcquireCommand final : public BucketOperation {
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

  // Moves callers whose deadline has passed (on the store's clock) to `late`, and lowers *next_ns
  // to the earliest deadline of the others.
  void CollectLate(int64_t now_ns, std::vector<Caller>* late, int64_t* next_ns);

 private:
  struct Run {
    uint64_t permits;
    bool waits;  // a caller that does not fit would wait; the script stops there
    size_t callers;
  };

  bool BuildScript(const FencingToken& token, std::vector<std::string>* words) override;
  // The script for token buckets refuses open receipts, too.
  bool UseOtherScript() override { return !std::exchange(general_, true); }
  Handled OnScriptReply(const Reply& reply, const FencingToken& token) override;
  bool CallersWait() override;
  void Decide(absl::Span<OpenBucket> open, int64_t now_ns) override;
  void OnDecided() override;
  void OnContended() override;
  bool OnNewerRule(size_t bucket, const std::shared_ptr<const RuleEntry>& newer) override;
  void OnUnavailable(bool may_be_executed) override;

  void BuildRuns(const FencingToken& token, std::vector<std::string>* words);
  Handled OnRunsReply(const Reply& reply);
  void BuildGeneral(const FencingToken& token, std::vector<std::string>* words);
  void AppendForcedCharges(const Acquisition& acquisition, std::vector<std::string>* words) const;
  // Of a caller, as it was sent: it may have been answered since, and its acquisition gone.
  struct Sent {
    uint64_t receipt_id;
    bool forced;
  };
  // The numbers of a caller's answer.
  size_t GeneralNumbers(bool forced) const;
  void ReadForced(Caller& caller, const FencingToken& token, int64_t now_ns,
                  ReplyNumbers* numbers) const;
  Handled OnGeneralReply(const Reply& reply, const FencingToken& token);

  const uint64_t set_;
  std::vector<Caller> callers_;
  Owner& owner_;
  bool general_ = false;           // by the script for all algorithms
  std::vector<Run> runs_;          // as they were sent
  std::vector<Sent> sent_;         // by caller of the script for all algorithms
  std::vector<Outcome> outcomes_;  // as decided here
};

}  // namespace sluice::store::redis

#endif  // SLUICE_SERVER_STORE_REDIS_COMMANDS_ACQUIRE_H_
