#include "server/algorithm/calendar.h"

#include <algorithm>
#include <limits>

namespace sluice::algorithm {

int64_t BookingSets::LastMomentNs(uint64_t set) const {
  const auto found = sets_.find(set);
  return found == sets_.end() ? std::numeric_limits<int64_t>::min() : found->second.last_ns;
}

bool BookingSets::Alone(uint64_t set) const {
  const auto found = sets_.find(set);
  return found != sets_.end() && found->second.bookings == 1;
}

void BookingSets::Add(uint64_t set, int64_t moment_ns) {
  Outstanding& outstanding = sets_[set];
  outstanding.last_ns =
      outstanding.bookings == 0 ? moment_ns : std::max(outstanding.last_ns, moment_ns);
  ++outstanding.bookings;
}

bool BookingSets::Remove(uint64_t set, int64_t moment_ns) {
  const auto found = sets_.find(set);
  if (found == sets_.end()) return false;
  if (--found->second.bookings == 0) {
    sets_.erase(found);
    return false;
  }
  return found->second.last_ns == moment_ns;
}

void BookingSets::SetLast(uint64_t set, int64_t moment_ns) {
  const auto found = sets_.find(set);
  if (found != sets_.end()) found->second.last_ns = moment_ns;
}

size_t BookingSets::MemoryBytes() const {
  // A slot and its control byte.
  return sets_.capacity() * (sizeof(std::pair<uint64_t, Outstanding>) + 1);
}

int64_t JointMomentNs(size_t buckets, int64_t from_ns, int64_t after_all_ns, EarliestFn earliest) {
  int64_t moment_ns = from_ns;
  size_t agreed = 0;  // buckets in a row that have said yes to moment_ns
  size_t bucket = 0;
  for (size_t asked = 0; agreed < buckets; ++asked) {
    if (asked == buckets * kMaxJointRounds && after_all_ns > moment_ns) {
      moment_ns = after_all_ns;
      agreed = 0;
    }
    const int64_t answer_ns = earliest(bucket, moment_ns);
    if (answer_ns == kNeverNs) return kNeverNs;
    agreed = answer_ns == moment_ns ? agreed + 1 : 1;
    moment_ns = answer_ns;
    bucket = bucket + 1 == buckets ? 0 : bucket + 1;
  }
  return moment_ns;
}

}  // namespace sluice::algorithm
