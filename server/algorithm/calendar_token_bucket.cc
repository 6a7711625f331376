#include "server/algorithm/calendar_token_bucket.h"

#include <algorithm>
#include <array>

namespace sluice::algorithm {
namespace {

// Ticks are kept within +-kFar, so that the sum of two always fits.
constexpr int64_t kFar = (int64_t{1} << 62) - 1;

int64_t Clamp(int64_t ticks) { return std::clamp(ticks, -kFar, kFar); }
int64_t Add(int64_t a, int64_t b) { return Clamp(a + b); }

int64_t CostOf(const TokenBucket& parameters, uint64_t permits) {
  const Uint128 cost = static_cast<Uint128>(permits) * parameters.unit_ticks;
  return cost > static_cast<Uint128>(kFar) ? kFar : static_cast<int64_t>(cost);
}

int64_t TicksOf(const TokenBucket& parameters, int64_t moment_ns) {
  return Clamp(static_cast<int64_t>(ToTicks(parameters, moment_ns)));
}

// The greatest F with which `cost` may be taken at `t`.
int64_t LimitOf(const TokenBucket& parameters, int64_t t, int64_t cost) {
  const int64_t stored = Add(t, static_cast<int64_t>(parameters.burst_ticks));
  const int64_t owed = static_cast<int64_t>(parameters.debt_ticks) - cost;
  return Add(stored, std::min<int64_t>(owed, 0));
}

int64_t After(int64_t f, int64_t t, int64_t cost) { return Add(std::max(f, t), cost); }

}  // namespace

TokenCalendar::TokenCalendar(const TokenBucket& parameters, uint64_t full_at)
    : base_(Clamp(static_cast<int64_t>(full_at))), end_(base_), slack_(-kFar) {}

void TokenCalendar::Summarize(const TokenBucket& parameters, Chunks::Chunk* chunk) {
  Summary& summary = chunk->summary;
  summary.sum = 0;
  summary.floor = -kFar;
  summary.limit = kFar;
  for (const Booking& booking : *chunk) {
    const int64_t t = TicksOf(parameters, booking.moment_ns);
    const int64_t cost = CostOf(parameters, booking.permits);
    summary.limit = std::min(summary.limit, Add(LimitOf(parameters, t, cost), -summary.sum));
    summary.floor = Add(std::max(summary.floor, t), cost);
    summary.sum = Add(summary.sum, cost);
  }
}

void TokenCalendar::SummarizeFront(const TokenBucket& parameters) {
  if (!front_changed_) return;
  front_changed_ = false;
  if (!bookings_.empty()) Summarize(parameters, &bookings_.chunk(0));
}

void TokenCalendar::FindEnd(const TokenBucket& parameters) {
  SummarizeFront(parameters);
  end_ = base_;
  for (size_t c = 0; c < bookings_.chunks(); ++c) {
    const Summary& summary = bookings_.chunk(c).summary;
    end_ = std::max(Add(end_, summary.sum), summary.floor);
  }
}

int64_t TokenCalendar::EarliestNs(const TokenBucket& parameters, uint64_t permits, int64_t now_ns,
                                  int64_t from_ns) {
  now_ = std::max(now_, TicksOf(parameters, now_ns));
  from_ns = std::max(from_ns, now_ns);
  if (permits > parameters.burst + parameters.debt) return kNeverNs;
  const int64_t cost = CostOf(parameters, permits);
  if (!bookings_.empty() && cost <= slack_ && from_ns < bookings_.back().moment_ns) {
    const int64_t moment_ns = SearchGaps(parameters, cost, TicksOf(parameters, from_ns));
    if (moment_ns != kNeverNs) return std::max(moment_ns, from_ns);
  }
  if (!bookings_.empty()) from_ns = std::max(from_ns, bookings_.back().moment_ns);
  return algorithm::EarliestNs(parameters, permits, static_cast<uint64_t>(end_), from_ns);
}

int64_t TokenCalendar::SearchGaps(const TokenBucket& parameters, int64_t cost, int64_t from_ticks) {
  SummarizeFront(parameters);
  const auto burst = static_cast<int64_t>(parameters.burst_ticks);
  const auto debt = static_cast<int64_t>(parameters.debt_ticks);
  const size_t chunks = bookings_.chunks();
  limit_after_.resize(chunks);
  int64_t limit = kFar;
  for (size_t c = chunks; c-- > 0;) {
    limit_after_[c] = limit;
    const Summary& summary = bookings_.chunk(c).summary;
    limit = std::min(summary.limit, Add(limit, -summary.sum));
  }

  int64_t f = std::max(base_, now_);
  int64_t previous = 0;  // moment of the booking before, in ticks
  int64_t greatest = -kFar;
  std::array<int64_t, Chunks::kMaxPerChunk> limits;
  for (size_t c = 0; c < chunks; ++c) {
    Chunks::Chunk& chunk = bookings_.chunk(c);
    Summary& summary = chunk.summary;
    const bool known = f >= summary.slack_from && limit_after_[c] <= summary.slack_to;
    const bool behind = TicksOf(parameters, chunk.back().moment_ns) <= from_ticks;
    if (behind || (known && cost > summary.slack)) {
      greatest = std::max(greatest, known ? summary.slack : kFar);
      f = std::max(Add(f, summary.sum), summary.floor);
      previous = TicksOf(parameters, chunk.back().moment_ns);
      continue;
    }
    limit = limit_after_[c];
    for (size_t i = chunk.size(); i-- > 0;) {
      const int64_t t = TicksOf(parameters, chunk[i].moment_ns);
      const int64_t c_i = CostOf(parameters, chunk[i].permits);
      limit = std::min(LimitOf(parameters, t, c_i), Add(limit, -c_i));
      limits[i] = limit;
    }
    summary.slack = -kFar;
    summary.slack_from = f;
    summary.slack_to = limit_after_[c];
    for (size_t i = 0; i < chunk.size(); ++i) {
      const int64_t t = TicksOf(parameters, chunk[i].moment_ns);
      if (t > from_ticks && t > previous && cost <= Add(limits[i], -std::max(f, from_ticks))) {
        int64_t moment = std::max({previous, from_ticks, f - burst, f + cost - burst - debt});
        // Moments are whole nanoseconds.
        const int64_t below = (int64_t{1} << parameters.shift) - 1;
        moment = (moment + below) & ~below;
        if (moment < t && After(f, moment, cost) <= limits[i]) {
          summary.slack = kFar;  // not all gaps were seen
          return ToNsRoundedUp(parameters, static_cast<uint64_t>(moment));
        }
      }
      summary.slack = std::max(summary.slack, Add(limits[i], -f));
      f = After(f, t, CostOf(parameters, chunk[i].permits));
      previous = t;
    }
    greatest = std::max(greatest, summary.slack);
  }
  slack_ = greatest;
  return kNeverNs;
}

int64_t TokenCalendar::FreePermits(const TokenBucket& parameters, int64_t now_ns) {
  SummarizeFront(parameters);
  const int64_t now = TicksOf(parameters, now_ns);
  int64_t limit = kFar;
  for (size_t c = bookings_.chunks(); c-- > 0;) {
    const Summary& summary = bookings_.chunk(c).summary;
    limit = std::min(summary.limit, Add(limit, -summary.sum));
  }
  limit = std::min(limit, Add(now, static_cast<int64_t>(parameters.burst_ticks)));
  const int64_t free = Add(limit, -std::max(base_, now));
  return free < 0 ? -1 : free / static_cast<int64_t>(parameters.unit_ticks);
}

void TokenCalendar::Insert(const TokenBucket& parameters, const Booking& booking) {
  const int64_t t = TicksOf(parameters, booking.moment_ns);
  const int64_t cost = CostOf(parameters, booking.permits);
  const bool append = bookings_.empty() || booking.moment_ns >= bookings_.back().moment_ns;
  bool split = false;
  const auto position = bookings_.Insert(booking, &split);
  sets_.Add(booking.set, booking.moment_ns);
  Chunks::Chunk& chunk = bookings_.chunk(position.chunk);
  Summary& summary = chunk.summary;
  if (append) {
    const int64_t limit = LimitOf(parameters, t, cost);
    slack_ = std::max(slack_, Add(limit, -std::max(end_, now_)));
    end_ = After(end_, t, cost);
    if (chunk.size() == 1) {
      summary.sum = cost;
      summary.floor = Add(t, cost);
      summary.limit = limit;
    } else {
      summary.limit = std::min(summary.limit, Add(limit, -summary.sum));
      summary.floor = Add(std::max(summary.floor, t), cost);
      summary.sum = Add(summary.sum, cost);
    }
    summary.slack = kFar;  // has a gap more
    return;
  }
  if (split) {
    // Which of the two the booking went to does not matter.
    const size_t first = position.chunk == 0 ? 0 : position.chunk - 1;
    const size_t last = std::min(position.chunk + 1, bookings_.chunks() - 1);
    for (size_t c = first; c <= last; ++c) {
      Summarize(parameters, &bookings_.chunk(c));
      bookings_.chunk(c).summary.slack = kFar;
    }
  } else {
    Summarize(parameters, &chunk);
  }
  FindEnd(parameters);
}

bool TokenCalendar::Cancel(const TokenBucket& parameters, int64_t moment_ns, uint64_t id) {
  Chunks::Position position;
  if (!bookings_.Find(moment_ns, id, &position)) return false;
  const uint64_t set = bookings_.chunk(position.chunk)[position.index].set;
  const bool gone = bookings_.Erase(position);
  if (sets_.Remove(set, moment_ns)) sets_.SetLast(set, bookings_.FindLastOfSet(set));
  if (!gone) {
    Chunks::Chunk& chunk = bookings_.chunk(position.chunk);
    Summarize(parameters, &chunk);
    chunk.summary.slack = kFar;
  } else if (position.chunk == 0) {
    front_changed_ = false;
  }
  slack_ = kFar;
  FindEnd(parameters);
  return true;
}

void TokenCalendar::Fold(const TokenBucket& parameters) {
  const Booking booking = bookings_.front();
  const int64_t t = TicksOf(parameters, booking.moment_ns);
  const int64_t cost = CostOf(parameters, booking.permits);
  base_ = After(base_, t, cost);
  // The bound of the gaps that are left holds with what this booking leaves, no longer with less:
  // its refund may make room in them.
  Summary& summary = bookings_.chunk(0).summary;
  summary.slack_from = After(summary.slack_from, t, cost);
  front_changed_ = !bookings_.PopFront();
  sets_.Remove(booking.set, booking.moment_ns);
  if (bookings_.empty()) {
    front_changed_ = false;
    end_ = base_;
    slack_ = -kFar;
  }
}

void TokenCalendar::SetFullAt(const TokenBucket& parameters, uint64_t full_at) {
  const int64_t base = Clamp(static_cast<int64_t>(full_at));
  if (base < base_) slack_ = kFar;
  base_ = base;
  FindEnd(parameters);
}

void TokenCalendar::Rebuild(const TokenBucket& parameters, uint64_t full_at) {
  base_ = Clamp(static_cast<int64_t>(full_at));
  now_ = 0;
  for (size_t c = 0; c < bookings_.chunks(); ++c) {
    Summarize(parameters, &bookings_.chunk(c));
    bookings_.chunk(c).summary.slack = kFar;
  }
  front_changed_ = false;
  slack_ = kFar;
  FindEnd(parameters);
}

size_t TokenCalendar::MemoryBytes() const {
  return bookings_.MemoryBytes() + sets_.MemoryBytes() + limit_after_.capacity() * sizeof(int64_t);
}

}  // namespace sluice::algorithm
