// Connection: how a Client reaches one server. The one over grpc++ is made by Client::Create; a
// FakeConnection is for tests; others can be written.
#ifndef SLUICE_CONNECTION_H_
#define SLUICE_CONNECTION_H_

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
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

// What goes with a call.
struct Call {
  TimePoint deadline;
  std::optional<uint32_t> server = {};  // CallOptions::server
};

// A pipelined stream of batches, each answered in order. Thread-safe. Destroying it cancels it;
// on_closed still follows.
class StreamCall {
 public:
  virtual ~StreamCall() = default;
  // Sends one message, after those before it. Never blocks. Nothing happens once it is closed.
  virtual void Send(std::span<const Acquisition> batch) = 0;
  virtual void Cancel() = 0;
};

struct StreamEvents {
  // One message's answers. Calls do not overlap.
  std::function<void(BatchDecisions)> on_answers = {};
  // The last event, exactly once. A status whose may_have_executed() is false promises that
  // nothing of the stream ever reached a server.
  std::function<void(Status)> on_closed = {};
};

// Destroying it cancels; on_closed still follows.
class WatchCall {
 public:
  virtual ~WatchCall() = default;
  virtual void Cancel() = 0;
};

struct WatchEvents {
  std::function<void(std::vector<BucketStatus>)> on_change = {};  // calls do not overlap
  std::function<void(Status)> on_closed = {};                     // the last event, exactly once
};

// Thread-safe. No method but AcquireBlocking and Shutdown blocks. Every callback runs exactly once,
// on a thread of the connection's or within the call, and never under a lock of the connection's.
// An implementation never sends anything twice, and marks an error with
// Status::may_have_executed() unless it is certain that no server executed the call.
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
  virtual std::unique_ptr<StreamCall> OpenStream(StreamEvents events) = 0;
  virtual std::unique_ptr<WatchCall> Watch(std::span<const Bucket> buckets,
                                           const WatchOptions& options, WatchEvents events) = 0;

  // Blocks for the answer. By default Acquire and a wait; override it where a blocking call can
  // be had for less.
  virtual Result<Decision> AcquireBlocking(const Acquisition& acquisition, const Call& call);

  // Runs `fn` exactly once: after `delay`, or earlier when the connection shuts down.
  virtual void RunAfter(std::chrono::nanoseconds delay, std::function<void()> fn) = 0;

  // The time that deadlines are compared with.
  virtual TimePoint Now() const { return std::chrono::steady_clock::now(); }

  // Cancels all that is under way and returns when every callback has run, or, from within a
  // callback, at once. Later calls are answered CANCELLED.
  virtual void Shutdown() = 0;

  // Servers behind it, and where a second attempt may go.
  virtual uint32_t servers() const { return 1; }
};

}  // namespace sluice

#endif  // SLUICE_CONNECTION_H_
