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
  if (found.has_value()) return entries[*found].grant;
  const std::optional<Grant> granted = decide();
  if (granted.has_value()) Add(shard, hash, {id, *granted, now_ns + kRememberNs});
  return std::nullopt;
}

void RememberedGrants::Add(Shard& shard, uint64_t hash, Entry entry) {
  Entries& entries = shard.entries;
  NumberIndex& index = shard.index;
  // A thread may have read the clock before another that was first here.
  if (!entries.all.empty()) entry.end_ns = std::max(entry.end_ns, entries.all.back().end_ns);
  if (index.Full()) {
    index.Clear(std::max(size_t{1}, 2 * entries.all.size()));
    uint32_t number = entries.first;
    for (const Entry& old : entries.all) index.Insert(HashOf(old.id), number++);
  }
  index.Insert(hash, static_cast<uint32_t>(entries.first + entries.all.size()));
  entries.all.push_back(entry);
}

void RememberedGrants::ForEach(Visit visit) const {
  std::vector<Entry> entries;
  for (const Shard& shard : shards_) {
    {
      common::MutexLock lock(&shard.mu);
      entries.assign(shard.entries.all.begin(), shard.entries.all.end());
    }
    for (const Entry& entry : entries) visit(entry.id, entry.grant, entry.end_ns);
  }
}

void RememberedGrants::Restore(const RequestId& id, const Grant& grant, int64_t end_ns) {
  const uint64_t hash = HashOf(id);
  Shard& shard = ShardOf(hash);
  common::MutexLock lock(&shard.mu);
  Add(shard, hash, {id, grant, end_ns});
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
    return entry.id == id && entry.grant.receipt_id == receipt_id;
  });
  if (found.has_value()) entries[*found].grant.receipt_id = Grant::kRefunded;
}

bool RememberedGrants::DropEnded(Shard& shard, int64_t now_ns, size_t most) {
  Entries& entries = shard.entries;
  while (!entries.all.empty() && entries.all.front().end_ns <= now_ns) {
    if (most-- == 0) return true;
    shard.index.Erase(HashOf(entries.all.front().id), entries.first);
    entries.all.pop_front();
    ++entries.first;
  }
  // Gives the memory back.
  if (entries.all.empty()) shard.index.Clear(0);
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
  }
  return bytes;
}

}  // namespace sluice::store::memory
