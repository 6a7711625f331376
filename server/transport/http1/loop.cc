#include "server/transport/http1/loop.h"

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "server/transport/http1/connection.h"

namespace sluice::http1 {
namespace {

constexpr char kNoRoute[] = "http:other";

}  // namespace

Loop::Loop(const RouteTable& routes, const common::Clock& clock, common::Metrics& metrics,
           const ServerOptions& options, net::EventLoop& loop, size_t index)
    : PortLoop(metrics, options, loop, index), routes_(routes), clock_(clock), options_(options) {}

Loop::~Loop() { RemoveAll(); }

std::vector<std::string> Loop::MethodNames() const {
  std::vector<std::string> names;
  names.reserve(routes_.size() + 1);
  for (size_t i = 0; i < routes_.size(); ++i) names.push_back(routes_.route(i).options.metric);
  names.push_back(kNoRoute);
  return names;
}

transport::PortConnection* Loop::NewConnection(net::Stream& stream) {
  return new Connection(*this, stream);
}

std::string_view Loop::date_line() {
  constexpr int64_t kReadEveryNs = 250'000'000;
  if (date_second_ >= 0 && loop().now_ns() - date_read_ns_ < kReadEveryNs) return date_line_;
  date_read_ns_ = loop().now_ns();
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
  if (--readings_left_ <= 0 || now_ns_ < loop().now_ns()) {
    readings_left_ = kRequestsPerReading;
    now_ns_ = clock_.NowNs();
  }
  return now_ns_;
}

}  // namespace sluice::http1
