// OpenBucket: a bucket that a node has read from Redis, decides on (store/decide.h), and replaces
// in Redis if it is still as it was read (scripts/exchange.lua). Buckets with bookings are decided
// only this way, by the code of server/algorithm, never by a script (docs/adr/0096).
//
// In Redis a bucket with bookings has this form, instead of the one that scripts read
// (scripts/buckets.lua):
//   state     PARAMETERS WRITER @VERSION
// A bucket of slots has only this form: its holds are kept as bookings are, with their ends as
// grant times. Its past ends with the tickets of waiting callers, if there are any (ticket_list.h);
// with tickets it is kept without holds, too. A bucket with estimates has this form until none of
// them is kept.
//   receipts  a hash: "past", its past and its open receipts (EncodePast); of a sliding_log its
//             runs, and of each its estimates in the order of their ids and its bookings in the
//             order of grant times, in chunks, each in a field of its own (EncodeRuns,
//             EncodeEstimates, EncodeBookings); and "chunks", the names of these fields in order
// A change writes the past and the chunks that it changes, under new names; so it costs what
// changed, however many bookings there are. Names are GENERATION.VERSION.NUMBER, where each writing
// has a generation one greater than the last. Versions are never used twice, so equal versions are
// equal buckets, and equal names are equal chunks; generations only tell the script which chunks a
// reader may lack. When the grant time of the last booking has come, the bucket gets the form for
// scripts again; but a log with many runs keeps this form until it has fewer, since all of them
// would have to be written, and read again for the next caller that would wait.
#ifndef SLUICE_SERVER_STORE_REDIS_WIRE_OPEN_BUCKET_H_
#define SLUICE_SERVER_STORE_REDIS_WIRE_OPEN_BUCKET_H_

#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
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
#include "server/store/queue_place.h"
#include "server/store/redis/wire/stored_bucket.h"
#include "server/store/redis/wire/ticket_list.h"

namespace sluice::store::redis {

inline constexpr size_t kMaxBookingsInRedis = common::bounds::kMaxBookingsPerBucketInRedis;

// The parameters as Redis counts them: a window has at most kMaxCounted permits.
algorithm::Parameters Countable(const algorithm::Parameters& parameters);

// Whether the state of a bucket says that it has bookings.
bool IsBooked(std::string_view state);

// A booked bucket as it is in Redis.
struct StoredBookings {
  struct Chunk {
    std::string name;
    std::string bytes;
    uint64_t first = 0;  // of runs: the first one's quantum; of estimates: the first one's id
  };
  std::string state;  // empty: the bucket has no bookings
  uint64_t generation = 0;
  std::string past;
  // Those of runs come first, then those of estimates.
  std::vector<std::shared_ptr<const Chunk>> chunks;
  size_t run_chunks = 0;
  size_t estimate_chunks = 0;
  // Of slots, in order; they are in `past`.
  std::vector<Ticket> tickets;

  size_t booking_chunks_at() const { return run_chunks + estimate_chunks; }
};

// Not thread-safe. Times are the Redis server's, in nanoseconds since 1970.
class OpenBucket {
 public:
  // The bucket as exchange.lua returned it to a caller that knew stored() of `known` (which may
  // have changed since, and is used up). An empty `state` is no bucket, which is a full one. The
  // bookings of many chunks are left to Load. INVALID_ARGUMENT: not written by this program.
  // NOT_FOUND: the caller lacks a chunk that the script took for known (Redis lost what the caller
  // had read); it reads again, and knows nothing.
  static absl::StatusOr<OpenBucket> Begin(const algorithm::Parameters& parameters,
                                          std::string_view state, std::string_view receipts,
                                          absl::Span<const std::string> runs, int64_t now_ns,
                                          std::optional<OpenBucket> known = std::nullopt);
  // Reads bookings and runs that are left, a few more than *most, which it lowers. Returns whether
  // none is left; until then only stored(), writer(), parameters() and exists() are right.
  // INVALID_ARGUMENT: not written by this program.
  absl::StatusOr<bool> Load(size_t* most);
  // Both: all at once.
  static absl::StatusOr<OpenBucket> Read(const algorithm::Parameters& parameters,
                                         std::string_view state, std::string_view receipts,
                                         absl::Span<const std::string> runs, int64_t now_ns,
                                         std::optional<OpenBucket> known = std::nullopt);

  // As it was last read or written.
  const StoredBookings& stored() const { return stored_; }

  // The node and rule that wrote it; empty: it does not exist.
  const std::string& writer() const { return writer_; }
  // The parameters as they were read, or last converted to.
  const algorithm::Parameters& parameters() const { return named_; }
  bool exists() const { return exists_; }
  bool changed() const { return changed_; }

  void Convert(const algorithm::Parameters& to, int64_t now_ns);

  // After a possible loss of data (fence.h; floor_us 0: none; negative: of missing buckets alone):
  // a token bucket counts as empty, with all its debt used, at the floor; all others grant nothing
  // until no permit taken before the floor would count.
  void ApplyFloor(int64_t floor_us);
  // A floor changed it since it was read or written, so it is not what Redis has.
  bool floored() const { return floored_; }

  // As the functions of algorithm::BucketState. REQUIRES: now_ns not before NotBeforeNs(), and
  // Fold(now_ns) was called.
  int64_t NotBeforeNs() const;
  void Fold(int64_t now_ns);
  // Folds at most *most bookings, which it lowers. Returns whether none is left to be folded.
  bool FoldSome(int64_t now_ns, size_t* most);
  bool CanTake(uint64_t permits, int64_t now_ns, uint64_t set) const;
  void Take(uint64_t permits, int64_t now_ns, uint64_t receipt_id, uint64_t set);
  uint64_t Force(uint64_t permits, uint64_t max_owed, int64_t now_ns, uint64_t receipt_id);
  void GiveBack(uint64_t permits, int64_t now_ns);
  std::optional<int64_t> HeldUntilNs(uint64_t receipt_id, int64_t now_ns) const {
    return state_.HeldUntilNs(receipt_id, At(now_ns));
  }
  std::optional<int64_t> RenewHold(uint64_t receipt_id, int64_t now_ns);
  // Null: these are no slots.
  const algorithm::ConcurrencyState* slots() const { return state_.slots(); }
  int64_t EarliestNs(uint64_t permits, int64_t now_ns, uint64_t set, int64_t from_ns,
                     algorithm::SearchBudget* budget = nullptr) const;
  void Book(const algorithm::Booking& booking, int64_t now_ns);
  bool CancelBooking(int64_t grant_time_ns, uint64_t id);
  bool FindBooking(int64_t grant_time_ns, uint64_t id, algorithm::Booking* booking,
                   int64_t* previous_ns) const;
  std::optional<uint64_t> Refund(uint64_t receipt_id, int64_t now_ns);
  void Reset(int64_t now_ns);
  algorithm::Level LevelAt(int64_t now_ns, algorithm::SearchBudget* budget = nullptr) const;
  algorithm::Refundable RefundableAt(int64_t now_ns) const {
    return state_.RefundableAt(parameters_, At(now_ns));
  }
  size_t bookings() const { return state_.bookings(); }
  // Bookings or holds.
  size_t entries() const {
    return slots() == nullptr ? state_.bookings() : slots()->holds().size();
  }
  // `more`: those that are to be counted beside its own.
  bool BookingsFull(size_t more = 0) const {
    return entries() + more >=
           (slots() == nullptr ? kMaxBookingsInRedis : common::bounds::kMaxHoldsPerBucketInRedis);
  }
  // Of slots: see TicketList. A null place is of a caller that does not wait.
  bool IsBehind(const QueuePlace* place, uint64_t permits, int64_t now_ns) const;
  void LeaveTicket(const QueuePlace& place, uint64_t permits, int64_t now_ns);
  void DropTicket(const QueuePlace& place, const QueuePlace::Next& next, int64_t now_ns);
  bool HasRoomForEstimate(int64_t now_ns);
  void BeginEstimate(uint64_t receipt_id, uint64_t permits, int64_t grant_time_ns,
                     int64_t within_ns);
  std::optional<algorithm::Estimate> FindEstimate(uint64_t receipt_id) const {
    const algorithm::Estimate* const found = state_.FindEstimate(receipt_id);
    if (found == nullptr) return std::nullopt;
    algorithm::Estimate estimate = *found;
    estimate.end_ns = Absolute(estimate.end_ns);
    return estimate;
  }
  uint64_t Settle(uint64_t receipt_id, const algorithm::BucketState::Settlement& settlement,
                  int64_t now_ns);
  // Returns whether it was open.
  bool CloseReceipt(uint64_t receipt_id);
  size_t estimates() const {
    return state_.estimates() == nullptr ? 0 : state_.estimates()->size();
  }
  // Redis has room for every bucket.
  static constexpr bool missing() { return false; }
  // At least the greatest id of a booking, hold or estimate; 0: there never was one.
  uint64_t LastBookingId() const { return last_booking_id_; }
  // In the order of grant times: `count` bookings behind the first `skip` ones. Holds are none.
  void ForEachBooking(absl::FunctionRef<void(const algorithm::Booking&)> visit, size_t skip = 0,
                      size_t count = std::numeric_limits<size_t>::max()) const;
  int64_t NextGrantTimeNs() const;
  int64_t LastGrantTimeNs() const;

  // The arguments for exchange.lua: time to live, state, receipts, runs, fields to delete, fields
  // to set (each of the last three preceded by their number). `version` is used if there are
  // bookings.
  std::vector<std::string> Format(std::string_view writer, std::string_view version,
                                  int64_t now_ns);
  // Redis has written what Format returned.
  void Written(std::string_view writer);
  // Those of a bucket that stays as it is.
  static std::vector<std::string> FormatUnchanged() { return {"", "", "", "0", "0", "0"}; }

 private:
  // The bookings of one chunk, or of one that is to be written.
  struct Part {
    std::shared_ptr<const StoredBookings::Chunk> chunk;  // null: changed since
    size_t size = 0;
  };
  // With more a part is cut in two; two that have less than a half together become one. So a change
  // writes about 1 KB, and a bucket has at most 513 chunks.
  static constexpr size_t kMostPerPart = 128;
  // A log has at most 258 chunks of runs: 65,537 runs, and those of which the first have expired.
  static constexpr size_t kRunsPerChunk = 256;
  // With more a log is not written for scripts, nor left as they wrote it. So reading or writing
  // all runs takes Redis about a millisecond at most.
  static constexpr size_t kMostRunsForScripts = 16 * kRunsPerChunk;

  // Of one chunk.
  static constexpr size_t kMostEstimates = 128;

  // What is left to be read.
  struct Unread {
    algorithm::BucketImage image;  // with what was read
    size_t next = 0;               // in stored_.chunks
  };
  // The bucket that `unread` has become.
  void Finish(Unread unread);

  // As ForEachBooking, with the holds of slots by their ends.
  void ForEachEntry(absl::FunctionRef<void(const algorithm::Booking&)> visit, size_t skip = 0,
                    size_t count = std::numeric_limits<size_t>::max()) const;
  // Bookings that Follow reads.
  static constexpr size_t kMostToFollow = 4096;
  // Makes this token bucket or bucket of slots the one that `to` is, by exchanging the bookings or
  // holds that differ. Times in
  // `past` count from origin_ns. False: not possible; this bucket is not to be used any more.
  bool Follow(const StoredBookings& to, algorithm::BucketImage past, int64_t origin_ns,
              int64_t now_ns);
  // Bookings were added to, or removed from, the calendar.
  void NoteAdded(size_t rank);
  void NoteRemoved(size_t rank);
  void NoteFolded(size_t bookings_before);

  // Writes the runs of a log to next_, and to fields and gone: chunks that are to be set and to be
  // deleted. Returns all else of the state.
  algorithm::BucketImage FormatRuns(std::string_view version, int64_t now_ns,
                                    std::vector<std::string>* fields,
                                    std::vector<std::string>* gone);
  // As FormatRuns, of estimates.
  void FormatEstimates(std::string_view version, std::vector<std::string>* fields,
                       std::vector<std::string>* gone);
  // Until it is full again after its last booking, and no estimate and no ticket is kept; and a
  // period more if the clock is set back.
  int64_t TtlMs(int64_t now_ns) const;
  bool HasManyRuns(int64_t now_ns) const;
  // To be called before a receipt gives permits back.
  void NoteRefunded(uint64_t receipt_id);
  // Adds a chunk to next_, and to `fields`.
  void AddChunk(std::string_view version, std::string bytes, uint64_t first,
                std::vector<std::string>* fields);

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
  bool floored_ = false;
  uint64_t last_booking_id_ = 0;
  std::vector<Part> parts_;  // all bookings, in order
  std::optional<Unread> unread_;
  // Quanta whose runs were changed by refunds since the log was read or written. All other changes
  // are to the last run, or behind it, except for those of which runs_changed_ tells.
  std::vector<uint64_t> refunded_;
  bool runs_changed_ = false;
  TicketList tickets_;
  // Ids of estimates that were begun, changed or removed since they were read or written.
  std::vector<uint64_t> changed_estimates_;
  StoredBookings stored_;
  StoredBookings next_;  // as Format wrote them
};

// The moment of a decision on buckets that were read at `now_ns` of the server's clock, which may
// have been set back. Folds the bookings up to that moment.
int64_t BeginAt(absl::Span<OpenBucket> buckets, int64_t now_ns);

// The greatest id of a booking in any of the buckets; 0: there are no bookings.
uint64_t LastBooking(absl::Span<const OpenBucket> buckets);

// ---- Exposed for tests ----

// The past of a bucket with bookings; of a log without its runs. Times in `image` count from
// origin_ns. `stored` has the generation, the numbers of chunks, and the tickets. Receipts that are
// not of `estimates` (null: there are none) are bounded; the oldest are left out.
std::string EncodePast(const algorithm::Parameters& parameters, const algorithm::BucketImage& image,
                       int64_t origin_ns, const StoredBookings& stored,
                       const algorithm::Estimates* estimates);
// nullopt: not made by EncodePast. Also sets the generation, the numbers of chunks and the tickets
// of `stored`.
std::optional<algorithm::BucketImage> DecodePast(const algorithm::Parameters& parameters,
                                                 std::string_view bytes, int64_t* origin_ns,
                                                 StoredBookings* stored);
// Runs of a log, oldest first.
std::string EncodeRuns(absl::Span<const algorithm::BucketImage::Count> runs);
// Appends them. False: not made by EncodeRuns, or there are none.
bool DecodeRuns(std::string_view bytes, std::vector<algorithm::BucketImage::Count>* runs);
// Estimates in the order of their ids. Times in them count from origin_ns.
std::string EncodeEstimates(absl::Span<const algorithm::Estimate> estimates, int64_t origin_ns);
// Appends them; times count from 1970. False: not made by EncodeEstimates, or there are none.
bool DecodeEstimates(std::string_view bytes, std::vector<algorithm::Estimate>* estimates);
// Bookings in order. Times count from 1970.
std::string EncodeBookings(absl::Span<const algorithm::Booking> bookings);
// Appends them. False: not made by EncodeBookings, or more than kMaxBookingsInRedis in all.
bool DecodeBookings(std::string_view bytes, std::vector<algorithm::Booking>* bookings);

}  // namespace sluice::store::redis

#endif  // SLUICE_SERVER_STORE_REDIS_WIRE_OPEN_BUCKET_H_
