// ClosedSlots: until when slot buckets grant nothing, since it is not known which slots are held.
#ifndef SLUICE_SERVER_STORE_MEMORY_CLOSED_SLOTS_H_
#define SLUICE_SERVER_STORE_MEMORY_CLOSED_SLOTS_H_

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>

#include "absl/container/flat_hash_map.h"
#include "server/algorithm/parameters.h"
#include "server/store/rule.h"

namespace sluice::store {

// Moments are on Clock::NowNs.
struct ClosedSlots {
  // What was held was lost at this moment: each limit is closed for its hold_for from then on.
  std::optional<int64_t> since_ns;
  // By name of the limit: the latest end that may have been promised, if that is known.
  absl::flat_hash_map<std::string, int64_t> until_ns;

  bool empty() const { return !since_ns.has_value() && until_ns.empty(); }
  // Closes a limit until then, at least.
  void Add(const std::string& limit, int64_t end_ns) {
    int64_t& until = until_ns[limit];
    until = std::max(until, end_ns);
  }
  // REQUIRES: a rule of slots. nullopt: it is not closed.
  std::optional<int64_t> EndFor(const Rule& rule) const {
    std::optional<int64_t> end_ns;
    // A grant from before may have been renewed just before the loss.
    if (since_ns.has_value()) end_ns = *since_ns + rule.parameters.concurrency.hold_for_ns;
    const auto known = until_ns.find(rule.limit_name);
    if (known == until_ns.end()) return end_ns;
    return std::max(end_ns.value_or(known->second), known->second);
  }
};

}  // namespace sluice::store

#endif  // SLUICE_SERVER_STORE_MEMORY_CLOSED_SLOTS_H_
