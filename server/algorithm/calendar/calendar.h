// A calendar holds the bookings of one bucket: permits reserved for future grant times. (It has
// nothing to do with days or months; quotas that begin at midnight are fixed_window.)
//
// A caller that may wait gets its permits at the first moment at which the bucket can give them:
// its grant time. Until then the reservation is a booking in the calendar of each bucket that it
// charges. At the grant time the bucket is debited, as if the permits had been taken right then,
// and the booking leaves the calendar: it is folded. The bucket is not debited earlier, because a
// caller that waits long for a slow bucket would otherwise hold back all callers of the fast ones.
//
// A grant time may be given iff neither the booking itself nor any later booking overdraws the
// bucket at its own grant time. So gaps between bookings may be filled, and a grant time once given
// stays.
//
// Order. Callers are told apart by the set of buckets that they charge. A booking is not earlier
// than the last outstanding booking of the same set: first come, first served. Other sets may fill
// gaps before it. Bookings at one nanosecond take effect in the order in which they were made.
//
// Example: token bucket, 1 permit a second, burst 1, empty at t=0; times in seconds.
//   A wants 1 permit: grant time 1. Then B, of the same set, wants 1: grant time 2.
//     calendar: [A:1 B:2]
//   C, of another set, charges this bucket and one that is empty until 5: grant time 5.
//     calendar: [A:1 B:2 C:5]. The bucket is full again at 3, and stays so until C
//   D, of the first set, wants 1: grant time 3, in the gap before C. Full again at 4, so C stands.
//   E, of C's set, wants 1: not before C, so 6, although this bucket could give a permit at 4.
//   A is cancelled: B, D, C and E keep their grant times. The store may move them up (Store::Move).
//   t=2: B is folded: its permit is taken as of 2, and its receipt can be refunded from now on.
//
// There are two kinds of calendar: token_bucket_calendar.h, where one number is the state at a
// moment, and window_calendar.h, for the algorithms that count permits for some time.
//
// Not thread-safe; never blocks. Moments are nanoseconds of the buckets' clock.
#ifndef SLUICE_SERVER_ALGORITHM_CALENDAR_CALENDAR_H_
#define SLUICE_SERVER_ALGORITHM_CALENDAR_CALENDAR_H_

#include <cstddef>
#include <cstdint>
#include <limits>

#include "absl/container/btree_map.h"
#include "absl/functional/function_ref.h"
#include "absl/types/span.h"
#include "common/bounds.h"
#include "server/algorithm/wide.h"

namespace sluice::algorithm {

struct Booking {
  int64_t grant_time_ns = 0;
  uint64_t permits = 0;
  // Unique among the bucket's bookings; becomes the receipt's id.
  uint64_t id = 0;
  // Names the set of buckets that the acquisition charges. If two sets had one name, they would be
  // served in order with each other; nothing worse.
  uint64_t set = 0;
};

// The outstanding bookings of each set.
class BookingSets {
 public:
  // The grant time of the set's last outstanding booking; INT64_MIN if there is none.
  int64_t LastGrantTimeNs(uint64_t set) const;

  // Whether the set has exactly one booking.
  bool Alone(uint64_t set) const;

  void Add(uint64_t set, int64_t grant_time_ns);
  // Returns true if the set's last booking was removed: find the last one again and call SetLast.
  bool Remove(uint64_t set, int64_t grant_time_ns);
  void SetLast(uint64_t set, int64_t grant_time_ns);

  size_t size() const { return sets_.size(); }
  size_t MemoryBytes() const;

 private:
  struct Outstanding {
    int64_t last_ns = 0;
    uint64_t bookings = 0;
  };
  // A hash table would grow in one step, of milliseconds for 100,000 sets.
  absl::btree_map<uint64_t, Outstanding> sets_;
};

// How far a calendar was rebuilt after its parameters changed: up to a chunk.
struct RebuildCursor {
  size_t chunk = 0;
  // Of a WindowCalendar: the permits of the bookings up to there; the last of them, and N just
  // before it; the first booking that counts then, and the permits of those before that one.
  int64_t sum = 0;
  int64_t previous_ns = std::numeric_limits<int64_t>::min();
  int64_t before = 0;
  size_t oldest_chunk = 0;
  size_t oldest_index = 0;
  int64_t over = 0;
};

// How much searches for grant times may do, in steps: each looks at one booking, or at the summary
// of many, and takes a few nanoseconds. Searches run under the locks of their buckets, so thousands
// of gaps that callers arranged to miss each other must not make them long.
//
// A search that finds the budget spent answers with a moment behind all bookings, where nothing
// need be searched. So what it grants always fits, but it may not be the earliest moment.
class SearchBudget {
 public:
  explicit SearchBudget(int64_t steps = common::bounds::kMaxSearchSteps) : left_(steps) {}

  void Spend(size_t steps) { left_ -= static_cast<int64_t>(steps); }
  bool spent() const { return left_ <= 0; }
  int64_t left() const { return left_; }

  // Counts work that is no search.
  void Note(size_t steps) { noted_ += static_cast<int64_t>(steps); }
  // Grows by all steps, of searches or not. Only differences mean anything.
  int64_t work() const { return noted_ - left_; }

 private:
  int64_t left_;
  int64_t noted_ = 0;
};

// Returns the first moment, at or after `from_ns`, at which one bucket can be charged; kNeverNs if
// there is none.
using EarliestFn = absl::FunctionRef<int64_t(size_t bucket, int64_t from_ns)>;

// Returns the first moment, at or after from_ns, at which all of `buckets` buckets can be charged:
// a fixed point of their answers. `after_all_ns` is any moment after which no bucket has a booking:
// once the budget is spent, the search continues from there, where it ends at once. Then all
// buckets can be charged at the answer, but it may not be the earliest. Each question takes a step.
int64_t JointGrantTimeNs(size_t buckets, int64_t from_ns, int64_t after_all_ns,
                         SearchBudget* budget, EarliestFn earliest);

}  // namespace sluice::algorithm

#endif  // SLUICE_SERVER_ALGORITHM_CALENDAR_CALENDAR_H_
