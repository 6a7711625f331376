// RegistryRules: the limits as they are now, for callers who wait.
#ifndef SLUICE_SERVER_SERVICE_REGISTRY_RULES_H_
#define SLUICE_SERVER_SERVICE_REGISTRY_RULES_H_

#include <cstdint>
#include <memory>
#include <utility>

#include "server/engine/waiting_line.h"
#include "server/limits/limit_registry.h"

namespace sluice::service {

// Thread-safe. The registry outlives it.
class RegistryRules final : public engine::RuleSource {
 public:
  explicit RegistryRules(const limits::LimitRegistry& registry) : registry_(registry) {}

  uint64_t Generation() override { return registry_.Current()->serial(); }

  engine::Refreshed Refresh(absl::Span<store::Charge> charges,
                            std::shared_ptr<const void>* keep) override {
    const std::shared_ptr<const limits::LimitTable> table = registry_.Current();
    engine::Refreshed refreshed = engine::Refreshed::kSame;
    for (store::Charge& charge : charges) {
      const limits::Limit* const limit = table->Find(charge.rule->limit_name);
      if (limit == nullptr) {
        refreshed = engine::Refreshed::kGone;
        continue;
      }
      const store::Rule& rule = limit->RuleFor(charge.key);
      if (rule.id == charge.rule->id) continue;
      charge.rule = &rule;
      if (refreshed == engine::Refreshed::kSame) refreshed = engine::Refreshed::kChanged;
    }
    if (refreshed == engine::Refreshed::kChanged) {
      // Rules that did not change are the new table's as well.
      *keep = table;
    } else if (refreshed == engine::Refreshed::kGone) {
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
