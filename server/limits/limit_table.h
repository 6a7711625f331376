// LimitTable: an immutable snapshot of all limits, looked up by name; and Limit, one of them, as
// written (LimitSpec) and as the store rules made of it. LimitRegistry (limit_registry.h) builds
// each snapshot and swaps it in.
#ifndef SLUICE_SERVER_LIMITS_LIMIT_TABLE_H_
#define SLUICE_SERVER_LIMITS_LIMIT_TABLE_H_

#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/base/attributes.h"
#include "absl/container/flat_hash_map.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/strings.h"
#include "server/limits/limit_spec.h"
#include "server/store/rule.h"

namespace sluice::limits {

// The rules of one limit: its own, and one for each key with an override. Immutable, shared by all
// tables in which the limit's parameters are the same.
struct LimitRules {
  std::shared_ptr<const store::Rule> own;
  absl::flat_hash_map<std::string, std::shared_ptr<const store::Rule>> by_key;
};

// Immutable, thread-safe; valid as long as its table.
class Limit {
 public:
  Limit(std::shared_ptr<const LimitSpec> spec, std::shared_ptr<const LimitRules> rules)
      : spec_(std::move(spec)),
        rules_(std::move(rules)),
        own_(rules_->own.get()),
        has_overrides_(!rules_->by_key.empty()),
        direct_(spec_->direct) {}

  // As written, without defaults.
  const LimitSpec& spec() const { return *spec_; }
  std::string_view name() const { return spec_->name; }

  // Whether requests may charge it; else only the `charges` of other limits do.
  bool direct() const { return direct_; }

  // Index of this limit's counters: small, from 0 up. A name keeps its id as long as the process
  // runs, and no other name ever gets it.
  uint32_t limit_id() const { return own_->limit_id; }

  // The limit's own rule, with defaults filled in.
  const store::Rule& rule() const { return *own_; }

  // The rule of a key: its override's, or the limit's own. One branch if there are no overrides.
  const store::Rule& RuleFor(std::string_view key) const {
    return has_overrides_ ? OverrideFor(key) : *own_;
  }

  // The limits that `charges` adds, directly and through other limits, each once, breadth first in
  // the order of `charges`. Their shared buckets (key "") are charged with the same permits, by
  // RuleFor(""), which may be an override. At most bounds::kMaxCharges - 1.
  absl::Span<const Limit* const> parents() const { return parents_; }

 private:
  friend class LimitRegistry;
  ABSL_ATTRIBUTE_NOINLINE const store::Rule& OverrideFor(std::string_view key) const {
    const auto it = rules_->by_key.find(common::ToAbsl(key));
    return it == rules_->by_key.end() ? *own_ : *it->second;
  }

  std::shared_ptr<const LimitSpec> spec_;
  std::shared_ptr<const LimitRules> rules_;
  const store::Rule* own_;
  bool has_overrides_;
  bool direct_;
  std::vector<const Limit*> parents_;
};

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

  // What ApplyEnvoy was given with the limits of Envoy's configuration; null: none is loaded.
  const void* envoy_companion() const { return envoy_companion_.get(); }

  // The limits of Envoy's configuration, in the order that ApplyEnvoy was given. Null: an admin
  // deleted it.
  absl::Span<const Limit* const> envoy_limits() const { return envoy_limits_; }

  // Changes made by Put and Delete that are still in force.
  uint32_t admin_changes() const { return admin_changes_; }

  // The earliest LimitSpec::ends_at_ns; kNoEnd: there is none.
  static constexpr int64_t kNoEnd = std::numeric_limits<int64_t>::max();
  int64_t first_end_ns() const { return first_end_ns_; }

 private:
  friend class LimitRegistry;
  std::vector<std::unique_ptr<Limit>> owned_;
  std::vector<const Limit*> sorted_;
  absl::flat_hash_map<absl::string_view, const Limit*> by_name_;  // views into the specs
  uint64_t serial_ = 0;
  std::string file_version_;
  std::shared_ptr<const void> envoy_companion_;
  std::vector<const Limit*> envoy_limits_;
  uint32_t limit_id_end_ = 0;
  uint32_t admin_changes_ = 0;
  int64_t first_end_ns_ = kNoEnd;
};

}  // namespace sluice::limits

#endif  // SLUICE_SERVER_LIMITS_LIMIT_TABLE_H_
