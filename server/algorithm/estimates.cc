#include "server/algorithm/estimates.h"

#include <utility>

namespace sluice::algorithm {
namespace {

constexpr auto kIdIsLess = [](const Estimate& estimate, uint64_t id) { return estimate.id < id; };

}  // namespace

size_t Estimates::ChunkOf(uint64_t id) const {
  const auto behind =
      std::upper_bound(chunks_.begin(), chunks_.end(), id,
                       [](uint64_t of, const Chunk& chunk) { return of < chunk.front().id; });
  return behind == chunks_.begin() ? 0 : static_cast<size_t>(behind - chunks_.begin()) - 1;
}

const Estimate* Estimates::Find(uint64_t id) const {
  if (chunks_.empty()) return nullptr;
  const Chunk& chunk = chunks_[ChunkOf(id)];
  const auto found = std::lower_bound(chunk.begin(), chunk.end(), id, kIdIsLess);
  return found != chunk.end() && found->id == id ? &*found : nullptr;
}

Estimate& Estimates::Add(const Estimate& estimate) {
  size_t place = chunks_.empty() ? 0 : ChunkOf(estimate.id);
  if (chunks_.empty()) chunks_.emplace_back();
  if (chunks_[place].size() >= kChunk) {
    Chunk& full = chunks_[place];
    // Ids grow, so most chunks stay full.
    const auto cut = std::lower_bound(full.begin(), full.end(), estimate.id, kIdIsLess);
    const auto from = cut == full.end() ? cut : full.begin() + kChunk / 2;
    Chunk rest(from, full.end());
    full.erase(from, full.end());
    capacity_ += rest.capacity();
    const bool behind = rest.empty() || rest.front().id < estimate.id;
    chunks_.insert(chunks_.begin() + static_cast<std::ptrdiff_t>(place) + 1, std::move(rest));
    if (behind) ++place;
  }
  Chunk& chunk = chunks_[place];
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
  if (next_ >= chunks_.size()) next_ = 0;
  Chunk& chunk = chunks_[next_];
  const auto end = std::remove_if(chunk.begin(), chunk.end(), [&](const Estimate& estimate) {
    if (estimate.kept_until_ns() >= now_ns) return false;
    removed(estimate);
    return true;
  });
  size_ -= static_cast<size_t>(chunk.end() - end);
  chunk.erase(end, chunk.end());
  if (!chunk.empty()) {
    ++next_;
    return;
  }
  capacity_ -= chunk.capacity();
  chunks_.erase(chunks_.begin() + static_cast<std::ptrdiff_t>(next_));
}

void Estimates::Move(int64_t by_ns) {
  kept_until_ns_ = std::numeric_limits<int64_t>::min();
  for (Chunk& chunk : chunks_) {
    for (Estimate& estimate : chunk) {
      estimate.end_ns += by_ns;
      NoteEnd(estimate);
    }
  }
}

}  // namespace sluice::algorithm
