// KeptBookings: what stays booked while others of its sets are booked anew, since others were told.
#ifndef SLUICE_SERVER_STORE_KEPT_BOOKINGS_H_
#define SLUICE_SERVER_STORE_KEPT_BOOKINGS_H_

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <limits>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "server/algorithm/calendar/calendar.h"

namespace sluice::store {

// By sets of buckets and receipts. First Follow, then Add, then Seal, then LatestBefore. Not
// thread-safe.
class KeptBookings {
 public:
  // A set some of which are booked anew; others are of no interest.
  void Follow(uint64_t set) { by_set_.try_emplace(set); }
  void Add(const algorithm::Booking& booking) {
    const auto found = by_set_.find(booking.set);
    if (found != by_set_.end()) found->second.emplace_back(booking.id, booking.grant_time_ns);
  }
  void Seal() {
    for (auto& [set, bookings] : by_set_) {
      std::sort(bookings.begin(), bookings.end());
      for (size_t b = 1; b < bookings.size(); ++b) {
        bookings[b].second = std::max(bookings[b].second, bookings[b - 1].second);
      }
    }
  }
  // Of those of the set with a lesser receipt; INT64_MIN: there are none. REQUIRES: it is followed.
  int64_t LatestBefore(uint64_t set, uint64_t receipt_id) const {
    const auto& bookings = by_set_.find(set)->second;
    const auto before =
        std::lower_bound(bookings.begin(), bookings.end(), std::pair(receipt_id, int64_t{0}));
    return before == bookings.begin() ? std::numeric_limits<int64_t>::min()
                                      : std::prev(before)->second;
  }

 private:
  // Receipts in order, each with the latest moment up to it.
  absl::flat_hash_map<uint64_t, std::vector<std::pair<uint64_t, int64_t>>> by_set_;
};

}  // namespace sluice::store

#endif  // SLUICE_SERVER_STORE_KEPT_BOOKINGS_H_
