// What the memory store's decisions look at: a bucket as its word has it, and one that is held.
// Private to the memory store.
#ifndef SLUICE_SERVER_STORE_MEMORY_VIEW_H_
#define SLUICE_SERVER_STORE_MEMORY_VIEW_H_

#include <algorithm>
#include <cstdint>
#include <string_view>

#include "server/algorithm/bucket_state.h"
#include "server/algorithm/token_bucket.h"
#include "server/store/memory/memory_store.h"
#include "server/store/memory/record.h"

namespace sluice::store {

// When to try again where no bucket could be made: nobody knows when there will be room.
inline constexpr int64_t kOverflowRetryNs = 100'000'000;

inline BucketLevel ToBucketLevel(const algorithm::Level& level) {
  return {level.remaining, level.capacity, level.reset_after_ns, level.next_permit_after_ns};
}

// Of a bucket that does not exist.
inline BucketLevel FullLevel(const algorithm::Parameters& parameters, algorithm::Moment at) {
  if (parameters.kind == algorithm::Kind::kTokenBucket) {
    return ToBucketLevel(algorithm::LevelAt(parameters.token_bucket, 0, at.now_ns));
  }
  return ToBucketLevel(algorithm::BucketState(parameters).LevelAt(parameters, at));
}

// The bucket that a word, locked or plain, stands for.
struct View {
  const algorithm::Parameters& parameters;
  uint64_t word;

  bool CanTake(uint64_t permits, algorithm::Moment at, uint64_t set) const {
    if (!memory::Record::IsPlain(word)) {
      return memory::Record::StateOf(word)->CanTake(parameters, permits, at, set);
    }
    uint64_t tat = word;
    return algorithm::TryTake(parameters.token_bucket, permits,
                              algorithm::ToTicks(parameters.token_bucket, at.now_ns), &tat);
  }
  int64_t EarliestNs(uint64_t permits, algorithm::Moment at, uint64_t set, int64_t from_ns) const {
    if (!memory::Record::IsPlain(word)) {
      return memory::Record::StateOf(word)->EarliestNs(parameters, permits, at, set, from_ns);
    }
    return algorithm::EarliestNs(parameters.token_bucket, permits, word,
                                 std::max(at.now_ns, from_ns));
  }
  // nullptr: nothing is booked.
  algorithm::BucketState* Booked() const {
    if (memory::Record::IsPlain(word)) return nullptr;
    algorithm::BucketState* const state = memory::Record::StateOf(word);
    return state->bookings() == 0 ? nullptr : state;
  }
  BucketLevel Level(algorithm::Moment at) const {
    if (!memory::Record::IsPlain(word)) {
      return ToBucketLevel(memory::Record::StateOf(word)->LevelAt(parameters, at));
    }
    return ToBucketLevel(algorithm::LevelAt(parameters.token_bucket, word, at.now_ns));
  }
};

inline int64_t WaitUntil(int64_t earliest_ns, int64_t now_ns) {
  return earliest_ns == algorithm::kNeverNs ? algorithm::kNeverNs
                                            : std::max<int64_t>(earliest_ns - now_ns, 0);
}

struct MemoryStore::Held {
  const Rule* rule = nullptr;
  std::string_view key;
  uint64_t hash = 0;
  memory::Record* record = nullptr;  // null: no bucket, and no room or no wish for one
  uint64_t word = 0;                 // as it was locked, then as it is to become
  bool created = false;
};

}  // namespace sluice::store

#endif  // SLUICE_SERVER_STORE_MEMORY_VIEW_H_
