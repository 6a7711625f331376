// The part of BucketState that knows bookings: decisions that leave room for them.
#include <algorithm>
#include <cstdlib>
#include <type_traits>
#include <utility>
#include <variant>

#include "server/algorithm/bucket_state.h"
#include "server/algorithm/calendar/token_bucket_calendar.h"
#include "server/algorithm/calendar/window_calendar.h"
#include "server/algorithm/wide.h"

namespace sluice::algorithm {
namespace {

// The two clocks are not read at the same instant, and the wall clock is slewed, so their distance
// always changes a little. Bookings in a fixed window keep the distance at which they were planned
// until the wall clock is set by more than this.
constexpr int64_t kWallSetNs = 1'000'000;

// The past of a log or a sliding window.
template <typename Log, typename State>
class RollingHistory final : public WindowHistory {
 public:
  RollingHistory(const Log& parameters, const State& state, int64_t now_ns)
      : parameters_(parameters), state_(state), now_ns_(now_ns) {}

  uint64_t Capacity() const override { return parameters_.rate.permits; }
  uint64_t CountedAt(int64_t grant_time_ns) const override {
    return state_.Counted(parameters_, grant_time_ns);
  }
  int64_t FirstAtMostNs(uint64_t permits) const override {
    if (permits >= Capacity()) return now_ns_;
    return state_.EarliestNs(parameters_, Capacity() - permits, now_ns_);
  }
  int64_t CountedUntilNs(int64_t grant_time_ns) const override {
    return state_.UntilNs(parameters_, state_.WhenFor(parameters_, grant_time_ns), grant_time_ns);
  }

 private:
  const Log& parameters_;
  const State& state_;
  const int64_t now_ns_;
};

// The past and the windows ahead of a fixed window: the current window until it is over, then the
// windows as the wall clock will show them. Permits that are taken after the wall clock has shown
// the current window's end count for the window that it shows then, too.
class FixedWindowHistory final : public WindowHistory {
 public:
  FixedWindowHistory(const FixedWindow& parameters, const FixedWindowState& state, Moment at)
      : parameters_(parameters),
        course_(state.CourseFrom(parameters, at)),
        now_ns_(at.now_ns),
        local_ns_(static_cast<Int128>(at.wall_ns) - at.now_ns + parameters.utc_offset_ns) {}

  uint64_t Capacity() const override { return parameters_.rate.permits; }
  uint64_t CountedAt(int64_t grant_time_ns) const override {
    return course_.CountedAt(grant_time_ns, Capacity());
  }
  int64_t FirstAtMostNs(uint64_t permits) const override {
    return course_.FirstAtMostNs(permits, now_ns_);
  }
  int64_t CountedUntilNs(int64_t grant_time_ns) const override {
    if (grant_time_ns < course_.wall_ends_ns) return course_.over_ns;
    const Int128 period = parameters_.rate.period_ns;
    const Int128 index = FloorDiv(grant_time_ns + local_ns_, period);
    return std::max(course_.over_ns, static_cast<int64_t>((index + 1) * period - local_ns_));
  }

 private:
  const FixedWindow& parameters_;
  const FixedWindowState::Course course_;
  const int64_t now_ns_;
  const Int128 local_ns_;  // what a moment is at the windows' own offset, less the moment
};

template <typename State>
auto HistoryOf(const Parameters& parameters, const State& state, Moment at) {
  return RollingHistory(Of(parameters, state), state, at.now_ns);
}
FixedWindowHistory HistoryOf(const Parameters& parameters, const FixedWindowState& state,
                             Moment at) {
  return FixedWindowHistory(parameters.fixed_window, state, at);
}

}  // namespace

// Of the bookings, after what was taken and the receipts have been converted.
struct BucketState::Conversion {
  Moment at;
  // Bookings that are still in a calendar of the other kind: those behind the first `copied`.
  std::optional<std::variant<TokenCalendar, WindowCalendar>> old = {};
  size_t copied = 0;
  int64_t moved_ns = 0;
  RebuildCursor cursor = {};

  size_t left() const {
    if (!old.has_value()) return 0;
    return std::visit([](const auto& calendar) { return calendar.size(); }, *old) - copied;
  }
};

struct BucketState::Calendar {
  // The algorithms that count share theirs.
  std::variant<TokenCalendar, WindowCalendar> bookings;
  // Decisions are never dated before this moment.
  int64_t latest_ns = 0;
  // Wall clock less the decisions' clock, as the bookings were planned. fixed_window only.
  int64_t wall_ahead_ns = 0;
  // Null: there is none under way.
  std::unique_ptr<Conversion> conversion = nullptr;

  // Null if the bucket is of the other kind.
  TokenCalendar* tokens() { return std::get_if<TokenCalendar>(&bookings); }
  WindowCalendar* windows() { return std::get_if<WindowCalendar>(&bookings); }

  Moment NotBefore(Moment at) const { return at.now_ns < latest_ns ? At(at, latest_ns) : at; }
  // The moment on both clocks, as the windows were planned.
  Moment Planned(int64_t now_ns) const { return {now_ns, now_ns + wall_ahead_ns}; }
};

template <typename Use>
auto BucketState::WithBookings(const Parameters& parameters, Moment at, Use use) const {
  return VisitRate(Overloaded{[&](const TokenBucketState&) {
                                return use(*calendar_->tokens(), parameters.token_bucket);
                              },
                              [&](const auto& state) {
                                const auto history = HistoryOf(parameters, state, at);
                                return use(*calendar_->windows(),
                                           static_cast<const WindowHistory&>(history));
                              }},
                   state_);
}

void BucketState::DeleteCalendar::operator()(Calendar* calendar) const { delete calendar; }

BucketState::BucketState(const BucketState& other)
    : state_(other.state_),
      receipts_(other.receipts_),
      estimates_(other.estimates_ == nullptr ? nullptr
                                             : std::make_unique<Estimates>(*other.estimates_)),
      calendar_(other.calendar_ == nullptr
                    ? nullptr
                    : new Calendar{other.calendar_->bookings, other.calendar_->latest_ns,
                                   other.calendar_->wall_ahead_ns}) {
  if (!other.converting()) return;
  calendar_->conversion = std::make_unique<Conversion>(*other.calendar_->conversion);
}

bool BucketState::CanTake(const Parameters& parameters, uint64_t permits, Moment at,
                          uint64_t set) const {
  if (calendar_ == nullptr) {
    return std::visit(
        [&](const auto& state) {
          return state.CanTake(Of(parameters, state), permits, Time(at, state));
        },
        state_);
  }
  at = calendar_->Planned(calendar_->NotBefore(at).now_ns);
  return WithBookings(parameters, at, [&](auto& calendar, const auto& past) {
    return calendar.sets().LastGrantTimeNs(set) <= at.now_ns &&
           calendar.FitsNow(past, permits, at.now_ns);
  });
}

bool BucketState::TryTake(const Parameters& parameters, uint64_t permits, Moment at,
                          uint64_t receipt_id, bool* evicted, uint64_t set,
                          OpenReceipts::Kept kept) {
  if (calendar_ == nullptr) return TryTakePast(parameters, permits, at, receipt_id, evicted, kept);
  if (!CanTake(parameters, permits, at, set)) return false;
  at = calendar_->Planned(calendar_->NotBefore(at).now_ns);
  if (WindowCalendar* const windows = calendar_->windows(); windows != nullptr) {
    const int64_t until_ns = CountedUntilNs(parameters, at);
    if (!TryTakePast(parameters, permits, at, receipt_id, evicted, kept)) return false;
    windows->NotePast(static_cast<int64_t>(permits), until_ns);
    return true;
  }
  if (!TryTakePast(parameters, permits, at, receipt_id, evicted, kept)) return false;
  calendar_->tokens()->SetTat(parameters.token_bucket, tat());
  return true;
}

uint64_t BucketState::Force(const Parameters& parameters, uint64_t permits, uint64_t max_owed,
                            Moment at, uint64_t receipt_id, bool* evicted) {
  if (calendar_ != nullptr) at = calendar_->Planned(calendar_->NotBefore(at).now_ns);
  // Slots that are not there cannot be held.
  if (slots() != nullptr) return permits;
  CloseWorthless(parameters, at, Forget::kSome);
  bool closed_older = false;
  const uint64_t forgiven = VisitRate(
      Overloaded{
          [&](TokenBucketState& state) {
            const TokenBucket& token = parameters.token_bucket;
            const uint64_t now_ticks = ToTicks(token, at.now_ns);
            const uint64_t most =
                calendar_ == nullptr ? kMaxTat : calendar_->tokens()->MostTat(token, max_owed);
            const uint64_t counted =
                algorithm::Force(token, permits, max_owed, now_ticks, most, &state.tat);
            const Uint128 rest = static_cast<Uint128>(permits) * token.unit_ticks - counted;
            receipts_.ForgiveTicks(static_cast<uint64_t>(std::min<Uint128>(rest, kMaxTat)));
            if (receipt_id != 0 && counted != 0) {
              closed_older =
                  receipts_.OpenTicks(receipt_id, counted, ShortfallTicks(state.tat, now_ticks),
                                      OpenEstimate(receipt_id, at.now_ns));
            }
            if (calendar_ != nullptr) calendar_->tokens()->SetTat(token, state.tat);
            return permits - counted / token.unit_ticks;
          },
          [&](auto& state) {
            const auto& limit = Of(parameters, state);
            const uint64_t most = MostCounted(limit.rate.permits, max_owed);
            int64_t room = RemainingOf(most, state.Counted(limit, Time(at, state)));
            const int64_t until_ns = calendar_ == nullptr ? 0 : CountedUntilNs(parameters, at);
            if (calendar_ != nullptr) {
              const auto history = HistoryOf(parameters, state, at);
              // What the bookings leave of the capacity, and what may be owed beyond it.
              const Int128 beside =
                  static_cast<Int128>(calendar_->windows()->FreePermits(history, at.now_ns)) +
                  (most - limit.rate.permits);
              room = static_cast<int64_t>(std::min<Int128>(room, beside));
            }
            const uint64_t counted = room <= 0 ? 0 : std::min(permits, static_cast<uint64_t>(room));
            receipts_.ForgivePermits(permits - counted);
            if (counted == 0) return permits;
            const uint64_t when = state.Add(limit, counted, Time(at, state));
            if (receipt_id != 0) {
              closed_older = receipts_.OpenPermits(receipt_id, when, counted,
                                                   OpenEstimate(receipt_id, at.now_ns));
            }
            if (calendar_ != nullptr) {
              calendar_->windows()->NotePast(static_cast<int64_t>(counted), until_ns);
            }
            return permits - counted;
          }},
      state_);
  if (closed_older && evicted != nullptr) *evicted = true;
  return forgiven;
}

void BucketState::GiveBack(const Parameters& parameters, uint64_t permits, Moment at) {
  if (calendar_ != nullptr) at = calendar_->Planned(calendar_->NotBefore(at).now_ns);
  CloseWorthless(parameters, at, Forget::kSome);
  auto& window = std::get<FixedWindowState>(state_);
  const uint64_t given = window.GiveBack(parameters.fixed_window, permits, at);
  receipts_.ForgivePermits(given);
  if (calendar_ == nullptr || given == 0) return;
  calendar_->windows()->NotePast(-static_cast<int64_t>(given),
                                 window.UntilNs(parameters.fixed_window, /*serial=*/0, at));
}

int64_t BucketState::EarliestNs(const Parameters& parameters, uint64_t permits, Moment at,
                                uint64_t set, int64_t from_ns, SearchBudget* budget) const {
  if (calendar_ == nullptr) {
    if (from_ns > at.now_ns) at = At(at, from_ns);
    return std::visit(
        [&](const auto& state) {
          return state.EarliestNs(Of(parameters, state), permits, Time(at, state));
        },
        state_);
  }
  SearchBudget own;
  if (budget == nullptr) budget = &own;
  at = calendar_->Planned(calendar_->NotBefore(at).now_ns);
  return WithBookings(parameters, at, [&](auto& calendar, const auto& past) {
    const int64_t not_before_ns =
        std::max({from_ns, at.now_ns, calendar.sets().LastGrantTimeNs(set)});
    return calendar.EarliestNs(past, permits, at.now_ns, not_before_ns, budget);
  });
}

bool BucketState::IsFull(const Parameters& parameters, Moment at) const {
  if (calendar_ != nullptr) return false;
  if (estimates_ != nullptr && estimates_->AnyKept(at.now_ns)) return false;
  return std::visit(
      [&](const auto& state) { return state.IsFull(Of(parameters, state), Time(at, state)); },
      state_);
}

Level BucketState::LevelAt(const Parameters& parameters, Moment at, SearchBudget* budget) const {
  Level level = std::visit(
      [&](const auto& state) { return state.LevelAt(Of(parameters, state), Time(at, state)); },
      state_);
  if (calendar_ == nullptr) return level;
  at = calendar_->Planned(calendar_->NotBefore(at).now_ns);
  WithBookings(parameters, at, [&](auto& calendar, const auto& past) {
    const int64_t free = std::max<int64_t>(calendar.FreePermits(past, at.now_ns), 0);
    level.remaining = std::min(level.remaining, free);
    level.reset_after_ns = std::max(level.reset_after_ns, calendar.FullAgainNs(past) - at.now_ns);
  });
  const int64_t earliest_ns = EarliestNs(parameters, 1, at, /*set=*/0, at.now_ns, budget);
  level.next_permit_after_ns = earliest_ns == kNeverNs ? kNeverNs : earliest_ns - at.now_ns;
  return level;
}

std::optional<uint64_t> BucketState::Refund(const Parameters& parameters, uint64_t receipt_id,
                                            Moment at) {
  Estimate* const estimate = estimates_ == nullptr ? nullptr : estimates_->Find(receipt_id);
  if (estimate == nullptr) return GiveBackReceipt(parameters, receipt_id, /*keep=*/0, at);
  if (estimate->state != Estimate::State::kOpen) return std::nullopt;
  estimate->state = Estimate::State::kRefunded;
  // Its receipt may have become worthless.
  return GiveBackReceipt(parameters, receipt_id, /*keep=*/0, at).value_or(0);
}

std::optional<uint64_t> BucketState::GiveBackReceipt(const Parameters& parameters,
                                                     uint64_t receipt_id, uint64_t keep,
                                                     Moment at) {
  uint64_t when = 0;
  if (calendar_ == nullptr) return RefundPast(parameters, receipt_id, keep, at, &when);
  at = calendar_->Planned(calendar_->NotBefore(at).now_ns);
  if (TokenCalendar* const tokens = calendar_->tokens(); tokens != nullptr) {
    const std::optional<uint64_t> given = RefundPast(parameters, receipt_id, keep, at, &when);
    if (given.has_value()) tokens->SetTat(parameters.token_bucket, tat());
    return given;
  }
  const int64_t until_before_ns = CountedUntilNs(parameters, at);
  const std::optional<uint64_t> given = RefundPast(parameters, receipt_id, keep, at, &when);
  if (!given.has_value()) return given;
  if (CountedUntilNs(parameters, at) != until_before_ns) {
    // The log held permits written down in the future, and no longer does: what is booked will
    // count for a shorter time.
    RebuildBookings(parameters, at);
    return given;
  }
  const int64_t until_ns =
      VisitRate(Overloaded{[](const TokenBucketState&) { return int64_t{0}; },
                           [&](const auto& state) {
                             return state.UntilNs(Of(parameters, state), when, Time(at, state));
                           }},
                state_);
  calendar_->windows()->NotePast(-static_cast<int64_t>(*given), until_ns);
  return given;
}

Refundable BucketState::RefundableAt(const Parameters& parameters, Moment at) const {
  Refundable sum;
  if (slots() != nullptr) {
    return {slots()->HoldsAt(at.now_ns), slots()->Counted(parameters.concurrency, at.now_ns)};
  }
  if (receipts_.empty()) return sum;
  if (calendar_ != nullptr) at = calendar_->Planned(calendar_->NotBefore(at).now_ns);
  VisitRate(
      Overloaded{[&](const TokenBucketState& state) {
                   // As refunds from the oldest on: each lowers the least shortfall of all
                   // newer receipts by what it gives back.
                   const TokenBucket& token = parameters.token_bucket;
                   const uint64_t shortfall = ShortfallTicks(state.tat, ToTicks(token, at.now_ns));
                   uint64_t ticks = 0;
                   receipts_.ForEachTicks([&](const OpenReceipts::Receipt& receipt) {
                     const uint64_t least = std::min(receipt.shortfall_or_permits, shortfall);
                     if (least == 0) return;
                     ++sum.receipts;
                     ticks = std::min(ticks + receipt.cost_or_when, least);
                   });
                   sum.permits = ticks / token.unit_ticks;
                 },
                 [&](const auto& state) {
                   const auto& limit = Of(parameters, state);
                   const uint64_t counted = state.Counted(limit, Time(at, state));
                   receipts_.ForEachPermits([&](const OpenReceipts::Receipt& receipt) {
                     if (!state.Counts(limit, receipt.cost_or_when, Time(at, state))) return;
                     ++sum.receipts;
                     sum.permits += std::min(receipt.shortfall_or_permits, counted - sum.permits);
                   });
                 }},
      state_);
  return sum;
}

int64_t BucketState::CountedUntilNs(const Parameters& parameters, Moment at) const {
  return WithBookings(parameters, at,
                      Overloaded{[](TokenCalendar&, const TokenBucket&) { return int64_t{0}; },
                                 [&](WindowCalendar&, const WindowHistory& past) {
                                   return past.CountedUntilNs(at.now_ns);
                                 }});
}

void BucketState::NewCalendar(const Parameters& parameters, Moment at) {
  calendar_.reset(new Calendar{{WindowCalendar()}, at.now_ns, at.wall_ns - at.now_ns});
  if (parameters.kind == Kind::kTokenBucket) {
    calendar_->bookings = TokenCalendar(parameters.token_bucket, tat());
  }
}

void BucketState::RebuildBookings(const Parameters& parameters, Moment at) {
  if (TokenCalendar* const tokens = calendar_->tokens(); tokens != nullptr) {
    tokens->SetTat(parameters.token_bucket, tat());
  }
  WithBookings(parameters, at, [](auto& calendar, const auto& past) { calendar.Rebuild(past); });
}

void BucketState::Book(const Parameters& parameters, const Booking& booking, Moment at) {
  if (slots() != nullptr) {
    MutableSlots()->Take(parameters.concurrency, booking.permits, at.now_ns, booking.grant_time_ns,
                         booking.id);
    return;
  }
  if (calendar_ == nullptr) NewCalendar(parameters, at);
  OpenEstimate(booking.id, booking.grant_time_ns);
  WithBookings(parameters, calendar_->Planned(calendar_->NotBefore(at).now_ns),
               [&](auto& calendar, const auto& past) { calendar.Insert(past, booking); });
}

bool BucketState::CancelBooking(const Parameters& parameters, int64_t grant_time_ns, uint64_t id) {
  // Not ended before, as it was not granted yet.
  if (slots() != nullptr) return MutableSlots()->EndHold(id, 0).has_value();
  if (calendar_ == nullptr) return false;
  TokenCalendar* const tokens = calendar_->tokens();
  const bool cancelled = tokens != nullptr
                             ? tokens->Cancel(parameters.token_bucket, grant_time_ns, id)
                             : calendar_->windows()->Cancel(grant_time_ns, id);
  if (bookings() == 0) calendar_ = nullptr;
  if (cancelled && FindEstimate(id) != nullptr) {
    estimates_->Find(id)->state = Estimate::State::kRefunded;
  }
  return cancelled;
}

bool BucketState::FindBooking(int64_t grant_time_ns, uint64_t id, Booking* booking,
                              int64_t* previous_ns) const {
  if (slots() != nullptr) {
    const std::optional<Hold> hold = slots()->Find(id, 0);
    if (!hold.has_value()) return false;
    // The set is that of the rates that are booked with it.
    booking->grant_time_ns = grant_time_ns;
    booking->permits = hold->permits;
    booking->id = id;
    *previous_ns = std::numeric_limits<int64_t>::min();
    return true;
  }
  if (calendar_ == nullptr) return false;
  return std::visit(
      [&](const auto& calendar) { return calendar.Find(grant_time_ns, id, booking, previous_ns); },
      calendar_->bookings);
}

size_t BucketState::BookingRank(int64_t grant_time_ns, uint64_t id) const {
  if (calendar_ == nullptr) return 0;
  return std::visit([&](const auto& calendar) { return calendar.RankOf(grant_time_ns, id); },
                    calendar_->bookings);
}

size_t BucketState::BookingsUpTo(int64_t grant_time_ns) const {
  if (calendar_ == nullptr) return 0;
  return std::visit([&](const auto& calendar) { return calendar.CountUpTo(grant_time_ns); },
                    calendar_->bookings);
}

void BucketState::ForEachBooking(absl::FunctionRef<void(const Booking&)> visit, size_t skip,
                                 size_t count) const {
  if (calendar_ == nullptr) return;
  std::visit([&](const auto& calendar) { calendar.ForEach(visit, skip, count); },
             calendar_->bookings);
  if (!converting() || !calendar_->conversion->old.has_value()) return;
  const size_t converted = bookings() - calendar_->conversion->left();
  const size_t visited = std::min(count, converted - std::min(skip, converted));
  skip = calendar_->conversion->copied + std::max(skip, converted) - converted;
  std::visit([&](const auto& calendar) { calendar.ForEach(visit, skip, count - visited); },
             *calendar_->conversion->old);
}

size_t BucketState::Fold(const Parameters& parameters, Moment at, size_t most) {
  if (slots() != nullptr) MutableSlots()->RemoveEnded(at.now_ns, most);
  if (calendar_ == nullptr) return 0;
  if (converting() && !ContinueConversion(parameters, &most)) return 0;
  size_t closed = 0;
  for (; HasDue(at.now_ns); --most) {
    if (most == 0) return closed;
    const Booking booking =
        std::visit([](const auto& c) -> Booking { return c.front(); }, calendar_->bookings);
    calendar_->latest_ns = std::max(calendar_->latest_ns, booking.grant_time_ns);
    closed += TakeBooked(parameters, booking, calendar_->Planned(booking.grant_time_ns)) ? 1 : 0;
    if (TokenCalendar* const tokens = calendar_->tokens(); tokens != nullptr) {
      tokens->Fold(parameters.token_bucket);
    } else {
      calendar_->windows()->PopFront();
    }
  }
  if (bookings() == 0) {
    calendar_ = nullptr;
    return closed;
  }
  calendar_->latest_ns = std::max(calendar_->latest_ns, at.now_ns);
  if (kind() == Kind::kFixedWindow && at.now_ns >= calendar_->latest_ns) {
    const int64_t ahead_ns = at.wall_ns - at.now_ns;
    const int64_t set_by_ns = ahead_ns - calendar_->wall_ahead_ns;
    if (set_by_ns > kWallSetNs || set_by_ns < -kWallSetNs) {
      calendar_->wall_ahead_ns = ahead_ns;
      RebuildBookings(parameters, at);
    }
  }
  return closed;
}

void BucketState::Reset(const Parameters& parameters, Moment at) {
  if (slots() == nullptr) Fold(parameters, at);
  MakeFull(parameters, at);
  if (calendar_ == nullptr) return;
  RebuildBookings(parameters, calendar_->Planned(calendar_->NotBefore(at).now_ns));
}

int64_t BucketState::NotBeforeNs() const { return calendar_ == nullptr ? 0 : calendar_->latest_ns; }

size_t BucketState::bookings() const {
  if (calendar_ == nullptr) return 0;
  const size_t size =
      std::visit([](const auto& calendar) { return calendar.size(); }, calendar_->bookings);
  return size + (converting() ? calendar_->conversion->left() : 0);
}

bool BucketState::converting() const {
  return calendar_ != nullptr && calendar_->conversion != nullptr;
}

bool BucketState::HasDue(int64_t now_ns) const {
  return converting() || (bookings() != 0 && NextGrantTimeNs() <= now_ns);
}

int64_t BucketState::NextGrantTimeNs() const {
  if (calendar_ == nullptr) return kNeverNs;
  return std::visit([](const auto& calendar) { return calendar.front().grant_time_ns; },
                    calendar_->bookings);
}

int64_t BucketState::LastGrantTimeNs() const {
  if (calendar_ == nullptr) return kNeverNs;
  return std::visit([](const auto& calendar) { return calendar.last_grant_time_ns(); },
                    calendar_->bookings);
}

void BucketState::Convert(const Parameters& from, const Parameters& to, Moment at, int64_t moved_ns,
                          size_t most) {
  if (from == to) return;
  // Holds that have ended may be many. They stay until later calls remove them.
  if (slots() == nullptr) Fold(from, at);
  ConvertPast(from, to, at, moved_ns);
  // Grant times already given stand, but slots are not counted by them.
  if (IsConcurrency(to)) calendar_ = nullptr;
  if (calendar_ == nullptr) return;
  at = Moved(calendar_->NotBefore(at), moved_ns);
  auto conversion = std::make_unique<Conversion>(Conversion{.at = at, .moved_ns = moved_ns});
  if ((from.kind == Kind::kTokenBucket) != (to.kind == Kind::kTokenBucket)) {
    conversion->old = std::move(calendar_->bookings);
    NewCalendar(to, at);
  } else if (TokenCalendar* const tokens = calendar_->tokens(); tokens != nullptr) {
    tokens->SetTat(to.token_bucket, tat());
  }
  calendar_->wall_ahead_ns = at.wall_ns - at.now_ns;
  calendar_->conversion = std::move(conversion);
  ContinueConversion(to, &most);
}

bool BucketState::ContinueConversion(const Parameters& parameters, size_t* most) {
  Conversion& conversion = *calendar_->conversion;
  if (conversion.old.has_value()) {
    const auto copy = [&](Booking booking) {
      booking.grant_time_ns += conversion.moved_ns;
      AppendBooking(parameters, booking);
    };
    const size_t some = std::min(*most, conversion.left());
    std::visit([&](const auto& calendar) { calendar.ForEach(copy, conversion.copied, some); },
               *conversion.old);
    conversion.copied += some;
    *most -= some;
    if (conversion.left() != 0) return false;
    conversion.old.reset();
  }
  const bool done = WithBookings(parameters, conversion.at, [&](auto& calendar, const auto& past) {
    return calendar.RebuildSome(past, &conversion.cursor, most);
  });
  if (done) calendar_->conversion = nullptr;
  return done;
}

void BucketState::AppendBooking(const Parameters& parameters, const Booking& booking) {
  if (TokenCalendar* const tokens = calendar_->tokens(); tokens != nullptr) {
    tokens->Insert(parameters.token_bucket, booking);
  } else {
    calendar_->windows()->Append(booking);
  }
}

BucketImage BucketState::ToImage(bool with_bookings, uint64_t runs_from) const {
  BucketImage image;
  std::visit(Overloaded{[&](const SlidingLogState& log) { log.ToImage(&image, runs_from); },
                        [&](const auto& state) { state.ToImage(&image); }},
             state_);
  const auto copy = [&](const BucketImage::Receipt& receipt) { image.receipts.push_back(receipt); };
  kind() == Kind::kTokenBucket ? receipts_.ForEachTicks(copy) : receipts_.ForEachPermits(copy);
  if (estimates_ != nullptr && with_bookings) {
    estimates_->ForEach([&](const Estimate& one) { image.estimates.push_back(one); });
  }
  if (calendar_ == nullptr) return image;
  image.latest_ns = calendar_->latest_ns;
  image.wall_ahead_ns = calendar_->wall_ahead_ns;
  if (!with_bookings) return image;
  image.bookings.reserve(bookings());
  ForEachBooking([&](const Booking& booking) { image.bookings.push_back(booking); });
  return image;
}

BucketState BucketState::FromImage(const Parameters& parameters, const BucketImage& image) {
  BucketState state(parameters);
  std::visit(
      [&](auto& past) {
        past = std::remove_reference_t<decltype(past)>::FromImage(Of(parameters, past), image);
      },
      state.state_);
  state.SetReceipts(image);
  if (image.bookings.empty()) return state;
  state.NewCalendar(parameters, {image.latest_ns, image.latest_ns + image.wall_ahead_ns});
  for (const Booking& booking : image.bookings) state.AppendBooking(parameters, booking);
  if (parameters.kind != Kind::kTokenBucket) {
    state.RebuildBookings(parameters, state.calendar_->Planned(image.latest_ns));
  }
  return state;
}

size_t BucketState::MaxBytes(const Parameters& limit, uint64_t max_owed) {
  if (limit.kind == Kind::kTokenBucket) return 0;
  if (IsConcurrency(limit)) return sizeof(BucketState);
  // A log of more permits has more runs.
  Parameters parameters = limit;
  VisitMember(limit.kind, [&](auto member) {
    uint64_t& permits = (parameters.*member).rate.permits;
    permits = MostCounted(permits, max_owed);
  });
  const AnyState full = BucketState(parameters).state_;
  return sizeof(BucketState) +
         VisitRate([&](const auto& state) { return state.MaxMemoryBytes(Of(parameters, state)); },
                   full);
}

void BucketState::SetPast(const Parameters& parameters, const BucketImage& image) {
  state_ = TokenBucketState{image.tat};
  SetReceipts(image);
  calendar_->latest_ns = image.latest_ns;
  calendar_->tokens()->SetTat(parameters.token_bucket, image.tat);
}

size_t BucketState::MemoryBytes() const {
  const auto of = [](const auto& part) { return part.MemoryBytes(); };
  size_t bytes = sizeof(*this) + receipts_.MemoryBytes() + std::visit(of, state_);
  if (estimates_ != nullptr) bytes += estimates_->MemoryBytes();
  if (calendar_ != nullptr) bytes += sizeof(Calendar) + std::visit(of, calendar_->bookings);
  if (converting()) {
    const auto& old = calendar_->conversion->old;
    bytes += sizeof(Conversion) + (old.has_value() ? std::visit(of, *old) : 0);
  }
  return bytes;
}

}  // namespace sluice::algorithm
