#include "server/transport/web/metrics_routes.h"

#include <memory>
#include <utility>

#include "common/net/event_loop.h"
#include "server/transport/http1/exchange.h"
#include "server/transport/http1/gzip.h"

namespace sluice::web {
namespace {

// A scrape that waits for the scraper. The scraper, or the task on its way to the loop, keeps it.
struct Waiting {
  http1::Exchange* exchange;  // used on the loop only; null: the peer left
  net::EventLoop& loop;
  bool gzip;
};

void Answer(http1::Exchange& exchange, bool gzip, metrics::Scraper::Body body) {
  if (body == nullptr) {
    exchange.Fail(http1::Problem::Http(503, "the server stops"));
    return;
  }
  http1::Answer answer;
  answer.content_type = "text/plain; version=0.0.4; charset=utf-8";
  answer.headers.emplace_back("vary", "Accept-Encoding");
  if (gzip) answer.headers.emplace_back("content-encoding", "gzip");
  answer.body = http1::SharedBytes::Of(std::move(body));
  exchange.Finish(std::move(answer));
}

}  // namespace

void MetricsRoutes::Register(const http1::Gate* gate, http1::RouteTable* routes) {
  // An overloaded server is one that is looked at.
  routes->Add("/metrics", *this,
              {.gate = gate, .exempt_from_shedding = true, .metric = "/metrics"});
}

void MetricsRoutes::OnRequest(http1::Exchange& exchange) {
  const bool gzip = http1::AcceptsGzip(exchange.request());
  auto waiting = std::make_shared<Waiting>(Waiting{&exchange, exchange.loop(), gzip});
  exchange.set_state(waiting.get());
  exchange.EndWithPeer();
  scraper_.Scrape(gzip, [waiting = std::move(waiting)](metrics::Scraper::Body body) {
    net::EventLoop& loop = waiting->loop;
    loop.Post([waiting, body = std::move(body)]() mutable {
      if (waiting->exchange == nullptr) return;
      Answer(*std::exchange(waiting->exchange, nullptr), waiting->gzip, std::move(body));
    });
  });
}

void MetricsRoutes::OnCancelled(http1::Exchange& exchange) {
  static_cast<Waiting*>(exchange.state())->exchange = nullptr;
}

}  // namespace sluice::web
