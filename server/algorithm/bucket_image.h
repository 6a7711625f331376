// BucketImage: all numbers of a bucket's state, for stores that keep buckets outside of this
// process.
//
// BucketState::ToImage and FromImage convert; a state that is made from its own image decides the
// same. Numbers are as the state keeps them: ticks, quanta, sub-windows, and moments of the clock
// that the bucket was decided by.
#ifndef SLUICE_SERVER_ALGORITHM_BUCKET_IMAGE_H_
#define SLUICE_SERVER_ALGORITHM_BUCKET_IMAGE_H_

#include <cstdint>
#include <vector>

#include "server/algorithm/calendar/calendar.h"
#include "server/algorithm/estimates.h"
#include "server/algorithm/hold_list.h"
#include "server/algorithm/open_receipts.h"

namespace sluice::algorithm {

// The current window of a fixed_window.
struct OpenWindow {
  bool used = false;
  int64_t index = 0;      // of the wall clock's windows
  int64_t opened_ns = 0;  // monotonic
  int64_t ends_ns = 0;    // monotonic; at most opened + period
  uint64_t count = 0;
  // Of `count`, the permits that were counted while the wall clock showed later_index, a number
  // after index. Always 0 in Redis, whose time is both clocks.
  int64_t later_index = 0;
  uint64_t later_count = 0;
  // Grows by one with each window opened; an index may come again, this does not.
  uint64_t serial = 0;
};

struct BucketImage : OpenWindow {
  struct Count {
    uint64_t when = 0;  // sliding_log: quantum; sliding_window: sub-window
    uint64_t permits = 0;
    friend bool operator==(const Count&, const Count&) = default;
  };
  using Receipt = OpenReceipts::Receipt;

  uint64_t tat = 0;  // token_bucket
  // sliding_log: its runs, oldest first; sliding_window: of each sub-window that counts, in order.
  std::vector<Count> counts;
  int64_t seen_ns = 0;  // sliding_log
  uint64_t last = 0;    // sliding_window

  std::vector<Hold> holds;  // concurrency: in the order of their ends

  std::vector<Receipt> receipts;    // oldest first
  std::vector<Estimate> estimates;  // in the order of their ids
  // In order. latest_ns and wall_ahead_ns are used only if there are bookings.
  std::vector<Booking> bookings;
  int64_t latest_ns = 0;
  int64_t wall_ahead_ns = 0;
};

}  // namespace sluice::algorithm

#endif  // SLUICE_SERVER_ALGORITHM_BUCKET_IMAGE_H_
