// Concurrency: bounds the permits that are in use at the same time (slots), not those of a period.
//
// A grant holds its permits until it is ended (EndHold), or until hold_for has passed since the
// grant or its last renewal. So the slots of a caller that crashed come back by themselves. The
// state is the list of holds; what it counts is the sum of those that have not ended:
//
//   granted(n)  iff  sum of the holds with end > now, and n, are at most `permits`
//
// A hold ends at its end: at that moment its permits can be granted again, and it cannot be renewed
// any more. Ended holds are removed by later changes of the bucket; until then they do not count.
//
// A renewal never shortens a hold. When `permits` is lowered, holds stay, and nothing is granted
// before their sum is below it. When hold_for is changed, holds keep their ends until they are
// renewed.
//
// Example: permits 3, hold_for 10 s.
//   0 s   A takes 2: granted, ends at 10 s. B takes 2: denied, retry in 10 s
//   6 s   A is renewed, and ends at 16 s
//   9 s   C takes 1: granted, ends at 19 s. A is ended. B takes 2: granted, ends at 19 s
//   19 s  C and B have ended, and a renewal says so: all 3 are free
//
// Not thread-safe; never blocks.
#ifndef SLUICE_SERVER_ALGORITHM_CONCURRENCY_H_
#define SLUICE_SERVER_ALGORITHM_CONCURRENCY_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <tuple>

#include "absl/status/statusor.h"
#include "common/bounds.h"
#include "server/algorithm/bucket_image.h"
#include "server/algorithm/hold_list.h"
#include "server/algorithm/level.h"

namespace sluice::algorithm {

struct Parameters;

// Made by MakeConcurrency.
struct Concurrency {
  uint64_t permits = 1;
  int64_t hold_for_ns = common::bounds::kDefaultHoldForNs;

  // See TokenBucket.
  template <typename Self>
  static auto Given(Self& self) {
    return std::tie(self.permits, self.hold_for_ns);
  }
  static uint64_t Unit() { return 0; }
  static size_t DecisionSteps() { return 0; }  // its holds cost more

  friend bool operator==(const Concurrency&, const Concurrency&) = default;
};

// INVALID_ARGUMENT: permits 0 or too many, or hold_for out of bounds.
absl::StatusOr<Parameters> MakeConcurrency(uint64_t permits, int64_t hold_for_ns);

// The state of one key.
class ConcurrencyState {
 public:
  bool CanTake(const Concurrency& parameters, uint64_t permits, int64_t now_ns) const;
  // Granted: holds the permits for hold_for. REQUIRES: no acquisition of that id holds any.
  bool TryTake(const Concurrency& parameters, uint64_t permits, int64_t now_ns, uint64_t id);
  // Holds permits from now until hold_for after `from_ns`, whether or not they fit.
  void Take(const Concurrency& parameters, uint64_t permits, int64_t now_ns, int64_t from_ns,
            uint64_t id);

  // Ends the hold and returns its permits. nullopt: it has ended before.
  std::optional<uint64_t> EndHold(uint64_t id, int64_t now_ns);
  // Holds for hold_for from now on, unless it ends later anyway; returns the end. nullopt: it has
  // ended.
  std::optional<int64_t> Renew(const Concurrency& parameters, uint64_t id, int64_t now_ns);
  // nullopt: it has ended.
  std::optional<Hold> Find(uint64_t id, int64_t now_ns) const;

  // A hint: the first moment, not before now, at which TryTake would grant if no hold is renewed or
  // ended early. kNeverNs if permits are more than the limit has.
  int64_t EarliestNs(const Concurrency& parameters, uint64_t permits, int64_t now_ns) const;
  Level LevelAt(const Concurrency& parameters, int64_t now_ns) const;
  bool IsFull(const Concurrency& parameters, int64_t now_ns) const;
  uint64_t Counted(const Concurrency& parameters, int64_t now_ns) const;

  // Number of holds that have not ended, and the next end; kNeverNs: none.
  size_t HoldsAt(int64_t now_ns) const { return holds_.size() - holds_.EndedUpTo(now_ns).holds; }
  int64_t NextEndNs(int64_t now_ns) const;
  void Restore(const Hold& hold) { holds_.Add(hold); }
  void RemoveEnded(int64_t now_ns, size_t most) { holds_.RemoveEnded(now_ns, most); }
  // With those that have ended and were not removed yet.
  const HoldList& holds() const { return holds_; }

  void ToImage(BucketImage* image) const;
  static ConcurrencyState FromImage(const Concurrency&, const BucketImage& image);

  size_t MemoryBytes() const { return holds_.MemoryBytes(); }

 private:
  HoldList holds_;
};

}  // namespace sluice::algorithm

#endif  // SLUICE_SERVER_ALGORITHM_CONCURRENCY_H_
