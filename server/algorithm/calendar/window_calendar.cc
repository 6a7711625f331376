#include "server/algorithm/calendar/window_calendar.h"

#include <algorithm>
#include <ranges>

#include "server/algorithm/wide.h"

namespace sluice::algorithm {
namespace {

// The sum of permits_of(i) for i below `index`, where that of all is `total`. From the nearer end,
// since most questions are about the last bookings.
template <typename PermitsOf>
int64_t SumBefore(size_t index, size_t size, int64_t total, PermitsOf permits_of) {
  const bool from_front = index <= size / 2;
  int64_t sum = 0;
  for (size_t i = from_front ? 0 : index; i < (from_front ? index : size); ++i) {
    sum += permits_of(i);
  }
  return from_front ? sum : total - sum;
}

// The index with which that sum reaches `permits`, and the sum before it. REQUIRES: 0 < permits <=
// total.
template <typename PermitsOf>
size_t IndexOfThe(int64_t permits, size_t size, int64_t total, PermitsOf permits_of,
                  int64_t* before) {
  const bool from_front = permits <= total / 2;
  size_t i = from_front ? 0 : size;
  *before = from_front ? 0 : total;
  while (from_front && *before + permits_of(i) < permits) *before += permits_of(i++);
  while (!from_front && *before >= permits) *before -= permits_of(--i);
  return i;
}

}  // namespace

void WindowCalendar::Summarize(Chunks::Chunk* chunk) {
  WindowSummary& summary = chunk->summary;
  summary.permits = 0;
  summary.greatest_after = std::numeric_limits<int64_t>::min();
  summary.least_before = std::numeric_limits<int64_t>::max();
  for (const WindowEntry& entry : *chunk) {
    summary.permits += static_cast<int64_t>(entry.permits);
    summary.greatest_after = std::max(summary.greatest_after, entry.level);
    summary.least_before = std::min(summary.least_before, entry.before);
  }
}

void WindowCalendar::AddFrom(Chunks::Position position, int64_t from_ns, int64_t until_ns,
                             int64_t permits) {
  if (permits < 0 && least_before_ != std::numeric_limits<int64_t>::max()) {
    least_before_ += permits;
  }
  for (size_t c = position.chunk; c < bookings_.chunks(); ++c) {
    Chunks::Chunk& chunk = bookings_.chunk(c);
    const size_t first = c == position.chunk ? position.index : 0;
    const int64_t front_ns = chunk.front().grant_time_ns;
    const int64_t back_ns = chunk.back().grant_time_ns;
    if (front_ns > until_ns) return;
    const bool all_before = front_ns > from_ns && back_ns <= until_ns;
    const bool all_levels = back_ns < until_ns;
    if (first == 0 && (all_before || back_ns <= from_ns) && (all_levels || front_ns >= until_ns)) {
      if (all_before) chunk.summary.before_added += permits;
      if (all_levels) chunk.summary.level_added += permits;
      continue;
    }
    for (size_t i = first; i < chunk.size(); ++i) {
      WindowEntry& entry = chunk[i];
      if (entry.grant_time_ns > until_ns) break;
      if (entry.grant_time_ns > from_ns) entry.before += permits;
      if (entry.grant_time_ns < until_ns) entry.level += permits;
    }
    Summarize(&chunk);
  }
}

void WindowCalendar::MergeSmall(size_t chunk) {
  for (const size_t c : {chunk, chunk - 1}) {
    if (!bookings_.SmallWithNext(c)) continue;
    for (const size_t part : {c, c + 1}) {
      WindowSummary& summary = bookings_.chunk(part).summary;
      for (WindowEntry& entry : bookings_.chunk(part)) {
        entry.level += summary.level_added;
        entry.before += summary.before_added;
      }
      summary.level_added = summary.before_added = 0;
    }
    bookings_.MergeWithNext(c);
    Summarize(&bookings_.chunk(c));
  }
}

int64_t WindowCalendar::SumOfChunksBefore(size_t chunk) const {
  return SumBefore(chunk, bookings_.chunks(), permits_,
                   [&](size_t c) { return bookings_.chunk(c).summary.permits; });
}

int64_t WindowCalendar::SumOfEntriesBefore(const Chunks::Chunk& chunk, size_t index) {
  return SumBefore(index, chunk.size(), chunk.summary.permits,
                   [&](size_t i) { return static_cast<int64_t>(chunk[i].permits); });
}

int64_t WindowCalendar::SumUpTo(int64_t grant_time_ns) const {
  if (grant_time_ns >= bookings_.back().grant_time_ns) return permits_;
  const size_t end = bookings_.FirstChunkAfter(grant_time_ns);
  const Chunks::Chunk& chunk = bookings_.chunk(end);
  return SumOfChunksBefore(end) +
         SumOfEntriesBefore(chunk, Chunks::FirstAfter(chunk, grant_time_ns));
}

int64_t WindowCalendar::SumOver(int64_t grant_time_ns) const {
  // X never falls, so what is over is a prefix.
  const size_t end = *std::ranges::partition_point(
      std::views::iota(size_t{0}, bookings_.chunks()),
      [&](size_t c) { return bookings_.chunk(c).back().until_ns <= grant_time_ns; });
  const int64_t before = SumOfChunksBefore(end);
  if (end == bookings_.chunks()) return before;
  const Chunks::Chunk& chunk = bookings_.chunk(end);
  const WindowEntry* const counting =
      std::upper_bound(chunk.begin(), chunk.end(), grant_time_ns,
                       [](int64_t m, const WindowEntry& entry) { return m < entry.until_ns; });
  return before + SumOfEntriesBefore(chunk, static_cast<size_t>(counting - chunk.begin()));
}

int64_t WindowCalendar::UntilOfThe(int64_t permits) const {
  int64_t before = 0;
  const Chunks::Chunk& chunk = bookings_.chunk(IndexOfThe(
      permits, bookings_.chunks(), permits_,
      [&](size_t c) { return bookings_.chunk(c).summary.permits; }, &before));
  return chunk[IndexOfThe(
                   permits - before, chunk.size(), chunk.summary.permits,
                   [&](size_t i) { return static_cast<int64_t>(chunk[i].permits); }, &before)]
      .until_ns;
}

int64_t WindowCalendar::LevelAt(const WindowHistory& history, int64_t grant_time_ns) const {
  const auto past = static_cast<int64_t>(history.CountedAt(grant_time_ns));
  if (bookings_.empty() || grant_time_ns < bookings_.front().grant_time_ns) return past;
  return past + SumUpTo(grant_time_ns) - SumOver(grant_time_ns);
}

std::optional<int64_t> WindowCalendar::FindLastAbove(const WindowHistory& history, int64_t from_ns,
                                                     int64_t most, SearchBudget* budget) const {
  if (bookings_.empty() || from_ns >= bookings_.back().grant_time_ns) return std::nullopt;
  const int64_t until_ns = history.CountedUntilNs(from_ns);
  size_t c = bookings_.FirstChunkAfter(until_ns - 1);
  if (c < bookings_.chunks()) ++c;
  while (c-- > 0) {
    const Chunks::Chunk& chunk = bookings_.chunk(c);
    budget->Spend(1);
    if (chunk.back().grant_time_ns <= from_ns) return std::nullopt;
    if (chunk.summary.greatest_after + chunk.summary.level_added <= most) continue;
    budget->Spend(chunk.size());
    for (size_t i = Chunks::FirstAfter(chunk, until_ns - 1); i-- > 0;) {
      const WindowEntry& entry = chunk[i];
      if (entry.grant_time_ns <= from_ns) return std::nullopt;
      if (entry.level + chunk.summary.level_added > most) return entry.grant_time_ns;
    }
  }
  return std::nullopt;
}

int64_t WindowCalendar::FirstNotAbove(const WindowHistory& history, int64_t after_ns, int64_t most,
                                      SearchBudget* budget) {
  // The stretch between two bookings in which N falls to `most`: the first that ends with N at
  // most that. `before` counts the bookings up to its begin.
  int64_t before = permits_;
  if (most >= least_before_) {
    int64_t begin_ns = after_ns;
    int64_t least = std::numeric_limits<int64_t>::max();
    const size_t first = bookings_.FirstChunkAfter(after_ns);
    before = SumOfChunksBefore(first);
    budget->Spend(bookings_.chunks() / 2);
    bool found = false;
    for (size_t c = first; c < bookings_.chunks() && !found; ++c) {
      const Chunks::Chunk& chunk = bookings_.chunk(c);
      const bool whole = chunk.front().grant_time_ns > after_ns;
      const int64_t added = chunk.summary.before_added;
      least = std::min(least, chunk.summary.least_before + added);
      if (whole && chunk.summary.least_before + added > most) {
        before += chunk.summary.permits;
        begin_ns = chunk.back().grant_time_ns;
        continue;
      }
      budget->Spend(chunk.size());
      for (const WindowEntry& entry : chunk) {
        if (entry.grant_time_ns > begin_ns && entry.before + added <= most) {
          found = true;
          break;
        }
        before += static_cast<int64_t>(entry.permits);
        begin_ns = std::max(begin_ns, entry.grant_time_ns);
      }
    }
    if (!found && first == 0) least_before_ = least;
  }
  // The past stops counting first.
  if (before <= most) return history.FirstAtMostNs(static_cast<uint64_t>(most - before));
  return UntilOfThe(before - most);
}

bool WindowCalendar::FitsNow(const WindowHistory& history, uint64_t permits, int64_t now_ns) const {
  const uint64_t capacity = history.Capacity();
  if (permits > capacity) return false;
  const auto most = static_cast<int64_t>(capacity - permits);
  SearchBudget unused;  // it is one search: at most a step for each chunk
  return LevelAt(history, now_ns) <= most &&
         !FindLastAbove(history, now_ns, most, &unused).has_value();
}

int64_t WindowCalendar::EarliestNs(const WindowHistory& history, uint64_t permits, int64_t,
                                   int64_t from_ns, SearchBudget* budget) {
  const uint64_t capacity = history.Capacity();
  if (permits > capacity) return kNeverNs;
  const auto most = static_cast<int64_t>(capacity - permits);
  int64_t grant_time_ns = from_ns;
  for (;;) {
    if (budget->spent() && !bookings_.empty()) {
      grant_time_ns = std::max(grant_time_ns, last_grant_time_ns());
    }
    budget->Spend(1);
    if (const auto blocked_ns = FindLastAbove(history, grant_time_ns, most, budget)) {
      grant_time_ns = FirstNotAbove(history, *blocked_ns, most, budget);
    } else if (LevelAt(history, grant_time_ns) > most) {
      grant_time_ns = FirstNotAbove(history, grant_time_ns, most, budget);
    } else {
      return grant_time_ns;
    }
    if (grant_time_ns == kNeverNs) return kNeverNs;
  }
}

void WindowCalendar::Insert(const WindowHistory& history, const Booking& booking) {
  const auto permits = static_cast<int64_t>(booking.permits);
  WindowEntry entry;
  static_cast<Booking&>(entry) = booking;
  entry.until_ns = history.CountedUntilNs(booking.grant_time_ns);
  entry.level = LevelAt(history, booking.grant_time_ns) + permits;
  if (!bookings_.empty() && bookings_.back().grant_time_ns == booking.grant_time_ns) {
    const auto& last = bookings_.chunk(bookings_.chunks() - 1);
    entry.before = last.back().before + last.summary.before_added;
  } else {
    entry.before = LevelAt(history, booking.grant_time_ns - 1);
  }
  permits_ += permits;
  least_before_ = std::min(least_before_, entry.before);
  bool split = false;
  const auto position = bookings_.Insert(entry, &split);
  sets_.Add(booking.set, booking.grant_time_ns);
  Chunks::Chunk& chunk = bookings_.chunk(position.chunk);
  chunk[position.index].level -= chunk.summary.level_added;
  chunk[position.index].before -= chunk.summary.before_added;
  const bool last = position.chunk + 1 == bookings_.chunks() && position.index + 1 == chunk.size();
  if (last && !split) {
    WindowSummary& summary = chunk.summary;
    summary.permits += permits;
    summary.greatest_after = std::max(summary.greatest_after, chunk.back().level);
    summary.least_before = std::min(summary.least_before, chunk.back().before);
    return;
  }
  Summarize(&chunk);
  if (split) {
    // The other part is a neighbour.
    if (position.chunk > 0) Summarize(&bookings_.chunk(position.chunk - 1));
    if (position.chunk + 1 < bookings_.chunks()) Summarize(&bookings_.chunk(position.chunk + 1));
  }
  AddFrom({position.chunk, position.index + 1}, booking.grant_time_ns, entry.until_ns, permits);
}

void WindowCalendar::Append(const Booking& booking) {
  WindowEntry entry;
  static_cast<Booking&>(entry) = booking;
  bool split = false;
  bookings_.Insert(entry, &split);
  permits_ += static_cast<int64_t>(booking.permits);
  sets_.Add(booking.set, booking.grant_time_ns);
}

int64_t WindowCalendar::FreePermits(const WindowHistory& history, int64_t now_ns) const {
  int64_t most = LevelAt(history, now_ns);
  const int64_t until_ns = history.CountedUntilNs(now_ns);
  for (size_t c = 0; c < bookings_.chunks(); ++c) {
    const Chunks::Chunk& chunk = bookings_.chunk(c);
    if (chunk.front().grant_time_ns >= until_ns) break;
    const int64_t greatest = chunk.summary.greatest_after + chunk.summary.level_added;
    if (greatest <= most) continue;
    // It is exact, unless bookings of the chunk have folded since.
    if (chunk.head == 0 && chunk.back().grant_time_ns < until_ns) {
      most = greatest;
      continue;
    }
    for (const WindowEntry& entry : chunk) {
      if (entry.grant_time_ns >= until_ns) break;
      most = std::max(most, entry.level + chunk.summary.level_added);
    }
  }
  return static_cast<int64_t>(history.Capacity()) - most;
}

bool WindowCalendar::Cancel(int64_t grant_time_ns, uint64_t id) {
  Chunks::Position position;
  if (!bookings_.Find(grant_time_ns, id, &position)) return false;
  const WindowEntry booking = bookings_.at(position);
  if (!Erase(position)) Summarize(&bookings_.chunk(position.chunk));
  permits_ -= static_cast<int64_t>(booking.permits);
  AddFrom(position, grant_time_ns, booking.until_ns, -static_cast<int64_t>(booking.permits));
  MergeSmall(position.chunk);
  return true;
}

void WindowCalendar::PopFront() {
  const Booking booking = bookings_.front();
  permits_ -= static_cast<int64_t>(booking.permits);
  bookings_.chunk(0).summary.permits -= static_cast<int64_t>(booking.permits);
  bookings_.PopFront();
  sets_.Remove(booking.set, booking.grant_time_ns);
}

void WindowCalendar::NotePast(int64_t permits, int64_t until_ns) {
  AddFrom({0, 0}, std::numeric_limits<int64_t>::min(), until_ns, permits);
}

bool WindowCalendar::RebuildSome(const WindowHistory& history, RebuildCursor* cursor,
                                 size_t* most) {
  const int64_t past_ends_ns = history.FirstAtMostNs(0);
  const auto past_at = [&](int64_t grant_time_ns) {
    return grant_time_ns < past_ends_ns ? static_cast<int64_t>(history.CountedAt(grant_time_ns))
                                        : 0;
  };
  // What is over at each booking is a prefix that only grows: `oldest` walks behind.
  const auto over_at = [&](int64_t grant_time_ns) {
    while (cursor->oldest_chunk <= cursor->chunk) {
      const Chunks::Chunk& oldest = bookings_.chunk(cursor->oldest_chunk);
      if (oldest[cursor->oldest_index].until_ns > grant_time_ns) break;
      cursor->over += static_cast<int64_t>(oldest[cursor->oldest_index].permits);
      if (++cursor->oldest_index == oldest.size()) {
        ++cursor->oldest_chunk;
        cursor->oldest_index = 0;
      }
    }
    return cursor->over;
  };
  if (cursor->chunk == 0) least_before_ = std::numeric_limits<int64_t>::max();
  for (; cursor->chunk < bookings_.chunks(); ++cursor->chunk) {
    if (*most == 0) return false;
    Chunks::Chunk& chunk = bookings_.chunk(cursor->chunk);
    for (WindowEntry& entry : chunk) entry.until_ns = history.CountedUntilNs(entry.grant_time_ns);
    chunk.summary.level_added = chunk.summary.before_added = 0;
    for (WindowEntry& entry : chunk) {
      if (entry.grant_time_ns != cursor->previous_ns) {
        cursor->previous_ns = entry.grant_time_ns;
        const int64_t just_before_ns = entry.grant_time_ns - 1;
        cursor->before = past_at(just_before_ns) + cursor->sum - over_at(just_before_ns);
      }
      entry.before = cursor->before;
      cursor->sum += static_cast<int64_t>(entry.permits);
      entry.level = past_at(entry.grant_time_ns) + cursor->sum - over_at(entry.grant_time_ns);
    }
    Summarize(&chunk);
    least_before_ = std::min(least_before_, chunk.summary.least_before);
    *most -= std::min(*most, chunk.size());
  }
  return true;
}

}  // namespace sluice::algorithm
