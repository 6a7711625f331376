#include "server/store/memory/table_room.h"

#include <algorithm>

#include "common/bounds.h"
#include "server/algorithm/bucket_state.h"
#include "server/store/memory/record.h"

namespace sluice::store::memory {
namespace {

// A bucket's slots in its shard's table, which is between 3/8 and 7/8 full.
constexpr uint64_t kSlotBytes = 24;

}  // namespace

TableRoom::TableRoom(uint64_t max_buckets, uint64_t max_bytes)
    : max_bytes_(max_bytes),
      least_cost_(max_bytes == 0 ? 1 : (max_bytes - 1) / std::max<uint64_t>(max_buckets, 1) + 1),
      size_(max_bytes == 0 ? max_buckets : max_bytes),
      rest_(size_) {}

uint64_t TableRoom::MaxBytesPerKey(const algorithm::Parameters& parameters, uint64_t max_owed) {
  return Record::Bytes(common::bounds::kMaxKeyBytes) + kSlotBytes +
         algorithm::BucketState::MaxBytes(parameters, max_owed);
}

uint64_t TableRoom::PerKey(const Rule& rule) const {
  return max_bytes_ == 0 ? 1
                         : std::max(MaxBytesPerKey(rule.parameters, MaxOwed(rule)), least_cost_);
}

uint64_t TableRoom::CostOf(size_t key_bytes) const {
  return max_bytes_ == 0 ? 1 : std::max(Record::Bytes(key_bytes) + kSlotBytes, least_cost_);
}

std::shared_ptr<TableRoom::Part> TableRoom::Join(const Rule& rule) {
  common::MutexLock lock(&mu_);
  std::shared_ptr<Part>& part = parts_[rule.limit_id];
  if (part == nullptr) part.reset(new Part{.limit_id = rule.limit_id});
  ++part->rules;
  part->per_key[rule.min_keys].insert(PerKey(rule));
  // All rules of a limit have the same, unless it has changed.
  part->min_keys = rule.min_keys;
  stale_ = true;
  return part;
}

void TableRoom::SetHeld(Part& part, const Rule& rule, bool held) {
  common::MutexLock lock(&mu_);
  std::multiset<uint64_t>& per_key = part.per_key[rule.min_keys];
  if (held) {
    per_key.insert(PerKey(rule));
  } else {
    per_key.erase(per_key.find(PerKey(rule)));
    if (per_key.empty()) part.per_key.erase(rule.min_keys);
  }
  stale_ = true;
}

void TableRoom::Leave(const Part& part) {
  common::MutexLock lock(&mu_);
  const auto found = parts_.find(part.limit_id);
  if (--found->second->rules == 0) parts_.erase(found);
}

// Limits that no table holds have no part, and what their buckets use counts as beyond it.
void TableRoom::ComputeParts() {
  stale_ = false;
  uint64_t left = size_ / 2;
  uint64_t equal = 0;
  for (const auto& [limit_id, part] : parts_) {
    part->reserved = 0;
    if (part->per_key.empty()) continue;
    if (const std::optional<uint64_t> min_keys = part->min_keys) {
      // The configuration was refused if they do not fit; but the table may be bounded by buckets.
      // Of several rules the one that takes most counts, but not those of another min_keys.
      const auto current = part->per_key.find(min_keys);
      const auto& costs = current != part->per_key.end() ? *current : *part->per_key.rbegin();
      const uint64_t per_key = *costs.second.rbegin();
      part->reserved = std::min(*min_keys, left / per_key) * per_key;
      left -= part->reserved;
    } else {
      ++equal;
    }
  }
  // Whole buckets: a part of less would be of no use to anyone.
  const uint64_t each = equal == 0 ? 0 : left / equal / least_cost_ * least_cost_;
  rest_ = size_;
  beyond_ = 0;
  for (const auto& [limit_id, part] : parts_) {
    if (!part->per_key.empty() && !part->min_keys.has_value()) part->reserved = each;
    rest_ -= part->reserved;
    beyond_ += Beyond(*part);
    part->beyond.store(part->used > part->reserved, std::memory_order_relaxed);
  }
  rest_used_up_.store(beyond_ > rest_ || used_ > size_, std::memory_order_relaxed);
  for (size_t i = 1; i < used_by_.size(); ++i) JudgeShare(static_cast<uint16_t>(i));
}

void TableRoom::CountFor(uint16_t maker, uint64_t bytes) {
  if (maker == 0 || maker >= used_by_.size()) return;
  used_by_[maker] += bytes;
  JudgeShare(maker);
}

void TableRoom::NoteShare(const BucketMaker& maker) {
  common::MutexLock lock(&mu_);
  SetShare(maker);
}

void TableRoom::SetShare(const BucketMaker& maker) {
  if (maker.number >= used_by_.size()) used_by_.resize(maker.number + size_t{1});
  // Buckets in reserved parts count too, so a maker without a bound may use more than the rest.
  const bool used_up = maker.percent < 100 && used_by_[maker.number] > ShareOf(maker.percent);
  const auto share = static_cast<uint8_t>((100 - maker.percent) | (used_up ? kUsedUp : 0));
  std::atomic<uint8_t>& noted = shares_[maker.number];
  if (noted.load(std::memory_order_relaxed) != share) {
    noted.store(share, std::memory_order_relaxed);
  }
}

void TableRoom::SetUsed(Part& part, uint64_t used) {
  used_ += used - part.used;
  beyond_ -= Beyond(part);
  part.used = used;
  beyond_ += Beyond(part);
  const bool beyond = part.used > part.reserved;
  if (part.beyond.load(std::memory_order_relaxed) != beyond) {
    part.beyond.store(beyond, std::memory_order_relaxed);
  }
  const bool used_up = beyond_ > rest_ || used_ > size_;
  if (rest_used_up_.load(std::memory_order_relaxed) != used_up) {
    rest_used_up_.store(used_up, std::memory_order_relaxed);
  }
}

void TableRoom::Refresh() {
  common::MutexLock lock(&mu_);
  if (stale_) ComputeParts();
}

TableRoom::Taken TableRoom::Take(Part& part, size_t key_bytes, const BucketMaker& maker,
                                 bool beyond) {
  const uint64_t cost = CostOf(key_bytes);
  common::MutexLock lock(&mu_);
  if (maker.number != 0) SetShare(maker);
  const auto judge = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    const uint64_t own = part.used < part.reserved ? part.reserved - part.used : 0;
    if (used_ + cost > size_) return Taken::kNoRoom;
    if (cost <= own) return Taken::kYes;
    if (!beyond) return Taken::kNoRoom;
    if (beyond_ + (cost - own) > rest_) return Taken::kNoRoom;
    if (maker.number == 0 || maker.percent >= 100) return Taken::kYes;
    return used_by_[maker.number] + cost <= ShareOf(maker.percent) ? Taken::kYes
                                                                   : Taken::kShareUsedUp;
  };
  // Until the parts are computed, the limits that were there first share all.
  if (stale_ && (part.reserved == 0 || judge() != Taken::kYes)) ComputeParts();
  const Taken taken = judge();
  if (taken != Taken::kYes) return taken;
  SetUsed(part, part.used + cost);
  CountFor(maker.number, cost);
  return taken;
}

bool TableRoom::TakeSaved(Part& part, size_t key_bytes) {
  const uint64_t cost = CostOf(key_bytes);
  common::MutexLock lock(&mu_);
  if (used_ + cost > size_) return false;
  SetUsed(part, part.used + cost);
  return true;
}

void TableRoom::Give(Part& part, size_t key_bytes, uint16_t maker) {
  const uint64_t cost = CostOf(key_bytes);
  common::MutexLock lock(&mu_);
  SetUsed(part, part.used - cost);
  CountFor(maker, -cost);
}

void TableRoom::Grow(Part& part, int64_t bytes, uint16_t maker) {
  if (max_bytes_ == 0 || bytes == 0) return;
  common::MutexLock lock(&mu_);
  SetUsed(part, part.used + static_cast<uint64_t>(bytes));
  CountFor(maker, static_cast<uint64_t>(bytes));
}

}  // namespace sluice::store::memory
