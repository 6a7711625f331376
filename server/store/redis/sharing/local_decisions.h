// LocalDecisions: what one event loop decides without Redis.
//
//  - sharing: split. By this node's share of the limit.
//  - on_store_failure: split. The same, but only while Redis is unavailable.
//  - sharing: relaxed. By what this loop knows of the bucket; debited in Redis afterwards.
#ifndef SLUICE_SERVER_STORE_REDIS_SHARING_LOCAL_DECISIONS_H_
#define SLUICE_SERVER_STORE_REDIS_SHARING_LOCAL_DECISIONS_H_

#include <cstddef>
#include <cstdint>

#include "absl/types/span.h"
#include "server/algorithm/bucket_state.h"
#include "server/store/redis/commands/command_context.h"
#include "server/store/redis/sharing/node_registry.h"
#include "server/store/redis/sharing/relaxed_buckets.h"
#include "server/store/redis/sharing/sharing_state.h"
#include "server/store/store.h"

namespace sluice::store::redis {

// Belongs to its loop.
class LocalDecisions {
 public:
  // Executes the part of an operation that is left to Redis.
  class Remote {
   public:
    virtual void Begin(AcquireOperation* rest, uint64_t receipt_id) = 0;
    virtual void Begin(RefundOperation* rest) = 0;

   protected:
    ~Remote() = default;
  };

  // All outlive it.
  LocalDecisions(CommandContext& context, SharingState& state, Remote& remote)
      : context_(context), state_(state), remote_(remote) {}

  // All its charges are of split limits: Acquire answers each acquisition at once.
  bool NeedsNoRedis(const AcquireOperation& operation) const;
  // These return true if the operation is decided here: it was answered, or will be after Redis has
  // executed the rest.
  bool Acquire(Caller caller);
  bool Query(QueryItem& item);
  bool Refund(RefundOperation* operation);
  // Forgets a bucket of a split limit. Returns whether there was one.
  bool Reset(const Rule& rule, std::string_view key) { return state_.split.Forget(rule, key); }

  // Redis answered an acquisition of one relaxed limit.
  void LearnRelaxed(const Acquisition& acquisition);

 private:
  class PartlyLocal;

  algorithm::Moment Now() const;
  bool AcquireByShare(Caller& caller);
  bool AcquireRelaxed(Caller& caller);
  // By the share of split limits, of which `places` are charges. Opens a receipt if it is not 0;
  // `kept`: EndSplit must follow if it is granted.
  Outcome DecideSplit(Acquisition& acquisition, absl::Span<const size_t> places,
                      const NodeRegistry::View& view, uint64_t receipt_id, LocalBuckets::Kept kept);
  // While Redis is unavailable, by on_store_failure of the charges at `places`.
  Outcome DecideUnavailable(Acquisition& acquisition, absl::Span<const size_t> places,
                            const NodeRegistry::View& view);
  // The other charges were decided. Gives back what DecideSplit took, unless they were granted.
  // Leaves the receipt open only if the acquisition has it.
  void EndSplit(const Acquisition& acquisition, absl::Span<const size_t> places,
                uint64_t receipt_id, bool granted);
  void Debit(RelaxedBuckets::Key& key);

  CommandContext& context_;
  SharingState& state_;
  Remote& remote_;
  RelaxedBuckets relaxed_;
};

}  // namespace sluice::store::redis

#endif  // SLUICE_SERVER_STORE_REDIS_SHARING_LOCAL_DECISIONS_H_
