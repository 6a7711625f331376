#include "server/transport/web/envoy/rate_limit_pages.h"

#include <string>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "common/strings.h"
#include "server/envoy/descriptor_tree.h"
#include "server/transport/http1/answer.h"

namespace sluice::web {
namespace {

constexpr char kConfiguration[] = "/rlconfig";
constexpr char kStatistics[] = "/stats";

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

http1::Answer RateLimitPages::MakeAnswer(const http1::Request& request) {
  std::string text;
  if (request.path() != kConfiguration) {
    text = StatisticsText(statistics_);
  } else {
    const auto table = statistics_.registry().Current();
    const envoy::Matcher* const matcher = envoy::MatcherOf(*table);
    if (matcher != nullptr) text = ConfigurationText(*matcher);
  }
  http1::Answer answer;
  answer.content_type = "text/plain; charset=utf-8";
  answer.body = http1::SharedBytes::Of(std::move(text));
  return answer;
}

}  // namespace sluice::web
