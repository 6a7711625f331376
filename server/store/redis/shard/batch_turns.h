// BatchTurns: the batches of one event loop whose acquisitions wait to be put into the queues to
// Redis (batch_queue.h).
//
// The batches of one connection may have tens of thousands of acquisitions. If all were queued at
// once, those of other callers would wait behind them. So only kMost acquisitions of all batches
// are in the queues at a time. Batches take turns, a piece each: a small one does not wait until
// large ones are done. What waits when its batch's deadline passes is answered then. Operations of
// a few acquisitions, as unary calls are, and those that need no Redis take no turns.
#ifndef SLUICE_SERVER_STORE_REDIS_SHARD_BATCH_TURNS_H_
#define SLUICE_SERVER_STORE_REDIS_SHARD_BATCH_TURNS_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <utility>

#include "absl/functional/any_invocable.h"
#include "absl/types/span.h"
#include "common/clock.h"
#include "common/net/event_loop.h"
#include "server/store/redis/commands/pending_acquires.h"
#include "server/store/redis/shard/deadline_timer.h"
#include "server/store/store.h"

namespace sluice::store::redis {

// Belongs to its loop.
class BatchTurns final : private net::IterationHook {
 public:
  // With so many different keys, some 100 ms of Redis' time. Batches of the same keys are decided
  // together: with fewer in the queues, each script would answer fewer of them.
  static constexpr size_t kMost = 8192;
  static constexpr size_t kPiece = 64;
  // An operation with more acquisitions is a batch.
  static constexpr size_t kFew = 16;

  // Starts one acquisition, which is answered now or later.
  using Start = absl::AnyInvocable<void(const Caller& caller)>;

  // `clock`: of the deadlines.
  BatchTurns(net::EventLoop& loop, const common::Clock& clock, PendingAcquires& acquires,
             Start start)
      : loop_(loop),
        acquires_(acquires),
        start_(std::move(start)),
        deadlines_(loop, clock, [this](int64_t now_ns) { AnswerLate(now_ns); }) {}

  static bool IsBatch(const AcquireOperation& operation) {
    return operation.acquisitions.size() > kFew;
  }
  // REQUIRES: IsBatch.
  void Begin(AcquireOperation* operation);
  // An acquisition of a batch was answered.
  void OnAnswered() {
    --started_;
    if (!waiting_.empty()) loop_.BeforeSleep(*this);
  }
  // Acquisitions that wait for their turn.
  size_t waiting() const { return waiting_acquisitions_; }
  // The loop is at its end: all take their turns now.
  void End();

 private:
  struct Batch {
    PendingAcquire* pending;
    absl::Span<Acquisition> left;
  };

  void OnIterationEnd() override { Serve(); }
  void Serve();
  void AnswerLate(int64_t now_ns);
  size_t Room() const { return ended_ ? kMost : kMost - started_; }

  net::EventLoop& loop_;
  PendingAcquires& acquires_;
  Start start_;
  std::deque<Batch> waiting_;  // in the order of their turns
  size_t waiting_acquisitions_ = 0;
  size_t started_ = 0;        // acquisitions of batches, and not answered
  int64_t look_from_ns_ = 0;  // no look for late batches before
  bool serving_ = false;
  bool ended_ = false;
  DeadlineTimer deadlines_;
};

}  // namespace sluice::store::redis

#endif  // SLUICE_SERVER_STORE_REDIS_SHARD_BATCH_TURNS_H_
