// IdSource: ids of receipts, bookings and versions, for all event loops of a store.
#ifndef SLUICE_SERVER_STORE_REDIS_COMMANDS_ID_SOURCE_H_
#define SLUICE_SERVER_STORE_REDIS_COMMANDS_ID_SOURCE_H_

#include <atomic>
#include <cstdint>
#include <string>

namespace sluice::store::redis {

// Thread-safe.
class IdSource {
 public:
  IdSource();

  // Receipts of several nodes are kept in one bucket: counts from a random number, so that their
  // ids do not meet.
  uint64_t NewReceipt() { return next_receipt_.fetch_add(1, std::memory_order_relaxed); }
  // The id of a booking made at now_ns of the server's clock: ordered as the bookings are,
  // whichever node made them, and greater than `after`.
  uint64_t NewBooking(int64_t now_ns, uint64_t after);
  // Names a state of a booked bucket. No node ever makes it again.
  std::string NewVersion();

 private:
  std::atomic<uint64_t> next_receipt_;
  const uint64_t booking_tag_;  // random: tells apart ids that two nodes make in one microsecond
  std::atomic<uint64_t> last_booking_ = 0;
};

}  // namespace sluice::store::redis

#endif  // SLUICE_SERVER_STORE_REDIS_COMMANDS_ID_SOURCE_H_
