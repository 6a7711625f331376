#include "server/store/memory/remembered_grants.h"

#include <algorithm>
#include <vector>

namespace sluice::store::memory {
namespace {

// Entries dropped by a call: more than it adds, so that the table shrinks under load, too.
constexpr size_t kDroppedByCall = 4;
// By Maintain, in one shard: about 20 us.
constexpr size_t kDroppedByMaintain = 1024;

}  // namespace

RememberedGrants::RememberedGrants(uint64_t seed) : hash_(seed) {}

std::optional<RememberedGrants::Grant> RememberedGrants::FindOrDecide(
    const RequestId& id, int64_t now_ns, absl::FunctionRef<std::optional<Grant>()> decide) {
  const uint64_t hash = HashOf(id);
  Shard& shard = ShardOf(hash);
  common::MutexLock lock(&shard.mu);
  shard.index.Prefetch(hash);
  DropEnded(shard, now_ns, kDroppedByCall);
  Entries& entries = shard.entries;
  // An entry of the same id that has ended may still be there.
  const auto found = shard.index.Find(hash, [&, all = &entries](uint32_t number) {
    const Entry& entry = (*all)[number];
    return entry.id == id && now_ns < entry.end_ns;
  });
  if (found.has_value()) return GrantOf(shard, entries[*found], entries.NumberOf(*found));
  const std::optional<Grant> granted = decide();
  if (granted.has_value()) Add(shard, hash, id, *granted, now_ns + kRememberNs);
  return std::nullopt;
}

RememberedGrants::Grant RememberedGrants::GrantOf(const Shard& shard, const Entry& entry,
                                                  uint32_t number) {
  Grant grant = {entry.fingerprint, entry.grant_time_ns, entry.receipt_id};
  if (shard.counted.empty()) return grant;
  const auto counted = shard.counted.find(number);
  if (counted != shard.counted.end()) grant.counted = counted->second;
  return grant;
}

void RememberedGrants::Add(Shard& shard, uint64_t hash, const RequestId& id, const Grant& grant,
                           int64_t end_ns) {
  Entries& entries = shard.entries;
  NumberIndex& index = shard.index;
  // A thread may have read the clock before another that was first here.
  if (!entries.all.empty()) end_ns = std::max(end_ns, entries.all.back().end_ns);
  if (index.Full()) {
    index.Clear(std::max(size_t{1}, 2 * entries.all.size()));
    uint32_t number = entries.first;
    for (const Entry& old : entries.all) index.Insert(HashOf(old.id), number++);
  }
  const auto number = static_cast<uint32_t>(entries.first + entries.all.size());
  index.Insert(hash, number);
  entries.all.push_back({id, grant.fingerprint, grant.grant_time_ns, grant.receipt_id, end_ns});
  if (!grant.counted.empty() &&
      shard.counted.size() < std::max(kMostCounted, entries.all.size() / 8)) {
    shard.counted.emplace(number, grant.counted);
    shard.counted_numbers += grant.counted.size();
  }
}

void RememberedGrants::ForEach(Visit visit) const {
  struct Copy {
    RequestId id;
    Grant grant;
    int64_t end_ns;
  };
  std::vector<Copy> copies;
  for (const Shard& shard : shards_) {
    copies.clear();
    {
      common::MutexLock lock(&shard.mu);
      uint32_t number = shard.entries.first;
      for (const Entry& entry : shard.entries.all) {
        copies.push_back({entry.id, GrantOf(shard, entry, number++), entry.end_ns});
      }
    }
    for (const Copy& copy : copies) visit(copy.id, copy.grant, copy.end_ns);
  }
}

void RememberedGrants::Restore(const RequestId& id, const Grant& grant, int64_t end_ns) {
  const uint64_t hash = HashOf(id);
  Shard& shard = ShardOf(hash);
  common::MutexLock lock(&shard.mu);
  Add(shard, hash, id, grant, end_ns);
}

void RememberedGrants::Refund(const RequestId& id, uint64_t receipt_id,
                              absl::FunctionRef<bool()> refund) {
  const uint64_t hash = HashOf(id);
  Shard& shard = ShardOf(hash);
  common::MutexLock lock(&shard.mu);
  if (!refund()) return;
  Entries& entries = shard.entries;
  const auto found = shard.index.Find(hash, [&, all = &entries](uint32_t number) {
    const Entry& entry = (*all)[number];
    return entry.id == id && entry.receipt_id == receipt_id;
  });
  if (found.has_value()) entries[*found].receipt_id = Grant::kRefunded;
}

bool RememberedGrants::DropEnded(Shard& shard, int64_t now_ns, size_t most) {
  Entries& entries = shard.entries;
  while (!entries.all.empty() && entries.all.front().end_ns <= now_ns) {
    if (most-- == 0) return true;
    shard.index.Erase(HashOf(entries.all.front().id), entries.first);
    if (const auto counted = shard.counted.find(entries.first); counted != shard.counted.end()) {
      shard.counted_numbers -= counted->second.size();
      shard.counted.erase(counted);
    }
    entries.all.pop_front();
    ++entries.first;
  }
  // Gives the memory back.
  if (entries.all.empty()) {
    shard.index.Clear(0);
    shard.counted = {};
  }
  return false;
}

bool RememberedGrants::Maintain(int64_t now_ns) {
  bool more = false;
  for (Shard& shard : shards_) {
    common::MutexLock lock(&shard.mu);
    more |= DropEnded(shard, now_ns, kDroppedByMaintain);
  }
  return more;
}

uint64_t RememberedGrants::size() const {
  uint64_t size = 0;
  for (const Shard& shard : shards_) {
    common::MutexLock lock(&shard.mu);
    size += shard.entries.all.size();
  }
  return size;
}

uint64_t RememberedGrants::memory_bytes() const {
  uint64_t bytes = sizeof(*this);
  for (const Shard& shard : shards_) {
    common::MutexLock lock(&shard.mu);
    bytes += shard.entries.all.size() * sizeof(Entry) + shard.index.memory_bytes();
    bytes += shard.counted.capacity() * (sizeof(decltype(shard.counted)::value_type) + 1) +
             shard.counted_numbers * sizeof(uint64_t);
  }
  return bytes;
}

}  // namespace sluice::store::memory
