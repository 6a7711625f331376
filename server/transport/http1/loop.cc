#include "server/transport/http1/loop.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "common/log.h"
#include "server/transport/http1/connection.h"
#include "server/transport/http1/exchange.h"

namespace sluice::http1 {
namespace {

constexpr char kNoRoute[] = "http:other";

// Units of work (net::WorkQueue) of all connections in one step, and of one without requests.
constexpr int64_t kStepUnits = net::WorkQueue::kTurnUnits;
constexpr int64_t kWorkUnits = 4;

}  // namespace

Loop::Loop(const RouteTable& routes, const common::Clock& clock, common::Metrics& metrics,
           const ServerOptions& options, net::EventLoop& loop, size_t index)
    : routes_(routes),
      clock_(clock),
      options_(options),
      loop_(loop),
      index_(index),
      metrics_(metrics),
      memory_(options.memory) {}

Loop::~Loop() {
  while (!connections_.empty()) Remove(*connections_.front());
  while (free_ != nullptr) delete std::exchange(free_, free_->next_free_);
}

void Loop::FindCounters() {
  if (transport_counters_ != nullptr) return;
  common::Metrics::Shard& shard = metrics_.Local();
  for (size_t i = 0; i < routes_.size(); ++i) {
    route_counters_.push_back(&shard.OfMethod(metrics_.AddMethod(routes_.route(i).options.metric)));
  }
  route_counters_.push_back(&shard.OfMethod(metrics_.AddMethod(kNoRoute)));
  transport_counters_ = &shard.OfTransport(metrics_.AddTransport(options_.metrics_name));
}

net::StreamHandler* Loop::Adopt(net::Stream& stream, size_t max_connections) {
  FindCounters();
  if (connections() >= max_connections) {
    if (waiting_.empty()) {
      CountRefused();
      return nullptr;
    }
    waiting_.front()->Displace();
  }
  auto* const connection = new Connection(*this, stream);
  connections_.PushFront(*connection);
  return connection;
}

void Loop::CountRefused() {
  FindCounters();
  counters().connections_refused.Add(1);
}

void Loop::CountDisplaced() {
  FindCounters();
  counters().handshakes_displaced.Add(1);
}

void Loop::CountOpened() {
  opened_.Add(1);
  counters().connections_accepted.Add(1);
}

void Loop::CountClosed() {
  counters().connections_closed.Add(1);
  closed_.Add(1);
}

void Loop::Remove(Connection& connection) {
  connections_.Remove(connection);
  if (dirty_.Contains(connection)) dirty_.Remove(connection);
  if (waiting_.Contains(connection)) waiting_.Remove(connection);
  if (heavy_.Contains(connection)) heavy_.Remove(connection);
  delete &connection;
}

void Loop::Drain() {
  if (draining_) return;
  draining_ = true;
  // Draining a connection may close it, but never destroys it: its stream closes later.
  for (Connection* one = connections_.front(); one != nullptr; one = connections_.Next(*one)) {
    one->Drain();
  }
}

void Loop::MarkDirty(Connection& connection) {
  if (dirty_.Contains(connection)) return;
  dirty_.PushBack(connection);
  loop_.AtIterationEnd(*this);
}

void Loop::OnIterationEnd() {
  // As RpcLoop: many may have something to send, and each may also handle a turn's worth.
  for (int64_t left = kStepUnits; !dirty_.empty() && left > 0;) {
    Connection& connection = dirty_.PopFront();
    loop_.work().Refill(connection);
    const int64_t before = connection.credit();
    connection.Work();
    left -= kWorkUnits + before - connection.credit();
  }
  if (!dirty_.empty()) loop_.AtIterationEnd(*this);
}

void Loop::MarkWaiting(Connection& connection, bool waiting) {
  if (waiting_.Contains(connection)) waiting_.Remove(connection);
  if (waiting) waiting_.PushBack(connection);
}

void Loop::MarkHeavy(Connection& connection, bool heavy) {
  if (heavy == heavy_.Contains(connection)) return;
  if (heavy) {
    heavy_.PushFront(connection);
  } else {
    heavy_.Remove(connection);
  }
}

void Loop::RelieveMemory(int64_t least_bytes) {
  if (!memory_.over()) return;
  std::vector<std::pair<int64_t, Connection*>> most;
  for (Connection* one = heavy_.front(); one != nullptr; one = heavy_.Next(*one)) {
    const auto bytes = static_cast<int64_t>(one->memory());
    if (bytes >= least_bytes) most.emplace_back(bytes, one);
  }
  std::sort(most.begin(), most.end(), std::greater<>());
  int64_t excess = options_.memory->excess();
  for (auto it = most.begin(); it != most.end() && excess > 0; ++it) {
    excess -= it->first;
    it->second->CloseOverMemory();
  }
}

void Loop::CountStalled(const net::Stream& stream) {
  counters().stalls.Add(1);
  if (options_.log == nullptr) return;
  options_.log->Warning("peer_stalled",
                        {{"port", options_.metrics_name}, {"peer", stream.peer_address()}});
}

void Loop::CountClosedOverMemory(const net::Stream& stream, size_t bytes) {
  counters().connections_closed_over_memory.Add(1);
  if (options_.log == nullptr) return;
  options_.log->Warning(
      "connection_closed_over_memory",
      {{"port", options_.metrics_name}, {"peer", stream.peer_address()}, {"bytes", bytes}});
}

Exchange& Loop::NewExchange() {
  if (free_ == nullptr) return *new Exchange();
  Exchange& exchange = *std::exchange(free_, free_->next_free_);
  free_bytes_ -= exchange.memory();
  return exchange;
}

void Loop::Recycle(Exchange& exchange) {
  // Gives back the memory of a burst.
  constexpr size_t kMaxFreeBytes = size_t{1} << 20;
  exchange.Recycle();
  if (free_bytes_ + exchange.memory() > kMaxFreeBytes) {
    delete &exchange;
    return;
  }
  free_bytes_ += exchange.memory();
  exchange.next_free_ = std::exchange(free_, &exchange);
}

std::string_view Loop::date_line() {
  constexpr int64_t kReadEveryNs = 250'000'000;
  if (date_second_ >= 0 && loop_.now_ns() - date_read_ns_ < kReadEveryNs) return date_line_;
  date_read_ns_ = loop_.now_ns();
  const int64_t second = clock_.WallNs() / 1'000'000'000;
  if (second != date_second_) {
    date_second_ = second;
    date_line_ = absl::StrCat("date: ",
                              absl::FormatTime("%a, %d %b %Y %H:%M:%S GMT",
                                               absl::FromUnixSeconds(second), absl::UTCTimeZone()),
                              "\r\n");
  }
  return date_line_;
}

int64_t Loop::Now() {
  if (--readings_left_ <= 0 || now_ns_ < loop_.now_ns()) {
    readings_left_ = kRequestsPerReading;
    now_ns_ = clock_.NowNs();
  }
  return now_ns_;
}

}  // namespace sluice::http1
