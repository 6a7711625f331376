// RpcLoop: what the gRPC connections of one event loop share: methods, the clock, large messages.
#ifndef SLUICE_SERVER_TRANSPORT_RPC_RPC_LOOP_H_
#define SLUICE_SERVER_TRANSPORT_RPC_RPC_LOOP_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/container/node_hash_map.h"
#include "common/bounds.h"
#include "common/clock.h"
#include "common/http2/server_session.h"
#include "common/intrusive_list.h"
#include "common/metrics.h"
#include "common/net/event_loop.h"
#include "common/net/stream.h"
#include "server/transport/port/connection_options.h"
#include "server/transport/port/free_list.h"
#include "server/transport/port/port_loop.h"
#include "server/transport/rpc/message_reader.h"
#include "server/transport/rpc/method.h"

namespace sluice::transport {

class RpcCall;
class RpcConnection;
struct OpenCalls;

// Time limits and bounds of an RpcServer.
struct RpcServerOptions : ConnectionOptions {
  RpcServerOptions() : ConnectionOptions("h2") {}

  ::sluice::http2::ServerOptions http2;
  // From a request's headers to its end, for methods that take one message; for streams, from a
  // message's first byte to its end.
  int64_t request_timeout_ns = common::bounds::kRequestTimeoutNs;
  // Bytes of unfinished requests of one connection, and of all of a loop. Above, calls are refused
  // with RESOURCE_EXHAUSTED; for the loop's sake only those of connections that hold more than
  // bounds::kMinConnectionRequestBytes.
  size_t max_connection_buffered_bytes = common::bounds::kMaxConnectionRequestBytes;
  size_t max_loop_buffered_bytes = common::bounds::kMaxPortRequestBytes;
  // Bytes of unsent responses, and of undecided calls, of one connection. Above, its calls wait.
  size_t max_connection_unsent_bytes = common::bounds::kMaxConnectionUnsentBytes;
  // Of all of a loop. Above, calls of connections wait that hold more than
  // bounds::kMinConnectionUnsentBytes.
  size_t max_loop_unsent_bytes = common::bounds::kMaxPortUnsentBytes;
  size_t max_connection_pending_bytes = common::bounds::kMaxConnectionPendingBytes;
  // A connection's output above which no more frames are made until the peer has read. At most
  // the stream's own high-water mark.
  size_t output_bytes = size_t{256} << 10;
};

// Lists of connections that wait for a decompressor, and of their peers.
struct WaitingConnections;
struct WaitingPeers;

// As PortLoop.
class RpcLoop final : public PortLoop {
 public:
  // All outlive the RpcLoop.
  RpcLoop(const MethodTable& methods, const common::Clock& clock, common::Metrics& metrics,
          const RpcServerOptions& options, net::EventLoop& loop, size_t index);
  ~RpcLoop() override;

  FreeList<RpcCall, OpenCalls>& calls() { return calls_; }

  const RpcServerOptions& options() const { return options_; }
  const MethodTable& methods() const { return methods_; }
  const Method& unknown_method() const { return unknown_method_; }
  // For messages that are decompressed in one step.
  Decompressor& decompressor() { return decompressor_; }
  // Larger messages are taken and handled in steps. At most kMaxLargeMessages of a loop are between
  // their steps, since each may hold 20 MB, and their senders need send only a few KB.
  static constexpr size_t kLargeMessageBytes = 4 << 10;
  // Of a message that is not compressed: a usual batch has less, and is decoded in one step.
  static constexpr size_t kLargePlainMessageBytes = 16 << 10;
  static constexpr size_t kMaxLargeMessages = 4;
  // Null: all are in use; RpcConnection::OnLargeMessage follows. The peers of connections that wait
  // have turns, so that none waits for all connections of another.
  Decompressor* ClaimLarge(RpcConnection& connection);
  // For a connection that has claimed one, or waits for one.
  void ReleaseLarge(Decompressor& decompressor);
  void CancelClaim(RpcConnection& connection);
  common::MethodCounters& CountersOf(const Method& method) { return CountersAt(method.index); }
  void CountReceived(const Method& method, size_t message_bytes) {
    EarnSheds(message_bytes);
    common::MethodCounters& counters = CountersOf(method);
    counters.messages_received.Add(1);
    counters.bytes_received.Add(message_bytes);
  }
  void CountSent(const Method& method, size_t message_bytes) {
    common::MethodCounters& counters = CountersOf(method);
    counters.messages_sent.Add(1);
    counters.bytes_sent.Add(message_bytes);
  }

  // Bytes of unsent responses of all connections. Negative numbers wrap around.
  void AddUnsentBytes(size_t bytes) { unsent_bytes_ += bytes; }
  bool over_unsent() const { return unsent_bytes_ > options_.max_loop_unsent_bytes; }

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

  struct WaitingPeer : ListLink<WaitingPeer, WaitingPeers> {
    IntrusiveList<RpcConnection, WaitingConnections> connections;  // first come, first served
  };

  // PortLoop
  std::vector<std::string> MethodNames() const override;
  PortConnection* NewConnection(net::Stream& stream) override;

  const MethodTable& methods_;
  const common::Clock& clock_;
  const RpcServerOptions options_;
  const Method unknown_method_;
  Decompressor decompressor_;
  Decompressor large_[kMaxLargeMessages];
  std::vector<Decompressor*> free_large_;
  absl::node_hash_map<uint64_t, WaitingPeer> waiting_;      // by peer
  IntrusiveList<WaitingPeer, WaitingPeers> waiting_turns_;  // whose turn is next
  size_t unsent_bytes_ = 0;
  int readings_left_ = 0;
  int64_t now_ns_ = 0;
  FreeList<RpcCall, OpenCalls> calls_;
};

}  // namespace sluice::transport

#endif  // SLUICE_SERVER_TRANSPORT_RPC_RPC_LOOP_H_
