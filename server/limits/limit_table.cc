#include "server/limits/limit_table.h"

#include "common/bounds.h"
#include "server/limits/nearest_name.h"

namespace sluice::limits {

std::string_view NearestLimit(const LimitTable& table, std::string_view name) {
  constexpr size_t kMaxCompared = 1000;
  if (table.limits().size() > kMaxCompared || name.size() > common::bounds::kMaxLimitNameBytes) {
    return {};
  }
  std::vector<std::string_view> names;
  names.reserve(table.limits().size());
  for (const Limit* limit : table.limits()) names.push_back(limit->name());
  return NearestName(name, names);
}

}  // namespace sluice::limits
