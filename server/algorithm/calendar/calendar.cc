#include "server/algorithm/calendar/calendar.h"

#include <algorithm>
#include <limits>

namespace sluice::algorithm {

int64_t BookingSets::LastGrantTimeNs(uint64_t set) const {
  const auto found = sets_.find(set);
  return found == sets_.end() ? std::numeric_limits<int64_t>::min() : found->second.last_ns;
}

bool BookingSets::Alone(uint64_t set) const {
  const auto found = sets_.find(set);
  return found != sets_.end() && found->second.bookings == 1;
}

void BookingSets::Add(uint64_t set, int64_t grant_time_ns) {
  Outstanding& outstanding = sets_[set];
  outstanding.last_ns =
      outstanding.bookings == 0 ? grant_time_ns : std::max(outstanding.last_ns, grant_time_ns);
  ++outstanding.bookings;
}

bool BookingSets::Remove(uint64_t set, int64_t grant_time_ns) {
  const auto found = sets_.find(set);
  if (found == sets_.end()) return false;
  if (--found->second.bookings == 0) {
    sets_.erase(found);
    return false;
  }
  return found->second.last_ns == grant_time_ns;
}

void BookingSets::SetLast(uint64_t set, int64_t grant_time_ns) {
  const auto found = sets_.find(set);
  if (found != sets_.end()) found->second.last_ns = grant_time_ns;
}

size_t BookingSets::MemoryBytes() const {
  // Nodes of the tree are half full to full.
  return sets_.size() * 2 * sizeof(std::pair<uint64_t, Outstanding>);
}

int64_t JointGrantTimeNs(size_t buckets, int64_t from_ns, int64_t after_all_ns,
                         SearchBudget* budget, EarliestFn earliest) {
  int64_t grant_time_ns = from_ns;
  size_t agreed = 0;  // buckets in a row that have said yes to grant_time_ns
  size_t bucket = 0;
  while (agreed < buckets) {
    if (budget->spent() && after_all_ns > grant_time_ns) {
      grant_time_ns = after_all_ns;
      agreed = 0;
    }
    budget->Spend(1);
    const int64_t answer_ns = earliest(bucket, grant_time_ns);
    if (answer_ns == kNeverNs) return kNeverNs;
    agreed = answer_ns == grant_time_ns ? agreed + 1 : 1;
    grant_time_ns = answer_ns;
    bucket = bucket + 1 == buckets ? 0 : bucket + 1;
  }
  return grant_time_ns;
}

}  // namespace sluice::algorithm
