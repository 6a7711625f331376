#include "server/store/redis/commands/id_source.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/random.h"

namespace sluice::store::redis {
namespace {

// Ids of bookings count microseconds since 2025, with room for so many in each: enough for 35
// years.
constexpr int64_t kBookingsSinceNs = 1'735'689'600'000'000'000;
constexpr uint64_t kBookingsPerUs = uint64_t{1} << 14;

}  // namespace

IdSource::IdSource()
    : next_receipt_(common::RandomWord() >> 2 | 1),
      booking_tag_(common::RandomWord() % kBookingsPerUs) {}

uint64_t IdSource::NewBooking(int64_t now_ns, uint64_t after) {
  const int64_t since_ns = std::max<int64_t>(now_ns - kBookingsSinceNs, 0);
  const uint64_t by_time = static_cast<uint64_t>(since_ns / 1000) * kBookingsPerUs + booking_tag_;
  uint64_t last = last_booking_.load(std::memory_order_relaxed);
  uint64_t id;
  do {
    id = std::max({by_time, last + 1, after + 1});
  } while (!last_booking_.compare_exchange_weak(last, id, std::memory_order_relaxed));
  return id;
}

std::string IdSource::NewVersion() { return absl::StrCat(absl::Hex(NewReceipt())); }

}  // namespace sluice::store::redis
