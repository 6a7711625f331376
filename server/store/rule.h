// A Rule is what the store needs to know of a limit: which bucket, which algorithm, which
// parameters.
#ifndef SLUICE_SERVER_STORE_RULE_H_
#define SLUICE_SERVER_STORE_RULE_H_

#include <cstdint>
#include <string>

#include "server/algorithm/parameters.h"

namespace sluice::store {

// How nodes with one shared store come to decide about the same bucket.
enum class Sharing : uint8_t {
  // Each decision is the store's.
  kExact = 0,
  // Each node decides by itself, with its share of the parameters.
  kSplit,
  // Each node grants by what it knows of the bucket, and reports it afterwards.
  kRelaxed,
};

// Immutable once registered with a store. Buckets are identified by (limit_id, key); a rule is
// one revision of the parameters that hold for some of a limit's keys. A reload that changes a
// limit's parameters makes new rules (with the same limit_id); one that does not keeps the old
// objects, so that nothing is converted.
struct Rule {
  // Unique in the process, never reused, increasing: of two rules of one limit the greater is the
  // newer. Never 0.
  uint32_t id = 0;
  // The same over reloads for the same limit name. Never reused for another name.
  uint32_t limit_id = 0;
  // For Redis keys and messages.
  std::string limit_name;
  // In a Cluster its buckets are in the slot of this tag; empty: each in that of its own name, or
  // of its key's tag. A part of the names in Redis. Of no meaning to other stores.
  std::string hash_tag = {};
  algorithm::Parameters parameters;
  // Shadow: never denies; debited when it fits, untouched and reported when it does not.
  bool shadow = false;
  // A shared store that is away: grant what it cannot decide. An acquisition is granted then if all
  // its limits say so, else answered Outcome::kUnavailable.
  bool allow_when_store_unavailable = false;
  // A shared store that is away: decide with this node's share.
  bool split_when_store_unavailable = false;
  // Of no meaning to a store that is not shared.
  Sharing sharing = Sharing::kExact;
};

}  // namespace sluice::store

#endif  // SLUICE_SERVER_STORE_RULE_H_
