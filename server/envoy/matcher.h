// Matcher: a DescriptorTree compiled for look-ups: finds the limit of a request's descriptor, and
// the key of its bucket.
//
// Each entry of a descriptor goes one level down: to the descriptor that is KEY_VALUE exactly, else
// to the first in file order whose wildcards match KEY_VALUE, else to the bare KEY. There is no
// backtracking. A limit applies only if the last entry lands on it. A level is a hash table, and
// its wildcards are found by their literal text (wildcards.h), so the time does not grow with the
// number of descriptors.
#ifndef SLUICE_SERVER_ENVOY_MATCHER_H_
#define SLUICE_SERVER_ENVOY_MATCHER_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/bounds.h"
#include "server/envoy/descriptor_tree.h"
#include "server/envoy/overrides.h"
#include "server/envoy/wildcards.h"

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
  static constexpr uint32_t kUncounted = UINT32_MAX;

  // Which of LimitTable::envoy_limits counts it (LimitOf). kUncounted: unlimited.
  uint32_t limit_index = kUncounted;
  // Its name in the LimitTable (limit_specs.h); also of an unlimited one.
  std::string limit_name = {};
  // "SOURCE:LINE:COLUMN".
  std::string defined_at = {};

  // As configured. `requests_per_unit` may be 0: every request but a check is over the limit. The
  // limit in the table then has 1 permit.
  uint32_t requests_per_unit = 0;
  Unit unit = Unit::kUnknown;
  uint32_t unit_multiplier = 1;
  bool unlimited = false;
  bool shadow_mode = false;
  bool quota_mode = false;
  // rate_limit's; current_limit shows it. Not unique.
  std::string name = {};
  // Names of the limits that do not apply where this one does.
  std::vector<std::string> replaces = {};
  MetadataValue::Fields metadata = {};

  // How to count, with --ratelimit_mode and --ratelimit_overrides applied.
  Counting counting = {};

  // The name of its counters in envoyproxy/ratelimit: DOMAIN.KEY[_VALUE][.KEY[_VALUE]]. If
  // `metric_has_values`, values of the request belong in it: Matcher::MetricName.
  std::string metric_name = {};
  bool metric_has_values = false;
};

// Immutable, thread-safe. Look-ups do not allocate, but for entries over kMaxDescriptorBytes and
// bucket keys over kMaxKeyBytes, of which each thread keeps a buffer.
class Matcher {
 public:
  // The descriptors side by side.
  class Level;
  class Finding;

  // REQUIRES: Check(tree) is OK.
  Matcher(const DescriptorTree& tree, const Overrides& overrides);
  ~Matcher();
  Matcher(const Matcher&) = delete;
  Matcher& operator=(const Matcher&) = delete;

  // Null: no such domain. Valid as long as this.
  const Level* FindDomain(std::string_view domain) const;
  size_t domain_count() const { return domains_.size(); }

  // The limit of a descriptor; null: it has none. Fills in the bucket's key if there is a limit.
  // Two descriptors of one limit have the same key iff they have the same entries, but for values
  // that descriptors with share_threshold match: those are not in it. As Finding, at once.
  static const MatchedLimit* Find(const Level& domain, absl::Span<const Entry> entries,
                                  BucketKey* key);

  // The bucket's key for a limit that the request brings along: of all entries.
  static void WriteKey(absl::Span<const Entry> entries, BucketKey* key);

  // The name in envoyproxy/ratelimit of the counters of a descriptor that Find has found, with
  // detailed_metric and value_to_metric applied. Allocates.
  std::string MetricName(std::string_view domain, absl::Span<const Entry> entries) const;

  // All limits, in the order of loading.
  absl::Span<const std::unique_ptr<MatchedLimit>> limits() const { return limits_; }

 private:
  struct Node;
  class Compiler;

  // The views are into the levels.
  absl::flat_hash_map<absl::string_view, std::unique_ptr<Level>> domains_;
  std::vector<std::unique_ptr<MatchedLimit>> limits_;
};

// The look-up of a descriptor, in steps. Reusable; allocates as Matcher says.
class Matcher::Finding {
 public:
  // Starts a look-up, and forgets the one before. The domain and the bytes of all entries stay
  // unchanged until it is done; `key` is written then.
  void Begin(const Level& domain, absl::Span<const Entry> entries, BucketKey* key);
  // Goes on until it has looked at about *budget bytes, which it lowers. Returns whether it is
  // done.
  bool Step(int64_t* budget);
  // As Matcher::Find. REQUIRES: it is done.
  const MatchedLimit* limit() const { return limit_; }
  // Bytes of memory beside its own.
  size_t memory() const { return long_.capacity() + search_.memory(); }

 private:
  // KEY_VALUE of the entry as one text; in buffer_ unless it is very long.
  std::string_view Join(const Entry& entry);
  // Goes down to the node; null: there is none.
  void Descend(const Node* node);
  void WriteKey() const;

  absl::Span<const Entry> entries_;
  BucketKey* key_ = nullptr;
  const MatchedLimit* limit_ = nullptr;
  const Level* level_ = nullptr;  // where the next entry is looked for; null: nowhere
  size_t at_ = 0;                 // the next entry
  const Node* nodes_[common::bounds::kMaxDescriptorDepth] = {};
  bool same_keys_ = true;
  bool searching_ = false;
  Wildcards::Search search_;
  char buffer_[common::bounds::kMaxDescriptorBytes + 1];
  std::string long_;
};

// The matcher that belongs to a table: it is swapped in together with the limits, so a request that
// uses one table (LimitRegistry::Local) sees one configuration. Null: no configuration is loaded.
const Matcher* MatcherOf(const limits::LimitTable& table);

// The limit of the table that counts for a match of the table's matcher. Null: it is unlimited, or
// an admin deleted the limit, and the descriptor counts as unmatched.
const limits::Limit* LimitOf(const limits::LimitTable& table, const MatchedLimit& match);

}  // namespace sluice::envoy

#endif  // SLUICE_SERVER_ENVOY_MATCHER_H_
