#include "server/transport/web/envoy/rate_limit_pages.h"

#include <memory>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "common/strings.h"
#include "server/envoy/descriptor_tree.h"
#include "server/transport/http1/answer.h"
#include "server/transport/http1/exchange.h"

namespace sluice::web {
namespace {

constexpr char kConfiguration[] = "/rlconfig";
constexpr char kStatistics[] = "/stats";

// A page that is being written. The task on its way keeps it.
struct Waiting {
  http1::Exchange* exchange;  // used on the loop only; null: the peer left
  net::EventLoop& loop;
};

std::string StatisticsText(const envoy::Statistics& statistics) {
  std::string text;
  for (const auto& [name, value] : statistics.Read())
    absl::StrAppend(&text, name, ": ", value, "\n");
  return text;
}

}  // namespace

std::string ConfigurationText(const envoy::Matcher& matcher) {
  std::string text;
  for (const auto& limit : matcher.limits()) {
    const std::string unit = absl::AsciiStrToUpper(common::ToAbsl(envoy::UnitName(limit->unit)));
    absl::StrAppend(&text, limit->metric_name, ": ");
    if (limit->unlimited) {
      absl::StrAppend(&text, "unlimited");
    } else {
      absl::StrAppend(&text, "unit=", unit, " requests_per_unit=", limit->requests_per_unit);
    }
    absl::StrAppend(&text, ", shadow_mode: ", limit->shadow_mode ? "true" : "false");
    if (limit->quota_mode) absl::StrAppend(&text, ", quota_mode: true");
    text += '\n';
  }
  return text;
}

void RateLimitPages::Register(http1::RouteTable* routes) {
  for (const char* path : {kConfiguration, kStatistics}) routes->Add(path, *this, {});
}

void RateLimitPages::OnRequest(http1::Exchange& exchange) {
  auto waiting = std::make_shared<Waiting>(Waiting{&exchange, exchange.loop()});
  exchange.set_state(waiting.get());
  exchange.EndWithPeer();
  const bool configuration = exchange.route().path == kConfiguration;
  background_.Post([this, configuration, waiting = std::move(waiting)] {
    std::string text;
    if (!configuration) {
      text = StatisticsText(statistics_);
    } else {
      const auto table = statistics_.registry().Current();
      const envoy::Matcher* const matcher = envoy::MatcherOf(*table);
      if (matcher != nullptr) text = ConfigurationText(*matcher);
    }
    net::EventLoop& loop = waiting->loop;
    loop.Post([waiting, text = std::move(text)]() mutable {
      if (waiting->exchange == nullptr) return;
      http1::Answer answer;
      answer.content_type = "text/plain; charset=utf-8";
      answer.body = http1::SharedBytes::Of(std::move(text));
      std::exchange(waiting->exchange, nullptr)->Finish(std::move(answer));
    });
  });
}

void RateLimitPages::OnCancelled(http1::Exchange& exchange) {
  static_cast<Waiting*>(exchange.state())->exchange = nullptr;
}

}  // namespace sluice::web
