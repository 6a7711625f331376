#include "server/limits/limit.h"

#include "common/strings.h"

namespace sluice::limits {

const store::Rule& Limit::OverrideFor(std::string_view key) const {
  const auto it = rules_->by_key.find(common::ToAbsl(key));
  return it == rules_->by_key.end() ? *own_ : *it->second;
}

}  // namespace sluice::limits
