// IdSource: ids of receipts, bookings and versions, for all event loops of a store.
#ifndef SLUICE_SERVER_STORE_REDIS_COMMANDS_ID_SOURCE_H_
#define SLUICE_SERVER_STORE_REDIS_COMMANDS_ID_SOURCE_H_

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/random.h"

namespace sluice::store::redis {

// Thread-safe.
class IdSource {
 public:
  // Receipts of several nodes are kept in one bucket: counts from a random number below 2^58, so
  // that their ids do not meet. Nor do they meet those of bookings, which are greater since July
  // 2025. A bucket of slots has both: receipts' ids of acquisitions across slots of a Cluster.
  uint64_t NewReceipt() { return next_receipt_.fetch_add(1, std::memory_order_relaxed); }

  // The id of a booking made at now_ns of the server's clock: ordered as the bookings are,
  // whichever node made them, and greater than `after`.
  uint64_t NewBooking(int64_t now_ns, uint64_t after) {
    const int64_t since_ns = std::max<int64_t>(now_ns - kBookingsSinceNs, 0);
    const uint64_t by_time = static_cast<uint64_t>(since_ns / 1000) * kBookingsPerUs + booking_tag_;
    uint64_t last = last_booking_.load(std::memory_order_relaxed);
    uint64_t id;
    do {
      id = std::max({by_time, last + 1, after + 1});
    } while (!last_booking_.compare_exchange_weak(last, id, std::memory_order_relaxed));
    return id;
  }

  // Names a state of a booked bucket. No node ever makes it again.
  std::string NewVersion() { return absl::StrCat(absl::Hex(NewReceipt())); }

 private:
  // Ids of bookings count microseconds since 2025, with kBookingsPerUs ids in each: enough
  // for 35 years.
  static constexpr int64_t kBookingsSinceNs = 1'735'689'600'000'000'000;
  static constexpr uint64_t kBookingsPerUs = uint64_t{1} << 14;

  std::atomic<uint64_t> next_receipt_ = common::RandomWord() >> 6 | 1;
  // Tells apart ids that two nodes make in one microsecond.
  const uint64_t booking_tag_ = common::RandomWord() % kBookingsPerUs;
  std::atomic<uint64_t> last_booking_ = 0;
};

}  // namespace sluice::store::redis

#endif  // SLUICE_SERVER_STORE_REDIS_COMMANDS_ID_SOURCE_H_
