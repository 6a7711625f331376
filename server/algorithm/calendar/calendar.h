// What is booked ahead on one bucket.
//
// A reservation is granted for a moment that has not come yet. Until then it is a booking in the
// calendar of each bucket that it charges; at its moment it is debited there, as if it had been
// taken right then, and leaves the calendar ("folds"). It is not debited when it is booked: a
// caller who waits long for a slow bucket would otherwise hold back everybody else in the fast
// ones.
//
// A moment may be given iff neither the booking itself nor any booking already given for later
// overdraws the bucket at its own moment: gaps between bookings may be filled, moments once given
// stand.
//
// Order. Callers are told apart by the set of buckets that they charge. A booking is not before
// the last outstanding one of the same set: first come, first served. Other sets may fill gaps
// before it. Bookings of one nanosecond take effect in the order in which they were made.
//
// There are two kinds: token_bucket_calendar.h, where the state at a moment is one number, and
// window_calendar.h, for the algorithms that count permits for some time.
//
// Not thread-safe; never blocks. Moments are nanoseconds of the buckets' clock.
#ifndef SLUICE_SERVER_ALGORITHM_CALENDAR_CALENDAR_H_
#define SLUICE_SERVER_ALGORITHM_CALENDAR_CALENDAR_H_

#include <cstddef>
#include <cstdint>

#include "absl/container/flat_hash_map.h"
#include "absl/functional/function_ref.h"
#include "absl/types/span.h"
#include "server/algorithm/wide.h"

namespace sluice::algorithm {

struct Booking {
  int64_t grant_time_ns = 0;
  uint64_t permits = 0;
  // Unique among the bucket's bookings; becomes the receipt's id.
  uint64_t id = 0;
  // Names the set of buckets that the acquisition charges. Two sets of one name would only be
  // served in order with each other.
  uint64_t set = 0;
};

// The outstanding bookings of each set.
class BookingSets {
 public:
  // The moment of the set's last outstanding booking; INT64_MIN if there is none.
  int64_t LastGrantTimeNs(uint64_t set) const;

  // Whether the set has one booking.
  bool Alone(uint64_t set) const;

  void Add(uint64_t set, int64_t grant_time_ns);
  // Returns true if the set's last moment went away and must be found anew (SetLast).
  bool Remove(uint64_t set, int64_t grant_time_ns);
  void SetLast(uint64_t set, int64_t grant_time_ns);

  size_t size() const { return sets_.size(); }
  size_t MemoryBytes() const;

 private:
  struct Outstanding {
    int64_t last_ns = 0;
    uint64_t bookings = 0;
  };
  absl::flat_hash_map<uint64_t, Outstanding> sets_;
};

// Asks one bucket: the first moment at or after `from_ns` at which it could be charged what is
// wanted of it; kNeverNs if there is none.
using EarliestFn = absl::FunctionRef<int64_t(size_t bucket, int64_t from_ns)>;

// The first moment, at or after from_ns, at which each of `buckets` buckets fits: a fixed point of
// their answers. A round asks every bucket once; each but the last passes over a stretch between
// two bookings of some bucket, so with fewer than kMaxJointRounds bookings in all the answer is
// always the earliest. `after_all_ns` is any moment after which no bucket has a booking: should
// the buckets' gaps miss each other more often than that, the search goes on from there, where it
// ends at once. Then every bucket fits at the answer, but it may not be the earliest.
int64_t JointGrantTimeNs(size_t buckets, int64_t from_ns, int64_t after_all_ns,
                         EarliestFn earliest);

// A bucket is asked in about a microsecond, under the buckets' locks: this is a millisecond or two
// for who arranged thousands of gaps so that they miss each other, and nothing for anybody else.
inline constexpr int kMaxJointRounds = 1024;

}  // namespace sluice::algorithm

#endif  // SLUICE_SERVER_ALGORITHM_CALENDAR_CALENDAR_H_
