// LimitTable: an immutable snapshot of all limits, looked up by name. LimitRegistry: the running
// table; builds each snapshot from what the file says and what the admin put, and swaps it.
#ifndef SLUICE_SERVER_LIMITS_LIMIT_TABLE_H_
#define SLUICE_SERVER_LIMITS_LIMIT_TABLE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "server/limits/limit.h"
#include "server/store/rule.h"

namespace sluice::store {
class Store;
}

namespace sluice::limits {

// A limit of one snapshot. Immutable.
class Limit {
 public:
  const LimitSpec& spec() const;
  std::string_view name() const;
  // Index of this limit's counters: stable over reloads for the same name.
  uint32_t limit_id() const;
  // The rule of a key: an override's, or the limit's own.
  const store::Rule& RuleFor(std::string_view key) const;
  // The limits that `charges` adds, each once, parents' parents included, in a fixed order. Their
  // shared buckets (key "") are charged with the same permits.
  absl::Span<const Limit* const> parents() const;
};

// Thread-safe, immutable. Lookup is a hash and a compare; no allocation.
class LimitTable {
 public:
  // Null if there is none of that name. Valid as long as the table.
  const Limit* Find(std::string_view name) const;
  // Sorted by name.
  absl::Span<const Limit* const> limits() const;
};

}  // namespace sluice::limits

#endif  // SLUICE_SERVER_LIMITS_LIMIT_TABLE_H_
