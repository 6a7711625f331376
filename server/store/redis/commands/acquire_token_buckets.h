// TokenBucketsCommand: callers that charge one token bucket each, without receipts and request ids,
// decided by one script for many buckets.
//
// The callers of each bucket are a TokenBucketBatch. A bucket that the script does not decide
// (other parameters, open receipts, bookings, a value that is not ours, a caller that would wait)
// goes back to its batch alone; the callers of the others are answered.
//
// In a Cluster the buckets of one primary go together, whatever their slots: the script reaches
// them without declaring them as keys. If the slot of one is not there, or on its way, that bucket
// is sent again as the only one, declared, so that Redis redirects it.
#ifndef SLUICE_SERVER_STORE_REDIS_COMMANDS_ACQUIRE_TOKEN_BUCKETS_H_
#define SLUICE_SERVER_STORE_REDIS_COMMANDS_ACQUIRE_TOKEN_BUCKETS_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "server/store/redis/commands/command.h"
#include "server/store/redis/commands/pending_acquires.h"
#include "server/store/redis/fencing/fence.h"
#include "server/store/redis/wire/number_codec.h"
#include "server/store/redis/wire/rule_entry.h"
#include "server/store/store.h"

namespace sluice::store::redis {

class TokenBucketsCommand;

// Callers of one bucket, in their order. A base of the queue that they come from; used again after
// each command, and kept for its memory. Lives at least as long as the command that it is in.
class TokenBucketBatch : public SentCallers {
 public:
  // The script has a run of callers for these: it decides any number of them at once.
  static bool Takes(const Acquisition& acquisition) {
    return !acquisition.want_receipt && acquisition.debit == Debit::kIfAllowed &&
           acquisition.once == nullptr;
  }

  size_t callers() const { return callers_.size(); }
  size_t runs() const { return runs_.size(); }
  // One more run is needed if this caller is added.
  bool BeginsRun(const Acquisition& acquisition) const;
  // REQUIRES: Takes(), one charge, of this bucket.
  void Add(const Caller& caller);
  // After a reload, callers of a limit's old rule and of its new one may wait for the same bucket.
  // One script has it once, since all buckets are read before any is written.
  bool IsOfSameBucket(const TokenBucketBatch& other) const;

 protected:
  ~TokenBucketBatch() = default;

  virtual const Bucket& bucket() const = 0;
  // The batch is empty, and in no command any more.
  virtual void OnAnswered() = 0;
  // It is in no command any more, and TakeCallers returns callers that are to be decided by this
  // node (`decide_here`) or by the script for all algorithms.
  virtual void OnUndecided(bool decide_here) = 0;
  std::vector<Caller> TakeCallers();

 private:
  friend class TokenBucketsCommand;
  // Callers in a row that want the same.
  struct Run {
    uint64_t permits;
    bool waits;  // a caller that does not fit would wait; the script stops there
    size_t callers;
    size_t granted = 0;  // by the reply
  };
  enum class Decided : uint8_t {
    kAll,
    kToOneThatWaits,  // the last run is cut to the callers granted
    kNone,
    kNoneBooked,
    kNoneElsewhere,  // its slot is not at the server that was asked
  };

  bool MayBeExecuted() const override;
  bool Waits(const Acquisition& acquisition) const;
  // The runs of callers that still wait.
  void MakeRuns();
  void Pack(size_t limit, const FencingToken& token, std::string* numbers) const;
  void Read(ReplyNumbers* numbers);
  void Answer(PendingAcquires& acquires, int64_t now_ns);

  const TokenBucketsCommand* command_ = nullptr;
  std::vector<Run> runs_;
  Decided decided_ = Decided::kAll;  // by the reply
  uint64_t lacking_ = 0;             // ticks that lacked of full before the first caller
};

class TokenBucketsCommand final : public Command {
 public:
  // Sends it before commands that wait for room. All batches are of keys at one server.
  // REQUIRES: one or more, each with callers.
  static void StartInTurn(CommandContext& context, std::vector<TokenBucketBatch*> batches);

 private:
  friend class TokenBucketBatch;
  TokenBucketsCommand(CommandContext& context, std::vector<TokenBucketBatch*> batches);

  std::string_view RoutingKey() const override { return batches_[0]->bucket().keys[0]; }
  size_t units() const override { return units_; }
  bool Build(std::vector<std::string>* words) override;
  Next OnReply(const Reply& reply) override;
  void OnUnavailable() override;
  void OnEnd() override;

  bool MayBeExecuted() const { return sender_.answer_missing(); }

  std::vector<TokenBucketBatch*> batches_;
  std::vector<TokenBucketBatch*> sent_;  // in the order of the script
  size_t units_ = 0;                     // runs, as they were sent
};

}  // namespace sluice::store::redis

#endif  // SLUICE_SERVER_STORE_REDIS_COMMANDS_ACQUIRE_TOKEN_BUCKETS_H_
