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
  Shard& shard = ShardOf(id);
  common::MutexLock lock(&shard.mu);
  DropEnded(shard, now_ns, kDroppedByCall);
  if (shard.index.has_value()) {
    if (const auto found = shard.index->find(id); found != shard.index->end()) {
      const Entry& entry = shard.entries[*found];
      if (now_ns < entry.end_ns) return entry.grant;
      shard.index->erase(found);  // DropEnded comes to it later
    }
  }
  const std::optional<Grant> granted = decide();
  if (granted.has_value()) Add(shard, id, *granted, now_ns + kRememberNs);
  return std::nullopt;
}

void RememberedGrants::Add(Shard& shard, const RequestId& id, const Grant& grant, int64_t end_ns) {
  if (!shard.index.has_value()) {
    shard.index.emplace(0, HashOf{&hash_, &shard.entries}, SameId{&shard.entries});
  }
  Entries& entries = shard.entries;
  // A thread may have read the clock before another that was first here.
  if (!entries.all.empty()) end_ns = std::max(end_ns, entries.all.back().end_ns);
  const auto number = static_cast<uint32_t>(entries.first + entries.all.size());
  entries.all.push_back({id, grant, end_ns});
  shard.index->insert(number);
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
  Shard& shard = ShardOf(id);
  common::MutexLock lock(&shard.mu);
  Add(shard, id, grant, end_ns);
}

void RememberedGrants::Refunded(const RequestId& id, uint64_t receipt_id) {
  Shard& shard = ShardOf(id);
  common::MutexLock lock(&shard.mu);
  if (!shard.index.has_value()) return;
  const auto found = shard.index->find(id);
  if (found == shard.index->end()) return;
  Grant& grant = shard.entries[*found].grant;
  if (grant.receipt_id == receipt_id) grant.receipt_id = Grant::kRefunded;
}

bool RememberedGrants::DropEnded(Shard& shard, int64_t now_ns, size_t most) {
  Entries& entries = shard.entries;
  while (!entries.all.empty() && entries.all.front().end_ns <= now_ns) {
    if (most-- == 0) return true;
    const auto found = shard.index->find(entries.all.front().id);
    // The id may have been granted again since it ended.
    if (found != shard.index->end() && *found == entries.first) shard.index->erase(found);
    entries.all.pop_front();
    ++entries.first;
  }
  // Gives the memory back.
  if (entries.all.empty()) shard.index.reset();
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
    bytes += shard.entries.all.size() * sizeof(Entry);
    if (shard.index.has_value()) bytes += shard.index->capacity() * (sizeof(uint32_t) + 1);
  }
  return bytes;
}

}  // namespace sluice::store::memory
