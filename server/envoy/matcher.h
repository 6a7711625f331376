// Matcher: a DescriptorTree compiled for look-ups: finds the limit of a request's descriptor, and
// the key of its bucket.
//
// Each entry of a descriptor goes one level down: to the descriptor that is KEY_VALUE exactly, else
// to the first in file order whose wildcards match it, else to the bare KEY. There is no
// backtracking. A limit applies only if the last entry lands on it. A level is a hash table, and
// its wildcards are found by their literal prefixes, so the time does not grow with the number of
// descriptors.
#ifndef SLUICE_SERVER_ENVOY_MATCHER_H_
#define SLUICE_SERVER_ENVOY_MATCHER_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/types/span.h"
#include "common/bounds.h"
#include "server/envoy/descriptor_tree.h"
#include "server/envoy/overrides.h"

namespace sluice::limits {
class Limit;
class LimitTable;
}  // namespace sluice::limits

namespace sluice::envoy {

// An entry of a request's descriptor.
struct Entry {
  std::string_view key;
  std::string_view value;
};

// The key of a bucket, in place.
struct BucketKey {
  std::string_view view() const { return {bytes, size}; }

  size_t size = 0;
  char bytes[common::bounds::kMaxKeyBytes];
};

// A descriptor that has a limit, with all that answers need of it. Immutable; lives as long as its
// Matcher.
struct MatchedLimit {
  static constexpr uint32_t kNoLimit = UINT32_MAX;

  // Which of the source's limits in a LimitTable counts it (LimitOf). kNoLimit: unlimited.
  uint32_t limit_index = kNoLimit;
  // The limit's name in the LimitTable.
  std::string limit_name = {};

  // As configured. `requests_per_unit` may be 0: nothing but checks is granted; the limit in the
  // table then has 1 permit.
  uint32_t requests_per_unit = 0;
  Unit unit = Unit::kUnknown;
  uint32_t unit_multiplier = 1;
  bool unlimited = false;
  bool shadow_mode = false;
  bool quota_mode = false;
  // rate_limit's; current_limit shows it. Not unique.
  std::string name = {};
  // Names of limits which do not apply where this one does.
  std::vector<std::string> replaces = {};
  MetadataValue::Fields metadata = {};

  // How to count, with --ratelimit_mode and --ratelimit_overrides applied.
  Counting counting = {};

  // ER's name of the counters: DOMAIN.KEY[_VALUE][.KEY[_VALUE]]. If `metric_has_values`, the values
  // of the request belong in it: Matcher::MetricName.
  std::string metric_name = {};
  bool metric_has_values = false;
};

// Immutable, thread-safe. Look-ups allocate nothing.
class Matcher {
 public:
  class Level;

  // REQUIRES: Check(tree) is OK. The limits of the matches are numbered from 0 in the order of
  // Specs (limit_specs.h).
  Matcher(const DescriptorTree& tree, const Overrides& overrides);
  ~Matcher();
  Matcher(const Matcher&) = delete;
  Matcher& operator=(const Matcher&) = delete;

  // Null: no such domain. Valid as long as this.
  const Level* FindDomain(std::string_view domain) const;

  // The limit of a descriptor; null: it has none. Fills in the bucket's key if there is a limit.
  // The key is the same for two descriptors of one limit iff they have the same entries, but for
  // values of descriptors with share_threshold, which the pattern stands for.
  const MatchedLimit* Find(const Level& domain, absl::Span<const Entry> entries,
                           BucketKey* key) const;

  // Writes the bucket's key of entries as they are: for a limit that a request brings along.
  static void WriteKey(absl::Span<const Entry> entries, BucketKey* key);

  // ER's name of the counters of a descriptor that was found, with detailed_metric and
  // value_to_metric applied. Allocates.
  std::string MetricName(std::string_view domain, absl::Span<const Entry> entries) const;

  // All limits, by limit_index and then those without one.
  absl::Span<const std::unique_ptr<MatchedLimit>> limits() const { return limits_; }

 private:
  struct Domains;
  std::unique_ptr<Domains> domains_;
  std::vector<std::unique_ptr<MatchedLimit>> limits_;
};

// The matcher that belongs to a table, swapped in together with its limits: a request that takes
// one table (LimitRegistry::Local) sees one configuration. Null: no configuration is loaded.
const Matcher* MatcherOf(const limits::LimitTable& table);

// The limit of the table that counts a match; null: unlimited, or an admin deleted the limit: the
// descriptor counts as unmatched.
const limits::Limit* LimitOf(const limits::LimitTable& table, const MatchedLimit& match);

}  // namespace sluice::envoy

#endif  // SLUICE_SERVER_ENVOY_MATCHER_H_
