// The part of BucketState that looks ahead: decisions that heed what is booked.
#include <algorithm>
#include <utility>
#include <variant>
#include <vector>

#include "server/algorithm/bucket_state.h"
#include "server/algorithm/calendar/token_bucket_calendar.h"
#include "server/algorithm/calendar/window_calendar.h"
#include "server/algorithm/wide.h"

namespace sluice::algorithm {
namespace {

// The two clocks are not read at the same instant and the wall clock is slewed, so their distance
// always changes a little. What is planned ahead for a fixed window keeps the distance at which it
// was planned until the wall clock was set by more than this.
constexpr int64_t kWallSetNs = 1'000'000;

class LogHistory final : public WindowHistory {
 public:
  LogHistory(const SlidingLog& parameters, const SlidingLogState& state, int64_t now_ns)
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
    return UntilOfQuantum(parameters_, state_.QuantumFor(parameters_, grant_time_ns));
  }
  static int64_t UntilOfQuantum(const SlidingLog& parameters, uint64_t quantum) {
    return SaturateToInt64(static_cast<Uint128>(quantum) *
                               static_cast<uint64_t>(parameters.quantum_ns) +
                           static_cast<uint64_t>(parameters.rate.period_ns));
  }

 private:
  const SlidingLog& parameters_;
  const SlidingLogState& state_;
  const int64_t now_ns_;
};

class SlidingWindowHistory final : public WindowHistory {
 public:
  SlidingWindowHistory(const SlidingWindow& parameters, const SlidingWindowState& state,
                       int64_t now_ns)
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
    return UntilOfIndex(parameters_, state_.IndexFor(parameters_, grant_time_ns));
  }
  static int64_t UntilOfIndex(const SlidingWindow& parameters, uint64_t index) {
    return SubWindowStartNs(parameters, index + parameters.sub_windows + 1);
  }

 private:
  const SlidingWindow& parameters_;
  const SlidingWindowState& state_;
  const int64_t now_ns_;
};

// Windows ahead: the current one until it is over, then as the wall clock will show them. The
// current one may end a little beside what the wall clock says by now; what is left of that window
// by then is counted to the next one, so that none is granted twice.
class FixedWindowHistory final : public WindowHistory {
 public:
  FixedWindowHistory(const FixedWindow& parameters, const FixedWindowState& state, Moment at)
      : parameters_(parameters),
        counted_(state.Counted(parameters, at)),
        now_ns_(at.now_ns),
        current_until_ns_(state.CurrentUntilNs(parameters, at)),
        local_ns_(static_cast<Int128>(at.wall_ns) - at.now_ns + parameters.utc_offset_ns) {}

  uint64_t Capacity() const override { return parameters_.rate.permits; }
  uint64_t CountedAt(int64_t grant_time_ns) const override {
    return grant_time_ns < current_until_ns_ ? counted_ : 0;
  }
  int64_t FirstAtMostNs(uint64_t permits) const override {
    return counted_ <= permits ? now_ns_ : current_until_ns_;
  }
  int64_t CountedUntilNs(int64_t grant_time_ns) const override {
    if (grant_time_ns < current_until_ns_) return current_until_ns_;
    int64_t from_ns = grant_time_ns;
    if (current_until_ns_ > now_ns_) {
      from_ns = std::max(from_ns, current_until_ns_ + parameters_.rate.period_ns / 2);
    }
    const Int128 local = from_ns + local_ns_;
    const Int128 period = parameters_.rate.period_ns;
    Int128 index = local / period;
    if (local % period < 0) --index;
    return static_cast<int64_t>((index + 1) * period - local_ns_);
  }
  // What the wall clock shows at a moment ahead: within the window that it is planned for.
  int64_t WallAtNs(int64_t grant_time_ns) const {
    const Int128 window_ns = CountedUntilNs(grant_time_ns) - parameters_.rate.period_ns;
    return static_cast<int64_t>(std::max<Int128>(grant_time_ns, window_ns) + local_ns_ -
                                parameters_.utc_offset_ns);
  }

 private:
  const FixedWindow& parameters_;
  const uint64_t counted_;
  const int64_t now_ns_;
  const int64_t current_until_ns_;
  const Int128 local_ns_;  // what a moment is at the windows' own offset, less the moment
};

}  // namespace

struct BucketState::Calendar {
  // In the order of Kind; the three that count share theirs.
  std::variant<TokenCalendar, WindowCalendar> bookings;
  // Wall clock less the decisions' clock, as what is booked was planned. fixed_window only.
  int64_t wall_ahead_ns = 0;
  // Decisions are never about an earlier moment.
  int64_t latest_ns = 0;

  explicit Calendar(TokenCalendar calendar) : bookings(std::move(calendar)) {}
  explicit Calendar(WindowCalendar calendar) : bookings(std::move(calendar)) {}

  TokenCalendar* tokens() { return std::get_if<TokenCalendar>(&bookings); }
  WindowCalendar* windows() { return std::get_if<WindowCalendar>(&bookings); }

  Moment NotBefore(Moment at) const {
    if (at.now_ns < latest_ns) at = {latest_ns, at.wall_ns + (latest_ns - at.now_ns)};
    return at;
  }
  // The moment on both clocks, as the windows were planned.
  Moment Planned(int64_t now_ns) const { return {now_ns, now_ns + wall_ahead_ns}; }
};

namespace {

// Calls use(history) with the history of a bucket that counts.
template <typename State, typename Use>
auto WithHistory(const Parameters& parameters, const State& state, Moment at, Use use) {
  if (const auto* log = std::get_if<SlidingLogState>(&state)) {
    return use(LogHistory(parameters.sliding_log, *log, at.now_ns));
  }
  if (const auto* window = std::get_if<SlidingWindowState>(&state)) {
    return use(SlidingWindowHistory(parameters.sliding_window, *window, at.now_ns));
  }
  return use(FixedWindowHistory(parameters.fixed_window, std::get<FixedWindowState>(state), at));
}

Moment Later(Moment at, int64_t now_ns) { return {now_ns, at.wall_ns + (now_ns - at.now_ns)}; }

}  // namespace

void BucketState::DeleteCalendar::operator()(Calendar* calendar) const { delete calendar; }

BucketState::BucketState(const BucketState& other)
    : state_(other.state_),
      token_receipts_(other.token_receipts_),
      counted_receipts_(other.counted_receipts_),
      calendar_(other.calendar_ == nullptr ? nullptr : new Calendar(*other.calendar_)) {}

bool BucketState::CanTake(const Parameters& parameters, uint64_t permits, Moment at,
                          uint64_t set) const {
  if (calendar_ == nullptr) return CanTakePast(parameters, permits, at);
  const int64_t now_ns = calendar_->NotBefore(at).now_ns;
  if (TokenCalendar* const tokens = calendar_->tokens(); tokens != nullptr) {
    return tokens->sets().LastGrantTimeNs(set) <= now_ns &&
           tokens->FitsNow(parameters.token_bucket, permits, now_ns);
  }
  WindowCalendar* const windows = calendar_->windows();
  return windows->sets().LastGrantTimeNs(set) <= now_ns &&
         WithHistory(
             parameters, state_, calendar_->Planned(now_ns),
             [&](const WindowHistory& history) { return windows->Fits(history, permits, now_ns); });
}

bool BucketState::TryTake(const Parameters& parameters, uint64_t permits, Moment at,
                          uint64_t receipt_id, bool* evicted, uint64_t set) {
  if (calendar_ == nullptr) return TryTakePast(parameters, permits, at, receipt_id, evicted);
  if (!CanTake(parameters, permits, at, set)) return false;
  at = calendar_->NotBefore(at);
  if (WindowCalendar* const windows = calendar_->windows(); windows != nullptr) {
    at = kind() == Kind::kFixedWindow ? calendar_->Planned(at.now_ns) : at;
    const int64_t until_ns = WithHistory(parameters, state_, at, [&](const WindowHistory& history) {
      return history.CountedUntilNs(at.now_ns);
    });
    if (!TryTakePast(parameters, permits, at, receipt_id, evicted)) return false;
    windows->NotePast(static_cast<int64_t>(permits), until_ns);
    return true;
  }
  if (!TryTakePast(parameters, permits, at, receipt_id, evicted)) return false;
  calendar_->tokens()->SetTat(parameters.token_bucket, tat());
  return true;
}

int64_t BucketState::EarliestNs(const Parameters& parameters, uint64_t permits, Moment at,
                                uint64_t set, int64_t from_ns) const {
  if (calendar_ == nullptr) {
    if (from_ns > at.now_ns) at = Later(at, from_ns);
    return EarliestPastNs(parameters, permits, at);
  }
  at = calendar_->NotBefore(at);
  from_ns = std::max(from_ns, at.now_ns);
  if (TokenCalendar* const tokens = calendar_->tokens(); tokens != nullptr) {
    from_ns = std::max(from_ns, tokens->sets().LastGrantTimeNs(set));
    return tokens->EarliestNs(parameters.token_bucket, permits, at.now_ns, from_ns);
  }
  WindowCalendar* const windows = calendar_->windows();
  from_ns = std::max(from_ns, windows->sets().LastGrantTimeNs(set));
  return WithHistory(
      parameters, state_, calendar_->Planned(at.now_ns),
      [&](const WindowHistory& history) { return windows->EarliestNs(history, permits, from_ns); });
}

Level BucketState::LevelAt(const Parameters& parameters, Moment at) const {
  Level level = LevelOfPastAt(parameters, at);
  if (calendar_ == nullptr) return level;
  at = calendar_->NotBefore(at);
  int64_t full_ns = 0;
  int64_t free = 0;
  if (TokenCalendar* const tokens = calendar_->tokens(); tokens != nullptr) {
    free = tokens->FreePermits(parameters.token_bucket, at.now_ns);
    full_ns = tokens->FullAgainNs(parameters.token_bucket);
  } else {
    WithHistory(parameters, state_, calendar_->Planned(at.now_ns),
                [&](const WindowHistory& history) {
                  free = calendar_->windows()->FreePermits(history, at.now_ns);
                  full_ns = history.CountedUntilNs(calendar_->windows()->last_grant_time_ns());
                });
  }
  level.remaining = std::min(level.remaining, std::max<int64_t>(free, 0));
  level.reset_after_ns = std::max(level.reset_after_ns, full_ns - at.now_ns);
  const int64_t earliest_ns = EarliestNs(parameters, 1, at);
  level.next_permit_after_ns = earliest_ns == kNeverNs ? kNeverNs : earliest_ns - at.now_ns;
  return level;
}

std::optional<uint64_t> BucketState::Refund(const Parameters& parameters, uint64_t receipt_id,
                                            Moment at) {
  if (calendar_ != nullptr) {
    at = calendar_->NotBefore(at);
    if (kind() == Kind::kFixedWindow) at = calendar_->Planned(at.now_ns);
  }
  const auto* const log = std::get_if<SlidingLogState>(&state_);
  const uint64_t quantum_before =
      log != nullptr ? log->QuantumFor(parameters.sliding_log, at.now_ns) : 0;
  uint64_t when = 0;
  const std::optional<uint64_t> given = RefundPast(parameters, receipt_id, at, &when);
  if (calendar_ == nullptr || !given.has_value()) return given;
  int64_t until_ns = 0;
  switch (kind()) {
    case Kind::kTokenBucket:
      calendar_->tokens()->SetTat(parameters.token_bucket, tat());
      return given;
    case Kind::kSlidingLog:
      if (log->QuantumFor(parameters.sliding_log, at.now_ns) != quantum_before) {
        // Nothing of the future is in it any more: what is booked will count for less long.
        calendar_->windows()->Rebuild(LogHistory(parameters.sliding_log, *log, at.now_ns));
        return given;
      }
      until_ns = LogHistory::UntilOfQuantum(parameters.sliding_log, when);
      break;
    case Kind::kSlidingWindow:
      until_ns = SlidingWindowHistory::UntilOfIndex(parameters.sliding_window, when);
      break;
    case Kind::kFixedWindow:
      until_ns = std::get<FixedWindowState>(state_).CurrentUntilNs(parameters.fixed_window, at);
      break;
  }
  calendar_->windows()->NotePast(-static_cast<int64_t>(*given), until_ns);
  return given;
}

void BucketState::NewCalendar(const Parameters& parameters, Moment at) {
  if (parameters.kind == Kind::kTokenBucket) {
    calendar_.reset(new Calendar(TokenCalendar(parameters.token_bucket, tat())));
  } else {
    calendar_.reset(new Calendar(WindowCalendar()));
  }
  calendar_->latest_ns = at.now_ns;
  calendar_->wall_ahead_ns = at.wall_ns - at.now_ns;
}

void BucketState::Book(const Parameters& parameters, const Booking& booking, Moment at) {
  if (calendar_ == nullptr) NewCalendar(parameters, at);
  at = calendar_->NotBefore(at);
  if (TokenCalendar* const tokens = calendar_->tokens(); tokens != nullptr) {
    tokens->Insert(parameters.token_bucket, booking);
    return;
  }
  WithHistory(parameters, state_, calendar_->Planned(at.now_ns), [&](const WindowHistory& history) {
    calendar_->windows()->Insert(history, booking);
  });
}

bool BucketState::CancelBooking(const Parameters& parameters, int64_t grant_time_ns, uint64_t id) {
  if (calendar_ == nullptr) return false;
  bool cancelled = false;
  if (TokenCalendar* const tokens = calendar_->tokens(); tokens != nullptr) {
    cancelled = tokens->Cancel(parameters.token_bucket, grant_time_ns, id);
  } else {
    cancelled = calendar_->windows()->Cancel(grant_time_ns, id);
  }
  if (bookings() == 0) calendar_ = nullptr;
  return cancelled;
}

bool BucketState::FindBooking(int64_t grant_time_ns, uint64_t id, Booking* booking,
                              int64_t* previous_ns) const {
  if (calendar_ == nullptr) return false;
  return calendar_->tokens() != nullptr
             ? calendar_->tokens()->Find(grant_time_ns, id, booking, previous_ns)
             : calendar_->windows()->Find(grant_time_ns, id, booking, previous_ns);
}

void BucketState::ForEachBooking(absl::FunctionRef<void(const Booking&)> visit) const {
  if (calendar_ == nullptr) return;
  if (const TokenCalendar* const tokens = calendar_->tokens(); tokens != nullptr) {
    tokens->ForEach([&](const Booking& booking) { visit(booking); });
  } else {
    calendar_->windows()->ForEach([&](const Booking& booking) { visit(booking); });
  }
}

bool BucketState::TakeBooked(const Parameters& parameters, const Booking& booking, Moment at) {
  CloseWorthless(parameters, at);
  uint64_t when = 0;
  switch (kind()) {
    case Kind::kTokenBucket: {
      auto& tat = std::get<uint64_t>(state_);
      const uint64_t now_ticks = ToTicks(parameters.token_bucket, at.now_ns);
      const Uint128 cost =
          static_cast<Uint128>(booking.permits) * parameters.token_bucket.unit_ticks;
      tat = static_cast<uint64_t>(std::min<Uint128>(std::max(tat, now_ticks) + cost, kMaxTat));
      return token_receipts_.Open(booking.id,
                                  static_cast<uint64_t>(std::min<Uint128>(cost, kMaxTat)),
                                  ShortfallTicks(tat, now_ticks));
    }
    case Kind::kSlidingLog:
      when =
          std::get<SlidingLogState>(state_).Add(parameters.sliding_log, booking.permits, at.now_ns);
      break;
    case Kind::kSlidingWindow:
      when = std::get<SlidingWindowState>(state_).Add(parameters.sliding_window, booking.permits,
                                                      at.now_ns);
      break;
    case Kind::kFixedWindow:
      when = std::get<FixedWindowState>(state_).Add(parameters.fixed_window, booking.permits, at);
      break;
  }
  return counted_receipts_.Open(booking.id, when, booking.permits);
}

size_t BucketState::Fold(const Parameters& parameters, Moment at) {
  if (calendar_ == nullptr) return 0;
  calendar_->latest_ns = std::max(calendar_->latest_ns, at.now_ns);
  size_t closed = 0;
  if (TokenCalendar* const tokens = calendar_->tokens(); tokens != nullptr) {
    while (!tokens->empty() && tokens->front().grant_time_ns <= at.now_ns) {
      const Booking booking = tokens->front();
      closed += TakeBooked(parameters, booking, {booking.grant_time_ns, 0}) ? 1 : 0;
      tokens->Fold(parameters.token_bucket);
    }
    if (tokens->empty()) calendar_ = nullptr;
    return closed;
  }
  WindowCalendar* const windows = calendar_->windows();
  while (!windows->empty() && windows->front().grant_time_ns <= at.now_ns) {
    const Booking booking = windows->front();
    Moment moment = calendar_->Planned(booking.grant_time_ns);
    if (kind() == Kind::kFixedWindow) {
      moment.wall_ns =
          FixedWindowHistory(parameters.fixed_window, std::get<FixedWindowState>(state_), moment)
              .WallAtNs(booking.grant_time_ns);
    }
    closed += TakeBooked(parameters, booking, moment) ? 1 : 0;
    windows->PopFront();
  }
  if (windows->empty()) {
    calendar_ = nullptr;
    return closed;
  }
  if (kind() == Kind::kFixedWindow && at.now_ns >= calendar_->latest_ns) {
    const int64_t ahead_ns = at.wall_ns - at.now_ns;
    const int64_t moved_ns = ahead_ns - calendar_->wall_ahead_ns;
    if (moved_ns > kWallSetNs || moved_ns < -kWallSetNs) {
      calendar_->wall_ahead_ns = ahead_ns;
      windows->Rebuild(
          FixedWindowHistory(parameters.fixed_window, std::get<FixedWindowState>(state_), at));
    }
  }
  return closed;
}

void BucketState::Reset(const Parameters& parameters, Moment at) {
  Fold(parameters, at);
  state_ = BucketState(parameters).state_;
  token_receipts_.Clear();
  counted_receipts_.Clear();
  if (parameters.kind == Kind::kTokenBucket) {
    state_ = ToTicks(parameters.token_bucket, at.now_ns);
  }
  if (calendar_ == nullptr) return;
  if (TokenCalendar* const tokens = calendar_->tokens(); tokens != nullptr) {
    tokens->Rebuild(parameters.token_bucket, tat());
    return;
  }
  WithHistory(parameters, state_, calendar_->Planned(calendar_->NotBefore(at).now_ns),
              [&](const WindowHistory& history) { calendar_->windows()->Rebuild(history); });
}

int64_t BucketState::NotBeforeNs() const { return calendar_ == nullptr ? 0 : calendar_->latest_ns; }

size_t BucketState::bookings() const {
  if (calendar_ == nullptr) return 0;
  return calendar_->tokens() != nullptr ? calendar_->tokens()->size()
                                        : calendar_->windows()->size();
}

int64_t BucketState::NextGrantTimeNs() const {
  if (calendar_ == nullptr) return kNeverNs;
  return calendar_->tokens() != nullptr ? calendar_->tokens()->front().grant_time_ns
                                        : calendar_->windows()->front().grant_time_ns;
}

int64_t BucketState::LastGrantTimeNs() const {
  if (calendar_ == nullptr) return kNeverNs;
  return calendar_->tokens() != nullptr ? calendar_->tokens()->last_grant_time_ns()
                                        : calendar_->windows()->last_grant_time_ns();
}

void BucketState::Convert(const Parameters& from, const Parameters& to, Moment at,
                          int64_t moved_ns) {
  if (from == to) return;
  if (calendar_ == nullptr) {
    ConvertPast(from, to, at, moved_ns);
    return;
  }
  Fold(from, at);
  ConvertPast(from, to, at, moved_ns);
  if (calendar_ == nullptr) return;
  at = calendar_->NotBefore(at);
  at = {at.now_ns + moved_ns, at.wall_ns + moved_ns};
  const bool both_tokens = from.kind == Kind::kTokenBucket && to.kind == Kind::kTokenBucket;
  const bool both_count = from.kind != Kind::kTokenBucket && to.kind != Kind::kTokenBucket;
  if (!both_tokens && !both_count) {
    const std::unique_ptr<Calendar, DeleteCalendar> old = std::move(calendar_);
    NewCalendar(to, at);
    if (TokenCalendar* const tokens = calendar_->tokens(); tokens != nullptr) {
      old->windows()->ForEach([&](Booking booking) {
        booking.grant_time_ns += moved_ns;
        tokens->Insert(to.token_bucket, booking);
      });
    } else {
      WindowCalendar* const windows = calendar_->windows();
      old->tokens()->ForEach([&](Booking booking) {
        booking.grant_time_ns += moved_ns;
        windows->Append(booking);
      });
    }
  }
  if (TokenCalendar* const tokens = calendar_->tokens(); tokens != nullptr) {
    tokens->Rebuild(to.token_bucket, tat());
    return;
  }
  calendar_->wall_ahead_ns = at.wall_ns - at.now_ns;
  WithHistory(to, state_, at,
              [&](const WindowHistory& history) { calendar_->windows()->Rebuild(history); });
}

BucketImage BucketState::ToImage() const {
  BucketImage image;
  switch (kind()) {
    case Kind::kTokenBucket:
      image.tat = tat();
      break;
    case Kind::kSlidingLog:
      std::get<SlidingLogState>(state_).ToImage(&image);
      break;
    case Kind::kSlidingWindow:
      std::get<SlidingWindowState>(state_).ToImage(&image);
      break;
    case Kind::kFixedWindow:
      std::get<FixedWindowState>(state_).ToImage(&image);
      break;
  }
  for (const TokenReceipts::Receipt& receipt : token_receipts_.all()) {
    image.receipts.push_back({receipt.id, receipt.cost_ticks, receipt.least_shortfall_ticks});
  }
  for (const CountedReceipts::Receipt& receipt : counted_receipts_.all()) {
    image.receipts.push_back({receipt.id, receipt.when, receipt.permits});
  }
  if (calendar_ == nullptr) return image;
  image.latest_ns = calendar_->latest_ns;
  image.wall_ahead_ns = calendar_->wall_ahead_ns;
  image.bookings.reserve(bookings());
  const auto append = [&](const Booking& booking) { image.bookings.push_back(booking); };
  if (const TokenCalendar* const tokens = calendar_->tokens(); tokens != nullptr) {
    tokens->ForEach(append);
  } else {
    calendar_->windows()->ForEach(append);
  }
  return image;
}

BucketState BucketState::FromImage(const Parameters& parameters, const BucketImage& image) {
  BucketState state(parameters);
  switch (parameters.kind) {
    case Kind::kTokenBucket:
      state.state_ = image.tat;
      break;
    case Kind::kSlidingLog:
      state.state_ = SlidingLogState::FromImage(image);
      break;
    case Kind::kSlidingWindow:
      state.state_ = SlidingWindowState::FromImage(parameters.sliding_window, image);
      break;
    case Kind::kFixedWindow:
      state.state_ = FixedWindowState::FromImage(image);
      break;
  }
  for (const auto& [id, first, second] : image.receipts) {
    if (parameters.kind == Kind::kTokenBucket) {
      state.token_receipts_.Restore({id, first, second});
    } else {
      state.counted_receipts_.Restore({id, first, second});
    }
  }
  if (image.bookings.empty()) return state;
  state.NewCalendar(parameters, {image.latest_ns, image.latest_ns + image.wall_ahead_ns});
  Calendar& calendar = *state.calendar_;
  if (TokenCalendar* const tokens = calendar.tokens(); tokens != nullptr) {
    for (const Booking& booking : image.bookings) tokens->Insert(parameters.token_bucket, booking);
    return state;
  }
  for (const Booking& booking : image.bookings) calendar.windows()->Append(booking);
  WithHistory(parameters, state.state_, calendar.Planned(image.latest_ns),
              [&](const WindowHistory& history) { calendar.windows()->Rebuild(history); });
  return state;
}

size_t BucketState::MemoryBytes() const {
  size_t bytes = sizeof(*this) + token_receipts_.MemoryBytes() + counted_receipts_.MemoryBytes();
  if (const auto* log = std::get_if<SlidingLogState>(&state_)) bytes += log->MemoryBytes();
  if (const auto* window = std::get_if<SlidingWindowState>(&state_)) {
    bytes += window->MemoryBytes();
  }
  if (calendar_ != nullptr) {
    bytes +=
        sizeof(Calendar) + (calendar_->tokens() != nullptr ? calendar_->tokens()->MemoryBytes()
                                                           : calendar_->windows()->MemoryBytes());
  }
  return bytes;
}

}  // namespace sluice::algorithm
