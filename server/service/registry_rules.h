// RegistryRules: gives held callers the current rules of their charges.
#ifndef SLUICE_SERVER_SERVICE_REGISTRY_RULES_H_
#define SLUICE_SERVER_SERVICE_REGISTRY_RULES_H_

#include <cstdint>
#include <memory>
#include <utility>

#include "server/limits/limit_registry.h"
#include "server/waiting/held_callers.h"

namespace sluice::service {

// Thread-safe. The registry outlives it.
class RegistryRules final : public waiting::RuleSource {
 public:
  explicit RegistryRules(const limits::LimitRegistry& registry) : registry_(registry) {}

  uint64_t Generation() override { return registry_.Current()->serial(); }

  waiting::Refreshed Refresh(absl::Span<store::Charge> charges,
                             std::shared_ptr<const void>* keep) override {
    const std::shared_ptr<const limits::LimitTable> table = registry_.Current();
    waiting::Refreshed refreshed = waiting::Refreshed::kSame;
    for (store::Charge& charge : charges) {
      const limits::Limit* const limit = table->Find(charge.rule->limit_name);
      if (limit == nullptr) {
        refreshed = waiting::Refreshed::kGone;
        continue;
      }
      const store::Rule& rule = limit->RuleFor(charge.key);
      if (rule.id == charge.rule->id) continue;
      charge.rule = &rule;
      if (refreshed == waiting::Refreshed::kSame) refreshed = waiting::Refreshed::kChanged;
    }
    if (refreshed == waiting::Refreshed::kChanged) {
      // The new table has the unchanged rules too.
      *keep = table;
    } else if (refreshed == waiting::Refreshed::kGone) {
      *keep = std::make_shared<std::pair<std::shared_ptr<const void>, std::shared_ptr<const void>>>(
          *keep, table);
    }
    return refreshed;
  }

 private:
  const limits::LimitRegistry& registry_;
};

}  // namespace sluice::service

#endif  // SLUICE_SERVER_SERVICE_REGISTRY_RULES_H_
