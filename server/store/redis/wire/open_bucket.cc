#include "server/store/redis/wire/open_bucket.h"

#include <algorithm>
#include <utility>

namespace sluice::store::redis {

using algorithm::Booking;
using algorithm::BucketImage;
using algorithm::BucketState;
using algorithm::Kind;
using algorithm::Parameters;

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
  floored_ = true;
}

int64_t OpenBucket::NotBeforeNs() const {
  // A token bucket's time line begins at its origin: a time before it would be taken for it, and
  // what the bucket lacks there would then be written as of the earlier time.
  const int64_t begin_ns =
      parameters_.kind == Kind::kTokenBucket ? origin_ns_ : std::numeric_limits<int64_t>::min();
  return bookings() == 0 ? begin_ns : std::max(begin_ns, Absolute(state_.NotBeforeNs()));
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

bool OpenBucket::IsBehind(const QueuePlace* place, uint64_t permits, int64_t now_ns) const {
  if (tickets_.empty()) return false;
  if (place == nullptr) return tickets_.AnyAt(now_ns);
  const uint64_t before = tickets_.PermitsBefore(place->number, place->node, now_ns);
  const uint64_t all = permits + std::min(before, std::numeric_limits<uint64_t>::max() - permits);
  return before != 0 && !CanTake(all, now_ns, /*set=*/0);
}

void OpenBucket::LeaveTicket(const QueuePlace& place, uint64_t permits, int64_t now_ns) {
  changed_ |=
      tickets_.Leave({place.number, place.node, permits, now_ns + place.ticket_for_ns}, now_ns);
}

void OpenBucket::DropTicket(const QueuePlace& place, const QueuePlace::Next& next, int64_t now_ns) {
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

bool OpenBucket::CloseReceipt(uint64_t receipt_id) {
  const bool open = state_.CloseReceipt(receipt_id);
  changed_ |= open;
  return open;
}

std::optional<uint64_t> OpenBucket::Refund(uint64_t receipt_id, int64_t now_ns) {
  const size_t estimates_before = changed_estimates_.size();
  const size_t runs_before = refunded_.size();
  NoteRefunded(receipt_id);
  const size_t rank = slots() == nullptr ? 0 : slots()->holds().RankOf(receipt_id);
  const std::optional<uint64_t> given = state_.Refund(parameters_, receipt_id, At(now_ns));
  if (!given.has_value()) {
    // Nothing is written, so such notes would pile up.
    changed_estimates_.resize(estimates_before);
    refunded_.resize(runs_before);
    return std::nullopt;
  }
  changed_ = true;
  if (slots() != nullptr) NoteRemoved(rank);
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

void OpenBucket::Written(std::string_view writer) {
  writer_.assign(writer);
  exists_ = true;
  changed_ = floored_ = false;
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
