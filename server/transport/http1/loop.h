// Loop: what the HTTP connections of one event loop share: routes, counters, the clock, memory.
#ifndef SLUICE_SERVER_TRANSPORT_HTTP1_LOOP_H_
#define SLUICE_SERVER_TRANSPORT_HTTP1_LOOP_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "common/buffer.h"
#include "common/clock.h"
#include "common/intrusive_list.h"
#include "common/memory_account.h"
#include "common/metrics.h"
#include "common/net/event_loop.h"
#include "common/net/stream.h"
#include "server/transport/http1/http_server.h"
#include "server/transport/http1/route.h"

namespace sluice::http1 {

using common::IntrusiveList;
using common::ListLink;

class Connection;
class Exchange;

// The lists that a connection can be in.
struct OpenConnections;
struct DirtyConnections;    // that have work to do when the iteration ends
struct WaitingConnections;  // for a request, or for the rest of one
struct HeavyConnections;    // that hold much memory

// Used on its loop only, except for connections().
class Loop final : private net::IterationHook {
 public:
  // All outlive the Loop. `max_connections`: of this loop.
  Loop(const RouteTable& routes, const common::Clock& clock, common::Metrics& metrics,
       const ServerOptions& options, net::EventLoop& loop, size_t index);
  ~Loop() override;
  Loop(const Loop&) = delete;
  Loop& operator=(const Loop&) = delete;

  // ---- For HttpServer.
  // A connection for `stream`, owned by the loop until the stream's OnClosed. If the loop has
  // `max_connections`, it displaces another; null: all of them are busy.
  net::StreamHandler* Adopt(net::Stream& stream, size_t max_connections);
  void CountRefused();
  void CountDisplaced();
  void Drain();
  // Closes the connections that hold most, as long as the process is over its memory limit; none
  // that holds less than `least_bytes`.
  void RelieveMemory(int64_t least_bytes);
  net::EventLoop& loop() { return loop_; }
  // Open connections. Thread-safe.
  uint64_t connections() const { return opened_.value() - closed_.value(); }

  // ---- For its connections.
  void CountOpened();
  void CountClosed();
  // Destroys the connection.
  void Remove(Connection& connection);
  // Connection::Work follows when the loop's iteration ends.
  void MarkDirty(Connection& connection);
  // The connection waits for its peer from now on; or no longer.
  void MarkWaiting(Connection& connection, bool waiting);
  void MarkHeavy(Connection& connection, bool heavy);
  void CountStalled(const net::Stream& stream);
  void CountClosedOverMemory(const net::Stream& stream, size_t bytes);
  void CountShed() { counters().sheds.Add(1); }
  bool draining() const { return draining_; }

  Exchange& NewExchange();
  void Recycle(Exchange& exchange);

  void AddMemory(int64_t bytes) { memory_.Add(bytes); }
  bool over_memory() const { return memory_.over(); }
  // Bytes of unfinished requests, of all connections.
  void AddBufferedBytes(size_t bytes) { buffered_bytes_ += bytes; }
  size_t buffered_bytes() const { return buffered_bytes_; }

  const RouteTable& routes() const { return routes_; }
  const ServerOptions& options() const { return options_; }
  size_t index() const { return index_; }
  common::TransportCounters& counters() { return *transport_counters_; }
  // Of the requests without a route: null.
  common::MethodCounters& CountersOf(const Route* route) {
    return *route_counters_[route != nullptr ? route->index : routes_.size()];
  }

  // For bytes on their way to a stream; used within one call.
  common::Buffer& output() { return output_; }
  // "date: Mon, 23 Nov 2026 02:00:00 GMT\r\n", at most a second old.
  std::string_view date_line();
  // The time. Reads the clock once for kRequestsPerReading requests.
  int64_t Now();

 private:
  static constexpr int kRequestsPerReading = 16;

  void FindCounters();
  void OnIterationEnd() override;

  const RouteTable& routes_;
  const common::Clock& clock_;
  const ServerOptions options_;
  net::EventLoop& loop_;
  const size_t index_;
  common::Metrics& metrics_;
  // Counters of the loop's thread, looked up at its first connection; routes by Route::index.
  std::vector<common::MethodCounters*> route_counters_;
  common::TransportCounters* transport_counters_ = nullptr;
  common::OwnedCounter opened_;
  common::OwnedCounter closed_;
  common::Buffer output_;
  std::string date_line_;
  int64_t date_second_ = -1;
  int64_t date_read_ns_ = 0;
  int readings_left_ = 0;
  int64_t now_ns_ = 0;
  size_t buffered_bytes_ = 0;
  bool draining_ = false;
  IntrusiveList<Connection, OpenConnections> connections_;
  IntrusiveList<Connection, DirtyConnections> dirty_;
  IntrusiveList<Connection, WaitingConnections> waiting_;  // the longest first
  IntrusiveList<Connection, HeavyConnections> heavy_;
  common::MemoryPart memory_;
  Exchange* free_ = nullptr;
  size_t free_bytes_ = 0;
};

}  // namespace sluice::http1

#endif  // SLUICE_SERVER_TRANSPORT_HTTP1_LOOP_H_
