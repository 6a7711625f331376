// RpcServer: gRPC over HTTP/2 on event loops. It knows methods by their paths and messages as
// bytes, and nothing of what they are about.
//
//   MethodTable methods;
//   methods.AddUnary("/package.Service/Method", handler);
//   RpcServer server(methods, clock, metrics, options);
//   for each loop: server.AddLoop(loop);
//   listener: Accept = server.Accept
//   ...
//   server.Drain();            // from any thread; then wait for connections() to be 0
//   stop the loops; destroy the server
#ifndef SLUICE_SERVER_TRANSPORT_RPC_RPC_SERVER_H_
#define SLUICE_SERVER_TRANSPORT_RPC_RPC_SERVER_H_

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "common/clock.h"
#include "common/metrics.h"
#include "common/net/event_loop.h"
#include "common/net/listener.h"
#include "common/net/stream.h"
#include "server/transport/http2/http2_session.h"
#include "server/transport/rpc/gzip.h"
#include "server/transport/rpc/method.h"

namespace sluice::transport {

class RpcConnection;
class ServerCall;

struct RpcServerOptions {
  // Names the server's connections and sheds in the metrics.
  const char* metrics_name = "h2";
  Http2Options http2;
  // A call that waited longer than this between its arrival and its turn is answered
  // RESOURCE_EXHAUSTED, before its message is looked at, as long as refusing takes a small part of
  // the time; else it is served late, and the excess waits at its senders. 0: never.
  int64_t max_queue_ns = int64_t{100} * 1'000'000;
  // From a request's headers to its end, for methods that take one message.
  int64_t request_timeout_ns = int64_t{30} * 1'000'000'000;
  // Bytes of requests that a connection may have sent in part, and of responses that it has not
  // taken. Above, its calls are refused with RESOURCE_EXHAUSTED.
  size_t max_connection_buffered_bytes = size_t{32} << 20;
  size_t max_connection_unsent_bytes = size_t{8} << 20;
  // The same for all connections of a loop together.
  size_t max_loop_buffered_bytes = size_t{256} << 20;
  // A connection's output above which no more frames are made until the peer has read. At most
  // the stream's own high-water mark.
  size_t output_bytes = size_t{256} << 10;
  // How long a connection that ended is read on, so that the peer gets our last bytes.
  int64_t linger_ns = int64_t{2} * 1'000'000'000;
};

// What the connections of one event loop share. Used on that loop only, but for connections().
class GrpcLoop final : private net::IterationHook {
 public:
  GrpcLoop(const MethodTable& methods, const common::Clock& clock, common::Metrics& metrics,
           const RpcServerOptions& options, net::EventLoop& loop, size_t index);
  ~GrpcLoop() override;
  GrpcLoop(const GrpcLoop&) = delete;
  GrpcLoop& operator=(const GrpcLoop&) = delete;

  // A connection for `stream`; owned by the loop until the stream's OnClosed.
  RpcConnection* Adopt(net::Stream& stream);
  void CountRefused();
  // Drains all connections, and every one that comes later.
  void Drain();

  const MethodTable& methods() const { return methods_; }
  const common::Clock& clock() const { return clock_; }
  const RpcServerOptions& options() const { return options_; }
  net::EventLoop& loop() { return loop_; }
  size_t index() const { return index_; }
  // From any thread.
  uint64_t connections() const { return connections_opened_.Read() - connections_closed_.Read(); }
  Http2Environment& environment() { return environment_; }
  // On the loop's thread.
  size_t memory_in_use() const;

 private:
  friend class RpcConnection;
  friend class ServerCall;

  void FindCounters();
  common::MethodCounters& CountersOf(const Method& method) {
    return *method_counters_[method.index];
  }
  common::TransportCounters& counters() { return *transport_counters_; }
  ServerCall* NewCall();
  void Recycle(ServerCall* call);
  void Remove(RpcConnection* connection);
  // Flushes the connection when the loop's iteration ends.
  void MarkDirty(RpcConnection* connection);
  void OnIterationEnd() override;

  // The time, read anew once for this many calls.
  static constexpr int kCallsPerReading = 16;
  int64_t Now() {
    if (--readings_left_ <= 0) ReadClock();
    return now_ns_;
  }
  // Refusing a call costs as much as parsing it, which for a small one is nearly all that serving
  // it costs: a server that refuses all its excess does little else. So sheds are paid from what
  // messages that are served earn, both counted in bytes of message: a call costs about what
  // kCallBytes of message do, whether served or refused, and about a sixtieth of the work may go
  // into refusals. Small calls are nearly all served; of large batches, most that come late are
  // shed.
  static constexpr int64_t kCallBytes = 160;
  static constexpr int64_t kShedPrice = 64 * kCallBytes;
  static constexpr int64_t kMaxShedCredit = 1024 * kShedPrice;
  void EarnSheds(size_t message_bytes) {
    shed_credit_ =
        std::min(kMaxShedCredit, shed_credit_ + kCallBytes + static_cast<int64_t>(message_bytes));
  }
  bool PayForShed() {
    if (shed_credit_ < kShedPrice) return false;
    shed_credit_ -= kShedPrice;
    return true;
  }
  void AdvanceTo(int64_t now_ns) {
    if (now_ns > now_ns_) now_ns_ = now_ns;
  }
  void ReadClock() {
    readings_left_ = kCallsPerReading;
    now_ns_ = clock_.NowNs();
  }

  const MethodTable& methods_;
  const common::Clock& clock_;
  const RpcServerOptions options_;
  net::EventLoop& loop_;
  const size_t index_;
  const Method unknown_method_;
  // The loop's thread's own counters, looked up at its first connection; by Method::index.
  common::Metrics& metrics_;
  std::vector<common::MethodCounters*> method_counters_;
  common::TransportCounters* transport_counters_ = nullptr;
  common::OwnedCounter connections_opened_;
  common::OwnedCounter connections_closed_;
  Http2Environment environment_;
  Buffer output_;    // frames on their way to a stream
  Buffer unfolded_;  // a decompressed message
  GzipInflater inflater_;
  int readings_left_ = 0;
  int64_t now_ns_ = 0;
  int64_t shed_credit_ = kMaxShedCredit;
  size_t buffered_bytes_ = 0;  // of requests, all connections
  bool draining_ = false;
  RpcConnection* connections_ = nullptr;
  RpcConnection* dirty_ = nullptr;
  ServerCall* free_calls_ = nullptr;
  size_t free_call_count_ = 0;
};

// Thread-safe after its last AddLoop.
class RpcServer final : public net::Acceptor {
 public:
  // All outlive it. Calls are counted in `metrics` by their paths ("unknown" for methods that are
  // not in the table), connections and sheds by RpcServerOptions::metrics_name; per thread, without
  // locks.
  RpcServer(const MethodTable& methods, const common::Clock& clock, common::Metrics& metrics,
            const RpcServerOptions& options);
  // REQUIRES: the loops have ended, or their connections have.
  ~RpcServer() override;

  // Before the loop accepts.
  void AddLoop(net::EventLoop& loop);

  net::StreamHandler* Accept(net::Stream& stream) override;
  void OnRefused(net::EventLoop& loop) override;

  // No new calls: clients are told to go elsewhere, calls under way are finished. Returns at once.
  void Drain();

  // Connections open now.
  uint64_t connections() const;

  // Bytes that nghttp2, calls and connections hold, of all loops. REQUIRES: on the loop's thread,
  // if there is one loop, or none runs.
  size_t memory_in_use() const;

  size_t loops() const { return loops_.size(); }
  const MethodTable& methods() const { return methods_; }

 private:
  const MethodTable& methods_;
  const common::Clock& clock_;
  common::Metrics& metrics_;
  const RpcServerOptions options_;
  std::vector<std::unique_ptr<GrpcLoop>> loops_;
};

}  // namespace sluice::transport

#endif  // SLUICE_SERVER_TRANSPORT_RPC_RPC_SERVER_H_
