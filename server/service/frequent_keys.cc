#include "server/service/frequent_keys.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <iterator>

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
  sorted_.reserve(counters);
  free_.reserve(counters);
  Clear();
}

void FrequentKeys::Clear() {
  std::fill(counts_.begin(), counts_.end(), 0);
  std::fill(slots_.begin(), slots_.end(), 0);
  free_.clear();
  for (size_t i = counts_.size(); i > 0; --i) free_.push_back(static_cast<uint16_t>(i - 1));
  long_keys_end_ = 0;
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
  const bool purged = free_.empty() || !HasRoomFor(key);
  if (purged) Purge();
  while (!HasRoomFor(key)) Purge();
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

// REQUIRES: HasRoomFor(key).
void FrequentKeys::SetKey(size_t counter, std::string_view key) {
  Key& to = keys_[counter];
  to.bytes = static_cast<uint32_t>(key.size());
  if (key.empty()) return;
  if (key.size() <= kShortBytes) {
    std::memcpy(to.short_key.data(), key.data(), key.size());
    return;
  }
  // Not initialized: pages that are not used take no memory.
  if (long_keys_ == nullptr) long_keys_.reset(new char[LongKeysBytes()]);
  const auto at = static_cast<uint32_t>(long_keys_end_);
  std::memcpy(to.short_key.data(), &at, sizeof at);
  std::memmove(long_keys_.get() + at, key.data(), key.size());  // see CompactLongKeys
  long_keys_end_ += key.size();
}

void FrequentKeys::CompactLongKeys() {
  // Moved down in the order of their places, so that none is overwritten before it has moved.
  sorted_.clear();
  for (size_t i = 0; i < counts_.size(); ++i) {
    if (counts_[i] == 0 || keys_[i].bytes <= kShortBytes) continue;
    sorted_.push_back(uint64_t{LongKeyAt(keys_[i])} << 16 | i);
  }
  std::sort(sorted_.begin(), sorted_.end());
  long_keys_end_ = 0;
  for (const uint64_t place_and_counter : sorted_) {
    const size_t counter = place_and_counter & 0xffff;
    SetKey(counter, KeyAt(counter));
  }
}

void FrequentKeys::Place(uint16_t counter) {
  const size_t mask = slots_.size() - 1;
  size_t slot = hashes_[counter] & mask;
  while (slots_[slot] != 0) slot = (slot + 1) & mask;
  slots_[slot] = static_cast<uint16_t>(counter + 1);
}

uint64_t FrequentKeys::UpperMedian() {
  // In a stream whose keys are all rare, most counters have the least count.
  uint64_t least = ~uint64_t{0};
  size_t equal = 0;
  for (const uint64_t count : counts_) {
    if (count == 0) continue;
    if (count < least) {
      least = count;
      equal = 0;
    }
    equal += count == least ? 1 : 0;
  }
  if (equal > (counts_.size() - free_.size()) / 2) return least;
  sorted_.clear();
  std::copy_if(counts_.begin(), counts_.end(), std::back_inserter(sorted_),
               [](uint64_t count) { return count > 0; });
  const auto median = sorted_.begin() + static_cast<std::ptrdiff_t>(sorted_.size() / 2);
  std::nth_element(sorted_.begin(), median, sorted_.end());
  return *median;
}

// REQUIRES: a counter is in use.
void FrequentKeys::Purge() {
  const uint64_t cut = UpperMedian();  // at least half of the counters are no less
  offset_ = SaturatingAdd(offset_, cut);
  std::fill(slots_.begin(), slots_.end(), 0);
  free_.clear();
  for (size_t i = 0; i < counts_.size(); ++i) {
    if (counts_[i] <= cut) {
      counts_[i] = 0;
      free_.push_back(static_cast<uint16_t>(i));
    } else {
      counts_[i] -= cut;
      Place(static_cast<uint16_t>(i));
    }
  }
  CompactLongKeys();
}

}  // namespace sluice::service
