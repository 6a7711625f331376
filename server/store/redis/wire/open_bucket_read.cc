// What OpenBucket reads: Read, or Begin and Load.
#include <algorithm>
#include <limits>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "common/strings.h"
#include "server/algorithm/sliding_log.h"
#include "server/store/redis/wire/open_bucket.h"

namespace sluice::store::redis {
namespace {

using algorithm::Booking;
using algorithm::BucketImage;
using algorithm::BucketState;
using algorithm::Kind;
using algorithm::Parameters;
using common::ToAbsl;

absl::Status ForeignBookings() {
  return absl::InvalidArgumentError(
      "bookings: not written by this program; is the name space shared with another?");
}

// The chunks that `read` names: its first string. The others are those that `known` may lack.
absl::Status FindChunks(absl::Span<const std::string> read, const StoredBookings& known,
                        StoredBookings* stored) {
  if (read.empty()) return ForeignBookings();
  absl::flat_hash_map<std::string_view, const std::shared_ptr<const StoredBookings::Chunk>*>
      by_name;
  for (const auto& chunk : known.chunks) by_name.emplace(chunk->name, &chunk);
  size_t next = 1;
  // A bucket with nothing but tickets has none.
  for (const absl::string_view name : absl::StrSplit(read[0], ' ', absl::SkipEmpty())) {
    uint64_t generation = 0;
    if (!absl::SimpleAtoi(name.substr(0, name.find('.')), &generation)) return ForeignBookings();
    if (generation > known.generation) {
      if (next == read.size()) return ForeignBookings();
      stored->chunks.push_back(std::make_shared<StoredBookings::Chunk>(
          StoredBookings::Chunk{std::string(name), read[next++]}));
      continue;
    }
    const auto found = by_name.find(common::ToStd(name));
    if (found == by_name.end()) return absl::NotFoundError("chunk");
    stored->chunks.push_back(*found->second);
  }
  return absl::OkStatus();
}

bool Same(const Booking& a, const Booking& b) {
  return a.grant_time_ns == b.grant_time_ns && a.permits == b.permits && a.id == b.id &&
         a.set == b.set;
}

void NoteFirst(uint64_t first, std::shared_ptr<const StoredBookings::Chunk>* chunk) {
  if ((*chunk)->first == first) return;
  auto noted = std::make_shared<StoredBookings::Chunk>(**chunk);
  noted->first = first;
  *chunk = std::move(noted);
}

// Read a chunk, and note what it begins with.
bool ReadRuns(std::shared_ptr<const StoredBookings::Chunk>* chunk, BucketImage* image) {
  const size_t first = image->counts.size();
  if (!DecodeRuns((*chunk)->bytes, &image->counts)) return false;
  NoteFirst(image->counts[first].when, chunk);
  return true;
}
bool ReadEstimates(std::shared_ptr<const StoredBookings::Chunk>* chunk, BucketImage* image) {
  const size_t first = image->estimates.size();
  if (!DecodeEstimates((*chunk)->bytes, &image->estimates)) return false;
  NoteFirst(image->estimates[first].id, chunk);
  return true;
}

// The bookings in which two calendars differ.
struct Difference {
  static constexpr size_t kMost = 1024;  // beyond it is cheaper to make the calendar again

  // Compares a stretch, behind which both have a booking at behind_ns. False: too many differ, or
  // adding them would not give their order, since a booking is added behind all of its grant time.
  bool Add(absl::Span<const Booking> before, absl::Span<const Booking> after, int64_t behind_ns) {
    while (!before.empty() && !after.empty() && Same(before.front(), after.front())) {
      before.remove_prefix(1);
      after.remove_prefix(1);
    }
    while (
        !before.empty() && !after.empty() && Same(before.back(), after.back()) &&
        (after.size() == 1 || after[after.size() - 2].grant_time_ns < after.back().grant_time_ns)) {
      behind_ns = after.back().grant_time_ns;
      before.remove_suffix(1);
      after.remove_suffix(1);
    }
    if (!after.empty() && after.back().grant_time_ns >= behind_ns) return false;
    removed.insert(removed.end(), before.begin(), before.end());
    added.insert(added.end(), after.begin(), after.end());
    return removed.size() + added.size() <= kMost;
  }

  std::vector<Booking> removed;
  std::vector<Booking> added;
};

}  // namespace

absl::StatusOr<OpenBucket> OpenBucket::Read(const Parameters& parameters, std::string_view state,
                                            std::string_view receipts,
                                            absl::Span<const std::string> runs, int64_t now_ns,
                                            std::optional<OpenBucket> known) {
  absl::StatusOr<OpenBucket> bucket =
      Begin(parameters, state, receipts, runs, now_ns, std::move(known));
  if (!bucket.ok()) return bucket;
  size_t all = std::numeric_limits<size_t>::max();
  const absl::StatusOr<bool> loaded = bucket->Load(&all);
  if (!loaded.ok()) return loaded.status();
  return bucket;
}

absl::StatusOr<OpenBucket> OpenBucket::Begin(const Parameters& parameters, std::string_view state,
                                             std::string_view receipts,
                                             absl::Span<const std::string> runs, int64_t now_ns,
                                             std::optional<OpenBucket> known) {
  const int64_t origin_ns = parameters.kind == Kind::kTokenBucket ? now_ns : 0;
  if (state.empty()) {
    return OpenBucket(parameters, BucketState(parameters), origin_ns);
  }
  if (!IsBooked(state)) {
    absl::StatusOr<StoredBucket> stored = ParseBucket(state, runs, receipts, now_ns);
    if (!stored.ok()) return stored.status();
    OpenBucket bucket(stored->parameters, BucketState::FromImage(stored->parameters, stored->image),
                      stored->parameters.kind == Kind::kTokenBucket ? now_ns : 0);
    bucket.writer_ = std::move(stored->writer);
    bucket.exists_ = true;
    bucket.changed_ = bucket.HasManyRuns(now_ns);
    return bucket;
  }
  const std::vector<absl::string_view> words = absl::StrSplit(ToAbsl(state), ' ');
  absl::StatusOr<Parameters> booked = ParseParameters(common::ToStd(words[0]));
  if (!booked.ok()) return booked.status();
  StoredBookings stored;
  if (known.has_value() && state == known->stored_.state) {
    stored = known->stored_;
  } else {
    stored.state.assign(state);
    stored.past.assign(receipts);
    absl::Status found =
        FindChunks(runs, known.has_value() ? known->stored_ : StoredBookings(), &stored);
    if (!found.ok()) return found;
  }
  int64_t booked_origin_ns = 0;
  std::optional<BucketImage> image = DecodePast(*booked, stored.past, &booked_origin_ns, &stored);
  if (!image.has_value() || stored.run_chunks > stored.chunks.size() ||
      stored.estimate_chunks > stored.chunks.size() - stored.run_chunks) {
    return ForeignBookings();
  }
  if (known.has_value() && EncodeParameters(known->named_) == common::ToStd(words[0]) &&
      known->Follow(stored, *image, booked_origin_ns, now_ns)) {
    known->writer_ = std::string(words[1]);
    return *std::move(known);
  }
  OpenBucket bucket(*booked, BucketState(Countable(*booked)), booked_origin_ns);
  bucket.writer_ = std::string(words[1]);
  bucket.exists_ = true;
  bucket.stored_ = std::move(stored);
  bucket.unread_.emplace(Unread{*std::move(image)});
  return bucket;
}

absl::StatusOr<bool> OpenBucket::Load(size_t* most) {
  if (!unread_.has_value()) return true;
  BucketImage& image = unread_->image;
  for (; unread_->next < stored_.chunks.size(); ++unread_->next) {
    if (*most == 0) return false;
    auto& chunk = stored_.chunks[unread_->next];
    const auto read = [&] {
      return image.bookings.size() + image.counts.size() + image.estimates.size();
    };
    const size_t before = read();
    const bool booked = unread_->next >= stored_.booking_chunks_at();
    const bool good = booked ? DecodeBookings(chunk->bytes, &image.bookings)
                      : unread_->next < stored_.run_chunks ? ReadRuns(&chunk, &image)
                                                           : ReadEstimates(&chunk, &image);
    const size_t size = read() - before;
    if (!good || size == 0) return ForeignBookings();
    if (booked) parts_.push_back({chunk, size});
    *most -= std::min(*most, size);
  }
  // To make the state of them takes about as long as to read them.
  if (*most == 0) return false;
  *most -= std::min(*most, image.bookings.size() + image.estimates.size() + image.receipts.size());
  Unread unread = *std::move(unread_);
  unread_.reset();
  Finish(std::move(unread));
  return true;
}

void OpenBucket::Finish(Unread unread) {
  BucketImage& image = unread.image;
  // A chunk stays as it is while its first runs expire.
  if (parameters_.kind == Kind::kSlidingLog) {
    std::erase_if(image.counts, [&](const BucketImage::Count& run) {
      return algorithm::SlidingLogState::UntilNs(named_.sliding_log, run.when, 0) <= image.seen_ns;
    });
  }
  for (Booking& booking : image.bookings) {
    booking.grant_time_ns -= origin_ns_;
    last_booking_id_ = std::max(last_booking_id_, booking.id);
  }
  for (algorithm::Estimate& estimate : image.estimates) {
    estimate.end_ns -= origin_ns_;
    last_booking_id_ = std::max(last_booking_id_, estimate.id);
  }
  if (IsConcurrency(parameters_)) {
    image.holds.reserve(image.bookings.size());
    for (const Booking& entry : image.bookings) {
      image.holds.push_back({entry.grant_time_ns, entry.id, entry.permits});
    }
    image.bookings.clear();
  }
  state_ = BucketState::FromImage(parameters_, image);
  tickets_ = TicketList(stored_.tickets);
}

bool OpenBucket::Follow(const StoredBookings& to, BucketImage past, int64_t origin_ns,
                        int64_t now_ns) {
  const bool slots = IsConcurrency(parameters_);
  // A clock that was set back: what the calendar saw of later moments is of no use.
  if ((parameters_.kind != Kind::kTokenBucket && !slots) || entries() == 0 ||
      state_.estimates() != nullptr || to.estimate_chunks != 0 || now_ns < NotBeforeNs() ||
      origin_ns < origin_ns_) {
    return false;
  }
  const algorithm::Int128 tat = past.tat + (static_cast<algorithm::Int128>(origin_ns - origin_ns_)
                                            << parameters_.token_bucket.shift);
  if (tat > static_cast<algorithm::Int128>(algorithm::kMaxTat)) return false;
  past.tat = static_cast<uint64_t>(tat);
  past.latest_ns += origin_ns - origin_ns_;
  absl::flat_hash_map<const StoredBookings::Chunk*, size_t> mine;  // by what is stored: the part
  for (size_t p = 0; p < parts_.size(); ++p) {
    if (parts_[p].chunk != nullptr) mine.emplace(parts_[p].chunk.get(), p);
  }
  std::vector<Part> parts;
  Difference difference;
  size_t decoded = 0;
  size_t rank = 0;
  size_t p = 0;
  for (auto next = to.chunks.begin();; ++next) {
    // Up to a chunk that both have.
    std::vector<Booking> theirs;
    size_t same = parts_.size();
    for (; next != to.chunks.end(); ++next) {
      if (const auto found = mine.find(next->get()); found != mine.end()) {
        same = found->second;
        break;
      }
      const size_t before = theirs.size();
      if (!DecodeBookings((*next)->bytes, &theirs)) return false;
      // Load reads that many in parts.
      decoded += theirs.size() - before;
      if (decoded > kMostToFollow) return false;
      parts.push_back({*next, theirs.size() - before});
    }
    if (same < p) return false;
    size_t count = 0;
    for (; p < same; ++p) count += parts_[p].size;
    std::vector<Booking> ours;
    ForEachEntry([&](const Booking& one) { ours.push_back(one); }, rank, count);
    rank += count;
    int64_t behind_ns = std::numeric_limits<int64_t>::max();
    ForEachEntry([&](const Booking& one) { behind_ns = one.grant_time_ns; }, rank, 1);
    if (!difference.Add(ours, theirs, behind_ns)) return false;
    if (same == parts_.size()) break;
    parts.push_back(parts_[p]);
    rank += parts_[p++].size;
  }
  // Without any booking there is no calendar.
  if (difference.removed.size() == entries()) return false;
  if (!slots) state_.SetPast(parameters_, past);
  for (const Booking& booking : difference.removed) {
    state_.CancelBooking(parameters_, booking.grant_time_ns - origin_ns_, booking.id);
  }
  for (Booking booking : difference.added) {
    last_booking_id_ = std::max(last_booking_id_, booking.id);
    booking.grant_time_ns -= origin_ns_;
    if (slots) {
      state_.RestoreHold({booking.grant_time_ns, booking.id, booking.permits});
    } else {
      state_.Book(parameters_, booking, At(now_ns));
    }
  }
  parts_ = std::move(parts);
  stored_ = to;
  tickets_ = TicketList(to.tickets);
  exists_ = true;
  changed_ = floored_ = false;
  changed_estimates_.clear();
  size_t size = 0;
  for (const Part& part : parts_) size += part.size;
  return size == entries();
}

}  // namespace sluice::store::redis
