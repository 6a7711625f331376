#include "server/waiting/slot_lines.h"

#include <algorithm>

#include "server/waiting/limit_change.h"

namespace sluice::waiting {

size_t SlotLines::InLine(uint64_t bucket) const {
  const auto line = lines_.find(bucket);
  return line == lines_.end() ? 0 : line->second.size();
}

void SlotLines::Add(HeldCaller* caller) {
  caller->place_ = ++last_place_;
  callers_.emplace(caller->place_, caller);
  caller->slot_buckets_.clear();
  for (const store::Charge& charge : caller->acquisition->charges) {
    if (!WaitsFor(charge)) continue;
    caller->slot_buckets_.push_back(BucketId(charge));
    lines_[caller->slot_buckets_.back()].emplace(caller->place_, caller);
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
