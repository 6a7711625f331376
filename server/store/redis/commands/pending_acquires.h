// PendingAcquires: the acquire operations of one event loop that are not complete. Answers their
// acquisitions one by one; the last answer completes the operation.
#ifndef SLUICE_SERVER_STORE_REDIS_COMMANDS_PENDING_ACQUIRES_H_
#define SLUICE_SERVER_STORE_REDIS_COMMANDS_PENDING_ACQUIRES_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "server/store/redis/connection/counters.h"
#include "server/store/store.h"

namespace sluice::store::redis {

struct PendingAcquire {
  AcquireOperation* operation;
  size_t open;  // acquisitions without an answer
  int64_t deadline_ns;
  // Receipt id for all its acquisitions; 0: each gets one of its own.
  uint64_t receipt_id = 0;
  bool batch = false;  // see BatchTurns
};

// One acquisition that waits for its answer. `pending` null: it was answered.
struct Caller {
  PendingAcquire* pending = nullptr;
  Acquisition* acquisition = nullptr;  // gone once it was answered
  // Of its command: the place of its request id, counted from 1; 0: it has none.
  uint32_t once = 0;
};

// Of a charge of one bucket.
ChargeResult ResultOf(const Rule& rule, bool fits, const BucketLevel& level);

// Belongs to its loop.
class PendingAcquires {
 public:
  // `on_relaxed` is called with each answer from Redis to an acquisition of a relaxed limit alone,
  // `on_batched` at each answer to an acquisition of a batch.
  PendingAcquires(ShardCounters& counters, absl::AnyInvocable<void(const Acquisition&)> on_relaxed,
                  absl::AnyInvocable<void()> on_batched)
      : counters_(counters),
        on_relaxed_(std::move(on_relaxed)),
        on_batched_(std::move(on_batched)) {}

  // REQUIRES: the operation has acquisitions; all of them are added and answered.
  PendingAcquire* Begin(AcquireOperation* operation, uint64_t receipt_id);
  Caller Add(PendingAcquire* pending, Acquisition& acquisition);
  // Callers without an answer.
  size_t waiting() const { return waiting_; }

  // Answers a caller, unless it was answered before. Completes the operation with its last one:
  // then the operation may be gone.
  void Answer(Caller& caller, Outcome outcome);
  // Answers by on_store_failure.
  void AnswerUnavailable(Caller& caller);
  Outcome DecideUnavailable(Acquisition& acquisition);
  // The same for a whole operation that was not begun.
  void CompleteUnavailable(AcquireOperation* operation);

 private:
  ShardCounters& counters_;
  absl::AnyInvocable<void(const Acquisition&)> on_relaxed_;
  absl::AnyInvocable<void()> on_batched_;
  size_t waiting_ = 0;
  std::vector<std::unique_ptr<PendingAcquire>> free_;  // kept for their memory
};

// Callers of one queue that go to Redis together, in their order. A base of what sends them.
class SentCallers {
 public:
  // Moves callers whose deadline has passed (on the store's clock) to `late`, and lowers *next_ns
  // to the earliest deadline of the others.
  void CollectLate(int64_t now_ns, std::vector<Caller>* late, int64_t* next_ns);

 protected:
  ~SentCallers() = default;
  // Redis may have decided them, although no reply says so.
  virtual bool MayBeExecuted() const = 0;
  // Returns whether there were any.
  bool DropAnswered();
  void AnswerUnavailable(PendingAcquires& acquires, bool may_be_executed);

  std::vector<Caller> callers_;
};

}  // namespace sluice::store::redis

#endif  // SLUICE_SERVER_STORE_REDIS_COMMANDS_PENDING_ACQUIRES_H_
