#include "server/store/redis/wire/open_bucket.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/strings.h"
#include "server/algorithm/sliding_log.h"

namespace sluice::store::redis {
namespace {

using algorithm::Booking;
using algorithm::BucketImage;
using algorithm::BucketState;
using algorithm::Kind;
using algorithm::Parameters;
using common::ToAbsl;

constexpr int64_t kNsPerMs = 1'000'000;

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

Parameters Countable(const Parameters& parameters) {
  Parameters countable = parameters;
  if (countable.kind != Kind::kTokenBucket && !IsConcurrency(countable)) {
    VisitMember(countable.kind, [&](auto member) {
      uint64_t& permits = (countable.*member).rate.permits;
      permits = std::min(permits, kMaxCounted);
    });
  }
  return countable;
}

bool IsBooked(std::string_view state) {
  // Parameters and writer are one word each.
  const size_t first = state.find(' ');
  if (first == std::string_view::npos) return false;
  const size_t second = state.find(' ', first + 1);
  return second != std::string_view::npos && state.size() > second + 1 && state[second + 1] == '@';
}

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
  *most -= std::min(*most, image.bookings.size());
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

void OpenBucket::Convert(const Parameters& to, int64_t now_ns) {
  now_ns = std::max(now_ns, NotBeforeNs());
  Fold(now_ns);
  changed_ = true;
  runs_changed_ = true;
  named_ = to;
  const Parameters countable = Countable(to);
  int64_t origin_ns = origin_ns_;
  if (countable.kind != parameters_.kind) {
    origin_ns = countable.kind == Kind::kTokenBucket ? now_ns : 0;
  }
  state_.Convert(parameters_, countable, At(now_ns), origin_ns_ - origin_ns);
  if (entries() == 0) parts_.clear();
  if (slots() == nullptr) tickets_ = TicketList();
  origin_ns_ = origin_ns;
  parameters_ = countable;
}

void OpenBucket::ApplyFloor(int64_t floor_us) {
  if (floor_us < 0) floor_us = exists_ ? 0 : -floor_us;
  closed_until_ns_ = UsedUpUntilNs(parameters_, floor_us);
  if (floor_us == 0 || parameters_.kind != Kind::kTokenBucket) return;
  const algorithm::TokenBucket& p = parameters_.token_bucket;
  const algorithm::Int128 tat =
      ((static_cast<algorithm::Int128>(floor_us) * 1000 - origin_ns_) << p.shift) + p.burst_ticks +
      p.debt_ticks;
  if (tat <= static_cast<algorithm::Int128>(state_.tat())) return;
  BucketImage image = state_.ToImage();
  image.tat = static_cast<uint64_t>(std::min<algorithm::Int128>(tat, algorithm::kMaxTat));
  // How full the bucket was since then is not known, so receipts are worth nothing.
  image.receipts.clear();
  state_ = BucketState::FromImage(parameters_, image);
}

int64_t OpenBucket::NotBeforeNs() const {
  return bookings() == 0 ? std::numeric_limits<int64_t>::min() : Absolute(state_.NotBeforeNs());
}

void OpenBucket::Fold(int64_t now_ns) {
  size_t all = std::numeric_limits<size_t>::max();
  FoldSome(now_ns, &all);
}

bool OpenBucket::FoldSome(int64_t now_ns, size_t* most) {
  const size_t before = entries();
  if (before == 0) return true;
  state_.Fold(parameters_, At(now_ns), *most);
  NoteFolded(before);
  *most -= before - entries();
  // Scripts can use it again, or there is no need for it.
  if (entries() == 0) changed_ = true;
  if (slots() != nullptr) {
    return entries() == 0 || slots()->holds().front().end_ns > At(now_ns).now_ns;
  }
  return !state_.HasDue(At(now_ns).now_ns);
}

bool OpenBucket::CanTake(uint64_t permits, int64_t now_ns, uint64_t set) const {
  if (slots() != nullptr && BookingsFull()) return false;
  return now_ns >= closed_until_ns_ && state_.CanTake(parameters_, permits, At(now_ns), set);
}

void OpenBucket::Take(uint64_t permits, int64_t now_ns, uint64_t receipt_id, uint64_t set) {
  state_.TryTake(parameters_, permits, At(now_ns), receipt_id, nullptr, set);
  changed_ = true;
  if (slots() == nullptr) return;
  NoteAdded(slots()->holds().RankOf(receipt_id));
  last_booking_id_ = std::max(last_booking_id_, receipt_id);
}

std::optional<int64_t> OpenBucket::RenewHold(uint64_t receipt_id, int64_t now_ns) {
  const std::optional<int64_t> before_ns = HeldUntilNs(receipt_id, now_ns);
  if (!before_ns.has_value()) return std::nullopt;
  const size_t rank = slots()->holds().RankOf(receipt_id);
  const std::optional<int64_t> end_ns = state_.RenewHold(parameters_, receipt_id, At(now_ns));
  if (end_ns == before_ns) return end_ns;
  NoteRemoved(rank);
  NoteAdded(slots()->holds().RankOf(receipt_id));
  changed_ = true;
  return end_ns;
}

bool OpenBucket::IsBehind(const Place* place, uint64_t permits, int64_t now_ns) const {
  if (tickets_.empty()) return false;
  if (place == nullptr) return tickets_.AnyAt(now_ns);
  const uint64_t before = tickets_.PermitsBefore(place->number, place->node, now_ns);
  const uint64_t all = permits + std::min(before, std::numeric_limits<uint64_t>::max() - permits);
  return before != 0 && !CanTake(all, now_ns, /*set=*/0);
}

void OpenBucket::LeaveTicket(const Place& place, uint64_t permits, int64_t now_ns) {
  changed_ |=
      tickets_.Leave({place.number, place.node, permits, now_ns + place.ticket_for_ns}, now_ns);
}

void OpenBucket::DropTicket(const Place& place, const Place::Next& next, int64_t now_ns) {
  changed_ |= tickets_.Drop(place.number, place.node);
  if (next.number == 0) return;
  changed_ |=
      tickets_.Leave({next.number, place.node, next.permits, now_ns + place.ticket_for_ns}, now_ns);
}

uint64_t OpenBucket::Force(uint64_t permits, uint64_t max_owed, int64_t now_ns,
                           uint64_t receipt_id) {
  changed_ = true;
  return state_.Force(parameters_, permits, CountableOwed(parameters_, max_owed), At(now_ns),
                      receipt_id);
}

void OpenBucket::GiveBack(uint64_t permits, int64_t now_ns) {
  changed_ = true;
  state_.GiveBack(parameters_, permits, At(now_ns));
}

int64_t OpenBucket::EarliestNs(uint64_t permits, int64_t now_ns, uint64_t set, int64_t from_ns,
                               algorithm::SearchBudget* budget) const {
  from_ns = std::max(from_ns, closed_until_ns_);
  return Absolute(
      state_.EarliestNs(parameters_, permits, At(now_ns), set, from_ns - origin_ns_, budget));
}

void OpenBucket::Book(const Booking& booking, int64_t now_ns) {
  Booking local = booking;
  local.grant_time_ns -= origin_ns_;
  state_.Book(parameters_, local, At(now_ns));
  // It is the last of its grant time.
  NoteAdded(slots() != nullptr ? slots()->holds().RankOf(booking.id)
                               : state_.BookingsUpTo(local.grant_time_ns) - 1);
  last_booking_id_ = std::max(last_booking_id_, booking.id);
  changed_ = true;
  changed_estimates_.push_back(booking.id);
}

bool OpenBucket::CancelBooking(int64_t grant_time_ns, uint64_t id) {
  const size_t rank = slots() != nullptr ? slots()->holds().RankOf(id)
                                         : state_.BookingRank(grant_time_ns - origin_ns_, id);
  if (!state_.CancelBooking(parameters_, grant_time_ns - origin_ns_, id)) return false;
  NoteRemoved(rank);
  changed_ = true;
  changed_estimates_.push_back(id);
  return true;
}

bool OpenBucket::FindBooking(int64_t grant_time_ns, uint64_t id, Booking* booking,
                             int64_t* previous_ns) const {
  if (!state_.FindBooking(grant_time_ns - origin_ns_, id, booking, previous_ns)) return false;
  booking->grant_time_ns += origin_ns_;
  if (*previous_ns != std::numeric_limits<int64_t>::min()) *previous_ns += origin_ns_;
  return true;
}

void OpenBucket::NoteRefunded(uint64_t receipt_id) {
  changed_estimates_.push_back(receipt_id);
  if (parameters_.kind != Kind::kSlidingLog) return;
  constexpr uint64_t kNoRuns = std::numeric_limits<uint64_t>::max();
  for (const auto& receipt : state_.ToImage(/*with_bookings=*/false, kNoRuns).receipts) {
    if (receipt.id == receipt_id) refunded_.push_back(receipt.cost_or_when);
  }
}

bool OpenBucket::HasRoomForEstimate(int64_t now_ns) {
  return state_.HasRoomForEstimate(At(now_ns), &changed_estimates_) &&
         estimates() < common::bounds::kMaxEstimatesPerBucketInRedis;
}

void OpenBucket::BeginEstimate(uint64_t receipt_id, uint64_t permits, int64_t grant_time_ns,
                               int64_t within_ns) {
  state_.BeginEstimate(receipt_id, permits, grant_time_ns - origin_ns_, within_ns);
  last_booking_id_ = std::max(last_booking_id_, receipt_id);
  changed_estimates_.push_back(receipt_id);
  changed_ = true;
}

uint64_t OpenBucket::Settle(uint64_t receipt_id, const BucketState::Settlement& settlement,
                            int64_t now_ns) {
  NoteRefunded(receipt_id);
  changed_ = true;
  BucketState::Settlement countable = settlement;
  countable.max_owed = CountableOwed(parameters_, settlement.max_owed);
  return state_.Settle(parameters_, receipt_id, countable, At(now_ns));
}

void OpenBucket::CloseReceipt(uint64_t receipt_id) {
  state_.CloseReceipt(receipt_id);
  changed_ = true;
}

std::optional<uint64_t> OpenBucket::Refund(uint64_t receipt_id, int64_t now_ns) {
  NoteRefunded(receipt_id);
  const size_t rank = slots() == nullptr ? 0 : slots()->holds().RankOf(receipt_id);
  const std::optional<uint64_t> given = state_.Refund(parameters_, receipt_id, At(now_ns));
  if (given.has_value()) changed_ = true;
  if (given.has_value() && slots() != nullptr) NoteRemoved(rank);
  return given;
}

void OpenBucket::Reset(int64_t now_ns) {
  const size_t before = entries();
  state_.Reset(parameters_, At(now_ns));
  NoteFolded(before);
  changed_ = true;
  runs_changed_ = true;
  // Callers that wait leave theirs again.
  tickets_ = TicketList();
}

algorithm::Level OpenBucket::LevelAt(int64_t now_ns, algorithm::SearchBudget* budget) const {
  algorithm::Level level = state_.LevelAt(parameters_, At(now_ns), budget);
  CloseLevel(closed_until_ns_ - now_ns, &level);
  return level;
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
  changed_ = false;
  changed_estimates_.clear();
  size_t size = 0;
  for (const Part& part : parts_) size += part.size;
  return size == entries();
}

void OpenBucket::NoteAdded(size_t rank) {
  size_t p = 0;
  while (p + 1 < parts_.size() && rank > parts_[p].size) rank -= parts_[p++].size;
  // Behind a full part: bookings are usually added at the end, and leave the others as they are.
  if (parts_.empty() || (rank == parts_[p].size && rank >= kMostPerPart)) {
    parts_.insert(parts_.begin() + static_cast<ptrdiff_t>(parts_.empty() ? 0 : p + 1),
                  {nullptr, 1});
    return;
  }
  Part& part = parts_[p];
  part.chunk = nullptr;
  if (++part.size <= kMostPerPart) return;
  const size_t upper = part.size / 2;
  part.size -= upper;
  parts_.insert(parts_.begin() + static_cast<ptrdiff_t>(p + 1), {nullptr, upper});
}

void OpenBucket::NoteRemoved(size_t rank) {
  size_t p = 0;
  while (rank >= parts_[p].size) rank -= parts_[p++].size;
  parts_[p].chunk = nullptr;
  if (--parts_[p].size == 0) {
    parts_.erase(parts_.begin() + static_cast<ptrdiff_t>(p));
    return;
  }
  for (size_t next = std::max<size_t>(p, 1); next <= p + 1 && next < parts_.size(); ++next) {
    const size_t together = parts_[next - 1].size + parts_[next].size;
    if (together > kMostPerPart / 2) continue;
    parts_[next - 1] = {nullptr, together};
    parts_.erase(parts_.begin() + static_cast<ptrdiff_t>(next));
    return;
  }
}

void OpenBucket::NoteFolded(size_t bookings_before) {
  size_t folded = bookings_before - entries();
  auto part = parts_.begin();
  for (; part != parts_.end() && part->size <= folded; ++part) folded -= part->size;
  parts_.erase(parts_.begin(), part);
  if (folded > 0) parts_[0] = {nullptr, parts_[0].size - folded};
}

void OpenBucket::ForEachBooking(absl::FunctionRef<void(const algorithm::Booking&)> visit,
                                size_t skip, size_t count) const {
  state_.ForEachBooking(
      [&](const Booking& booking) {
        Booking absolute = booking;
        absolute.grant_time_ns += origin_ns_;
        visit(absolute);
      },
      skip, count);
}

void OpenBucket::ForEachEntry(absl::FunctionRef<void(const algorithm::Booking&)> visit, size_t skip,
                              size_t count) const {
  if (slots() == nullptr) return ForEachBooking(visit, skip, count);
  slots()->holds().ForEach(
      [&](const algorithm::Hold& hold) { visit({hold.end_ns, hold.permits, hold.id, /*set=*/0}); },
      skip, count);
}

int64_t OpenBucket::NextGrantTimeNs() const { return Absolute(state_.NextGrantTimeNs()); }
int64_t OpenBucket::LastGrantTimeNs() const { return Absolute(state_.LastGrantTimeNs()); }

void OpenBucket::AddChunk(std::string_view version, std::string bytes, uint64_t first,
                          std::vector<std::string>* fields) {
  StoredBookings::Chunk chunk = {
      absl::StrCat(next_.generation, ".", ToAbsl(version), ".", next_.chunks.size()),
      std::move(bytes), first};
  fields->insert(fields->end(), {chunk.name, chunk.bytes});
  next_.chunks.push_back(std::make_shared<StoredBookings::Chunk>(std::move(chunk)));
}

bool OpenBucket::HasManyRuns(int64_t now_ns) const {
  if (parameters_.kind != Kind::kSlidingLog) return false;
  const auto counts = [&](uint64_t quantum) {
    return algorithm::SlidingLogState::UntilNs(parameters_.sliding_log, quantum, 0) > now_ns;
  };
  // All but the last are full, as far as their runs have not expired.
  size_t full = 0;
  for (size_t c = 0; c + 1 < stored_.run_chunks && !runs_changed_; ++c) {
    full += counts(stored_.chunks[c]->first) ? 1 : 0;
  }
  if (full * kRunsPerChunk > kMostRunsForScripts) return true;
  size_t runs = 0;
  for (const BucketImage::Count& run : state_.ToImage(/*with_bookings=*/false).counts) {
    runs += counts(run.when) ? 1 : 0;
  }
  return runs > kMostRunsForScripts;
}

BucketImage OpenBucket::FormatRuns(std::string_view version, int64_t now_ns,
                                   std::vector<std::string>* fields,
                                   std::vector<std::string>* gone) {
  const auto begin = stored_.chunks.begin();
  const auto end = begin + static_cast<ptrdiff_t>(stored_.run_chunks);
  if (IsConcurrency(parameters_)) return {};
  if (parameters_.kind != Kind::kSlidingLog) {
    for (auto old = begin; old != end; ++old) gone->push_back((*old)->name);
    return state_.ToImage(/*with_bookings=*/false);
  }
  uint64_t from = 0;  // of the runs that are not written yet
  for (auto old = begin; old != end; ++old) {
    const bool last = old + 1 == end;
    const uint64_t until = last ? 0 : old[1]->first;
    const bool expired =
        !last && algorithm::SlidingLogState::UntilNs(parameters_.sliding_log, until, 0) <= now_ns;
    const auto refunded = [&](uint64_t at) { return at >= (*old)->first && at < until; };
    if (last || runs_changed_ || expired) {
      gone->push_back((*old)->name);
      if (last && !runs_changed_) from = (*old)->first;
    } else if (std::none_of(refunded_.begin(), refunded_.end(), refunded)) {
      next_.chunks.push_back(*old);
    } else {
      gone->push_back((*old)->name);
      std::vector<BucketImage::Count> runs =
          state_.ToImage(/*with_bookings=*/false, (*old)->first).counts;
      std::erase_if(runs, [&](const BucketImage::Count& run) { return run.when >= until; });
      if (!runs.empty()) AddChunk(version, EncodeRuns(runs), runs[0].when, fields);
    }
  }
  BucketImage image = state_.ToImage(/*with_bookings=*/false, from);
  for (auto left = absl::MakeConstSpan(image.counts); !left.empty();) {
    const auto runs = left.first(std::min(left.size(), kRunsPerChunk));
    AddChunk(version, EncodeRuns(runs), runs[0].when, fields);
    left.remove_prefix(runs.size());
  }
  return image;
}

void OpenBucket::FormatEstimates(std::string_view version, std::vector<std::string>* fields,
                                 std::vector<std::string>* gone) {
  const auto begin = stored_.chunks.begin() + static_cast<ptrdiff_t>(stored_.run_chunks);
  const auto end = begin + static_cast<ptrdiff_t>(stored_.estimate_chunks);
  const size_t before = next_.chunks.size();
  const auto write = [&](uint64_t first, uint64_t until) {
    std::vector<algorithm::Estimate> some;
    const auto flush = [&] {
      if (some.empty()) return;
      AddChunk(version, EncodeEstimates(some, origin_ns_), some[0].id, fields);
      some.clear();
    };
    if (state_.estimates() == nullptr) return;
    state_.estimates()->ForEach(
        [&](const algorithm::Estimate& one) {
          some.push_back(one);
          if (some.size() == kMostEstimates) flush();
        },
        first, until);
    flush();
  };
  constexpr uint64_t kLast = std::numeric_limits<uint64_t>::max();
  if (begin == end) write(0, kLast);
  // Each chunk has the ids up to the next one's first.
  for (auto old = begin; old != end; ++old) {
    const uint64_t first = old == begin ? 0 : (*old)->first;
    const uint64_t until = old + 1 == end ? kLast : old[1]->first;
    const bool changed = state_.estimates() == nullptr ||
                         std::any_of(changed_estimates_.begin(), changed_estimates_.end(),
                                     [&](uint64_t id) { return id >= first && id < until; });
    if (!changed) {
      next_.chunks.push_back(*old);
      continue;
    }
    gone->push_back((*old)->name);
    write(first, until);
  }
  next_.estimate_chunks = next_.chunks.size() - before;
}

int64_t OpenBucket::TtlMs(int64_t now_ns) const {
  int64_t until_ns = LevelAt(now_ns).reset_after_ns;
  if (estimates() != 0) {
    until_ns = std::max(until_ns, Absolute(state_.estimates()->kept_until_ns()) - now_ns);
  }
  until_ns = std::max(until_ns, tickets_.LastUntilNs() - now_ns);
  // Tickets alone are of no use to a clock that was set back.
  const int64_t more_ns =
      slots() != nullptr && entries() == 0 ? 0 : algorithm::WindowNs(parameters_);
  return until_ns / kNsPerMs + more_ns / kNsPerMs + 2;
}

std::vector<std::string> OpenBucket::Format(std::string_view writer, std::string_view version,
                                            int64_t now_ns) {
  next_ = {};
  // Forgets estimates that are not kept any more.
  if (estimates() != 0) state_.CloseWorthless(parameters_, At(now_ns));
  const bool awaited = tickets_.AnyAt(now_ns);
  if (entries() == 0 && estimates() == 0 && !awaited && !HasManyRuns(now_ns)) {
    BucketImage image = state_.ToImage();
    const bool full =
        IsConcurrency(parameters_) || state_.LevelAt(parameters_, At(now_ns)).reset_after_ns == 0;
    if (parameters_.kind == Kind::kTokenBucket) {
      image.tat = algorithm::ShortfallTicks(
          image.tat, algorithm::ToTicks(parameters_.token_bucket, now_ns - origin_ns_));
    }
    std::vector<std::string> words =
        full ? FormatFullBucket()
             : FormatBucket({named_, std::string(writer), std::move(image)}, now_ns);
    words.insert(words.begin() + 3, absl::StrCat(words.size() - 3));
    words.insert(words.end(), {"0", "0"});
    return words;
  }
  next_.state = absl::StrCat(EncodeParameters(named_), " ", ToAbsl(writer), " @", ToAbsl(version));
  next_.generation = stored_.generation + 1;
  std::vector<std::string> gone;
  std::vector<std::string> fields;
  BucketImage image = FormatRuns(version, now_ns, &fields, &gone);
  next_.run_chunks = next_.chunks.size();
  FormatEstimates(version, &fields, &gone);
  // Without bookings the past is that of now.
  if (bookings() == 0) image.latest_ns = now_ns - origin_ns_;
  if (awaited) next_.tickets = tickets_.tickets();
  next_.past = EncodePast(parameters_, image, origin_ns_, next_, state_.estimates());
  // Chunks stay in order.
  auto old = stored_.chunks.begin() + static_cast<ptrdiff_t>(stored_.booking_chunks_at());
  size_t skip = 0;
  std::vector<Booking> bookings;
  for (const Part& part : parts_) {
    if (part.chunk != nullptr) {
      for (; *old != part.chunk; ++old) gone.push_back((*old)->name);
      ++old;
      next_.chunks.push_back(part.chunk);
    } else {
      bookings.clear();
      ForEachEntry([&](const Booking& booking) { bookings.push_back(booking); }, skip, part.size);
      AddChunk(version, EncodeBookings(bookings), 0, &fields);
    }
    skip += part.size;
  }
  for (; old != stored_.chunks.end(); ++old) gone.push_back((*old)->name);
  std::string names;
  for (const auto& chunk : next_.chunks) {
    absl::StrAppend(&names, names.empty() ? "" : " ", chunk->name);
  }
  fields.insert(fields.end(), {"past", next_.past, "chunks", std::move(names)});
  std::vector<std::string> words = {absl::StrCat(TtlMs(now_ns)), next_.state, "", "0",
                                    absl::StrCat(gone.size())};
  words.insert(words.end(), gone.begin(), gone.end());
  words.push_back(absl::StrCat(fields.size()));
  std::move(fields.begin(), fields.end(), std::back_inserter(words));
  return words;
}

void OpenBucket::Written(std::string_view writer) {
  writer_.assign(writer);
  exists_ = true;
  changed_ = false;
  stored_ = std::move(next_);
  refunded_.clear();
  runs_changed_ = false;
  changed_estimates_.clear();
  for (size_t p = 0; p < parts_.size(); ++p) {
    parts_[p].chunk = stored_.chunks[stored_.booking_chunks_at() + p];
  }
}

int64_t BeginAt(absl::Span<OpenBucket> buckets, int64_t now_ns) {
  for (const OpenBucket& bucket : buckets) now_ns = std::max(now_ns, bucket.NotBeforeNs());
  for (OpenBucket& bucket : buckets) bucket.Fold(now_ns);
  return now_ns;
}

uint64_t LastBooking(absl::Span<const OpenBucket> buckets) {
  uint64_t last = 0;
  for (const OpenBucket& bucket : buckets) last = std::max(last, bucket.LastBookingId());
  return last;
}

}  // namespace sluice::store::redis
