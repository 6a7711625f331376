// StreamCore: what AcquireStream does. See stream.h for how it gathers and what a broken
// connection means.
#ifndef SLUICE_CLIENT_SRC_STREAM_CORE_H_
#define SLUICE_CLIENT_SRC_STREAM_CORE_H_

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "client/src/client_core.h"
#include "common/mutex.h"
#include "sluice/connection.h"
#include "sluice/stream.h"

namespace sluice::client_internal {

// Thread-safe. No callback is called, and nothing of the connection's, under mu_.
class StreamCore : public std::enable_shared_from_this<StreamCore> {
 public:
  StreamCore(std::shared_ptr<ClientCore> client, const StreamOptions& options);

  void Submit(Acquisition acquisition, Callback<Decision> done);
  bool Drain(std::chrono::nanoseconds timeout);
  bool WaitForRoom(std::chrono::nanoseconds timeout);
  StreamCounts counts() const;

  // Answers all that is not answered with CANCELLED; nothing is called back after it returned.
  void Close();

 private:
  // What goes as one message: three columns, so that the acquisitions can be handed over as a
  // span.
  struct Batch {
    std::vector<Acquisition> acquisitions;
    std::vector<Callback<Decision>> callbacks;
    std::vector<TimePoint> deadlines;  // rising

    size_t size() const { return acquisitions.size(); }
  };

  // Opens a stream where there is none, and sends what may be sent. One thread at a time does;
  // the others leave it to that one.
  void Pump();
  void OnAnswers(uint64_t generation, BatchDecisions answers);
  void OnClosed(uint64_t generation, Status status);

  // The current stream is over: takes what was in flight. What is sure not to have been sent goes
  // back to the queue.
  std::vector<std::shared_ptr<Batch>> BreakLocked(const Status& status)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Plans the next connection after a break.
  std::chrono::nanoseconds BackOffLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void ReopenAfter(std::chrono::nanoseconds pause);

  void ArmTimer(TimePoint at);
  void OnTimer(TimePoint at);

  // Calls back. Until done, submissions gather.
  void Deliver(const Batch& batch, BatchDecisions* answers);
  void Fail(const std::vector<std::shared_ptr<Batch>>& batches, const Status& status);
  void BeginDelivery() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void EndDelivery(size_t answered);

  const std::shared_ptr<ClientCore> client_;
  const StreamOptions options_;
  const std::chrono::nanoseconds deadline_;
  const OnUnavailable wish_;

  mutable common::Mutex mu_;
  common::CondVar changed_;
  std::deque<std::shared_ptr<Batch>> queue_ ABSL_GUARDED_BY(mu_);      // not sent; back is filling
  std::deque<std::shared_ptr<Batch>> in_flight_ ABSL_GUARDED_BY(mu_);  // sent, not answered
  size_t queued_ ABSL_GUARDED_BY(mu_) = 0;                             // acquisitions in queue_
  size_t unanswered_ ABSL_GUARDED_BY(mu_) = 0;
  std::shared_ptr<StreamCall> call_ ABSL_GUARDED_BY(mu_);
  uint64_t generation_ ABSL_GUARDED_BY(mu_) = 0;  // of call_; events of older ones are dropped
  Status last_error_ ABSL_GUARDED_BY(mu_);        // why there is no stream now
  int failures_ ABSL_GUARDED_BY(mu_) = 0;         // streams in a row that answered nothing
  bool backing_off_ ABSL_GUARDED_BY(mu_) = false;
  bool pumping_ ABSL_GUARDED_BY(mu_) = false;
  bool timer_armed_ ABSL_GUARDED_BY(mu_) = false;
  bool closed_ ABSL_GUARDED_BY(mu_) = false;
  int deliveries_ ABSL_GUARDED_BY(mu_) = 0;  // threads that call back now
  std::thread::id deliverer_ ABSL_GUARDED_BY(mu_);
  int waiters_ ABSL_GUARDED_BY(mu_) = 0;
  StreamCounts counts_ ABSL_GUARDED_BY(mu_);
};

}  // namespace sluice::client_internal

#endif  // SLUICE_CLIENT_SRC_STREAM_CORE_H_
