#include "server/store/redis/sharing/relaxed_buckets.h"

#include <algorithm>

#include "server/store/redis/wire/script_arguments.h"

namespace sluice::store::redis {
namespace {

using algorithm::Kind;

constexpr int64_t kForgetNs = 10'000'000'000;
// How often a full table is pruned: that takes milliseconds.
constexpr int64_t kPruneEveryNs = 1'000'000'000;

// Two copies of the key, the object, and its slot in a map that is between 7/16 and 7/8 full.
size_t BytesOf(std::string_view key) {
  constexpr size_t kSlotBytes = 96;
  return sizeof(RelaxedBuckets::Key) + kSlotBytes + 2 * key.size();
}

}  // namespace

uint64_t MaxUndebited(const algorithm::Parameters& parameters, size_t nodes, size_t loops) {
  const uint64_t share = algorithm::Capacity(parameters) / 10 / std::max<size_t>(nodes * loops, 1);
  return std::max<uint64_t>(share, 1);
}

bool RelaxedBuckets::TryTake(const Rule& rule, std::string_view key, uint64_t permits,
                             uint64_t most, int64_t now_ns, BucketLevel* level, Key** debit) {
  *debit = nullptr;
  const auto found = keys_.find({rule.limit_id, std::string(key)});
  if (found == keys_.end()) return false;
  Key& one = *found->second;
  if (!one.known || one.rule->rule->id != rule.id) return false;
  const uint64_t pending = one.undebited + one.debiting;
  if (permits > most || pending > most - permits) return false;
  if (rule.parameters.kind == Kind::kTokenBucket) {
    const algorithm::TokenBucket& bucket = rule.parameters.token_bucket;
    if (!algorithm::TryTake(bucket, permits, algorithm::ToTicks(bucket, now_ns), &one.tat)) {
      return false;
    }
  } else {
    if (one.remaining < static_cast<int64_t>(permits)) return false;
    one.remaining -= static_cast<int64_t>(permits);
  }
  one.undebited += permits;
  one.used_ns = now_ns;
  *level = LevelOf(one, now_ns);
  if (one.debiting == 0) *debit = &one;
  return true;
}

BucketLevel RelaxedBuckets::LevelOf(const Key& key, int64_t now_ns) {
  const algorithm::Parameters& parameters = key.rule->rule->parameters;
  if (parameters.kind == Kind::kTokenBucket) {
    return algorithm::LevelAt(parameters.token_bucket, key.tat, now_ns);
  }
  BucketLevel level;
  level.capacity = algorithm::Capacity(parameters);
  level.remaining = key.remaining;
  return level;
}

void RelaxedBuckets::Know(Key& key, const BucketLevel& level, int64_t now_ns) {
  const algorithm::Parameters& parameters = key.rule->rule->parameters;
  const uint64_t pending = key.undebited + key.debiting;
  key.known = true;
  if (parameters.kind == Kind::kTokenBucket) {
    const algorithm::TokenBucket& bucket = parameters.token_bucket;
    const int64_t full_ns =
        level.reset_after_ns > INT64_MAX - now_ns ? INT64_MAX : now_ns + level.reset_after_ns;
    // At most a tenth of the burst, or a permit.
    key.tat = std::min(algorithm::ToTicks(bucket, full_ns) + pending * bucket.unit_ticks,
                       algorithm::kMaxTat);
  } else {
    key.remaining = level.remaining - static_cast<int64_t>(pending);
  }
}

void RelaxedBuckets::Learn(const std::shared_ptr<const RuleEntry>& rule, std::string_view key,
                           const BucketLevel& level, int64_t now_ns) {
  if (rule == nullptr) return;
  auto found = keys_.find({rule->rule->limit_id, std::string(key)});
  if (found == keys_.end()) {
    const size_t bytes = BytesOf(key);
    const auto full = [&] { return keys_.size() >= max_keys_ || bytes_ + bytes > max_bytes_; };
    if (full() ? now_ns - pruned_ns_ >= kPruneEveryNs : keys_.size() >= prune_at_) Prune(now_ns);
    if (full()) return;
    bytes_ += bytes;
    found = keys_.emplace(std::pair(rule->rule->limit_id, key), std::make_unique<Key>()).first;
    found->second->key.assign(key);
  }
  Key& one = *found->second;
  if (one.rule != nullptr && one.rule->rule->id > rule->rule->id) return;
  one.rule = rule;
  one.used_ns = now_ns;
  Know(one, level, now_ns);
}

uint64_t RelaxedBuckets::BeginDebit(Key& key) {
  key.debiting = std::exchange(key.undebited, 0);
  return key.debiting;
}

RelaxedBuckets::Key* RelaxedBuckets::Debited(uint32_t limit_id, std::string_view key,
                                             const DebitResult& result, int64_t now_ns) {
  const auto found = keys_.find({limit_id, std::string(key)});
  if (found == keys_.end()) return nullptr;
  Key& one = *found->second;
  one.debiting = 0;
  if (result.known) {
    Know(one, result.level, now_ns);
  } else {
    one.known = false;
  }
  return one.undebited > 0 ? &one : nullptr;
}

void RelaxedBuckets::Prune(int64_t now_ns) {
  absl::erase_if(keys_, [&](const auto& entry) {
    const Key& key = *entry.second;
    if (key.undebited > 0 || key.debiting > 0 || now_ns - key.used_ns <= kForgetNs) return false;
    bytes_ -= BytesOf(key.key);
    return true;
  });
  pruned_ns_ = now_ns;
  prune_at_ = std::max<size_t>(1024, 2 * keys_.size());
}

}  // namespace sluice::store::redis
