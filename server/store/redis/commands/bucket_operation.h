// BucketOperation: what an OptimisticCommand executes, by a script or by this node. The base of all
// operations on buckets of one slot.
#ifndef SLUICE_SERVER_STORE_REDIS_COMMANDS_BUCKET_OPERATION_H_
#define SLUICE_SERVER_STORE_REDIS_COMMANDS_BUCKET_OPERATION_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "server/store/once.h"
#include "server/store/redis/commands/command.h"
#include "server/store/redis/commands/optimistic_command.h"
#include "server/store/redis/fencing/fence.h"
#include "server/store/redis/scripts/scripts.h"
#include "server/store/redis/wire/open_bucket.h"
#include "server/store/redis/wire/rule_entry.h"

namespace sluice::store::redis {

// Belongs to its shard's loop.
class BucketOperation {
 public:
  enum class Handled : uint8_t {
    kDone,
    kUndecided,  // the script left something to be decided here
    kMalformed,
  };

  virtual ~BucketOperation() = default;

  // Starts it; destroys it when it is complete.
  static void Start(std::unique_ptr<BucketOperation> operation) {
    CommandSender::Start(operation.release()->command_);
  }
  static void StartInTurn(std::unique_ptr<BucketOperation> operation) {
    CommandSender::StartInTurn(operation.release()->command_);
  }

  absl::Span<const Bucket> buckets() const { return buckets_; }
  // Request ids of the operation (store/once.h): keys in the buckets' slot, which are read,
  // compared and written with the buckets.
  struct OnceKey {
    std::string key;
    std::string known = {};   // its value as it was read; empty: there is none
    std::string to_set = {};  // as it was decided here; empty: it stays
  };
  std::vector<OnceKey>& once_keys() { return once_keys_; }
  // The key of a request id.
  std::string OnceKeyOf(const RequestId& id) const;
  // The place of a script's first key among its words; its arguments follow the last one.
  static constexpr size_t kFirstKey = 3;
  // The words of a script on these buckets and request ids, up to its keys.
  std::vector<std::string> KeyWords(Script script, const FencingToken& token) const;

  // ---- By script ----

  // False: no caller waits any more.
  virtual bool BuildScript(const FencingToken&, std::vector<std::string>*) { return false; }
  // `token`: as the script was passed.
  virtual Handled OnScriptReply(const Reply&, const FencingToken& /*token*/) {
    return Handled::kMalformed;
  }

  // ---- By this node ----

  virtual bool CallersWait() { return true; }
  // Decides by buckets as they were at now_ns. Called again if they have changed since; then
  // nothing of the decision before is in force.
  virtual void Decide(absl::Span<OpenBucket> open, int64_t now_ns) = 0;
  // Whether Decide's changes to the buckets are to be written.
  virtual bool Writes() const { return true; }
  // False: a caller that was granted was answered since, with nothing taken. Then none of the
  // decision is written, and the callers that are left are decided again.
  virtual bool DecisionStands() const { return true; }
  // The decision is in force: answers the callers.
  virtual void OnDecided() = 0;
  // Others changed the buckets too often; nothing was done.
  virtual void OnContended() { OnUnavailable(/*may_be_executed=*/false); }

  // A bucket is of a newer rule of this process. True: sent again, by that rule.
  virtual bool OnNewerRule(size_t bucket, const std::shared_ptr<const RuleEntry>& newer) {
    owned_[bucket].rule = newer;
    return true;
  }
  virtual void OnUnavailable(bool may_be_executed) = 0;

 protected:
  BucketOperation(CommandContext& context, std::vector<Bucket> buckets)
      : context_(context), owned_(std::move(buckets)), buckets_(owned_), command_(context, *this) {
    DecideHereIfBooked();
  }
  // `buckets` outlive it.
  BucketOperation(CommandContext& context, absl::Span<const Bucket> buckets)
      : context_(context), buckets_(buckets), command_(context, *this) {
    DecideHereIfBooked();
  }

  // The words of a script on these buckets, up to the script's own arguments.
  std::vector<std::string> ScriptWords(Script script, const FencingToken& token) const;
  const algorithm::Parameters& parameters_of(size_t bucket) const {
    return buckets_[bucket].rule->rule->parameters;
  }
  int64_t FloorOf(const FencingToken& token, size_t bucket) const {
    return token.FloorOf(*buckets_[bucket].rule->rule);
  }

  CommandContext& context_;
  std::vector<Bucket> owned_;
  const absl::Span<const Bucket> buckets_;
  std::vector<OnceKey> once_keys_;
  OptimisticCommand command_;

 private:
  // A bucket with bookings, as far as this shard knows, is not worth a script. None decides on
  // slots.
  void DecideHereIfBooked();
};

// One that this node decides, without a script, and whose answer is its outcome.
template <typename Operation, typename Outcome>
class DecidedHere : public BucketOperation {
 public:
  DecidedHere(CommandContext& context, Operation* operation, std::vector<Bucket> buckets)
      : BucketOperation(context, std::move(buckets)), operation_(operation) {
    command_.DecideHere();
  }

 protected:
  void OnDecided() override { Answer(outcome_); }

  Operation* const operation_;
  Outcome outcome_ = {};  // as decided

 private:
  bool OnNewerRule(size_t, const std::shared_ptr<const RuleEntry>&) override {
    Answer(Outcome::kStaleRule);
    return false;
  }
  void OnUnavailable(bool) override { Answer(Outcome::kUnavailable); }

  void Answer(Outcome outcome) {
    operation_->outcome = outcome;
    operation_->Done();
  }
};

}  // namespace sluice::store::redis

#endif  // SLUICE_SERVER_STORE_REDIS_COMMANDS_BUCKET_OPERATION_H_
