// FieldsSet: which fields of a decision differ from their defaults, by name. For tests that no
// field is forgotten where decisions are made or read. A new field does not compile until it is
// here.
#ifndef SLUICE_TESTS_SUPPORT_DECISION_FIELDS_H_
#define SLUICE_TESTS_SUPPORT_DECISION_FIELDS_H_

#include <map>
#include <string>

#include "sluice/decision.h"

namespace sluice::testing {

using FieldsSet = std::map<std::string, bool>;

// Adds those of this decision. Not those that only the client itself sets.
inline void AddFields(const Decision& decision, FieldsSet* set) {
  const auto add = [set](const char* name, const auto& value) {
    (*set)[name] |= value != std::decay_t<decltype(value)>{};
  };
  const auto& [granted, source, retry_after, wait, charges, receipt, repeated, status, server] =
      decision;
  (void)status;
  (void)server;
  add("granted", granted);
  add("source", source);
  add("retry_after", retry_after);
  add("wait", wait);
  add("receipt", receipt);
  add("repeated", repeated);
  for (const ChargeStatus& charge : charges) {
    const auto& [remaining, capacity, reset_after, reason, limit, forgiven, held_for] = charge;
    add("charges.remaining", remaining);
    add("charges.capacity", capacity);
    add("charges.reset_after", reset_after);
    add("charges.reason", reason);
    add("charges.limit", limit);
    add("charges.forgiven", forgiven);
    add("charges.held_for", held_for);
  }
}

}  // namespace sluice::testing

#endif  // SLUICE_TESTS_SUPPORT_DECISION_FIELDS_H_
