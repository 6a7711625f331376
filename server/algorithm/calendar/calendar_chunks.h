// CalendarChunks: bookings in the order of their grant times, cut into chunks. Each chunk has a
// summary, so that a search can pass over a chunk by reading its summary alone.
//
// `Entry` derives from Booking. Not thread-safe.
#ifndef SLUICE_SERVER_ALGORITHM_CALENDAR_CALENDAR_CHUNKS_H_
#define SLUICE_SERVER_ALGORITHM_CALENDAR_CALENDAR_CHUNKS_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "server/algorithm/calendar/calendar.h"

namespace sluice::algorithm {

template <typename Entry, typename Summary>
class CalendarChunks {
 public:
  // With 10,000 bookings a search looks at 80 summaries and at 128 bookings.
  static constexpr size_t kMaxPerChunk = 128;

  struct Chunk {
    Summary summary;
    size_t head = 0;  // entries before it have folded
    std::vector<Entry> stored;

    size_t size() const { return stored.size() - head; }
    Entry* begin() { return stored.data() + head; }
    Entry* end() { return stored.data() + stored.size(); }
    const Entry* begin() const { return stored.data() + head; }
    const Entry* end() const { return stored.data() + stored.size(); }
    Entry& operator[](size_t i) { return stored[head + i]; }
    const Entry& operator[](size_t i) const { return stored[head + i]; }
    const Entry& front() const { return stored[head]; }
    const Entry& back() const { return stored.back(); }
  };

  struct Position {
    size_t chunk = 0;
    size_t index = 0;
  };

  bool empty() const { return chunks_.empty(); }
  size_t size() const { return size_; }
  size_t chunks() const { return chunks_.size(); }
  Chunk& chunk(size_t i) { return chunks_[i]; }
  const Chunk& chunk(size_t i) const { return chunks_[i]; }
  const Entry& front() const { return chunks_.front().front(); }
  const Entry& back() const { return chunks_.back().back(); }

  // The first chunk whose last grant time is after `grant_time_ns`; chunks() if there is none.
  size_t FirstChunkAfter(int64_t grant_time_ns) const {
    return static_cast<size_t>(
        std::upper_bound(chunks_.begin(), chunks_.end(), grant_time_ns,
                         [](int64_t m, const Chunk& c) { return m < c.back().grant_time_ns; }) -
        chunks_.begin());
  }

  // The first entry of the chunk that is after `grant_time_ns`; size() if there is none.
  static size_t FirstAfter(const Chunk& chunk, int64_t grant_time_ns) {
    return static_cast<size_t>(
        std::upper_bound(chunk.begin(), chunk.end(), grant_time_ns,
                         [](int64_t m, const Entry& e) { return m < e.grant_time_ns; }) -
        chunk.begin());
  }

  // Inserts after all bookings of the same grant time. Sets *split if a full chunk was cut in two:
  // then the summaries of the position's chunk and its neighbours are no longer right.
  Position Insert(const Entry& entry, bool* split) {
    *split = false;
    ++size_;
    size_t c = FirstChunkAfter(entry.grant_time_ns);
    if (c == chunks_.size()) {
      if (c == 0 || chunks_.back().stored.size() >= kMaxPerChunk) {
        chunks_.emplace_back();
      } else {
        --c;
      }
      chunks_[c].stored.push_back(entry);
      return {c, chunks_[c].size() - 1};
    }
    if (chunks_[c].size() >= kMaxPerChunk) {
      *split = true;
      Chunk upper;
      Chunk& lower = chunks_[c];
      const size_t half = lower.size() / 2;
      upper.stored.assign(lower.begin() + half, lower.end());
      lower.stored.resize(lower.head + half);
      chunks_.insert(chunks_.begin() + static_cast<std::ptrdiff_t>(c) + 1, std::move(upper));
      if (entry.grant_time_ns >= chunks_[c].back().grant_time_ns) ++c;
    }
    Chunk& chunk = chunks_[c];
    size_t index = FirstAfter(chunk, entry.grant_time_ns);
    if (chunk.head > 0) {
      // Folding left room at the front.
      std::move(chunk.begin(), chunk.begin() + index, chunk.begin() - 1);
      --chunk.head;
      chunk[index] = entry;
    } else {
      chunk.stored.insert(chunk.stored.begin() + static_cast<std::ptrdiff_t>(index), entry);
    }
    return {c, index};
  }

  // Finds the booking of that id and grant time.
  bool Find(int64_t grant_time_ns, uint64_t id, Position* position) const {
    for (size_t c = FirstChunkAfter(grant_time_ns - 1); c < chunks_.size(); ++c) {
      const Chunk& chunk = chunks_[c];
      for (size_t i = FirstAfter(chunk, grant_time_ns - 1); i < chunk.size(); ++i) {
        if (chunk[i].grant_time_ns != grant_time_ns) return false;
        if (chunk[i].id == id) {
          *position = {c, i};
          return true;
        }
      }
    }
    return false;
  }

  const Entry& at(Position position) const { return chunks_[position.chunk][position.index]; }

  // The latest grant time among the bookings of its set with a lower id, up to its own grant time;
  // INT64_MIN if there are none. Bookings of one grant time are not sorted by id: one that was
  // taken out and booked again comes after the others.
  int64_t PreviousOfSet(Position position) const {
    const Entry& of = at(position);
    for (size_t c = position.chunk; c < chunks_.size(); ++c) {
      size_t i = c == position.chunk ? position.index + 1 : 0;
      for (; i < chunks_[c].size() && chunks_[c][i].grant_time_ns == of.grant_time_ns; ++i) {
        if (chunks_[c][i].set == of.set && chunks_[c][i].id < of.id) return of.grant_time_ns;
      }
      if (i < chunks_[c].size()) break;
    }
    for (size_t c = position.chunk + 1; c-- > 0;) {
      size_t i = c == position.chunk ? position.index : chunks_[c].size();
      while (i-- > 0) {
        if (chunks_[c][i].set == of.set && chunks_[c][i].id < of.id)
          return chunks_[c][i].grant_time_ns;
      }
    }
    return std::numeric_limits<int64_t>::min();
  }

  // Returns whether the chunk was dropped with its last entry.
  bool Erase(Position position) {
    --size_;
    Chunk& chunk = chunks_[position.chunk];
    chunk.stored.erase(chunk.stored.begin() +
                       static_cast<std::ptrdiff_t>(chunk.head + position.index));
    return DropIfEmpty(position.chunk);
  }

  // REQUIRES: !empty(). Returns whether the first chunk was dropped with its last entry.
  bool PopFront() {
    --size_;
    ++chunks_.front().head;
    return DropIfEmpty(0);
  }

  // The last grant time of the set; INT64_MIN if it has no booking.
  int64_t FindLastOfSet(uint64_t set) const {
    for (size_t c = chunks_.size(); c-- > 0;) {
      for (size_t i = chunks_[c].size(); i-- > 0;) {
        if (chunks_[c][i].set == set) return chunks_[c][i].grant_time_ns;
      }
    }
    return std::numeric_limits<int64_t>::min();
  }

  // Assumes that all chunks but the last have their maximum size, so that it need not visit each.
  size_t MemoryBytes() const {
    if (chunks_.empty()) return chunks_.capacity() * sizeof(Chunk);
    return chunks_.capacity() * sizeof(Chunk) +
           ((chunks_.size() - 1) * kMaxPerChunk + chunks_.back().stored.capacity()) * sizeof(Entry);
  }

 private:
  bool DropIfEmpty(size_t c) {
    if (chunks_[c].size() != 0) return false;
    chunks_.erase(chunks_.begin() + static_cast<std::ptrdiff_t>(c));
    return true;
  }

  std::vector<Chunk> chunks_;  // none is empty
  size_t size_ = 0;
};

// What both calendars have in common: the bookings in chunks, and the order of each set.
template <typename Entry, typename Summary>
class ChunkedCalendar {
 public:
  // Finds the booking of that id and grant time, and the grant time of the booking before it in the
  // order of its set (INT64_MIN: none). Returns false if there is none.
  bool Find(int64_t grant_time_ns, uint64_t id, Booking* booking, int64_t* previous_ns) const {
    typename Chunks::Position position;
    if (!bookings_.Find(grant_time_ns, id, &position)) return false;
    *booking = bookings_.at(position);
    *previous_ns = sets_.Alone(booking->set) ? std::numeric_limits<int64_t>::min()
                                             : bookings_.PreviousOfSet(position);
    return true;
  }

  // How many bookings come before the one of that id and grant time; size() if there is none.
  size_t RankOf(int64_t grant_time_ns, uint64_t id) const {
    typename Chunks::Position position;
    return bookings_.Find(grant_time_ns, id, &position) ? Rank(position) : size();
  }
  // How many bookings have a grant time up to and with that one.
  size_t CountUpTo(int64_t grant_time_ns) const {
    const size_t chunk = bookings_.FirstChunkAfter(grant_time_ns);
    if (chunk == bookings_.chunks()) return size();
    return Rank({chunk, Chunks::FirstAfter(bookings_.chunk(chunk), grant_time_ns)});
  }

  // Calls visit(booking) for each of `count` bookings behind the first `skip` ones, in the order of
  // grant times.
  template <typename Visit>
  void ForEach(Visit visit, size_t skip = 0,
               size_t count = std::numeric_limits<size_t>::max()) const {
    for (size_t c = 0; c < bookings_.chunks() && count > 0; ++c) {
      const auto& chunk = bookings_.chunk(c);
      const size_t from = std::min(skip, chunk.size());
      const size_t some = std::min(count, chunk.size() - from);
      for (size_t i = from; i < from + some; ++i) visit(chunk[i]);
      skip -= from;
      count -= some;
    }
  }

  bool empty() const { return bookings_.empty(); }
  size_t size() const { return bookings_.size(); }
  // The next booking, and the grant time of the last. REQUIRES: !empty().
  const Booking& front() const { return bookings_.front(); }
  int64_t last_grant_time_ns() const { return bookings_.back().grant_time_ns; }
  const BookingSets& sets() const { return sets_; }

 protected:
  using Chunks = CalendarChunks<Entry, Summary>;

  size_t Rank(typename Chunks::Position position) const {
    for (size_t c = 0; c < position.chunk; ++c) position.index += bookings_.chunk(c).size();
    return position.index;
  }

  // Removes the booking. Returns whether its chunk was dropped with it.
  bool Erase(typename Chunks::Position position) {
    const Booking booking = bookings_.at(position);
    const bool dropped = bookings_.Erase(position);
    if (sets_.Remove(booking.set, booking.grant_time_ns)) {
      sets_.SetLast(booking.set, bookings_.FindLastOfSet(booking.set));
    }
    return dropped;
  }

  Chunks bookings_;
  BookingSets sets_;
};

}  // namespace sluice::algorithm

#endif  // SLUICE_SERVER_ALGORITHM_CALENDAR_CALENDAR_CHUNKS_H_
