#include "server/limits/limit_table.h"

namespace sluice::limits {

const store::Rule& Limit::OverrideFor(std::string_view key) const {
  const auto it = rules_->by_key.find(common::ToAbsl(key));
  return it == rules_->by_key.end() ? *own_ : *it->second;
}

}  // namespace sluice::limits
