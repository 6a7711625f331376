#include "server/algorithm/calendar/token_bucket_calendar.h"

#include <algorithm>
#include <array>

#include "absl/base/attributes.h"

namespace sluice::algorithm {
namespace {

// Ticks are kept within +-kFar, so that the sum of two always fits.
constexpr int64_t kFar = (int64_t{1} << 62) - 1;

// Inlined, for they are all that a search does with each booking.
ABSL_ATTRIBUTE_ALWAYS_INLINE inline int64_t Clamp(int64_t ticks) {
  return std::clamp(ticks, -kFar, kFar);
}
ABSL_ATTRIBUTE_ALWAYS_INLINE inline int64_t Add(int64_t a, int64_t b) { return Clamp(a + b); }

ABSL_ATTRIBUTE_ALWAYS_INLINE inline int64_t CostOf(const TokenBucket& parameters,
                                                   uint64_t permits) {
  const Uint128 cost = static_cast<Uint128>(permits) * parameters.unit_ticks;
  return cost > static_cast<Uint128>(kFar) ? kFar : static_cast<int64_t>(cost);
}

ABSL_ATTRIBUTE_ALWAYS_INLINE inline int64_t TicksOf(const TokenBucket& parameters,
                                                    int64_t grant_time_ns) {
  return Clamp(static_cast<int64_t>(ToTicks(parameters, grant_time_ns)));
}

// The greatest F with which `cost` may be taken at `t`.
ABSL_ATTRIBUTE_ALWAYS_INLINE inline int64_t LimitOf(const TokenBucket& parameters, int64_t t,
                                                    int64_t cost) {
  // The sum of the three is within +-2^63: t and the cost are at most kFar, burst and debt 2^61.
  const int64_t owed = static_cast<int64_t>(parameters.debt_ticks) - cost;
  return Clamp(t + static_cast<int64_t>(parameters.burst_ticks) + std::min<int64_t>(owed, 0));
}

ABSL_ATTRIBUTE_ALWAYS_INLINE inline int64_t After(int64_t f, int64_t t, int64_t cost) {
  return Add(std::max(f, t), cost);
}

// A summary with a booking more behind the others.
ABSL_ATTRIBUTE_ALWAYS_INLINE inline void Append(int64_t t, int64_t cost,
                                                const TokenBucket& parameters,
                                                TokenSummary* summary) {
  summary->limit = std::min(summary->limit, Add(LimitOf(parameters, t, cost), -summary->sum));
  summary->least = std::min(summary->least, Add(Add(t, -cost), -summary->sum));
  summary->floor = After(summary->floor, t, cost);
  summary->sum = Add(summary->sum, cost);
}

}  // namespace

TokenCalendar::TokenCalendar(const TokenBucket& parameters, uint64_t tat)
    : base_(Clamp(static_cast<int64_t>(tat))), end_(base_), slack_(-kFar) {}

void TokenCalendar::Summarize(const TokenBucket& parameters, Chunks::Chunk* chunk) {
  chunk->summary = {.floor = -kFar, .limit = kFar, .least = kFar, .slack = kFar};
  for (const Booking& booking : *chunk) {
    Append(TicksOf(parameters, booking.grant_time_ns), CostOf(parameters, booking.permits),
           parameters, &chunk->summary);
  }
}

void TokenCalendar::SummarizeFront(const TokenBucket& parameters) {
  if (!front_changed_) return;
  front_changed_ = false;
  if (!bookings_.empty()) Summarize(parameters, &bookings_.chunk(0));
}

void TokenCalendar::FindLimits(const TokenBucket& parameters) {
  SummarizeFront(parameters);
  const size_t chunks = bookings_.chunks();
  limit_before_.resize(chunks + 1);
  limit_before_[chunks] = kFar;
  for (size_t c = std::min(limits_from_, chunks); c-- > 0;) {
    const TokenSummary& summary = bookings_.chunk(c).summary;
    limit_before_[c] = std::min(summary.limit, Add(limit_before_[c + 1], -summary.sum));
  }
  limits_from_ = 0;
  limit_ = limit_before_[0];
  limit_known_ = true;
}

int64_t TokenCalendar::LimitBeforeAll(const TokenBucket& parameters) {
  if (!limit_known_) FindLimits(parameters);
  return limit_;
}

void TokenCalendar::SummaryChanged(size_t chunk) {
  limits_from_ = std::max(limits_from_, chunk + 1);
  limit_known_ = false;
}

void TokenCalendar::FindEnd(const TokenBucket& parameters) {
  SummarizeFront(parameters);
  end_ = base_;
  total_ = 0;
  for (size_t c = 0; c < bookings_.chunks(); ++c) {
    const TokenSummary& summary = bookings_.chunk(c).summary;
    total_ = Add(total_, summary.sum);
    end_ = std::max(Add(end_, summary.sum), summary.floor);
  }
}

int64_t TokenCalendar::EarliestNs(const TokenBucket& parameters, uint64_t permits, int64_t now_ns,
                                  int64_t from_ns, SearchBudget* budget) {
  now_ = std::max(now_, TicksOf(parameters, now_ns));
  from_ns = std::max(from_ns, now_ns);
  if (permits > parameters.burst + parameters.debt) return kNeverNs;
  const int64_t cost = CostOf(parameters, permits);
  if (!bookings_.empty() && cost <= slack_ && from_ns < bookings_.back().grant_time_ns) {
    const int64_t grant_time_ns =
        SearchGaps(parameters, cost, TicksOf(parameters, from_ns), budget);
    if (grant_time_ns != kNeverNs) return std::max(grant_time_ns, from_ns);
  }
  if (!bookings_.empty()) from_ns = std::max(from_ns, bookings_.back().grant_time_ns);
  return algorithm::EarliestNs(parameters, permits, static_cast<uint64_t>(end_), from_ns);
}

int64_t TokenCalendar::SearchGaps(const TokenBucket& parameters, int64_t cost, int64_t from_ticks,
                                  SearchBudget* budget) {
  if (budget->spent()) return kNeverNs;
  FindLimits(parameters);
  const auto burst = static_cast<int64_t>(parameters.burst_ticks);
  const auto debt = static_cast<int64_t>(parameters.debt_ticks);
  const size_t chunks = bookings_.chunks();
  int64_t f = std::max(base_, now_);
  int64_t previous = 0;  // moment of the booking before, in ticks
  int64_t greatest = -kFar;
  std::array<int64_t, Chunks::kMaxPerChunk> limits;
  std::array<int64_t, Chunks::kMaxPerChunk> moments;
  std::array<int64_t, Chunks::kMaxPerChunk> costs;
  budget->Spend(chunks);
  for (size_t c = 0; c < chunks; ++c) {
    Chunks::Chunk& chunk = bookings_.chunk(c);
    TokenSummary& summary = chunk.summary;
    // Most are passed over without a look at their bookings.
    const bool known = f >= summary.slack_from && limit_before_[c + 1] <= summary.slack_to;
    if ((known && cost > summary.slack) ||
        TicksOf(parameters, chunk.back().grant_time_ns) <= from_ticks) {
      greatest = std::max(greatest, known ? summary.slack : kFar);
      f = std::max(Add(f, summary.sum), summary.floor);
      continue;
    }
    // What was found of the chunks so far stays.
    if (budget->spent()) return kNeverNs;
    budget->Spend(chunk.size());
    if (c > 0) previous = TicksOf(parameters, bookings_.chunk(c - 1).back().grant_time_ns);
    int64_t limit = limit_before_[c + 1];
    const Booking* const bookings = chunk.begin();
    const size_t size = chunk.size();
    for (size_t i = size; i-- > 0;) {
      moments[i] = TicksOf(parameters, bookings[i].grant_time_ns);
      costs[i] = CostOf(parameters, bookings[i].permits);
      limit =
          std::min(LimitOf(parameters, moments[i], costs[i]), std::max(limit - costs[i], -kFar));
      limits[i] = limit;
    }
    int64_t slack = -kFar;
    summary.slack_from = f;
    summary.slack_to = limit_before_[c + 1];
    for (size_t i = 0; i < size; ++i) {
      const int64_t t = moments[i];
      if (cost <= limits[i] - std::max(f, from_ticks) && t > from_ticks && t > previous) {
        int64_t moment = std::max({previous, from_ticks, f - burst, f + cost - burst - debt});
        // Moments are whole nanoseconds.
        const int64_t below = (int64_t{1} << parameters.shift) - 1;
        moment = (moment + below) & ~below;
        if (moment < t && After(f, moment, cost) <= limits[i]) {
          summary.slack = kFar;  // not all gaps were seen
          return ToNsRoundedUp(parameters, static_cast<uint64_t>(moment));
        }
      }
      slack = std::max(slack, limits[i] - f);
      f = std::min(std::max(f, t) + costs[i], kFar);
      previous = t;
    }
    summary.slack = slack;
    greatest = std::max(greatest, slack);
  }
  slack_ = greatest;
  return kNeverNs;
}

bool TokenCalendar::FitsNow(const TokenBucket& parameters, uint64_t permits, int64_t now_ns) {
  uint64_t tat = static_cast<uint64_t>(base_);
  return algorithm::TryTake(parameters, permits, ToTicks(parameters, now_ns), &tat) &&
         static_cast<int64_t>(tat) <= LimitBeforeAll(parameters);
}

int64_t TokenCalendar::FreePermits(const TokenBucket& parameters, int64_t now_ns) {
  const int64_t now = TicksOf(parameters, now_ns);
  const int64_t limit =
      std::min(LimitBeforeAll(parameters), Add(now, static_cast<int64_t>(parameters.burst_ticks)));
  const int64_t free = Add(limit, -std::max(base_, now));
  return free < 0 ? -1 : free / static_cast<int64_t>(parameters.unit_ticks);
}

uint64_t TokenCalendar::MostTat(const TokenBucket& parameters, uint64_t max_owed) {
  SummarizeFront(parameters);
  int64_t least = kFar;
  int64_t before = 0;
  for (size_t c = 0; c < bookings_.chunks(); ++c) {
    const TokenSummary& summary = bookings_.chunk(c).summary;
    least = std::min(least, Add(summary.least, -before));
    before = Add(before, summary.sum);
  }
  const int64_t owed = CostOf(parameters, max_owed);
  const int64_t most = Add(Add(least, static_cast<int64_t>(parameters.burst_ticks)), owed);
  return static_cast<uint64_t>(std::max<int64_t>(most, 0));
}

void TokenCalendar::Insert(const TokenBucket& parameters, const Booking& booking) {
  const int64_t t = TicksOf(parameters, booking.grant_time_ns);
  const int64_t cost = CostOf(parameters, booking.permits);
  const bool append = bookings_.empty() || booking.grant_time_ns >= bookings_.back().grant_time_ns;
  bool split = false;
  const auto position = bookings_.Insert(booking, &split);
  sets_.Add(booking.set, booking.grant_time_ns);
  Chunks::Chunk& chunk = bookings_.chunk(position.chunk);
  if (append) {
    const int64_t limit = LimitOf(parameters, t, cost);
    slack_ = std::max(slack_, Add(limit, -std::max(end_, now_)));
    end_ = After(end_, t, cost);
    limit_ = std::min(limit_, Add(limit, -total_));
    total_ = Add(total_, cost);
    limits_from_ = bookings_.chunks() + 1;
    if (chunk.size() == 1) {
      Summarize(parameters, &chunk);
    } else {
      Append(t, cost, parameters, &chunk.summary);
      chunk.summary.slack = kFar;  // has a gap more
    }
    return;
  }
  if (split) {
    // Which of the two the booking went to does not matter.
    const size_t first = position.chunk == 0 ? 0 : position.chunk - 1;
    const size_t last = std::min(position.chunk + 1, bookings_.chunks() - 1);
    for (size_t c = first; c <= last; ++c) Summarize(parameters, &bookings_.chunk(c));
    SummaryChanged(bookings_.chunks());
  } else {
    Summarize(parameters, &chunk);
    SummaryChanged(position.chunk);
  }
  FindEnd(parameters);
}

bool TokenCalendar::Cancel(const TokenBucket& parameters, int64_t grant_time_ns, uint64_t id) {
  Chunks::Position position;
  if (!bookings_.Find(grant_time_ns, id, &position)) return false;
  if (!Erase(position)) {
    Summarize(parameters, &bookings_.chunk(position.chunk));
    SummaryChanged(position.chunk);
  } else {
    if (position.chunk == 0) front_changed_ = false;
    SummaryChanged(bookings_.chunks());
  }
  for (const size_t c : {position.chunk, position.chunk - 1}) {
    if (!bookings_.SmallWithNext(c)) continue;
    bookings_.MergeWithNext(c);
    Summarize(parameters, &bookings_.chunk(c));
    SummaryChanged(bookings_.chunks());
  }
  slack_ = kFar;
  FindEnd(parameters);
  return true;
}

void TokenCalendar::Fold(const TokenBucket& parameters) {
  const Booking booking = bookings_.front();
  const int64_t cost = CostOf(parameters, booking.permits);
  base_ = After(base_, TicksOf(parameters, booking.grant_time_ns), cost);
  front_changed_ = !bookings_.PopFront();
  SummaryChanged(front_changed_ ? 0 : bookings_.chunks());
  total_ = Add(total_, -cost);
  sets_.Remove(booking.set, booking.grant_time_ns);
  if (bookings_.empty()) {
    front_changed_ = false;
    end_ = base_;
    total_ = 0;
    slack_ = -kFar;
  }
}

void TokenCalendar::SetTat(const TokenBucket& parameters, uint64_t tat) {
  const int64_t base = Clamp(static_cast<int64_t>(tat));
  if (base < base_) slack_ = kFar;
  base_ = base;
  FindEnd(parameters);
}

bool TokenCalendar::RebuildSome(const TokenBucket& parameters, RebuildCursor* cursor,
                                size_t* most) {
  for (; cursor->chunk < bookings_.chunks(); ++cursor->chunk) {
    if (*most == 0) return false;
    Chunks::Chunk& chunk = bookings_.chunk(cursor->chunk);
    Summarize(parameters, &chunk);
    *most -= std::min(*most, chunk.size());
  }
  now_ = 0;
  front_changed_ = false;
  slack_ = kFar;
  SummaryChanged(bookings_.chunks());
  FindEnd(parameters);
  return true;
}

size_t TokenCalendar::MemoryBytes() const {
  return bookings_.MemoryBytes() + sets_.MemoryBytes() + limit_before_.capacity() * sizeof(int64_t);
}

}  // namespace sluice::algorithm
