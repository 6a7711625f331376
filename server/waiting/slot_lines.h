// SlotLines: callers that wait for slots (algorithm concurrency), in a line for each bucket of
// slots.
//
// A caller waits in the queue of each of its slot buckets, behind all that came before it, and is
// tried when it is the first in all of them. So callers get slots in the order of their arrival,
// however many they want: small requests do not keep a large one waiting for ever. Two callers
// are in the same order in all lines, so none of them waits for the other in a cycle. Among the
// nodes of a shared store callers are ordered by number (store::QueuePlace), which grows along each
// line.
#ifndef SLUICE_SERVER_WAITING_SLOT_LINES_H_
#define SLUICE_SERVER_WAITING_SLOT_LINES_H_

#include <cstddef>
#include <cstdint>
#include <limits>
#include <utility>

#include "absl/container/btree_map.h"
#include "absl/container/btree_set.h"
#include "absl/container/flat_hash_map.h"
#include "server/waiting/held_caller.h"

namespace sluice::waiting {

// Whether callers stand in line for the charge: it is on slots that can be denied.
inline bool WaitsFor(const store::Charge& charge) {
  return algorithm::IsConcurrency(charge.rule->parameters) && !charge.rule->shadow;
}

// Not thread-safe. Times are on the local clock.
class SlotLines {
 public:
  static constexpr int64_t kNever = std::numeric_limits<int64_t>::max();
  // By place, the order in which they came.
  using Callers = absl::btree_map<uint64_t, HeldCaller*>;

  bool empty() const { return callers_.empty(); }
  size_t size() const { return callers_.size(); }
  const Callers& callers() const { return callers_; }
  // Those that are not empty.
  size_t lines() const { return lines_.size(); }
  // Callers in the line of the bucket (BucketId).
  size_t InLine(uint64_t bucket) const;

  // Adds it behind all others. It is to be looked at now.
  void Add(HeldCaller* caller);
  void Remove(HeldCaller* caller);
  bool IsFirst(const HeldCaller& caller) const;
  // The first caller of that line, if it is the first in all its lines; else null.
  HeldCaller* FirstOf(uint64_t bucket) const;

  // The caller that is the next in the line of the bucket when this one leaves all its lines, if it
  // is then the first in all of its own; else null. REQUIRES: the caller is the first in its lines.
  HeldCaller* Behind(const HeldCaller& first, uint64_t bucket) const;

  // When to look at the caller next.
  void LookAt(HeldCaller* caller, int64_t at_ns);
  // The caller to be looked at first. Null: none up to now_ns.
  HeldCaller* Due(int64_t now_ns) const;
  // kNever: no caller is to be looked at.
  int64_t NextNs() const { return due_.empty() ? kNever : due_.begin()->first; }

 private:
  Callers callers_;
  absl::flat_hash_map<uint64_t, Callers> lines_;       // by bucket; none is empty
  absl::btree_set<std::pair<int64_t, uint64_t>> due_;  // look_at_ns and place of each caller
  uint64_t last_place_ = 0;
};

}  // namespace sluice::waiting

#endif  // SLUICE_SERVER_WAITING_SLOT_LINES_H_
