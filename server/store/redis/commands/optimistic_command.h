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

class BucketOperation;  // bucket_operation.h

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

}  // namespace sluice::store::redis

#endif  // SLUICE_SERVER_STORE_REDIS_COMMANDS_OPTIMISTIC_COMMAND_H_
