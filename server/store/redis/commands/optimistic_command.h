// OptimisticCommand: executes one operation on buckets of one slot.
//
// Usually by one script. A script refuses buckets that hold bookings or have other parameters.
// Then, and for operations without a script, this node decides: it reads the buckets, decides
// (store/decide.h), and replaces them if they are still as it read them. Otherwise the refusal
// brings the buckets as they are now, and it decides again. So a replacement fails only where
// another one succeeded.
#ifndef SLUICE_SERVER_STORE_REDIS_COMMANDS_OPTIMISTIC_COMMAND_H_
#define SLUICE_SERVER_STORE_REDIS_COMMANDS_OPTIMISTIC_COMMAND_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/net/work_queue.h"
#include "server/store/once.h"
#include "server/store/redis/commands/command.h"
#include "server/store/redis/commands/open_cache.h"
#include "server/store/redis/fencing/fence.h"
#include "server/store/redis/scripts/scripts.h"
#include "server/store/redis/wire/open_bucket.h"
#include "server/store/redis/wire/rule_entry.h"

namespace sluice::store::redis {

class BucketOperation;

// A part of its operation.
class OptimisticCommand final : public Command, private OpenCache::Turn {
 public:
  OptimisticCommand(CommandContext& context, BucketOperation& operation)
      : Command(context), operation_(operation), opening_(*this) {}

  // From now on this node decides, without the script.
  void DecideHere() { stage_ = Stage::kRead; }
  // The operation may have been executed, although no reply says so.
  bool may_be_executed() const { return sender_.answer_missing() && stage_ != Stage::kRead; }

 private:
  enum class Stage : uint8_t {
    kScript,
    kRead,
    kOpen,  // reads and folds the bookings of a reply, in parts
    kReplace,
  };

  std::string_view RoutingKey() const override;
  bool Ready() override;
  void OnTurn() override;
  bool Build(std::vector<std::string>* words) override;
  Next OnReply(const Reply& reply) override;
  void OnUnavailable() override;
  void OnEnd() override;

  std::vector<std::string> ExchangeWords(bool replace) const;
  bool BuildRead(std::vector<std::string>* words);
  Next OnRead(const Reply& reply);
  // Begins to read the buckets of the reply into open_. nullopt: OpenSome does the rest.
  std::optional<Next> Open(const Reply& reply);
  // Reads or folds about `most` bookings. Returns whether all buckets are open, or cannot be.
  bool OpenSome(size_t most);
  absl::StatusOr<bool> OpenOne(size_t bucket, size_t* most);
  void OnOpenTurn();
  // All buckets are open: decides.
  Next DecideOpen();
  // Ends its turn at the buckets, or its waiting for it. Caches what is known of them.
  void LeaveTurn();
  // Prepares replace_words_.
  void PrepareReplace(int64_t now_ns);
  // Whether the grant times of all bookings and the ends of all holds may be promised (fence.h).
  bool MayPromise(int64_t now_ns);
  void OnReplaced();
  // To read again: keeps what is known of the buckets as they were read.
  void KeepOpen();
  Next Malformed();

  // A thousand bookings take about 100 us, and a reply brings any number of them.
  class Opening final : public net::Worker {
   public:
    explicit Opening(OptimisticCommand& command) : command_(command) {}

   private:
    void OnTurn() override {
      Spend(net::WorkQueue::kTurnUnits);
      command_.OnOpenTurn();
    }
    OptimisticCommand& command_;
  };

  struct Conversion {
    size_t bucket;
    std::string writer;
    algorithm::Parameters from;
  };

  BucketOperation& operation_;
  Stage stage_ = Stage::kScript;
  FencingToken token_;  // of the last script or reading
  int conflicts_ = 0;
  int promise_tries_ = 0;

  enum class TurnState : uint8_t { kNone, kWaits, kHas, kLeft };
  TurnState turn_ = TurnState::kNone;
  // While Redis is asked for their versions. Of changed ones only what they were made from counts.
  std::vector<std::optional<OpenBucket>> cached_;
  std::vector<OpenBucket> open_;
  int64_t read_ns_ = 0;       // the server's time of the reading
  size_t next_open_ = 0;      // buckets before it are open
  bool open_failed_ = false;  // one is not of ours
  bool waits_for_open_ = false;
  Opening opening_;
  // For each bucket its state, and its receipts or the generation of its bookings, as they were
  // read.
  std::vector<std::string> known_;
  std::vector<Conversion> conversions_;
  std::vector<std::string> replace_words_;
};

// What an OptimisticCommand executes. Belongs to its shard's loop.
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

#endif  // SLUICE_SERVER_STORE_REDIS_COMMANDS_OPTIMISTIC_COMMAND_H_
