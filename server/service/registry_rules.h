// RegistryRules: the limits as they are now, for callers who wait.
#ifndef SLUICE_SERVER_SERVICE_REGISTRY_RULES_H_
#define SLUICE_SERVER_SERVICE_REGISTRY_RULES_H_

#include <cstdint>
#include <memory>

#include "server/engine/waiting_line.h"
#include "server/limits/limit_registry.h"

namespace sluice::service {

// Thread-safe. The registry outlives it.
class RegistryRules final : public engine::RuleSource {
 public:
  explicit RegistryRules(const limits::LimitRegistry& registry) : registry_(registry) {}

  uint64_t Generation() override { return registry_.Current()->serial(); }

  bool Refresh(absl::Span<store::Charge> charges, std::shared_ptr<const void>* keep,
               bool* changed) override {
    const std::shared_ptr<const limits::LimitTable> table = registry_.Current();
    for (store::Charge& charge : charges) {
      const limits::Limit* const limit = table->Find(charge.rule->limit_name);
      if (limit == nullptr) return false;
      const store::Rule& rule = limit->RuleFor(charge.key);
      *changed |= rule.id != charge.rule->id;
      charge.rule = &rule;
    }
    *keep = table;
    return true;
  }

 private:
  const limits::LimitRegistry& registry_;
};

}  // namespace sluice::service

#endif  // SLUICE_SERVER_SERVICE_REGISTRY_RULES_H_
