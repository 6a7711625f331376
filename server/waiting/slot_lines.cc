#include "server/waiting/slot_lines.h"

#include <algorithm>
#include <iterator>

#include "server/waiting/limit_change.h"

namespace sluice::waiting {

size_t SlotLines::InLine(uint64_t bucket) const {
  const auto line = lines_.find(bucket);
  return line == lines_.end() ? 0 : line->second.size();
}

void SlotLines::Add(HeldCaller* caller) {
  caller->place_ = ++last_place_;
  // By the store's time, so that the order holds among nodes.
  caller->number_ = caller->acquisition->now_ns;
  caller->ticketed_ = false;
  callers_.emplace(caller->place_, caller);
  caller->slot_buckets_.clear();
  for (const store::Charge& charge : caller->acquisition->charges) {
    if (!WaitsFor(charge)) continue;
    caller->slot_buckets_.push_back(BucketId(charge));
    Callers& line = lines_[caller->slot_buckets_.back()];
    // Numbers are in the order of each line, whatever the store's clock does: else callers of two
    // nodes could wait for each other.
    if (!line.empty()) {
      caller->number_ = std::max(caller->number_, line.rbegin()->second->number_ + 1);
    }
    line.emplace(caller->place_, caller);
  }
  caller->look_at_ns_ = 0;
  due_.emplace(0, caller->place_);
}

void SlotLines::Remove(HeldCaller* caller) {
  callers_.erase(caller->place_);
  due_.erase({caller->look_at_ns_, caller->place_});
  for (const uint64_t bucket : caller->slot_buckets_) {
    const auto line = lines_.find(bucket);
    // Two of its buckets may have the same id.
    if (line == lines_.end()) continue;
    line->second.erase(caller->place_);
    if (line->second.empty()) lines_.erase(line);
  }
}

bool SlotLines::IsFirst(const HeldCaller& caller) const {
  return std::all_of(
      caller.slot_buckets_.begin(), caller.slot_buckets_.end(),
      [&](uint64_t bucket) { return lines_.find(bucket)->second.begin()->second == &caller; });
}

HeldCaller* SlotLines::FirstOf(uint64_t bucket) const {
  const auto line = lines_.find(bucket);
  if (line == lines_.end()) return nullptr;
  HeldCaller* const first = line->second.begin()->second;
  return IsFirst(*first) ? first : nullptr;
}

HeldCaller* SlotLines::Behind(const HeldCaller& first, uint64_t bucket) const {
  const auto line = lines_.find(bucket);
  if (line == lines_.end() || line->second.size() < 2) return nullptr;
  HeldCaller* const next = std::next(line->second.begin())->second;
  const bool comes =
      std::all_of(next->slot_buckets_.begin(), next->slot_buckets_.end(), [&](uint64_t of_next) {
        auto ahead = lines_.find(of_next)->second.begin();
        if (ahead->second == &first) ++ahead;
        return ahead->second == next;
      });
  return comes ? next : nullptr;
}

void SlotLines::LookAt(HeldCaller* caller, int64_t at_ns) {
  due_.erase({caller->look_at_ns_, caller->place_});
  caller->look_at_ns_ = at_ns;
  due_.emplace(at_ns, caller->place_);
}

HeldCaller* SlotLines::Due(int64_t now_ns) const {
  if (due_.empty() || due_.begin()->first > now_ns) return nullptr;
  return callers_.find(due_.begin()->second)->second;
}

}  // namespace sluice::waiting
