// RuleSource: gives callers that wait the current parameters of their limits.
#ifndef SLUICE_SERVER_WAITING_RULE_SOURCE_H_
#define SLUICE_SERVER_WAITING_RULE_SOURCE_H_

#include <cstdint>
#include <memory>

#include "absl/types/span.h"
#include "server/store/store.h"

namespace sluice::waiting {

// What Refresh did to the charges.
enum class Refreshed : uint8_t {
  kSame = 0,
  kChanged,
  // At least one limit was deleted. Its charges keep their rules; the others have current ones.
  kGone,
};

// Thread-safe. Never blocks.
class RuleSource {
 public:
  virtual ~RuleSource() = default;

  // The generation of the current snapshot of limits; grows with each change. The owner calls
  // HeldCallers::LimitsChanged after each change.
  virtual uint64_t Generation() = 0;

  // Replaces the rules of `charges` by the current ones. `*keep` owns the old rules. Unless the
  // result is kSame, it is replaced by the owner of the rules that `charges` have afterwards.
  virtual Refreshed Refresh(absl::Span<store::Charge> charges,
                            std::shared_ptr<const void>* keep) = 0;
};

}  // namespace sluice::waiting

#endif  // SLUICE_SERVER_WAITING_RULE_SOURCE_H_
