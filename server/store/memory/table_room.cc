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

uint64_t TableRoom::CostOf(size_t key_bytes) const {
  return max_bytes_ == 0 ? 1 : std::max(Record::Bytes(key_bytes) + kSlotBytes, least_cost_);
}

std::shared_ptr<TableRoom::Part> TableRoom::Join(const Rule& rule) {
  common::MutexLock lock(&mu_);
  std::shared_ptr<Part>& part = parts_[rule.limit_id];
  if (part == nullptr) part.reset(new Part{.limit_id = rule.limit_id});
  ++part->rules;
  const uint64_t per_key =
      max_bytes_ == 0 ? 1 : std::max(MaxBytesPerKey(rule.parameters, MaxOwed(rule)), least_cost_);
  // Of several rules of a limit the one that takes most counts. All have the same min_keys, unless
  // these have changed.
  const bool first = part->held++ == 0 || part->min_keys != rule.min_keys;
  part->per_key = first ? per_key : std::max(part->per_key, per_key);
  part->min_keys = rule.min_keys;
  stale_ = true;
  return part;
}

void TableRoom::SetHeld(Part& part, bool held) {
  common::MutexLock lock(&mu_);
  part.held += held ? 1 : -1;
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
    if (part->held == 0) continue;
    if (const std::optional<uint64_t> min_keys = part->min_keys) {
      // The configuration was refused if they do not fit; but the table may be bounded by buckets.
      part->reserved = std::min(*min_keys, left / part->per_key) * part->per_key;
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
    if (part->held != 0 && !part->min_keys.has_value()) part->reserved = each;
    rest_ -= part->reserved;
    beyond_ += Beyond(*part);
    part->beyond.store(part->used > part->reserved, std::memory_order_relaxed);
  }
  rest_used_up_.store(beyond_ > rest_ || used_ > size_, std::memory_order_relaxed);
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

bool TableRoom::Take(Part& part, size_t key_bytes) {
  const uint64_t cost = CostOf(key_bytes);
  common::MutexLock lock(&mu_);
  const auto fits = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    const uint64_t own = part.used < part.reserved ? part.reserved - part.used : 0;
    return used_ + cost <= size_ && (cost <= own || beyond_ + (cost - own) <= rest_);
  };
  // Until the parts are computed, the limits that were there first share all.
  if (stale_ && (part.reserved == 0 || !fits())) ComputeParts();
  if (!fits()) return false;
  SetUsed(part, part.used + cost);
  return true;
}

bool TableRoom::TakeSaved(Part& part, size_t key_bytes) {
  const uint64_t cost = CostOf(key_bytes);
  common::MutexLock lock(&mu_);
  if (used_ + cost > size_) return false;
  SetUsed(part, part.used + cost);
  return true;
}

void TableRoom::Give(Part& part, size_t key_bytes) {
  const uint64_t cost = CostOf(key_bytes);
  common::MutexLock lock(&mu_);
  SetUsed(part, part.used - cost);
}

void TableRoom::Grow(Part& part, int64_t bytes) {
  if (max_bytes_ == 0 || bytes == 0) return;
  common::MutexLock lock(&mu_);
  SetUsed(part, part.used + static_cast<uint64_t>(bytes));
}

}  // namespace sluice::store::memory
