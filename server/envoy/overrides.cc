#include "server/envoy/overrides.h"

#include "common/strings.h"

namespace sluice::envoy {

const Counting& Overrides::Of(std::string_view domain, std::string_view name,
                              std::string_view limit_name) const {
  const auto find = [](const auto& map, std::string_view key) -> const Counting* {
    const auto it = map.find(common::ToAbsl(key));
    return it == map.end() ? nullptr : &it->second;
  };
  if (const Counting* of_limit = find(limits, limit_name)) return *of_limit;
  if (const Counting* of_limit = name.empty() ? nullptr : find(limits, name)) return *of_limit;
  if (const Counting* of_domain = find(domains, domain)) return *of_domain;
  return all;
}

}  // namespace sluice::envoy
