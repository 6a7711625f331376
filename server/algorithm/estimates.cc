#include "server/algorithm/estimates.h"

#include <iterator>
#include <utility>

namespace sluice::algorithm {
namespace {

constexpr auto kIdIsLess = [](const Estimate& estimate, uint64_t id) { return estimate.id < id; };

}  // namespace

Estimates::Chunks::const_iterator Estimates::ChunkOf(uint64_t id) const {
  const auto behind = chunks_.upper_bound(id);
  return behind == chunks_.begin() ? behind : std::prev(behind);
}

const Estimate* Estimates::Find(uint64_t id) const {
  const auto chunk = ChunkOf(id);
  if (chunk == chunks_.end()) return nullptr;
  const auto found = std::lower_bound(chunk->second.begin(), chunk->second.end(), id, kIdIsLess);
  return found != chunk->second.end() && found->id == id ? &*found : nullptr;
}

Estimate& Estimates::Add(const Estimate& estimate) {
  auto place = chunks_.upper_bound(estimate.id);
  place = place == chunks_.begin() ? chunks_.try_emplace(place, 0) : std::prev(place);
  if (Chunk& full = place->second; full.size() >= kChunk) {
    // Ids grow, so most chunks stay full.
    const auto cut = std::lower_bound(full.begin(), full.end(), estimate.id, kIdIsLess);
    const auto from = cut == full.end() ? cut : full.begin() + kChunk / 2;
    Chunk rest(from, full.end());
    full.erase(from, full.end());
    capacity_ += rest.capacity();
    const uint64_t first = rest.empty() ? estimate.id : rest.front().id;
    // Ends the use of `full`.
    const auto added = chunks_.emplace(first, std::move(rest)).first;
    place = first <= estimate.id ? added : std::prev(added);
  }
  Chunk& chunk = place->second;
  capacity_ -= chunk.capacity();
  const auto at = std::lower_bound(chunk.begin(), chunk.end(), estimate.id, kIdIsLess);
  Estimate& added = *chunk.insert(at, estimate);
  capacity_ += chunk.capacity();
  ++size_;
  NoteEnd(added);
  return added;
}

void Estimates::RemoveSome(int64_t now_ns, absl::FunctionRef<void(const Estimate&)> removed) {
  if (chunks_.empty()) return;
  auto place = chunks_.lower_bound(next_);
  if (place == chunks_.end()) place = chunks_.begin();
  next_ = place->first + 1;
  Chunk& chunk = place->second;
  const auto end = std::remove_if(chunk.begin(), chunk.end(), [&](const Estimate& estimate) {
    if (estimate.kept_until_ns() >= now_ns) return false;
    removed(estimate);
    return true;
  });
  if (end == chunk.end()) return;
  size_ -= static_cast<size_t>(chunk.end() - end);
  chunk.erase(end, chunk.end());
  if (chunk.empty()) {
    capacity_ -= chunk.capacity();
    chunks_.erase(place);
    return;
  }
  place = JoinWithNext(place);
  if (place != chunks_.begin()) JoinWithNext(std::prev(place));
}

Estimates::Chunks::iterator Estimates::JoinWithNext(Chunks::iterator chunk) {
  const auto next = std::next(chunk);
  if (next == chunks_.end()) return chunk;
  Chunk& lower = chunk->second;
  const Chunk& upper = next->second;
  if (lower.size() + upper.size() > kChunk / 2) return chunk;
  capacity_ -= lower.capacity() + upper.capacity();
  lower.insert(lower.end(), upper.begin(), upper.end());
  capacity_ += lower.capacity();
  return std::prev(chunks_.erase(next));
}

void Estimates::Move(int64_t by_ns) {
  if (by_ns == 0) return;
  kept_until_ns_ = std::numeric_limits<int64_t>::min();
  for (auto& [first, chunk] : chunks_) {
    for (Estimate& estimate : chunk) {
      estimate.end_ns += by_ns;
      NoteEnd(estimate);
    }
  }
}

}  // namespace sluice::algorithm
