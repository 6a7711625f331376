// The calendar of an algorithm that counts permits for some time: sliding_log, sliding_window,
// fixed_window.
//
// The three differ only in until when a permit taken at t counts, X(t): a log's until its time,
// rounded up to a quantum, is a period old; a sliding window's until its sub-window and k more
// have passed; a fixed window's until the window ends. X never falls. All three grant at s iff
// what counts at s and the new permits together are at most M.
//
// So let N(s) be the permits of the past and of all bookings that count at s: t <= s < X(t).
// A booking of n permits at t adds n to N over [t, X(t)); it may be made iff N + n <= M all over
// that. N rises at bookings only, so each booking keeps N as it is just after it (`level`), and
// "blocked" (above M - n) is looked for at bookings only. The search: from a candidate t, find the
// last blocked booking before X(t); if there is one, the next candidate is where N falls to M - n
// for the first time after it; if there is none and N(t) fits, t is the moment. Where N falls is
// found by counting, since what came first stops counting first: the past, then the bookings in
// order. Each chunk keeps its greatest level, and the least N just before one of its bookings, so
// that most chunks are passed over; adding n to whole chunks is two additions each. The least of
// all is kept as a lower bound; a cancelled booking lowers it, and the next search computes it
// again.
//
// Example: log, 2 a second (times in ms; quantum 0 for simplicity). Taken at 0; booked 1 at 400
// and 1 at 1000. N is 1, 2, 2 just after each (at 1000 the first no longer counts).
//   another permit from 100 on: until X = 1100 the last blocked booking is 1000; after it N falls
//   to 1 at 1400. From 1400 to 2400 there is no booking: 1400.
//
// Not thread-safe; never blocks.
#ifndef SLUICE_SERVER_ALGORITHM_CALENDAR_WINDOW_CALENDAR_H_
#define SLUICE_SERVER_ALGORITHM_CALENDAR_WINDOW_CALENDAR_H_

#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>

#include "server/algorithm/calendar/calendar.h"
#include "server/algorithm/calendar/calendar_chunks.h"

namespace sluice::algorithm {

// The bucket's past, and how long permits count.
class WindowHistory {
 public:
  virtual ~WindowHistory() = default;
  // M.
  virtual uint64_t Capacity() const = 0;
  // Permits of the past that still count at `grant_time_ns`, which is not past itself.
  virtual uint64_t CountedAt(int64_t grant_time_ns) const = 0;
  // The first moment, not past itself, at which at most `permits` of the past count.
  virtual int64_t FirstAtMostNs(uint64_t permits) const = 0;
  // X: until when, exclusive, a permit taken at grant_time_ns counts.
  virtual int64_t CountedUntilNs(int64_t grant_time_ns) const = 0;
};

// A booking, with what the calendar knows of it.
struct WindowEntry : Booking {
  int64_t until_ns = 0;  // X of its grant time
  // N just after it, and a nanosecond before its grant time. Less the chunk's level_added and
  // before_added.
  int64_t level = 0;
  int64_t before = 0;
};
struct WindowSummary {
  int64_t permits = 0;
  // To every level, and to every `before`.
  int64_t level_added = 0;
  int64_t before_added = 0;
  // Bounds, less the same.
  int64_t greatest_after = std::numeric_limits<int64_t>::min();
  int64_t least_before = std::numeric_limits<int64_t>::max();
};

// Every call must pass the history of the same bucket.
class WindowCalendar : public ChunkedCalendar<WindowEntry, WindowSummary> {
 public:
  // The first moment, not before from_ns, at which `permits` may be booked; kNeverNs if they could
  // not at any. With a spent budget a moment behind all bookings. REQUIRES: what is booked up to
  // now_ns was folded, and from_ns is not before it.
  int64_t EarliestNs(const WindowHistory& history, uint64_t permits, int64_t now_ns,
                     int64_t from_ns, SearchBudget* budget);

  // Whether that is now_ns, without looking for another moment. REQUIRES: as EarliestNs.
  bool FitsNow(const WindowHistory& history, uint64_t permits, int64_t now_ns) const;

  // REQUIRES: booking.grant_time_ns was got from EarliestNs.
  void Insert(const WindowHistory& history, const Booking& booking);

  // Adds at the end without looking at levels: Rebuild must follow.
  void Append(const Booking& booking);

  // Permits that could be taken now without harm to what is booked; may be negative.
  int64_t FreePermits(const WindowHistory& history, int64_t now_ns) const;
  // When all that is booked has stopped counting.
  int64_t FullAgainNs(const WindowHistory& history) const {
    return history.CountedUntilNs(last_grant_time_ns());
  }

  // Takes out the booking of that id at that moment. False: there is none.
  bool Cancel(int64_t grant_time_ns, uint64_t id);

  // Takes out the next booking; the caller counts it in the history, at its moment.
  void PopFront();

  // To be called when permits that count until `until_ns` were added to the past (or taken out of
  // it, negative), other than by folding.
  void NotePast(int64_t permits, int64_t until_ns);

  // To be called when the history counts differently (other parameters, a wall clock that was set).
  void Rebuild(const WindowHistory& history) {
    RebuildCursor cursor;
    size_t most = std::numeric_limits<size_t>::max();
    RebuildSome(history, &cursor, &most);
  }
  // The same in steps, with the history of the same moment: looks at *most bookings, or at some
  // more, and lowers it. Returns whether that was the last step. Until then only bookings are
  // right.
  bool RebuildSome(const WindowHistory& history, RebuildCursor* cursor, size_t* most);

  size_t MemoryBytes() const { return bookings_.MemoryBytes() + sets_.MemoryBytes(); }

 private:
  static void Summarize(Chunks::Chunk* chunk);
  // Adds what counts from from_ns until until_ns to the levels of the entries from `position` on.
  void AddFrom(Chunks::Position position, int64_t from_ns, int64_t until_ns, int64_t permits);
  // Merges the chunk with its neighbours where two are small. There need not be such a chunk.
  void MergeSmall(size_t chunk);
  // Permits of the chunks before `chunk`, and of the entries before `index` in `chunk`.
  int64_t SumOfChunksBefore(size_t chunk) const;
  static int64_t SumOfEntriesBefore(const Chunks::Chunk& chunk, size_t index);
  // Permits of the bookings up to and with grant_time_ns.
  int64_t SumUpTo(int64_t grant_time_ns) const;
  // Permits of the bookings that no longer count at grant_time_ns.
  int64_t SumOver(int64_t grant_time_ns) const;
  // Until when that booking counts with which the sum from the first on reaches `permits`.
  int64_t UntilOfThe(int64_t permits) const;
  int64_t LevelAt(const WindowHistory& history, int64_t grant_time_ns) const;
  // The grant time of the last booking whose level is above `most`, among those after from_ns and
  // before permits taken at from_ns stop counting. nullopt: none.
  std::optional<int64_t> FindLastAbove(const WindowHistory& history, int64_t from_ns, int64_t most,
                                       SearchBudget* budget) const;
  // The first moment after after_ns, where N is above `most`, at which it is not.
  int64_t FirstNotAbove(const WindowHistory& history, int64_t after_ns, int64_t most,
                        SearchBudget* budget);

  int64_t permits_ = 0;  // of all bookings
  // N just before any booking is at least this. So behind 10,000 bookings without a gap the end is
  // found at once.
  int64_t least_before_ = std::numeric_limits<int64_t>::max();
};

}  // namespace sluice::algorithm

#endif  // SLUICE_SERVER_ALGORITHM_CALENDAR_WINDOW_CALENDAR_H_
