#include "server/store/memory/bucket_index.h"

#include <algorithm>
#include <limits>

#include "common/bounds.h"
#include "server/algorithm/token_bucket.h"

namespace sluice::store::memory {
namespace {

using algorithm::BucketState;
using algorithm::Kind;
using algorithm::Moment;

// Slots looked at by each insertion: more than one for each that it fills, so that a table is
// swept through before it doubles.
constexpr size_t kSweepPerInsert = 4;
// Slots looked at for room by an insertion beyond max_buckets: in its own shard, and in others.
constexpr size_t kSweepForRoom = 32;
constexpr size_t kSweepElsewhereForRoom = 64;
// Steps of a SearchBudget that a slot costs, if the sweep found no room: nearly each is a cache
// miss. So a batch of new keys for a full table looks at 8192 slots in vain, which takes half a
// millisecond.
constexpr size_t kStepsPerSlot = 16;
// And those of a bucket that is made, and of its key's bytes, which go to new pages.
constexpr size_t kStepsPerBucket = 300;
constexpr size_t kKeyBytesPerStep = 2;
// Bookings that a sweep folds of the buckets that it looks at; the others are left to the next one.
constexpr size_t kFoldsPerInsert = 64;
// Bookings that are folded or converted at once, about 100 us.
constexpr size_t kConvertedAtOnce = 1024;
constexpr size_t kFoldsPerMaintain = 1024;
// Slots that Maintain looks at in one call, and at most under one lock.
constexpr size_t kSweepPerMaintain = 2048;
constexpr size_t kSweepPerLock = 256;
constexpr size_t kReclaimPerMaintain = 2048;
constexpr size_t kCollectPerMaintain = 256;
// Bytes of a state that is freed at once: some hundred allocations.
constexpr size_t kFreedAtOnce = size_t{64} << 10;
// How far ahead records are fetched where many are looked at.
constexpr size_t kAhead = 8;

// A table is at most 7/8 full; a new one at most 3/4.
bool TooFull(size_t used, size_t capacity) { return used * 8 > capacity * 7; }

}  // namespace

BucketIndex::BucketIndex(const common::Clock& clock, uint64_t max_buckets, uint64_t max_bytes,
                         uint64_t seed, std::optional<Moment> empty_since, ClosedSlots closed)
    : clock_(clock),
      hash_(seed),
      max_bytes_(max_bytes),
      empty_since_(empty_since),
      closed_slots_(std::move(closed)),
      tables_(new std::atomic<uint64_t>[kShards]),
      shards_(new Shard[kShards]),
      room_(max_buckets, max_bytes),
      epochs_(&BucketIndex::FreeRetired, this),
      rules_(epochs_, kRule, room_) {
  for (size_t i = 0; i < kShards; ++i) {
    tables_[i].store(TableOf(no_slots_, kMinCapacity), std::memory_order_relaxed);
  }
}

BucketIndex::~BucketIndex() {
  while (epochs_.Reclaim(std::numeric_limits<size_t>::max()) != 0) {
  }
  for (size_t i = 0; i < kShards; ++i) {
    const uint64_t table = tables_[i].load(std::memory_order_relaxed);
    std::atomic<uint64_t>* slots = SlotsOf(table);
    if (slots == no_slots_) continue;
    for (size_t s = 0; s < CapacityOf(table); ++s) {
      const uint64_t slot = slots[s].load(std::memory_order_relaxed);
      if (slot == kEmpty || slot == kTombstone) continue;
      Record* record = RecordOf(slot);
      if (!Record::IsPlain(record->word())) delete Record::StateOf(record->word());
      slabs_.Free(record, record->bytes());
    }
    FreeTable(table);
  }
}

void BucketIndex::FreeRetired(void* self, uint8_t kind, uint64_t object) {
  auto* index = static_cast<BucketIndex*>(self);
  switch (static_cast<Retired>(kind)) {
    case kRecord: {
      auto* record = reinterpret_cast<Record*>(object);
      index->slabs_.Free(record, record->bytes());
      break;
    }
    case kTable:
      index->FreeTable(object);
      break;
    case kRule:
      RuleRegistry::Free(object);
      break;
  }
}

std::atomic<uint64_t>* BucketIndex::AllocateSlots(size_t shard_index, size_t capacity) {
  const size_t bytes = capacity * sizeof(uint64_t);
  void* memory = bytes <= SlabAllocator::kMaxBytes ? table_slabs_.Allocate(shard_index, bytes)
                                                   : extents_.Allocate(bytes);
  auto* slots = static_cast<std::atomic<uint64_t>*>(memory);
  for (size_t i = 0; i < capacity; ++i) new (&slots[i]) std::atomic<uint64_t>(kEmpty);
  return slots;
}

void BucketIndex::FreeTable(uint64_t table) {
  const size_t bytes = CapacityOf(table) * sizeof(uint64_t);
  if (bytes <= SlabAllocator::kMaxBytes) {
    table_slabs_.Free(SlotsOf(table), bytes);
  } else {
    extents_.Free(SlotsOf(table), bytes);
  }
}

std::atomic<uint64_t>* BucketIndex::Locate(uint64_t table, uint64_t hash, const Rule& rule,
                                           std::string_view key,
                                           std::atomic<uint64_t>** insert_at) const {
  const size_t capacity = CapacityOf(table);
  std::atomic<uint64_t>* slots = SlotsOf(table);
  std::atomic<uint64_t>* free = nullptr;
  for (size_t i = StartOf(hash, capacity);;) {
    const uint64_t slot = slots[i].load(std::memory_order_relaxed);
    if (slot == kEmpty) {
      if (insert_at != nullptr) *insert_at = free != nullptr ? free : &slots[i];
      return nullptr;
    }
    if (slot == kTombstone) {
      if (free == nullptr) free = &slots[i];
    } else if (TagOf(slot) == TagOfHash(hash)) {
      Record* record = RecordOf(slot);
      // Two limits may have the same key, and with bad luck the same tag.
      if (record->HasKey(key) &&
          (record->rule_id() == rule.id ||
           rules_.Find(record->rule_id())->rule->limit_id == rule.limit_id)) {
        return &slots[i];
      }
    }
    if (++i == capacity) i = 0;
  }
}

BucketIndex::Lookup BucketIndex::Settle(Shard& shard, size_t shard_index,
                                        std::atomic<uint64_t>* slot, uint64_t hash,
                                        const Rule& rule) {
  Record* record = RecordOf(slot->load(std::memory_order_relaxed));
  if (record->rule_id() > rule.id) return {Status::kStaleRule, record};
  if (record->rule_id() < rule.id) record = Convert(shard, shard_index, slot, hash, rule);
  return {record == nullptr ? Status::kHasDue : Status::kFound, record};
}

BucketIndex::Lookup BucketIndex::FindExisting(uint64_t hash, const Rule& rule,
                                              std::string_view key) {
  const size_t shard_index = ShardOf(hash);
  Shard& shard = shards_[shard_index];
  common::MutexLock lock(&shard.mu);
  std::atomic<uint64_t>* slot =
      Locate(tables_[shard_index].load(std::memory_order_relaxed), hash, rule, key, nullptr);
  if (slot == nullptr) return {};
  return Settle(shard, shard_index, slot, hash, rule);
}

BucketIndex::Lookup BucketIndex::FindOrCreate(uint64_t hash, const Rule& rule, std::string_view key,
                                              int64_t now_ns, MaySweep may_sweep,
                                              algorithm::SearchBudget* budget,
                                              const BucketMaker& maker) {
  const size_t shard_index = ShardOf(hash);
  Shard& shard = shards_[shard_index];
  TableRoom::Part& part = *rules_.Find(rule.id)->part;
  const bool searches = may_sweep == MaySweep::kYes && (budget == nullptr || !budget->spent());
  const auto spend = [budget](size_t slots) {
    if (budget != nullptr) budget->Spend(slots * kStepsPerSlot);
  };
  for (bool swept_others = !searches;;) {
    TableRoom::Taken taken;
    {
      common::MutexLock lock(&shard.mu);
      std::atomic<uint64_t>* slot =
          Locate(tables_[shard_index].load(std::memory_order_relaxed), hash, rule, key, nullptr);
      if (slot != nullptr) return Settle(shard, shard_index, slot, hash, rule);
      if (may_sweep == MaySweep::kYes)
        Sweep(shard, shard_index, kSweepPerInsert, now_ns, kFoldsPerInsert);
      const auto take = [&] {
        return room_.Take(part, key.size(), maker, HasMemory(shard_index, key.size()));
      };
      taken = take();
      if (taken != TableRoom::Taken::kYes && searches) {
        if (Sweep(shard, shard_index, kSweepForRoom, now_ns, kFoldsPerInsert) > 0) {
          taken = take();
        } else {
          spend(kSweepForRoom);
        }
      }
      const bool room = taken == TableRoom::Taken::kYes;
      if (room && maker.rate != nullptr && maker.rate->TakeUpTo(1, now_ns) == 0) {
        room_.Give(part, key.size(), maker.number);
        return {Status::kTooManyNew, nullptr};
      }
      if (room) {
        if (budget != nullptr) budget->Note(kStepsPerBucket + key.size() / kKeyBytesPerStep);
        return {Status::kFound, Create(shard, shard_index, hash, rule, key, maker.number)};
      }
    }
    if (swept_others) {
      return {taken == TableRoom::Taken::kNoRoom ? Status::kOverflow : Status::kShareUsedUp,
              nullptr};
    }
    swept_others = true;
    if (!SweepElsewhere(now_ns)) spend(kSweepElsewhereForRoom);
  }
}

bool BucketIndex::SweepElsewhere(int64_t now_ns) {
  size_t left = kSweepElsewhereForRoom;
  for (size_t n = 0; n < kShards && left > 0; ++n) {
    const size_t i = overflow_next_.fetch_add(1, std::memory_order_relaxed) % kShards;
    const uint64_t table = tables_[i].load(std::memory_order_acquire);
    if (SlotsOf(table) == no_slots_) continue;
    const size_t slots = std::min(left, CapacityOf(table));
    common::MutexLock lock(&shards_[i].mu);
    if (Sweep(shards_[i], i, slots, now_ns, kFoldsPerInsert) > 0) return true;
    left -= slots;
  }
  return false;
}

void BucketIndex::Reserve(Shard& shard, size_t shard_index) {
  const uint64_t table = tables_[shard_index].load(std::memory_order_relaxed);
  if (SlotsOf(table) == no_slots_ || TooFull(shard.used + 1, CapacityOf(table))) {
    Resize(shard, shard_index, CapacityFor(shard.live + 1));
  }
}

Record* BucketIndex::Create(Shard& shard, size_t shard_index, uint64_t hash, const Rule& rule,
                            std::string_view key, uint16_t maker) {
  Reserve(shard, shard_index);
  std::atomic<uint64_t>* slot = nullptr;
  Locate(tables_[shard_index].load(std::memory_order_relaxed), hash, rule, key, &slot);

  // A token bucket that is made is full as of the last drop in this shard: it may be one that was
  // dropped as full at a moment which this thread's reading of the clock does not reach yet.
  uint64_t word;
  if (rule.parameters.kind == Kind::kTokenBucket) {
    uint64_t tat = algorithm::ToTicks(rule.parameters.token_bucket,
                                      shard.not_before_ns.load(std::memory_order_relaxed));
    if (empty_since_.has_value()) tat = std::max(tat, NewState(rule).tat());
    word = Record::WordOf(tat);
  } else {
    auto* state = new BucketState(NewState(rule));
    Recount(rule, maker, {}, CountsOf(*state));
    word = Record::WordOf(state);
  }
  if (slot->load(std::memory_order_relaxed) == kEmpty) ++shard.used;
  ++shard.live;
  buckets_.fetch_add(1, std::memory_order_relaxed);
  created_.fetch_add(1, std::memory_order_relaxed);
  return Place(shard_index, slot, hash, word, rule, key, maker);
}

Record* BucketIndex::Place(size_t shard_index, std::atomic<uint64_t>* slot, uint64_t hash,
                           uint64_t word, const Rule& rule, std::string_view key, uint16_t maker) {
  static_assert(Record::Bytes(common::bounds::kMaxKeyBytes) <= SlabAllocator::kMaxBytes);
  Record* const record = Record::Make(slabs_.Allocate(shard_index, Record::Bytes(key.size())), word,
                                      rule.id, maker, key);
  rules_.Find(rule.id)->buckets.fetch_add(1, std::memory_order_relaxed);
  slot->store(SlotOf(record, hash), std::memory_order_release);
  return record;
}

Record* BucketIndex::Convert(Shard& shard, size_t shard_index, std::atomic<uint64_t>* slot,
                             uint64_t hash, const Rule& rule) {
  Record* old_record = RecordOf(slot->load(std::memory_order_relaxed));
  RuleRegistry::Entry* old_entry = rules_.Find(old_record->rule_id());
  const algorithm::Parameters& from = old_entry->rule->parameters;
  const algorithm::Parameters& to = rule.parameters;

  uint64_t word;
  // Records die under the shard's mutex, which we hold, so this one does not. The thread that
  // holds it needs no mutex to unlock it.
  while (!old_record->Lock(&word, &lock_yields_)) {
  }
  // Read here, not by the caller some time ago: what the bucket lacks is measured against it.
  const int64_t at_ns =
      std::max(clock_.NowNs(), shard.not_before_ns.load(std::memory_order_relaxed));
  const Moment at{at_ns, common::WallAtNs(clock_, at_ns)};
  uint64_t converted;
  if (Record::IsPlain(word) && to.kind == Kind::kTokenBucket) {
    const uint64_t tat =
        algorithm::ConvertTat(from.token_bucket, to.token_bucket, Record::TatOf(word), at.now_ns);
    // A thread whose reading of the clock is a little older must not find it fuller than full.
    converted = Record::WordOf(std::max(tat, algorithm::ToTicks(to.token_bucket, at.now_ns)));
  } else {
    Counts before;
    BucketState* state;
    if (Record::IsPlain(word)) {
      state = new BucketState(BucketState::FromTat(Record::TatOf(word)));
    } else {
      state = Record::StateOf(word);
      before = CountsOf(*state);
      if (state->HasDue(at.now_ns)) {
        // They are taken by the old rule.
        state->Fold(from, at, kConvertedAtOnce);
        Recount(*old_entry->rule, old_record->maker(), before, CountsOf(*state));
        if (state->HasDue(at.now_ns)) {
          old_record->Unlock(word);
          return nullptr;
        }
        before = CountsOf(*state);
      }
    }
    if (!algorithm::IsConcurrency(to)) FreeHoldsLater(state);
    state->Convert(from, to, at, /*moved_ns=*/0, kConvertedAtOnce);
    if (algorithm::IsConcurrency(to)) KeepSlotsClosed(from, rule, state);
    Recount(rule, old_record->maker(), before, CountsOf(*state));
    converted = Record::WordOf(state);
  }
  Record* const record =
      Place(shard_index, slot, hash, converted, rule, old_record->key(), old_record->maker());
  old_record->Unlock(Record::kDead);
  epochs_.Retire(kRecord, reinterpret_cast<uintptr_t>(old_record));
  old_entry->buckets.fetch_sub(1, std::memory_order_release);
  return record;
}

bool BucketIndex::DropIfFull(Shard& shard, uint64_t table, size_t index, int64_t now_ns,
                             size_t* folds) {
  std::atomic<uint64_t>* slots = SlotsOf(table);
  Record* record = RecordOf(slots[index].load(std::memory_order_relaxed));
  RuleRegistry::Entry* entry = rules_.Find(record->rule_id());
  const algorithm::Parameters& parameters = entry->rule->parameters;

  uint64_t word = record->word();
  if (Record::IsPlain(word)) {
    const uint64_t now_ticks = algorithm::ToTicks(parameters.token_bucket, now_ns);
    if (!algorithm::IsFull(Record::TatOf(word), now_ticks)) return false;
    // Before the bucket is dropped: see NotBefore.
    const int64_t full_ns = algorithm::ToNsRoundedUp(parameters.token_bucket, Record::TatOf(word));
    RaiseNotBefore(shard, full_ns);
    if (!record->Swap(&word, Record::kDead)) return false;
  } else {
    if (!record->TryLock(&word)) return false;
    if (Record::IsPlain(word)) {
      record->Unlock(word);
      return false;
    }
    BucketState* state = Record::StateOf(word);
    const Moment at{now_ns, common::WallAtNs(clock_, now_ns)};
    const bool due = state->HasDue(now_ns);
    if (!due && !state->IsFull(parameters, at)) {
      record->Unlock(word);
      return false;
    }
    const Counts before = CountsOf(*state);
    const size_t bookings = state->bookings();
    const bool converting = state->converting();
    if (due) state->Fold(parameters, at, *folds);
    *folds -= converting ? *folds : bookings - state->bookings();
    const bool full = state->IsFull(parameters, at);
    Recount(*entry->rule, record->maker(), before, full ? Counts{} : CountsOf(*state));
    if (!full) {
      record->Unlock(word);
      return false;
    }
    RaiseNotBefore(shard, now_ns);
    record->Unlock(Record::kDead);
    FreeLater(state);
    delete state;
  }

  // No search passes over a slot whose next one is empty, so it and the tombstones before
  // it become empty too.
  const size_t capacity = CapacityOf(table);
  const size_t next = index + 1 == capacity ? 0 : index + 1;
  if (slots[next].load(std::memory_order_relaxed) == kEmpty) {
    slots[index].store(kEmpty, std::memory_order_release);
    --shard.used;
    for (size_t i = index;;) {
      i = i == 0 ? capacity - 1 : i - 1;
      if (slots[i].load(std::memory_order_relaxed) != kTombstone) break;
      slots[i].store(kEmpty, std::memory_order_release);
      --shard.used;
    }
  } else {
    slots[index].store(kTombstone, std::memory_order_release);
  }
  --shard.live;
  room_.Give(*entry->part, record->key().size(), record->maker());
  buckets_.fetch_sub(1, std::memory_order_relaxed);
  dropped_.fetch_add(1, std::memory_order_relaxed);
  epochs_.Retire(kRecord, reinterpret_cast<uintptr_t>(record));
  entry->buckets.fetch_sub(1, std::memory_order_release);
  return true;
}

bool BucketIndex::Move(size_t shard_index, std::atomic<uint64_t>* slot) {
  const uint64_t before = slot->load(std::memory_order_relaxed);
  Record* const old_record = RecordOf(before);
  uint64_t word;
  if (!old_record->TryLock(&word)) return false;
  RuleRegistry::Entry* const entry = rules_.Find(old_record->rule_id());
  // Of the hash a slot has the tag only.
  Place(shard_index, slot, TagOf(before), word, *entry->rule, old_record->key(),
        old_record->maker());
  old_record->Unlock(Record::kDead);
  epochs_.Retire(kRecord, reinterpret_cast<uintptr_t>(old_record));
  entry->buckets.fetch_sub(1, std::memory_order_release);
  return true;
}

bool BucketIndex::HasMemory(size_t shard_index, size_t key_bytes) {
  return max_bytes_ == 0 || slabs_.touched_bytes() < max_bytes_ + max_bytes_ / 4 ||
         slabs_.HasFree(shard_index, Record::Bytes(key_bytes));
}

size_t BucketIndex::Sweep(Shard& shard, size_t shard_index, size_t slots, int64_t now_ns,
                          size_t folds, bool vacates) {
  if (shard.live == 0) return 0;
  const uint64_t table = tables_[shard_index].load(std::memory_order_relaxed);
  const size_t capacity = CapacityOf(table);
  slots = std::min(slots, capacity);
  size_t index = shard.sweep_next < capacity ? shard.sweep_next : 0;
  const auto slot_at = [&](size_t at) {
    return SlotsOf(table)[at < capacity ? at : at - capacity].load(std::memory_order_relaxed);
  };
  const auto prefetch = [&](size_t at) { __builtin_prefetch(RecordOf(slot_at(at))); };
  const auto prefetch_state = [&](size_t at) {
    const uint64_t slot = slot_at(at);
    if (slot == kEmpty || slot == kTombstone) return;
    const uint64_t word = RecordOf(slot)->word();
    if (!Record::IsPlain(word)) __builtin_prefetch(Record::StateOf(word));
  };
  const size_t ahead = std::min(slots, kAhead);
  for (size_t i = 0; i < ahead; ++i) prefetch(index + i);
  size_t found = 0;
  for (size_t i = 0; i < slots; ++i) {
    if (i + ahead < slots) prefetch(index + ahead);
    if (i + ahead / 2 < slots) prefetch_state(index + ahead / 2);
    const uint64_t slot = slot_at(index);
    if (slot != kEmpty && slot != kTombstone) {
      if (DropIfFull(shard, table, index, now_ns, &folds) ||
          (vacates && slabs_.Vacates(RecordOf(slot)) &&
           Move(shard_index, SlotsOf(table) + index))) {
        ++found;
      }
    }
    if (++index == capacity) index = 0;
  }
  shard.sweep_next = static_cast<uint32_t>(index);
  return found;
}

size_t BucketIndex::CapacityFor(size_t live) {
  // 8, 16, 24, 32, 48, 64, 96, ...: powers of two and what lies halfway between, so that a table
  // is on average 2/3 full.
  for (size_t capacity = kMinCapacity;; capacity *= 2) {
    if (live * 4 <= capacity * 3) return capacity;
    const size_t between = capacity / 2 * 3;
    if (capacity > kMinCapacity && live * 4 <= between * 3) return between;
  }
}

void BucketIndex::Resize(Shard& shard, size_t shard_index, size_t capacity) {
  const uint64_t old_table = tables_[shard_index].load(std::memory_order_relaxed);
  const size_t old_capacity = CapacityOf(old_table);
  std::atomic<uint64_t>* old_slots = SlotsOf(old_table);
  std::atomic<uint64_t>* slots = no_slots_;
  if (capacity > 0) {
    slots = AllocateSlots(shard_index, capacity);
  } else {
    capacity = kMinCapacity;
  }
  for (size_t i = 0; i < old_capacity; ++i) {
    if (i + kAhead < old_capacity) {
      __builtin_prefetch(RecordOf(old_slots[i + kAhead].load(std::memory_order_relaxed)));
    }
    const uint64_t slot = old_slots[i].load(std::memory_order_relaxed);
    if (slot == kEmpty || slot == kTombstone) continue;
    const Record* record = RecordOf(slot);
    const uint64_t hash = Hash(*rules_.Find(record->rule_id())->rule, record->key());
    size_t at = StartOf(hash, capacity);
    while (slots[at].load(std::memory_order_relaxed) != kEmpty) {
      if (++at == capacity) at = 0;
    }
    slots[at].store(slot, std::memory_order_relaxed);
  }
  shard.used = shard.live;
  shard.sweep_next = 0;
  // Releases the slots' contents.
  tables_[shard_index].store(TableOf(slots, capacity), std::memory_order_release);
  if (old_slots != no_slots_) epochs_.Retire(kTable, old_table);
}

void BucketIndex::ShrinkIfMostlyEmpty(Shard& shard, size_t shard_index) {
  const uint64_t table = tables_[shard_index].load(std::memory_order_relaxed);
  if (SlotsOf(table) == no_slots_) return;
  if (shard.live == 0) {
    Resize(shard, shard_index, 0);
  } else if (CapacityOf(table) > kMinCapacity && shard.live * 4 < CapacityOf(table)) {
    Resize(shard, shard_index, CapacityFor(shard.live * 2));
  }
}

void BucketIndex::FreeLater(BucketState* state) {
  if (state->MemoryBytes() <= kFreedAtOnce) return;
  common::MutexLock lock(&to_free_mu_);
  to_free_.push_back(std::move(*state));
}

bool BucketIndex::Maintain() {
  common::MutexLock lock(&maintain_mu_);
  const int64_t now_ns = clock_.NowNs();
  const bool vacates = max_bytes_ != 0 && slabs_.touched_bytes() > max_bytes_ / 2;
  bool found = false;
  for (size_t looked = 0; looked < kSweepPerMaintain;) {
    Shard& shard = shards_[maintain_shard_];
    const uint64_t table = tables_[maintain_shard_].load(std::memory_order_acquire);
    // Once through the shard, a part under each lock.
    size_t left = SlotsOf(table) == no_slots_ ? 0 : CapacityOf(table);
    looked += left;
    while (left > 0) {
      const size_t step = std::min(left, kSweepPerLock);
      common::MutexLock shard_lock(&shard.mu);
      found |= Sweep(shard, maintain_shard_, step, now_ns, kFoldsPerMaintain, vacates) > 0;
      left -= step;
      if (left == 0) ShrinkIfMostlyEmpty(shard, maintain_shard_);
    }
    round_found_ |= found;
    if (++maintain_shard_ == kShards) {
      maintain_shard_ = 0;
      if (!round_found_ || vacates) slabs_.Trim();
      if (!round_found_) table_slabs_.Trim();
      found |= round_found_;
      round_found_ = false;
      break;
    }
  }
  std::vector<BucketState> to_free;
  {
    common::MutexLock to_free_lock(&to_free_mu_);
    to_free.swap(to_free_);
  }
  rules_.Collect(kCollectPerMaintain);
  room_.Refresh();
  found |= slabs_.Collapse();
  found |= extents_.Collapse();
  return epochs_.Reclaim(kReclaimPerMaintain) > 0 || found || round_found_;
}

uint64_t BucketIndex::memory_bytes() const {
  return slabs_.memory_bytes() + table_slabs_.memory_bytes() + extents_.memory_bytes() +
         state_bytes_.load(std::memory_order_relaxed) +
         kShards * (sizeof(Shard) + sizeof(uint64_t)) + rules_.memory_bytes() +
         epochs_.pending() * 24 + sizeof(*this);
}

}  // namespace sluice::store::memory
