// A bucket as a node has read it from Redis, to decide by it, and to have it replaced
// (scripts/exchange.lua). What is booked ahead is only ever decided this way: by the code of
// server/algorithm, not by a script (docs/adr/0096).
//
// In Redis a bucket in which something is booked has this form, instead of the one that scripts
// read (scripts/buckets.lua):
//   state     FIGURES WRITER @VERSION
//   receipts  its past, its open receipts and its bookings (EncodeBooked)
// Each replacement has a version that never was before, so that equal versions are equal buckets.
// When the last booking's moment has come the bucket becomes one for scripts again.
#ifndef SLUICE_SERVER_STORE_REDIS_WIRE_OPEN_BUCKET_H_
#define SLUICE_SERVER_STORE_REDIS_WIRE_OPEN_BUCKET_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "server/algorithm/bucket_state.h"
#include "server/algorithm/parameters.h"
#include "server/store/redis/wire/stored_bucket.h"

namespace sluice::store::redis {

// Bookings of a bucket in Redis: all of them travel with each booking, a few bytes each.
inline constexpr size_t kMaxBookingsInRedis = size_t{1} << 14;

// The parameters as Redis counts them: a window's permits are cut to kMaxCounted.
algorithm::Parameters Countable(const algorithm::Parameters& parameters);

// Of a bucket's state: does it say that something is booked?
bool IsBooked(std::string_view state);

// Not thread-safe. Moments are the server's, in nanoseconds since 1970.
class OpenBucket {
 public:
  // The bucket that exchange.lua told of. `state` empty: there is none, that is, a full one.
  // INVALID_ARGUMENT: not a bucket of ours.
  static absl::StatusOr<OpenBucket> Read(const algorithm::Parameters& parameters,
                                         std::string_view state, std::string_view receipts,
                                         absl::Span<const std::string> runs, int64_t now_ns);

  // Who wrote it; empty: nobody.
  const std::string& writer() const { return writer_; }
  // Its parameters as it was read; Convert makes it one of others.
  const algorithm::Parameters& parameters() const { return named_; }
  bool exists() const { return exists_; }
  bool changed() const { return changed_; }

  void Convert(const algorithm::Parameters& to, int64_t now_ns);

  // Data may have been lost (fence.h; 0: it was not): a token bucket was empty, and all its debt
  // made, at the floor; all others are used up until nothing of before the floor counts.
  void ApplyFloor(int64_t floor_us);

  // As the functions of algorithm::BucketState. REQUIRES: now_ns not before NotBeforeNs(), and
  // Fold(now_ns) was called.
  int64_t NotBeforeNs() const;
  void Fold(int64_t now_ns);
  bool CanTake(uint64_t permits, int64_t now_ns, uint64_t set) const;
  void Take(uint64_t permits, int64_t now_ns, uint64_t receipt_id, uint64_t set);
  int64_t EarliestNs(uint64_t permits, int64_t now_ns, uint64_t set, int64_t from_ns) const;
  void Book(const algorithm::Booking& booking, int64_t now_ns);
  bool CancelBooking(int64_t grant_time_ns, uint64_t id);
  bool FindBooking(int64_t grant_time_ns, uint64_t id, algorithm::Booking* booking,
                   int64_t* previous_ns) const;
  std::optional<uint64_t> Refund(uint64_t receipt_id, int64_t now_ns);
  void Reset(int64_t now_ns);
  algorithm::Level LevelAt(int64_t now_ns) const;
  size_t bookings() const { return state_.bookings(); }
  bool BookingsFull() const { return bookings() >= kMaxBookingsInRedis; }
  // Redis has room for every bucket.
  static constexpr bool missing() { return false; }
  // The greatest of their ids; 0: nothing is booked. Looks at each.
  uint64_t LastBookingId() const;
  // In the order of their moments.
  void ForEachBooking(absl::FunctionRef<void(const algorithm::Booking&)> visit) const;
  int64_t NextGrantTimeNs() const;
  int64_t LastGrantTimeNs() const;

  // What exchange.lua is to write: time to live, state, receipts or bookings, number of runs,
  // runs. `version` is used if something is booked.
  std::vector<std::string> Format(std::string_view writer, std::string_view version,
                                  int64_t now_ns) const;
  // It was replaced by what Format said.
  void Written(std::string_view writer) {
    writer_.assign(writer);
    exists_ = true;
    changed_ = false;
  }

 private:
  OpenBucket(const algorithm::Parameters& parameters, algorithm::BucketState state,
             int64_t origin_ns)
      : named_(parameters),
        parameters_(Countable(parameters)),
        state_(std::move(state)),
        origin_ns_(origin_ns) {}

  algorithm::Moment At(int64_t now_ns) const { return {now_ns - origin_ns_, now_ns - origin_ns_}; }
  int64_t Absolute(int64_t local_ns) const {
    return local_ns == algorithm::kNeverNs ? local_ns : local_ns + origin_ns_;
  }

  algorithm::Parameters named_;
  algorithm::Parameters parameters_;  // as they are counted
  algorithm::BucketState state_;
  // What is 0 on the state's time line. A token bucket's ticks count in 62 bits, so that 1970 is
  // too long ago for them; windows are aligned to it.
  int64_t origin_ns_;
  // Nothing is granted before; 0: no such moment.
  int64_t closed_until_ns_ = 0;
  std::string writer_;
  bool exists_ = false;
  bool changed_ = false;
};

// The moment of a decision on buckets that were read at `now_ns` of the server's clock, which may
// have been set back. Folds the bookings up to that moment.
int64_t BeginAt(absl::Span<OpenBucket> buckets, int64_t now_ns);

// The greatest id of a booking in any of the buckets; 0: there are no bookings.
uint64_t LastBooking(absl::Span<const OpenBucket> buckets);

// ---- Exposed for tests ----

// Bytes of a bucket in which something is booked; times in `image` count from origin_ns.
std::string EncodeBooked(const algorithm::Parameters& parameters,
                         const algorithm::BucketImage& image, int64_t origin_ns);
// INVALID_ARGUMENT: not made by EncodeBooked. Sets *origin_ns.
absl::StatusOr<algorithm::BucketImage> DecodeBooked(const algorithm::Parameters& parameters,
                                                    std::string_view bytes, int64_t* origin_ns);

}  // namespace sluice::store::redis

#endif  // SLUICE_SERVER_STORE_REDIS_WIRE_OPEN_BUCKET_H_
