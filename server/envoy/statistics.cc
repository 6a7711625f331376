#include "server/envoy/statistics.h"

#include "absl/strings/str_cat.h"

namespace sluice::envoy {

Statistics::Values Statistics::Read() const {
  Values values;
  const CallTotals calls = counters_.Calls();
  const limits::FileStatus file = file_status_();
  for (const auto& [name, value] :
       {std::pair("call.should_rate_limit.redis_error", calls.redis_error),
        std::pair("call.should_rate_limit.service_error", calls.service_error),
        std::pair("config_load_error", file.failed_reloads),
        std::pair("config_load_success", file.reloads)}) {
    values.emplace_back(absl::StrCat("ratelimit.service.", name), value);
  }
  values.emplace_back("ratelimit.service.rate_limit.domain_not_found", calls.domain_not_found);
  for (const auto& [of, hits] : counters_.Hits(registry_.Current())) {
    const std::string prefix = absl::StrCat("ratelimit.service.rate_limit.", of, ".");
    for (const auto& [name, value] :
         {std::pair("total_hits", hits.total_hits), std::pair("over_limit", hits.over_limit),
          std::pair("near_limit", hits.near_limit), std::pair("within_limit", hits.within_limit),
          std::pair("shadow_mode", hits.shadow_mode)}) {
      values.emplace_back(absl::StrCat(prefix, name), value);
    }
  }
  return values;
}

}  // namespace sluice::envoy
