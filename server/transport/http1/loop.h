// Loop: what the HTTP connections of one event loop share: routes, the clock, exchanges.
#ifndef SLUICE_SERVER_TRANSPORT_HTTP1_LOOP_H_
#define SLUICE_SERVER_TRANSPORT_HTTP1_LOOP_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "common/clock.h"
#include "common/metrics.h"
#include "common/net/event_loop.h"
#include "common/net/stream.h"
#include "server/transport/http1/exchange.h"
#include "server/transport/http1/http_server.h"
#include "server/transport/http1/route.h"
#include "server/transport/port/free_list.h"
#include "server/transport/port/port_loop.h"

namespace sluice::http1 {

// As transport::PortLoop.
class Loop final : public transport::PortLoop {
 public:
  // All outlive the Loop.
  Loop(const RouteTable& routes, const common::Clock& clock, common::Metrics& metrics,
       const ServerOptions& options, net::EventLoop& loop, size_t index);
  ~Loop() override;

  // ---- For its connections.
  transport::FreeList<Exchange, FreeExchanges>& exchanges() { return exchanges_; }

  const RouteTable& routes() const { return routes_; }
  const ServerOptions& options() const { return options_; }
  // Of the requests without a route: null.
  common::MethodCounters& CountersOf(const Route* route) {
    return CountersAt(route != nullptr ? route->index : routes_.size());
  }

  // "date: Mon, 23 Nov 2026 02:00:00 GMT\r\n", at most a second old.
  std::string_view date_line();
  // The time. Reads the clock once for kRequestsPerReading requests.
  int64_t Now();

 private:
  static constexpr int kRequestsPerReading = 16;

  // transport::PortLoop
  std::vector<std::string> MethodNames() const override;
  transport::PortConnection* NewConnection(net::Stream& stream) override;

  const RouteTable& routes_;
  const common::Clock& clock_;
  const ServerOptions options_;
  std::string date_line_;
  int64_t date_second_ = -1;
  int64_t date_read_ns_ = 0;
  int readings_left_ = 0;
  int64_t now_ns_ = 0;
  transport::FreeList<Exchange, FreeExchanges> exchanges_;
};

}  // namespace sluice::http1

#endif  // SLUICE_SERVER_TRANSPORT_HTTP1_LOOP_H_
