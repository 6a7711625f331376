// StreamCore: implements AcquireStream; see stream.h for batching and broken connections.
#ifndef SLUICE_CLIENT_SRC_STREAM_CORE_H_
#define SLUICE_CLIENT_SRC_STREAM_CORE_H_

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "client/src/client_core.h"
#include "client/src/transport/fork_mark.h"
#include "common/mutex.h"
#include "sluice/connection.h"
#include "sluice/stream.h"

namespace sluice::client_internal {

// Thread-safe. Calls neither callbacks nor the connection under mu_.
class StreamCore : public std::enable_shared_from_this<StreamCore> {
 public:
  StreamCore(std::shared_ptr<ClientCore> client, const StreamOptions& options);

  void Submit(Acquisition acquisition, Callback<Decision> done);
  bool Drain(std::chrono::nanoseconds timeout);
  bool WaitForRoom(std::chrono::nanoseconds timeout);
  StreamCounts counts() const;

  // Ends all acquisitions without an answer with CANCELLED. No callback runs after it returns.
  void Close();

 private:
  // The content of one message. Separate vectors, so that acquisitions can be passed as a span.
  struct Batch {
    std::vector<Acquisition> acquisitions;
    std::vector<Callback<Decision>> callbacks;
    std::vector<TimePoint> deadlines;  // ascending

    size_t size() const { return acquisitions.size(); }
  };

  // Opens a stream if there is none, and sends messages up to max_in_flight. One thread at a time
  // does so; the others leave it to that thread.
  void Pump();
  // Opens the next stream. Releases mu_ meanwhile.
  void Open() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void OnAnswers(uint64_t generation, BatchDecisions answers);
  void OnClosed(uint64_t generation, Status status);

  // Ends the current stream and returns the batches in flight. If the server is unavailable and has
  // executed none of them, they go back to the queue instead.
  std::vector<std::shared_ptr<Batch>> BreakLocked(const Status& status)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Returns the pause before the next connection.
  std::chrono::nanoseconds BackOffLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void ReopenAfter(std::chrono::nanoseconds pause);

  void ArmTimer(TimePoint at);
  void OnTimer(TimePoint at);
  // Removes the queued acquisitions whose deadline has passed.
  std::vector<std::shared_ptr<Batch>> TakeLate(TimePoint now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  // These run callbacks. New submissions are queued meanwhile.
  void Deliver(const Batch& batch, BatchDecisions* answers);
  void Fail(const std::vector<std::shared_ptr<Batch>>& batches, const Status& status);
  void BeginDelivery() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void EndDelivery(size_t answered);

  const std::shared_ptr<ClientCore> client_;
  const StreamOptions options_;
  const ForkMark fork_mark_;
  const std::chrono::nanoseconds deadline_;
  const OnUnavailable on_unavailable_;

  mutable common::Mutex mu_;
  common::CondVar changed_;
  std::deque<std::shared_ptr<Batch>> queue_
      ABSL_GUARDED_BY(mu_);  // not sent; the last one is being filled
  std::deque<std::shared_ptr<Batch>> in_flight_ ABSL_GUARDED_BY(mu_);  // sent, not answered
  size_t queued_ ABSL_GUARDED_BY(mu_) = 0;                             // acquisitions in queue_
  size_t unanswered_ ABSL_GUARDED_BY(mu_) = 0;
  std::shared_ptr<StreamCall> call_ ABSL_GUARDED_BY(mu_);
  uint64_t generation_ ABSL_GUARDED_BY(mu_) = 0;  // of call_; events of older ones are ignored
  Status last_error_ ABSL_GUARDED_BY(mu_);        // of the last stream that ended
  int failures_ ABSL_GUARDED_BY(mu_) = 0;         // streams in a row without an answer
  bool backing_off_ ABSL_GUARDED_BY(mu_) = false;
  bool pumping_ ABSL_GUARDED_BY(mu_) = false;
  bool timer_armed_ ABSL_GUARDED_BY(mu_) = false;
  bool closed_ ABSL_GUARDED_BY(mu_) = false;
  int deliveries_ ABSL_GUARDED_BY(mu_) = 0;  // threads that run callbacks now
  std::thread::id deliverer_ ABSL_GUARDED_BY(mu_);
  int waiters_ ABSL_GUARDED_BY(mu_) = 0;
  StreamCounts counts_ ABSL_GUARDED_BY(mu_);
};

}  // namespace sluice::client_internal

#endif  // SLUICE_CLIENT_SRC_STREAM_CORE_H_
