// Connection: carries the calls of a Client to one server. Client::Create makes one over HTTP/2; a
// FakeConnection is for tests; programs may implement others.
#ifndef SLUICE_CONNECTION_H_
#define SLUICE_CONNECTION_H_

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "sluice/decision.h"
#include "sluice/options.h"
#include "sluice/status.h"

namespace sluice {

using TimePoint = std::chrono::steady_clock::time_point;

template <typename T>
using Callback = std::function<void(Result<T>)>;

using BatchDecisions = std::vector<Result<Decision>>;
using BatchSettlements = std::vector<Result<SettleResult>>;

// Properties of one call.
struct Call {
  TimePoint deadline;                   // max: none
  std::optional<uint32_t> server = {};  // CallOptions::server
};

// A pipelined stream of batches, answered in order. Thread-safe. The destructor cancels the stream;
// on_closed still follows.
class StreamCall {
 public:
  virtual ~StreamCall() = default;
  // Sends one message. Messages are sent in the order of the calls. Never blocks. Does nothing
  // after the stream is closed.
  virtual void Send(std::span<const Acquisition> batch) = 0;
  virtual void Cancel() = 0;
  // As Cancel, since no answer came in time: the connection may be dead.
  virtual void GiveUp() { Cancel(); }
};

struct StreamEvents {
  // The answers of one message. Calls do not overlap.
  std::function<void(BatchDecisions)> on_answers = {};
  // The last event, exactly once. If may_have_executed() of the status is false, no server
  // executed a message that has no answer.
  std::function<void(Status)> on_closed = {};
};

// The destructor cancels the call; on_closed still follows.
class WatchCall {
 public:
  virtual ~WatchCall() = default;
  virtual void Cancel() = 0;
};

struct WatchEvents {
  std::function<void(std::vector<BucketStatus>)> on_change = {};  // calls do not overlap
  std::function<void(Status)> on_closed = {};                     // the last event, exactly once
};

// Thread-safe. Only the Blocking forms, Sleep and Shutdown block. Every callback runs exactly once,
// on a thread of the connection or within the call, and never under a lock of the connection. An
// implementation never sends a call twice. It reports an error as Status::MaybeExecuted unless it
// is certain that no server executed the call.
class Connection {
 public:
  virtual ~Connection() = default;

  virtual void Acquire(const Acquisition& acquisition, const Call& call,
                       Callback<Decision> done) = 0;
  virtual void AcquireBatch(std::span<const Acquisition> batch, const Call& call,
                            Callback<BatchDecisions> done) = 0;
  virtual void Query(std::span<const Bucket> buckets, const Call& call,
                     Callback<std::vector<BucketStatus>> done) = 0;
  virtual void Refund(std::string_view receipt, const Call& call, Callback<RefundResult> done) = 0;
  // The default, of a connection that knows no slots, is UNIMPLEMENTED.
  virtual void Renew(std::span<const std::string> receipts, const Call& call,
                     Callback<std::vector<Renewal>> done);
  // The defaults end with UNIMPLEMENTED.
  virtual void Settle(const Settlement& settlement, const Call& call, Callback<SettleResult> done);
  virtual void SettleBatch(std::span<const Settlement> batch, const Call& call,
                           Callback<BatchSettlements> done);
  virtual std::unique_ptr<StreamCall> OpenStream(StreamEvents events) = 0;
  virtual std::unique_ptr<WatchCall> Watch(std::span<const Bucket> buckets,
                                           const WatchOptions& options, WatchEvents events) = 0;

  // Block until the answer. The defaults call the form above and wait; override them if a blocking
  // call can be cheaper.
  virtual Result<Decision> AcquireBlocking(const Acquisition& acquisition, const Call& call);
  virtual Result<BatchDecisions> AcquireBatchBlocking(std::span<const Acquisition> batch,
                                                      const Call& call);
  virtual Result<std::vector<BucketStatus>> QueryBlocking(std::span<const Bucket> buckets,
                                                          const Call& call);
  virtual Result<RefundResult> RefundBlocking(std::string_view receipt, const Call& call);
  virtual Result<std::vector<Renewal>> RenewBlocking(std::span<const std::string> receipts,
                                                     const Call& call);
  virtual Result<SettleResult> SettleBlocking(const Settlement& settlement, const Call& call);
  virtual Result<BatchSettlements> SettleBatchBlocking(std::span<const Settlement> batch,
                                                       const Call& call);

  // Runs `fn` exactly once: after `delay`, or when the connection shuts down.
  virtual void RunAfter(std::chrono::nanoseconds delay, std::function<void()> fn) = 0;

  // Blocks for the time, or until the connection shuts down. The default uses RunAfter.
  virtual void Sleep(std::chrono::nanoseconds time);

  // The clock of the deadlines.
  virtual TimePoint Now() const { return std::chrono::steady_clock::now(); }

  // Now, on a clock that also goes on while the machine is suspended: of the slots that permits
  // hold.
  virtual TimePoint BootNow() const;

  // Whether BootNow is the system's clock. If so, renewals of permits are timed by the one timer of
  // all clients of the program, else by RunAfter.
  virtual bool on_system_clock() const { return false; }

  // Cancels all calls and returns when every callback has run; from within a callback it returns at
  // once. Later calls end with CANCELLED.
  virtual void Shutdown() = 0;

  // The number of servers that calls may go to.
  virtual uint32_t servers() const { return 1; }
};

}  // namespace sluice

#endif  // SLUICE_CONNECTION_H_
