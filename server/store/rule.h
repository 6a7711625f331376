// Rule: what the store knows of a limit: which buckets, which algorithm, which parameters.
#ifndef SLUICE_SERVER_STORE_RULE_H_
#define SLUICE_SERVER_STORE_RULE_H_

#include <cstdint>
#include <optional>
#include <string>

#include "common/bounds.h"
#include "server/algorithm/parameters.h"

namespace sluice::store {

// How nodes that share a store decide on the same bucket.
enum class Sharing : uint8_t {
  // The store makes every decision.
  kExact = 0,
  // Each node decides alone, with its share of the parameters.
  kSplit,
  // Each node grants by what it knows of the bucket, and reports its grants afterwards.
  kRelaxed,
};

// Immutable once registered with a store. A bucket is identified by (limit_id, key). A rule is one
// revision of the parameters for some of a limit's keys. A reload that changes a limit's parameters
// makes new rules with the same limit_id; otherwise the old objects stay, and nothing is converted.
struct Rule {
  // Unique in the process, never reused, increasing: of two rules of one limit the one with the
  // greater id is newer. Never 0.
  uint32_t id = 0;
  // Stays the same over reloads for the same limit name. Never reused for another name.
  uint32_t limit_id = 0;
  // For Redis keys and messages.
  std::string limit_name;
  // In a Cluster its buckets are in the slot of this tag; empty: each bucket is in the slot of its
  // own name, or of its key's tag. Part of the names in Redis. Other stores ignore it.
  std::string hash_tag = {};
  algorithm::Parameters parameters;
  // Shadow mode: never denies. A charge that fits is debited; one that does not is only reported.
  bool shadow = false;
  // While a shared store is unavailable: grant. An acquisition is granted if all its limits say so;
  // else its outcome is kUnavailable.
  bool allow_when_store_unavailable = false;
  // While a shared store is unavailable: decide with this node's share.
  bool split_when_store_unavailable = false;
  // Ignored by a store that is not shared.
  Sharing sharing = Sharing::kExact;

  // Permits that a forced debit may leave owed; absent: its `debt`. At least that.
  std::optional<uint64_t> max_owed = {};

  // How far ahead a booking may lie. The callers of the store keep to it; the store does not look.
  int64_t max_wait_ns = common::bounds::kMaxWaitNs;
  // The number of the limit's keys for which a store in memory reserves room. Absent: the limit has
  // an equal part of what the other limits leave. The same in all rules of a limit.
  std::optional<uint64_t> min_keys = {};

  friend bool operator==(const Rule&, const Rule&) = default;
};

// The most permits that a bucket of the rule may owe after a forced debit.
inline uint64_t MaxOwed(const Rule& rule) {
  return rule.max_owed.value_or(algorithm::Debt(rule.parameters));
}

}  // namespace sluice::store

#endif  // SLUICE_SERVER_STORE_RULE_H_
