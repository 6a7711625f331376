#include "server/service/frequent_keys.h"

#include <algorithm>
#include <bit>

#include "server/common/strings.h"

namespace sluice::service {
namespace {

uint64_t SaturatingAdd(uint64_t a, uint64_t b) {
  uint64_t sum;
  return __builtin_add_overflow(a, b, &sum) ? ~uint64_t{0} : sum;
}

}  // namespace

FrequentKeys::FrequentKeys(size_t counters) {
  counters = std::bit_ceil(std::clamp<size_t>(counters, 4, 32768));
  counters_.resize(counters);
  slots_.resize(counters * 4);
  sorted_.resize(counters);
  free_.reserve(counters);
  for (size_t i = counters; i > 0; --i) free_.push_back(static_cast<uint16_t>(i - 1));
}

void FrequentKeys::Add(uint64_t hash, uint32_t limit_id, std::string_view key, uint64_t weight) {
  if (weight == 0) return;
  total_ = SaturatingAdd(total_, weight);
  const size_t mask = slots_.size() - 1;
  for (size_t slot = hash & mask; slots_[slot] != 0; slot = (slot + 1) & mask) {
    Counter& counter = counters_[slots_[slot] - 1];
    if (counter.hash == hash && counter.limit_id == limit_id &&
        common::SameBytes(counter.key, key)) {
      counter.count = SaturatingAdd(counter.count, weight);
      return;
    }
  }
  if (free_.empty()) Purge();
  const uint16_t index = free_.back();
  free_.pop_back();
  Counter& counter = counters_[index];
  counter.hash = hash;
  counter.count = weight;
  counter.limit_id = limit_id;
  // Grown in powers of two and never given back, so that it soon allocates no more.
  if (key.size() > counter.key.capacity()) counter.key.reserve(std::bit_ceil(key.size()));
  counter.key.assign(key);
  Place(index);
}

void FrequentKeys::Place(uint16_t counter) {
  const size_t mask = slots_.size() - 1;
  size_t slot = counters_[counter].hash & mask;
  while (slots_[slot] != 0) slot = (slot + 1) & mask;
  slots_[slot] = static_cast<uint16_t>(counter + 1);
}

void FrequentKeys::Purge() {
  for (size_t i = 0; i < counters_.size(); ++i) sorted_[i] = counters_[i].count;
  const auto median = sorted_.begin() + static_cast<std::ptrdiff_t>(sorted_.size() / 2);
  std::nth_element(sorted_.begin(), median, sorted_.end());
  const uint64_t cut = *median;  // at least half of the counters are no less
  offset_ = SaturatingAdd(offset_, cut);
  std::fill(slots_.begin(), slots_.end(), 0);
  for (size_t i = 0; i < counters_.size(); ++i) {
    Counter& counter = counters_[i];
    if (counter.count <= cut) {
      counter.count = 0;
      free_.push_back(static_cast<uint16_t>(i));
    } else {
      counter.count -= cut;
      Place(static_cast<uint16_t>(i));
    }
  }
}

}  // namespace sluice::service
