#include "server/algorithm/hold_list.h"

#include <algorithm>
#include <cstdlib>
#include <utility>

namespace sluice::algorithm {
namespace {

// The first hold of a chunk that ends after end_ns.
template <typename Holds>
auto FirstAfter(Holds& holds, int64_t end_ns) {
  return std::upper_bound(holds.begin(), holds.end(), end_ns,
                          [](int64_t at, const Hold& hold) { return at < hold.end_ns; });
}

}  // namespace

size_t HoldList::FirstChunkAfter(int64_t end_ns) const {
  return static_cast<size_t>(std::upper_bound(chunks_.begin(), chunks_.end(), end_ns,
                                              [](int64_t at, const Chunk& chunk) {
                                                return at < chunk.holds.back().end_ns;
                                              }) -
                             chunks_.begin());
}

HoldList::Position HoldList::PositionOf(uint64_t id, int64_t end_ns) const {
  for (size_t c = FirstChunkAfter(end_ns - 1); c < chunks_.size(); ++c) {
    const std::vector<Hold>& holds = chunks_[c].holds;
    for (auto hold = FirstAfter(holds, end_ns - 1); hold != holds.end(); ++hold) {
      if (hold->id == id) return {c, static_cast<size_t>(hold - holds.begin())};
    }
  }
  std::abort();
}

void HoldList::Add(const Hold& hold) {
  ends_.emplace(hold.id, hold.end_ns);
  permits_ += hold.permits;
  size_t c = FirstChunkAfter(hold.end_ns);
  if (c == chunks_.size()) {
    // Behind all: full chunks stay full.
    if (c == 0 || chunks_[c - 1].holds.size() == kMaxPerChunk) {
      chunks_.emplace_back();
    } else {
      --c;
    }
  } else if (chunks_[c].holds.size() == kMaxPerChunk) {
    Chunk upper;
    std::vector<Hold>& lower = chunks_[c].holds;
    upper.holds.assign(lower.begin() + kMaxPerChunk / 2, lower.end());
    lower.resize(kMaxPerChunk / 2);
    for (const Hold& moved : upper.holds) upper.permits += moved.permits;
    chunks_[c].permits -= upper.permits;
    const bool in_upper = hold.end_ns >= lower.back().end_ns;
    chunks_.insert(chunks_.begin() + static_cast<std::ptrdiff_t>(c) + 1, std::move(upper));
    if (in_upper) ++c;
  }
  Chunk& chunk = chunks_[c];
  if (chunk.holds.size() == chunk.holds.capacity() && !chunk.holds.empty()) {
    chunk.holds.reserve(std::min(kMaxPerChunk, 4 * chunk.holds.size()));
  }
  chunk.holds.insert(FirstAfter(chunk.holds, hold.end_ns), hold);
  chunk.permits += hold.permits;
}

std::optional<Hold> HoldList::Find(uint64_t id) const {
  const auto found = ends_.find(id);
  if (found == ends_.end()) return std::nullopt;
  const Position position = PositionOf(id, found->second);
  return chunks_[position.chunk].holds[position.index];
}

std::optional<Hold> HoldList::Remove(uint64_t id) {
  const auto found = ends_.find(id);
  if (found == ends_.end()) return std::nullopt;
  const Position position = PositionOf(id, found->second);
  ends_.erase(found);
  Chunk& chunk = chunks_[position.chunk];
  const auto at = chunk.holds.begin() + static_cast<std::ptrdiff_t>(position.index);
  const Hold hold = *at;
  chunk.permits -= hold.permits;
  permits_ -= hold.permits;
  chunk.holds.erase(at);
  if (chunk.holds.empty()) {
    chunks_.erase(chunks_.begin() + static_cast<std::ptrdiff_t>(position.chunk));
  } else {
    MergeWithNext(position.chunk);
    if (position.chunk > 0) MergeWithNext(position.chunk - 1);
  }
  return hold;
}

void HoldList::MergeWithNext(size_t chunk) {
  if (chunk + 1 >= chunks_.size()) return;
  Chunk& lower = chunks_[chunk];
  const Chunk& upper = chunks_[chunk + 1];
  if (lower.holds.size() + upper.holds.size() > kMaxPerChunk * 3 / 4) return;
  lower.holds.reserve(kMaxPerChunk);
  lower.holds.insert(lower.holds.end(), upper.holds.begin(), upper.holds.end());
  lower.permits += upper.permits;
  chunks_.erase(chunks_.begin() + static_cast<std::ptrdiff_t>(chunk) + 1);
}

size_t HoldList::RemoveEnded(int64_t now_ns, size_t most) {
  size_t removed = 0;
  size_t whole = 0;
  for (; whole < chunks_.size(); ++whole) {
    Chunk& chunk = chunks_[whole];
    size_t ended = static_cast<size_t>(FirstAfter(chunk.holds, now_ns) - chunk.holds.begin());
    ended = std::min(ended, most - removed);
    for (size_t i = 0; i < ended; ++i) {
      ends_.erase(chunk.holds[i].id);
      chunk.permits -= chunk.holds[i].permits;
      permits_ -= chunk.holds[i].permits;
    }
    removed += ended;
    if (ended == chunk.holds.size()) continue;
    chunk.holds.erase(chunk.holds.begin(),
                      chunk.holds.begin() + static_cast<std::ptrdiff_t>(ended));
    break;
  }
  chunks_.erase(chunks_.begin(), chunks_.begin() + static_cast<std::ptrdiff_t>(whole));
  if (ends_.empty()) Clear();
  return removed;
}

void HoldList::Clear() {
  chunks_ = {};
  ends_ = {};
  permits_ = 0;
}

HoldList::Ended HoldList::EndedUpTo(int64_t now_ns) const {
  Ended ended;
  for (const Chunk& chunk : chunks_) {
    if (chunk.holds.back().end_ns <= now_ns) {
      ended.holds += chunk.holds.size();
      ended.permits += chunk.permits;
      continue;
    }
    for (const Hold& hold : chunk.holds) {
      if (hold.end_ns > now_ns) return ended;
      ++ended.holds;
      ended.permits += hold.permits;
    }
  }
  return ended;
}

int64_t HoldList::EndOfPermits(uint64_t permits) const {
  for (const Chunk& chunk : chunks_) {
    if (chunk.permits < permits) {
      permits -= chunk.permits;
      continue;
    }
    for (const Hold& hold : chunk.holds) {
      if (hold.permits >= permits) return hold.end_ns;
      permits -= hold.permits;
    }
  }
  return back().end_ns;
}

std::optional<int64_t> HoldList::FirstEndAfter(int64_t now_ns) const {
  const size_t c = FirstChunkAfter(now_ns);
  if (c == chunks_.size()) return std::nullopt;
  return FirstAfter(chunks_[c].holds, now_ns)->end_ns;
}

size_t HoldList::RankOf(uint64_t id) const {
  const auto found = ends_.find(id);
  if (found == ends_.end()) return size();
  const Position position = PositionOf(id, found->second);
  size_t rank = position.index;
  for (size_t c = 0; c < position.chunk; ++c) rank += chunks_[c].holds.size();
  return rank;
}

size_t HoldList::MemoryBytes() const {
  // Chunks but the last few have room for all that they may hold.
  // Nodes of the index are half full to full.
  constexpr size_t kIndexBytes = 2 * sizeof(std::pair<uint64_t, int64_t>);
  size_t bytes = chunks_.capacity() * sizeof(Chunk) + ends_.size() * kIndexBytes;
  if (chunks_.size() > 1) bytes += (chunks_.size() - 1) * kMaxPerChunk * sizeof(Hold);
  if (!chunks_.empty()) bytes += chunks_.back().holds.capacity() * sizeof(Hold);
  return bytes;
}

}  // namespace sluice::algorithm
