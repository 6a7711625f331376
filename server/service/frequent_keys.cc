#include "server/service/frequent_keys.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "common/strings.h"

namespace sluice::service {
namespace {

uint64_t SaturatingAdd(uint64_t a, uint64_t b) {
  uint64_t sum;
  return __builtin_add_overflow(a, b, &sum) ? ~uint64_t{0} : sum;
}

}  // namespace

FrequentKeys::FrequentKeys(size_t counters) {
  counters = std::bit_ceil(std::clamp<size_t>(counters, 4, 32768));
  counts_.resize(counters);
  hashes_.resize(counters);
  keys_.resize(counters);
  slots_.resize(counters * 4);
  sorted_.resize(counters);
  free_.reserve(counters);
  Clear();
}

void FrequentKeys::Clear() {
  std::fill(counts_.begin(), counts_.end(), 0);
  std::fill(slots_.begin(), slots_.end(), 0);
  free_.clear();
  for (size_t i = counts_.size(); i > 0; --i) free_.push_back(static_cast<uint16_t>(i - 1));
  offset_ = 0;
  total_ = 0;
}

void FrequentKeys::Add(uint64_t hash, uint32_t limit_id, std::string_view key, uint64_t weight) {
  if (weight == 0) return;
  key = key.substr(0, common::bounds::kMaxKeyBytes);
  total_ = SaturatingAdd(total_, weight);
  const size_t mask = slots_.size() - 1;
  size_t slot = hash & mask;
  for (; slots_[slot] != 0; slot = (slot + 1) & mask) {
    const size_t counter = slots_[slot] - 1;
    if (hashes_[counter] == hash && keys_[counter].limit_id == limit_id &&
        common::SameBytes(KeyAt(counter), key)) {
      counts_[counter] = SaturatingAdd(counts_[counter], weight);
      return;
    }
  }
  const bool purged = free_.empty();
  if (purged) Purge();
  const uint16_t index = free_.back();
  free_.pop_back();
  counts_[index] = weight;
  hashes_[index] = hash;
  keys_[index].limit_id = limit_id;
  SetKey(index, key);
  if (purged) {
    Place(index);
  } else {
    slots_[slot] = static_cast<uint16_t>(index + 1);
  }
}

void FrequentKeys::SetKey(size_t counter, std::string_view key) {
  Key& to = keys_[counter];
  to.bytes = static_cast<uint32_t>(key.size());
  if (key.size() > kShortBytes && long_keys_ == nullptr) {
    // Not initialized: pages that are not used take no memory.
    long_keys_.reset(new char[keys_.size() * common::bounds::kMaxKeyBytes]);
  }
  if (key.empty()) return;
  std::memcpy(key.size() <= kShortBytes ? to.short_key.data() : LongKeyAt(counter), key.data(),
              key.size());
}

void FrequentKeys::Place(uint16_t counter) {
  const size_t mask = slots_.size() - 1;
  size_t slot = hashes_[counter] & mask;
  while (slots_[slot] != 0) slot = (slot + 1) & mask;
  slots_[slot] = static_cast<uint16_t>(counter + 1);
}

uint64_t FrequentKeys::UpperMedian() {
  // In a stream whose keys are all rare, most counters have the least count.
  uint64_t least = counts_[0];
  size_t equal = 0;
  for (const uint64_t count : counts_) {
    if (count < least) {
      least = count;
      equal = 0;
    }
    equal += count == least ? 1 : 0;
  }
  if (equal > counts_.size() / 2) return least;
  sorted_ = counts_;
  const auto median = sorted_.begin() + static_cast<std::ptrdiff_t>(sorted_.size() / 2);
  std::nth_element(sorted_.begin(), median, sorted_.end());
  return *median;
}

// REQUIRES: all counters are in use.
void FrequentKeys::Purge() {
  const uint64_t cut = UpperMedian();  // at least half of the counters are no less
  offset_ = SaturatingAdd(offset_, cut);
  std::fill(slots_.begin(), slots_.end(), 0);
  for (size_t i = 0; i < counts_.size(); ++i) {
    if (counts_[i] <= cut) {
      counts_[i] = 0;
      free_.push_back(static_cast<uint16_t>(i));
    } else {
      counts_[i] -= cut;
      Place(static_cast<uint16_t>(i));
    }
  }
}

}  // namespace sluice::service
