// Bookings in the order of their moments, in chunks, each with a summary of what it holds, so that
// a search passes over a chunk by looking at its summary alone.
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

  // The first chunk whose last moment is after `grant_time_ns`; chunks() if there is none.
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

  // Adds after all of the same moment. Sets *split if a full chunk was cut in two: then the
  // summaries of the position's chunk and its neighbours say nothing any more.
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
      // Room at the front that folding left.
      std::move(chunk.begin(), chunk.begin() + index, chunk.begin() - 1);
      --chunk.head;
      chunk[index] = entry;
    } else {
      chunk.stored.insert(chunk.stored.begin() + static_cast<std::ptrdiff_t>(index), entry);
    }
    return {c, index};
  }

  // The booking of that id at that moment.
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

  // The moment of the one before it in the order of its set, that is, of those with a lesser id;
  // INT64_MIN if there is none. Of the same moment the order of entries may be another: one that
  // was taken out and put back stands behind the others.
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

  // Returns whether the chunk is gone with its last entry.
  bool Erase(Position position) {
    --size_;
    Chunk& chunk = chunks_[position.chunk];
    chunk.stored.erase(chunk.stored.begin() +
                       static_cast<std::ptrdiff_t>(chunk.head + position.index));
    return DropIfEmpty(position.chunk);
  }

  // REQUIRES: !empty(). Returns whether the first chunk is gone with its last entry.
  bool PopFront() {
    --size_;
    ++chunks_.front().head;
    return DropIfEmpty(0);
  }

  // The last moment of the set; INT64_MIN if it has none.
  int64_t FindLastOfSet(uint64_t set) const {
    for (size_t c = chunks_.size(); c-- > 0;) {
      for (size_t i = chunks_[c].size(); i-- > 0;) {
        if (chunks_[c][i].set == set) return chunks_[c][i].grant_time_ns;
      }
    }
    return std::numeric_limits<int64_t>::min();
  }

  // Chunks other than the last are taken to be as large as they may become, so that it need not
  // look at each.
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

}  // namespace sluice::algorithm

#endif  // SLUICE_SERVER_ALGORITHM_CALENDAR_CALENDAR_CHUNKS_H_
