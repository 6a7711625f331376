// CalendarChunks: bookings in the order of their grant times, cut into chunks. Each chunk has a
// summary, so that a search can pass over a chunk by reading its summary alone. It also knows the
// range of its ids, and which sets it may have: thousands of bookings may have one grant time, and
// the bookings of a set may be far apart.
//
// `Entry` derives from Booking. Not thread-safe.
#ifndef SLUICE_SERVER_ALGORITHM_CALENDAR_CALENDAR_CHUNKS_H_
#define SLUICE_SERVER_ALGORITHM_CALENDAR_CALENDAR_CHUNKS_H_

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "server/algorithm/calendar/calendar.h"

namespace sluice::algorithm {

// A Bloom filter of the sets of one chunk. With 128 sets it passes one other set in twenty.
class SetFilter {
 public:
  // Removes all sets. Off, it passes every set.
  void Reset(bool on) { words_.assign(on ? kBits / 64 : 0, 0); }
  bool on() const { return !words_.empty(); }
  // REQUIRES: on().
  void Add(uint64_t set) {
    for (const size_t bit : BitsOf(set)) words_[bit / 64] |= uint64_t{1} << (bit % 64);
  }
  bool MayHave(uint64_t set) const {
    if (!on()) return true;
    const auto bits = BitsOf(set);
    return std::all_of(bits.begin(), bits.end(),
                       [this](size_t bit) { return ((words_[bit / 64] >> (bit % 64)) & 1) != 0; });
  }

  static constexpr size_t kBytes = 128;
  size_t MemoryBytes() const { return words_.capacity() * sizeof(uint64_t); }

 private:
  static constexpr size_t kBits = 8 * kBytes;

  static std::array<size_t, 2> BitsOf(uint64_t set) {
    const uint64_t hash = set * 0x9e37'79b9'7f4a'7c15;
    return {static_cast<size_t>((hash >> 48) % kBits), static_cast<size_t>((hash >> 32) % kBits)};
  }

  std::vector<uint64_t> words_;
};

template <typename Entry, typename Summary>
class CalendarChunks {
 public:
  // With 10,000 bookings a search looks at 80 summaries and at 128 bookings.
  static constexpr size_t kMaxPerChunk = 128;
  // Two neighbours are merged if they have no more together (SmallWithNext). So two have more than
  // 64, also if one is half of a full chunk. The first chunk may have fewer, since it folds. That
  // makes at most size() / 32 + 2 chunks.
  static constexpr size_t kMaxMerged = kMaxPerChunk * 3 / 4;

  struct Chunk {
    Summary summary;
    size_t head = 0;  // entries before it have folded
    std::vector<Entry> stored;
    // Of its entries, and maybe of some that have folded.
    uint64_t least_id = std::numeric_limits<uint64_t>::max();
    uint64_t greatest_id = 0;
    SetFilter sets;

    size_t size() const { return stored.size() - head; }
    Entry* begin() { return stored.data() + head; }
    Entry* end() { return stored.data() + stored.size(); }
    const Entry* begin() const { return stored.data() + head; }
    const Entry* end() const { return stored.data() + stored.size(); }
    Entry& operator[](size_t i) { return stored[head + i]; }
    const Entry& operator[](size_t i) const { return stored[head + i]; }
    const Entry& front() const { return stored[head]; }
    const Entry& back() const { return stored.back(); }

    // To be called when the entry was added.
    void Note(const Entry& entry) {
      if (!sets.on() && size() >= kFilteredFrom) return NoteAll();
      least_id = std::min(least_id, entry.id);
      greatest_id = std::max(greatest_id, entry.id);
      if (sets.on()) sets.Add(entry.set);
    }
    // To be called when entries were removed.
    void NoteAll() {
      least_id = std::numeric_limits<uint64_t>::max();
      greatest_id = 0;
      sets.Reset(size() >= kFilteredFrom);
      const Entry* previous = nullptr;
      for (const Entry& entry : *this) {
        least_id = std::min(least_id, entry.id);
        greatest_id = std::max(greatest_id, entry.id);
        if (sets.on() && (previous == nullptr || previous->set != entry.set)) sets.Add(entry.set);
        previous = &entry;
      }
    }
  };

  struct Position {
    size_t chunk = 0;
    size_t index = 0;
  };

  bool empty() const { return size_ == 0; }
  size_t size() const { return size_; }
  size_t chunks() const { return chunks_.size() - first_; }
  Chunk& chunk(size_t i) { return chunks_[first_ + i]; }
  const Chunk& chunk(size_t i) const { return chunks_[first_ + i]; }
  const Entry& front() const { return chunk(0).front(); }
  const Entry& back() const { return chunks_.back().back(); }

  // The first chunk whose last grant time is after `grant_time_ns`; chunks() if there is none.
  size_t FirstChunkAfter(int64_t grant_time_ns) const {
    const auto first = Iterator(0);
    return static_cast<size_t>(
        std::upper_bound(first, chunks_.end(), grant_time_ns,
                         [](int64_t m, const Chunk& c) { return m < c.back().grant_time_ns; }) -
        first);
  }

  // The first entry of the chunk that is after `grant_time_ns`; size() if there is none.
  static size_t FirstAfter(const Chunk& chunk, int64_t grant_time_ns) {
    return static_cast<size_t>(
        std::upper_bound(chunk.begin(), chunk.end(), grant_time_ns,
                         [](int64_t m, const Entry& e) { return m < e.grant_time_ns; }) -
        chunk.begin());
  }

  // Inserts after all bookings of the same grant time. Sets *split if a full chunk was cut in two:
  // the position's chunk and a neighbour. Both then have the summary of the one that was cut.
  Position Insert(const Entry& entry, bool* split) {
    *split = false;
    ++size_;
    size_t c = FirstChunkAfter(entry.grant_time_ns);
    if (c == chunks()) {
      if (c == 0 || chunks_.back().stored.size() >= kMaxPerChunk) {
        chunks_.emplace_back();
      } else {
        --c;
      }
      chunk(c).stored.push_back(entry);
      chunk(c).Note(entry);
      return {c, chunk(c).size() - 1};
    }
    if (chunk(c).size() >= kMaxPerChunk) {
      *split = true;
      Chunk upper;
      Chunk& lower = chunk(c);
      const size_t half = lower.size() / 2;
      upper.summary = lower.summary;
      upper.stored.assign(lower.begin() + half, lower.end());
      lower.stored.resize(lower.head + half);
      upper.NoteAll();
      lower.NoteAll();
      chunks_.insert(Iterator(c + 1), std::move(upper));
      if (entry.grant_time_ns >= chunk(c).back().grant_time_ns) ++c;
    }
    Chunk& chunk = this->chunk(c);
    size_t index = FirstAfter(chunk, entry.grant_time_ns);
    if (chunk.head > 0) {
      // Folding left room at the front.
      std::move(chunk.begin(), chunk.begin() + index, chunk.begin() - 1);
      --chunk.head;
      chunk[index] = entry;
    } else {
      chunk.stored.insert(chunk.stored.begin() + static_cast<std::ptrdiff_t>(index), entry);
    }
    chunk.Note(entry);
    return {c, index};
  }

  // Finds the booking of that id and grant time. Begins with the last one of that grant time, since
  // Rebook (store/rebook.h) takes out the last first.
  bool Find(int64_t grant_time_ns, uint64_t id, Position* position) const {
    const size_t first = FirstChunkAfter(grant_time_ns - 1);
    for (size_t c = EndOfChunksUpTo(grant_time_ns); c-- > first;) {
      const Chunk& chunk = this->chunk(c);
      if (id < chunk.least_id || id > chunk.greatest_id) continue;
      const size_t from = FirstAfter(chunk, grant_time_ns - 1);
      for (size_t i = FirstAfter(chunk, grant_time_ns); i-- > from;) {
        if (chunk[i].id == id) {
          *position = {c, i};
          return true;
        }
      }
    }
    return false;
  }

  const Entry& at(Position position) const { return chunk(position.chunk)[position.index]; }

  // The latest grant time, up to until_ns, among the bookings of the set with an id below
  // `below_id`; INT64_MIN if there are none. Bookings of one grant time are not sorted by id: one
  // that was taken out and booked again comes after the others.
  int64_t LastOfSet(uint64_t set, int64_t until_ns, uint64_t below_id) const {
    for (size_t c = EndOfChunksUpTo(until_ns); c-- > 0;) {
      const Chunk& chunk = this->chunk(c);
      if (chunk.least_id >= below_id || !chunk.sets.MayHave(set)) continue;
      for (size_t i = FirstAfter(chunk, until_ns); i-- > 0;) {
        if (chunk[i].set == set && chunk[i].id < below_id) return chunk[i].grant_time_ns;
      }
    }
    return std::numeric_limits<int64_t>::min();
  }

  // Returns whether the chunk was dropped with its last entry.
  bool Erase(Position position) {
    --size_;
    Chunk& chunk = this->chunk(position.chunk);
    chunk.stored.erase(chunk.stored.begin() +
                       static_cast<std::ptrdiff_t>(chunk.head + position.index));
    if (chunk.size() != 0) chunk.NoteAll();
    return DropIfEmpty(position.chunk);
  }

  // REQUIRES: !empty(). Returns whether the first chunk was dropped with its last entry.
  bool PopFront() {
    --size_;
    ++chunk(0).head;
    return DropIfEmpty(0);
  }

  // Whether that chunk and the next one are to be merged. There need not be such chunks.
  bool SmallWithNext(size_t c) const {
    return c < chunks() && c + 1 < chunks() && chunk(c).size() + chunk(c + 1).size() <= kMaxMerged;
  }
  // The summary of the merged chunk is not right. REQUIRES: SmallWithNext(c).
  void MergeWithNext(size_t c) {
    Chunk& lower = chunk(c);
    const Chunk& upper = chunk(c + 1);
    lower.stored.erase(lower.stored.begin(),
                       lower.stored.begin() + static_cast<std::ptrdiff_t>(lower.head));
    lower.head = 0;
    lower.stored.reserve(kMaxPerChunk);
    lower.stored.insert(lower.stored.end(), upper.begin(), upper.end());
    lower.NoteAll();
    Drop(c + 1);
  }

  // Assumes that all chunks but the last have their maximum size, so that it need not visit each.
  size_t MemoryBytes() const {
    const size_t bytes = chunks_.capacity() * sizeof(Chunk);
    if (empty()) return bytes;
    const Chunk& last = chunks_.back();
    return bytes + (chunks() - 1) * (kMaxPerChunk * sizeof(Entry) + SetFilter::kBytes) +
           last.stored.capacity() * sizeof(Entry) + last.sets.MemoryBytes();
  }

 private:
  // A chunk with fewer entries is searched sooner than its filter.
  static constexpr size_t kFilteredFrom = 16;

  auto Iterator(size_t c) { return chunks_.begin() + static_cast<std::ptrdiff_t>(first_ + c); }
  auto Iterator(size_t c) const {
    return chunks_.begin() + static_cast<std::ptrdiff_t>(first_ + c);
  }

  // No chunk from there on has a grant time up to that one.
  size_t EndOfChunksUpTo(int64_t grant_time_ns) const {
    return std::min(FirstChunkAfter(grant_time_ns) + 1, chunks());
  }

  bool DropIfEmpty(size_t c) {
    if (chunk(c).size() != 0) return false;
    Drop(c);
    return true;
  }
  void Drop(size_t c) {
    if (c != 0) {
      chunks_.erase(Iterator(c));
      return;
    }
    // Moves the others only now and then.
    chunks_[first_++] = Chunk();
    if (chunks() > first_) return;
    chunks_.erase(chunks_.begin(), Iterator(0));
    first_ = 0;
  }

  std::vector<Chunk> chunks_;  // none from first_ on is empty
  size_t first_ = 0;           // those before it are unused
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
                                             : bookings_.LastOfSet(booking->set, grant_time_ns, id);
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
      sets_.SetLast(booking.set, bookings_.LastOfSet(booking.set, booking.grant_time_ns,
                                                     std::numeric_limits<uint64_t>::max()));
    }
    return dropped;
  }

  Chunks bookings_;
  BookingSets sets_;
};

}  // namespace sluice::algorithm

#endif  // SLUICE_SERVER_ALGORITHM_CALENDAR_CALENDAR_CHUNKS_H_
