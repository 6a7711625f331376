// RpcLoop: what the connections of one event loop share: methods, counters, the clock, memory.
#ifndef SLUICE_SERVER_TRANSPORT_RPC_RPC_LOOP_H_
#define SLUICE_SERVER_TRANSPORT_RPC_RPC_LOOP_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "common/bounds.h"
#include "common/buffer.h"
#include "common/clock.h"
#include "common/http2/server_session.h"
#include "common/intrusive_list.h"
#include "common/log.h"
#include "common/memory_account.h"
#include "common/metrics.h"
#include "common/net/event_loop.h"
#include "common/net/stream.h"
#include "server/transport/rpc/message_reader.h"
#include "server/transport/rpc/method.h"

namespace sluice::transport {

using common::IntrusiveList;
using common::ListLink;

class RpcCall;
class RpcConnection;
struct OpenCalls;

// Time limits and bounds of an RpcServer.
struct RpcServerOptions {
  // Names the server's connections and sheds in the metrics.
  const char* metrics_name = "h2";
  ::sluice::http2::ServerOptions http2;
  // A call that waited longer than this between its arrival and its turn is refused with
  // RESOURCE_EXHAUSTED, as far as the ShedBudget allows. 0: never.
  int64_t max_queue_ns = int64_t{100} * 1'000'000;
  // From a request's headers to its end, for methods that take one message.
  int64_t request_timeout_ns = int64_t{30} * 1'000'000'000;
  // Bytes of unfinished requests of one connection, and of all of a loop. Above, calls are refused
  // with RESOURCE_EXHAUSTED; for the loop's sake only those of connections that hold more than
  // bounds::kMinConnectionRequestBytes.
  size_t max_connection_buffered_bytes = common::bounds::kMaxConnectionRequestBytes;
  size_t max_loop_buffered_bytes = common::bounds::kMaxPortRequestBytes;
  // Bytes of unsent responses, and of undecided calls, of one connection. Above, its calls wait.
  size_t max_connection_unsent_bytes = common::bounds::kMaxConnectionUnsentBytes;
  size_t max_connection_pending_bytes = common::bounds::kMaxConnectionPendingBytes;
  // What all connections hold is counted here; null: nowhere. Over its limit, calls are refused
  // with RESOURCE_EXHAUSTED. Outlives the server.
  common::MemoryBudget* memory = nullptr;
  // Bytes of a connection that the transport does not see: its stream, and TLS.
  size_t connection_bytes = size_t{2} << 10;
  // A connection or a call whose peer takes no byte of its responses for this long is ended.
  int64_t stall_timeout_ns = common::bounds::kDefaultStallTimeoutNs;
  // Gets a line for each connection that is closed for what it holds; null: none. Outlives the
  // server.
  common::Log* log = nullptr;
  // A connection's output above which no more frames are made until the peer has read. At most
  // the stream's own high-water mark.
  size_t output_bytes = size_t{256} << 10;
  // How long a connection that ended is still read, so that the peer gets our last bytes.
  int64_t linger_ns = int64_t{2} * 1'000'000'000;
};

// Bounds the part of a loop's work that goes into refusing calls.
//
// Refusing a small call costs nearly as much as serving it, since both must parse it. A server that
// refused all its excess would do little else. So each message that is served earns a little, and
// each refusal costs much: about a sixtieth of the work goes into refusals. The excess beyond them
// is served late, and waits at its senders. Of large batches, most that come late are refused.
//
// Counts in bytes of message. Starts full. Not thread-safe.
class ShedBudget {
 public:
  // A message is served.
  void Earn(size_t message_bytes) {
    left_ = std::min(kMax, left_ + kCallBytes + static_cast<int64_t>(message_bytes));
  }
  // Returns whether a call may be refused, and takes the price.
  bool Spend() {
    if (left_ < kPrice) return false;
    left_ -= kPrice;
    return true;
  }

 private:
  // A call, served or refused, costs about as much as this many bytes of message.
  static constexpr int64_t kCallBytes = 160;
  static constexpr int64_t kPrice = 64 * kCallBytes;
  static constexpr int64_t kMax = 1024 * kPrice;

  int64_t left_ = kMax;
};

// The lists that a connection can be in.
struct OpenConnections;
struct DirtyConnections;    // that have something to send
struct WaitingConnections;  // for a decompressor of large messages
struct HeavyConnections;    // that hold much memory

// Used on its loop only, except for connections().
class RpcLoop final : private net::IterationHook {
 public:
  // All outlive the RpcLoop.
  RpcLoop(const MethodTable& methods, const common::Clock& clock, common::Metrics& metrics,
          const RpcServerOptions& options, net::EventLoop& loop, size_t index);
  ~RpcLoop() override;
  RpcLoop(const RpcLoop&) = delete;
  RpcLoop& operator=(const RpcLoop&) = delete;

  // ---- For RpcServer.
  // A connection for `stream`; owned by the loop until the stream's OnClosed.
  net::StreamHandler* Adopt(net::Stream& stream);
  void CountRefused();
  void CountDisplaced();
  // Drains all connections, and each later one.
  void Drain();
  net::EventLoop& loop() { return loop_; }
  // Open connections. Thread-safe.
  uint64_t connections() const { return connections_opened_.value() - connections_closed_.value(); }
  // Closes the connections that hold most, as long as the process is over its memory limit; none
  // that holds less than `least_bytes`.
  void RelieveMemory(int64_t least_bytes);
  size_t memory_in_use() const;

  // ---- For its connections and their calls.
  void CountOpened();
  void CountClosed();
  // Destroys the connection.
  void Remove(RpcConnection& connection);
  // Flushes the connection when the loop's iteration ends.
  void MarkDirty(RpcConnection& connection);
  bool draining() const { return draining_; }

  // A connection holds so many more bytes, or less if they are negative.
  void AddMemory(int64_t bytes) { memory_.Add(bytes); }
  bool over_memory() const { return memory_.over(); }
  // A connection holds much memory, or no longer.
  void MarkHeavy(RpcConnection& connection, bool heavy);
  // Count, and log, a connection that is ended for what it holds.
  void CountStalled(const net::Stream& stream);
  void CountClosedOverMemory(const net::Stream& stream, size_t bytes);

  RpcCall& NewCall();
  void Recycle(RpcCall& call);

  size_t index() const { return index_; }
  const RpcServerOptions& options() const { return options_; }
  const MethodTable& methods() const { return methods_; }
  const Method& unknown_method() const { return unknown_method_; }
  // For messages that are decompressed in one step.
  Decompressor& decompressor() { return decompressor_; }
  // Larger messages are taken and handled in steps. At most kMaxLargeMessages of a loop are between
  // their steps, since each may hold 20 MB, and their senders need send only a few KB.
  static constexpr size_t kLargeMessageBytes = 4 << 10;
  static constexpr size_t kMaxLargeMessages = 4;
  // Null: all are in use; RpcConnection::OnLargeMessage follows.
  Decompressor* ClaimLarge(RpcConnection& connection);
  // For a connection that has claimed one, or waits for one.
  void ReleaseLarge(Decompressor& decompressor);
  void CancelClaim(RpcConnection& connection);
  ShedBudget& shed_budget() { return shed_budget_; }
  // For frames on their way to a stream; used within one call.
  Buffer& output() { return output_; }

  common::TransportCounters& counters() { return *transport_counters_; }
  common::MethodCounters& CountersOf(const Method& method) {
    return *method_counters_[method.index];
  }
  void CountReceived(const Method& method, size_t message_bytes) {
    shed_budget_.Earn(message_bytes);
    common::MethodCounters& counters = CountersOf(method);
    counters.messages_received.Add(1);
    counters.bytes_received.Add(message_bytes);
  }
  void CountSent(const Method& method, size_t message_bytes) {
    common::MethodCounters& counters = CountersOf(method);
    counters.messages_sent.Add(1);
    counters.bytes_sent.Add(message_bytes);
  }

  // Bytes of unfinished requests, of all connections.
  size_t buffered_bytes() const { return buffered_bytes_; }
  void AddBufferedBytes(size_t bytes) { buffered_bytes_ += bytes; }

  // The time. Reads the clock once for kCallsPerReading calls.
  int64_t Now() {
    if (--readings_left_ <= 0) ReadClock();
    return now_ns_;
  }
  // The time without a reading.
  int64_t last_now_ns() const { return now_ns_; }
  void AdvanceTo(int64_t now_ns) {
    if (now_ns > now_ns_) now_ns_ = now_ns;
  }
  void ReadClock() {
    readings_left_ = kCallsPerReading;
    now_ns_ = clock_.NowNs();
  }

 private:
  static constexpr int kCallsPerReading = 16;

  void FindCounters();
  void OnIterationEnd() override;

  const MethodTable& methods_;
  const common::Clock& clock_;
  const RpcServerOptions options_;
  net::EventLoop& loop_;
  const size_t index_;
  const Method unknown_method_;
  common::Metrics& metrics_;
  // Counters of the loop's thread, looked up at its first connection; methods by Method::index.
  std::vector<common::MethodCounters*> method_counters_;
  common::TransportCounters* transport_counters_ = nullptr;
  common::OwnedCounter connections_opened_;
  common::OwnedCounter connections_closed_;
  Buffer output_;
  Decompressor decompressor_;
  Decompressor large_[kMaxLargeMessages];
  std::vector<Decompressor*> free_large_;
  IntrusiveList<RpcConnection, WaitingConnections> waiting_;  // first come, first served
  ShedBudget shed_budget_;
  int readings_left_ = 0;
  int64_t now_ns_ = 0;
  size_t buffered_bytes_ = 0;
  bool draining_ = false;
  IntrusiveList<RpcConnection, OpenConnections> connections_;
  IntrusiveList<RpcConnection, DirtyConnections> dirty_;
  IntrusiveList<RpcConnection, HeavyConnections> heavy_;
  common::MemoryPart memory_;
  IntrusiveList<RpcCall, OpenCalls> free_calls_;
  size_t free_call_bytes_ = 0;
};

}  // namespace sluice::transport

#endif  // SLUICE_SERVER_TRANSPORT_RPC_RPC_LOOP_H_
