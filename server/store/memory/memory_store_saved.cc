// The part of the memory store that is kept over a restart: what is saved of it, and how it is put
// back.
#include <algorithm>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "server/store/memory/bucket_index.h"
#include "server/store/memory/memory_store.h"

namespace sluice::store {
namespace memory {
namespace {

using algorithm::BucketImage;
using algorithm::BucketState;

// How far ahead records are fetched.
constexpr size_t kAhead = 8;
// The id of the hold that closes a slot bucket after a loss of data. No receipt has it.
constexpr uint64_t kClosedHold = std::numeric_limits<uint64_t>::max();

}  // namespace

void BucketIndex::Exhaust(const Rule& rule, BucketState* state) const {
  if (algorithm::IsConcurrency(rule.parameters)) {
    CloseSlots(rule, state);
    return;
  }
  if (!empty_since_.has_value()) return;
  state->Force(rule.parameters, std::numeric_limits<uint64_t>::max(), MaxOwed(rule), *empty_since_);
}

void BucketIndex::CloseSlots(const Rule& rule, BucketState* state) const {
  const std::optional<int64_t> end_ns = closed_slots_.EndFor(rule);
  // No hold has ended by then.
  constexpr algorithm::Moment kStart{0, 0};
  if (!end_ns.has_value() || state->HeldUntilNs(kClosedHold, kStart).value_or(0) >= *end_ns) return;
  state->EndHold(kClosedHold, kStart);
  // All permits, beside the holds that are known: if one of them ends early, another caller may
  // have its slots already.
  state->RestoreHold({*end_ns, kClosedHold, rule.parameters.concurrency.permits});
}

void BucketIndex::KeepSlotsClosed(const algorithm::Parameters& from, const Rule& rule,
                                  BucketState* state) const {
  if (!algorithm::IsConcurrency(from)) {
    CloseSlots(rule, state);
    return;
  }
  constexpr algorithm::Moment kStart{0, 0};
  const std::optional<int64_t> end_ns = state->HeldUntilNs(kClosedHold, kStart);
  if (!end_ns.has_value()) return;
  const uint64_t held = state->EndHold(kClosedHold, kStart).value_or(0);
  state->RestoreHold({*end_ns, kClosedHold, std::max(held, rule.parameters.concurrency.permits)});
}

void BucketIndex::ForEachSaved(size_t part, absl::FunctionRef<void(const Saved&)> visit) {
  Shard& shard = shards_[part];
  EpochGuard guard(epochs_);
  std::vector<Record*> records;
  // Of earlier passes. Their memory is not used for others while this thread is in the guard.
  absl::flat_hash_set<const Record*> visited;
  while (true) {
    records.clear();
    {
      common::MutexLock lock(&shard.mu);
      const uint64_t table = tables_[part].load(std::memory_order_relaxed);
      records.reserve(shard.live);
      for (size_t i = 0; i < CapacityOf(table); ++i) {
        const uint64_t slot = SlotsOf(table)[i].load(std::memory_order_relaxed);
        if (slot != kEmpty && slot != kTombstone) records.push_back(RecordOf(slot));
      }
    }
    bool died = false;
    for (size_t i = 0; i < records.size(); ++i) {
      if (i + kAhead < records.size()) __builtin_prefetch(records[i + kAhead]);
      if (!visited.contains(records[i])) died |= !VisitSaved(records[i], visit);
    }
    // One that died may have been converted: then another record has its state.
    if (!died) return;
    visited.insert(records.begin(), records.end());
  }
}

bool BucketIndex::VisitSaved(Record* record, absl::FunctionRef<void(const Saved&)> visit) {
  uint64_t word = record->word();
  const RuleRegistry::Entry* const entry = rules_.Find(record->rule_id());
  if (word == Record::kDead || entry == nullptr) return false;
  Saved saved{.rule = entry->rule.get(), .key = record->key()};
  std::optional<BucketImage> image;
  if (!Record::IsPlain(word)) {
    if (!record->Lock(&word, &lock_yields_)) return false;
    if (!Record::IsPlain(word)) {
      saved.image = &image.emplace(Record::StateOf(word)->ToImage());
    }
    record->Unlock(word);
  }
  if (saved.image == nullptr) saved.tat = Record::TatOf(word);
  visit(saved);
  return true;
}

bool BucketIndex::Restore(const Rule& rule, std::string_view key, BucketState state) {
  if (state.IsPlainTokenBucket()) return Restore(rule, key, state.tat());
  if (algorithm::IsConcurrency(rule.parameters)) CloseSlots(rule, &state);
  auto owned = std::make_unique<BucketState>(std::move(state));
  const Counts counts = CountsOf(*owned);
  if (!RestoreWord(rule, key, Record::WordOf(owned.get()))) return false;
  (void)owned.release();  // the word has it
  Recount(rule, /*maker=*/0, {}, counts);
  return true;
}

bool BucketIndex::RestoreWord(const Rule& rule, std::string_view key, uint64_t word) {
  const uint64_t hash = Hash(rule, key);
  const size_t shard_index = ShardOf(hash);
  Shard& shard = shards_[shard_index];
  common::MutexLock lock(&shard.mu);
  std::atomic<uint64_t>* slot =
      Locate(tables_[shard_index].load(std::memory_order_relaxed), hash, rule, key, nullptr);
  if (slot != nullptr) {
    Record* const old_record = RecordOf(slot->load(std::memory_order_relaxed));
    RuleRegistry::Entry* const old_entry = rules_.Find(old_record->rule_id());
    if (const uint64_t old_word = old_record->word(); !Record::IsPlain(old_word)) {
      BucketState* const old_state = Record::StateOf(old_word);
      Recount(*old_entry->rule, old_record->maker(), CountsOf(*old_state), {});
      delete old_state;
    }
    Place(shard_index, slot, hash, word, rule, key, old_record->maker());
    old_record->Unlock(Record::kDead);
    epochs_.Retire(kRecord, reinterpret_cast<uintptr_t>(old_record));
    old_entry->buckets.fetch_sub(1, std::memory_order_release);
    return true;
  }
  if (!room_.TakeSaved(*rules_.Find(rule.id)->part, key.size())) return false;
  Reserve(shard, shard_index);
  Locate(tables_[shard_index].load(std::memory_order_relaxed), hash, rule, key, &slot);
  if (slot == nullptr) return false;  // not reached: no such bucket was found above
  if (slot->load(std::memory_order_relaxed) == kEmpty) ++shard.used;
  ++shard.live;
  buckets_.fetch_add(1, std::memory_order_relaxed);
  created_.fetch_add(1, std::memory_order_relaxed);
  Place(shard_index, slot, hash, word, rule, key, /*maker=*/0);
  return true;
}

}  // namespace memory

bool MemoryStore::RestoreBucket(const Rule& rule, std::string_view key,
                                const algorithm::BucketImage& image) {
  return index_.Restore(rule, key, algorithm::BucketState::FromImage(rule.parameters, image));
}

void MemoryStore::RestoreReceipts(uint64_t next_receipt, const std::vector<uint64_t>& refunded) {
  next_receipt_.store(next_receipt, std::memory_order_relaxed);
  for (const uint64_t id : refunded) used_receipts_.Add(id);
}

}  // namespace sluice::store
