// LimitTable: an immutable snapshot of all limits, looked up by name. LimitRegistry
// (limit_registry.h) builds each snapshot and swaps it in.
#ifndef SLUICE_SERVER_LIMITS_LIMIT_TABLE_H_
#define SLUICE_SERVER_LIMITS_LIMIT_TABLE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/strings.h"
#include "server/limits/limit.h"

namespace sluice::limits {

// Immutable, thread-safe. A look-up is a hash and a compare; no allocation.
class LimitTable {
 public:
  // Null if no limit has that name. Valid as long as the table.
  const Limit* Find(std::string_view name) const {
    const auto it = by_name_.find(common::ToAbsl(name));
    return it == by_name_.end() ? nullptr : it->second;
  }

  // Sorted by name.
  absl::Span<const Limit* const> limits() const { return sorted_; }

  // 1 for the first (empty) table, then one more for each table.
  uint64_t serial() const { return serial_; }

  // The version of the file that this table was made with; empty: no file yet.
  const std::string& file_version() const { return file_version_; }

  // Greater than every limit_id of this and all earlier tables.
  uint32_t limit_id_end() const { return limit_id_end_; }

  // Changes made by Put and Delete that are still in force.
  uint32_t admin_changes() const { return admin_changes_; }

 private:
  friend class LimitRegistry;
  std::vector<std::unique_ptr<Limit>> owned_;
  std::vector<const Limit*> sorted_;
  absl::flat_hash_map<absl::string_view, const Limit*> by_name_;  // views into the specs
  uint64_t serial_ = 0;
  std::string file_version_;
  uint32_t limit_id_end_ = 0;
  uint32_t admin_changes_ = 0;
};

}  // namespace sluice::limits

#endif  // SLUICE_SERVER_LIMITS_LIMIT_TABLE_H_
