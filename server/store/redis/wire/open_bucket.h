// OpenBucket: a bucket that a node has read from Redis, decides on (store/decide.h), and replaces
// in Redis if it is still as it was read (scripts/exchange.lua). Buckets with bookings are decided
// only this way, by the code of server/algorithm, never by a script (docs/adr/0096).
//
// In Redis a bucket with bookings has this form, instead of the one that scripts read
// (scripts/buckets.lua):
//   state     PARAMETERS WRITER @VERSION
//   receipts  its past, its open receipts and its bookings (EncodeBooked)
// Versions are never used twice, so equal versions are equal buckets. When the grant time of the
// last booking has come, the bucket gets the form for scripts again.
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
#include "common/bounds.h"
#include "server/algorithm/bucket_state.h"
#include "server/algorithm/parameters.h"
#include "server/store/redis/wire/stored_bucket.h"

namespace sluice::store::redis {

// Bookings of a bucket in Redis: all of them travel with each booking, a few bytes each.
inline constexpr size_t kMaxBookingsInRedis = common::bounds::kMaxBookingsPerBucketInRedis;

// The parameters as Redis counts them: a window has at most kMaxCounted permits.
algorithm::Parameters Countable(const algorithm::Parameters& parameters);

// Whether the state of a bucket says that it has bookings.
bool IsBooked(std::string_view state);

// Not thread-safe. Times are the Redis server's, in nanoseconds since 1970.
class OpenBucket {
 public:
  // The bucket as exchange.lua returned it. An empty `state` is no bucket, which is a full one.
  // INVALID_ARGUMENT: not written by this program.
  static absl::StatusOr<OpenBucket> Read(const algorithm::Parameters& parameters,
                                         std::string_view state, std::string_view receipts,
                                         absl::Span<const std::string> runs, int64_t now_ns);

  // The node and rule that wrote it; empty: it does not exist.
  const std::string& writer() const { return writer_; }
  // The parameters as they were read, or last converted to.
  const algorithm::Parameters& parameters() const { return named_; }
  bool exists() const { return exists_; }
  bool changed() const { return changed_; }

  void Convert(const algorithm::Parameters& to, int64_t now_ns);

  // After a possible loss of data (fence.h; floor_us 0: none): a token bucket counts as empty, with
  // all its debt used, at the floor; all others grant nothing until no permit taken before the
  // floor would count.
  void ApplyFloor(int64_t floor_us);

  // As the functions of algorithm::BucketState. REQUIRES: now_ns not before NotBeforeNs(), and
  // Fold(now_ns) was called.
  int64_t NotBeforeNs() const;
  void Fold(int64_t now_ns);
  bool CanTake(uint64_t permits, int64_t now_ns, uint64_t set) const;
  void Take(uint64_t permits, int64_t now_ns, uint64_t receipt_id, uint64_t set);
  int64_t EarliestNs(uint64_t permits, int64_t now_ns, uint64_t set, int64_t from_ns,
                     algorithm::SearchBudget* budget = nullptr) const;
  void Book(const algorithm::Booking& booking, int64_t now_ns);
  bool CancelBooking(int64_t grant_time_ns, uint64_t id);
  bool FindBooking(int64_t grant_time_ns, uint64_t id, algorithm::Booking* booking,
                   int64_t* previous_ns) const;
  std::optional<uint64_t> Refund(uint64_t receipt_id, int64_t now_ns);
  void Reset(int64_t now_ns);
  algorithm::Level LevelAt(int64_t now_ns, algorithm::SearchBudget* budget = nullptr) const;
  size_t bookings() const { return state_.bookings(); }
  bool BookingsFull() const { return bookings() >= kMaxBookingsInRedis; }
  // Redis has room for every bucket.
  static constexpr bool missing() { return false; }
  // The greatest id of a booking; 0: none. Visits each.
  uint64_t LastBookingId() const;
  // In the order of grant times.
  void ForEachBooking(absl::FunctionRef<void(const algorithm::Booking&)> visit) const;
  int64_t NextGrantTimeNs() const;
  int64_t LastGrantTimeNs() const;

  // The arguments for exchange.lua: time to live, state, receipts or bookings, number of runs,
  // runs. `version` is used if there are bookings.
  std::vector<std::string> Format(std::string_view writer, std::string_view version,
                                  int64_t now_ns) const;
  // Redis has written what Format returned.
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
  // The time at which the state's time line is 0. A token bucket's ticks have 62 bits, so they
  // cannot count from 1970; windows are aligned to 1970.
  int64_t origin_ns_;
  // Nothing is granted before this time; 0: no such time.
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

// The bytes of a bucket with bookings. Times in `image` count from origin_ns.
std::string EncodeBooked(const algorithm::Parameters& parameters,
                         const algorithm::BucketImage& image, int64_t origin_ns);
// The image, and its *origin_ns. INVALID_ARGUMENT: not made by EncodeBooked.
absl::StatusOr<algorithm::BucketImage> DecodeBooked(const algorithm::Parameters& parameters,
                                                    std::string_view bytes, int64_t* origin_ns);

}  // namespace sluice::store::redis

#endif  // SLUICE_SERVER_STORE_REDIS_WIRE_OPEN_BUCKET_H_
