#include "server/store/memory/memory_store.h"

#include <algorithm>
#include <random>

#include "absl/base/internal/raw_logging.h"
#include "server/algorithm/bucket_state.h"
#include "server/algorithm/calendar/calendar.h"
#include "server/algorithm/token_bucket.h"
#include "server/store/memory/view.h"

namespace sluice::store {

using algorithm::BucketState;
using algorithm::Kind;
using algorithm::kNeverNs;
using algorithm::Moment;
using memory::BucketIndex;
using memory::EpochGuard;
using memory::Record;

namespace {

// Acquisitions of a batch that are hashed and fetched together: enough that their cache misses
// overlap, few enough that what was fetched is still there when it is used.
constexpr size_t kGroup = 32;

uint64_t SeedOf(uint64_t seed) {
  if (seed != 0) return seed;
  std::random_device random;
  return uint64_t{random()} << 32 | random();
}

}  // namespace

MemoryStore::MemoryStore(const common::Clock& clock, const MemoryStoreOptions& options)
    : clock_(clock),
      overflow_(options.overflow),
      max_buckets_(options.max_buckets),
      index_(clock, options.max_buckets, SeedOf(options.seed)) {}

MemoryStore::~MemoryStore() = default;

void MemoryStore::Register(std::shared_ptr<const Rule> rule) {
  index_.rules().Add(std::move(rule));
}

void MemoryStore::Acquire(AcquireOperation* operation) {
  const absl::Span<Acquisition> acquisitions = operation->acquisitions;
  if (acquisitions.size() == 1 && acquisitions[0].charges.size() == 1) {
    Acquisition& acquisition = acquisitions[0];
    const Charge& charge = acquisition.charges[0];
    const uint64_t hash = index_.Hash(*charge.rule, charge.key);
    // On its way while the clock is read.
    index_.PrefetchSlot(hash);
    const int64_t now_ns = clock_.NowNs();
    EpochGuard guard(index_.epochs());
    if (now_ns > operation->deadline_ns) {
      acquisition.outcome = Outcome::kDeadlineExceeded;
      acquisition.now_ns = now_ns;
    } else if (IsSimple(acquisition)) {
      AcquireSimple(acquisition, hash, now_ns);
    } else {
      AcquireLocked(acquisition, now_ns);
    }
  } else {
    const int64_t now_ns = clock_.NowNs();
    if (now_ns > operation->deadline_ns) {
      for (Acquisition& acquisition : acquisitions) {
        acquisition.outcome = Outcome::kDeadlineExceeded;
        acquisition.now_ns = now_ns;
      }
    } else {
      EpochGuard guard(index_.epochs());
      AcquireBatch(acquisitions, now_ns);
    }
  }
  // Outside of the guard: Done may start the next operation.
  operation->Done();
}

inline bool MemoryStore::Commit(Record* record, uint64_t word, uint64_t new_word) {
  // A denial changes nothing; it holds if the word is still the one it was decided by.
  if (new_word == word) return record->word() == word;
  return record->Swap(&word, new_word);
}

// In three passes over each group, so that the cache misses of all overlap, and what the processor
// has to do for one decision overlaps with the others': a compare-and-swap lets nothing behind it
// begin. The third pass decides by what the second saw; where a word has changed since, by another
// thread or by one before it in this batch, it decides anew. So the order is kept.
void MemoryStore::AcquireBatch(absl::Span<Acquisition> acquisitions, int64_t now_ns) {
  uint64_t hashes[kGroup];
  Record* candidates[kGroup];
  uint64_t words[kGroup];
  uint64_t new_words[kGroup];
  while (!acquisitions.empty()) {
    const size_t n = std::min(kGroup, acquisitions.size());
    for (size_t i = 0; i < n; ++i) {
      const Charge& charge = acquisitions[i].charges[0];
      hashes[i] = index_.Hash(*charge.rule, charge.key);
      index_.PrefetchSlot(hashes[i]);
    }
    for (size_t i = 0; i < n; ++i) {
      candidates[i] = index_.Candidate(hashes[i]);
      if (candidates[i] == nullptr) continue;
      // Both ends: one of four lies in two lines of the cache.
      const char* const begin = reinterpret_cast<const char*>(candidates[i]);
      __builtin_prefetch(begin, 1);
      __builtin_prefetch(begin + Record::Bytes(acquisitions[i].charges[0].key.size()) - 1);
    }
    for (size_t i = 0; i < n; ++i) {
      Record*& record = candidates[i];
      if (record == nullptr) continue;
      const Charge& charge = acquisitions[i].charges[0];
      words[i] = record->word();
      if (!IsSimple(acquisitions[i]) || record->rule_id() != charge.rule->id ||
          !record->HasKey(charge.key) || !Record::IsPlain(words[i]) ||
          !Try(acquisitions[i], words[i], now_ns, &new_words[i])) {
        record = nullptr;
      }
    }
    for (size_t i = 0; i < n; ++i) {
      if (candidates[i] != nullptr && Commit(candidates[i], words[i], new_words[i])) continue;
      if (IsSimple(acquisitions[i])) {
        AcquireSimple(acquisitions[i], hashes[i], now_ns);
      } else {
        AcquireLocked(acquisitions[i], now_ns);
      }
    }
    acquisitions.remove_prefix(n);
  }
}

bool MemoryStore::IsSimple(const Acquisition& acquisition) {
  return acquisition.charges.size() == 1 && !acquisition.want_receipt &&
         acquisition.charges[0].rule->parameters.kind == Kind::kTokenBucket;
}

bool MemoryStore::Try(Acquisition& acquisition, uint64_t word, int64_t now_ns, uint64_t* new_word) {
  const Charge& charge = acquisition.charges[0];
  const Rule& rule = *charge.rule;
  const algorithm::TokenBucket& parameters = rule.parameters.token_bucket;
  uint64_t tat = word;
  const bool taken =
      algorithm::TryTake(parameters, charge.permits, algorithm::ToTicks(parameters, now_ns), &tat);
  *new_word = tat;
  ChargeResult& result = *acquisition.results;
  result.level = ToBucketLevel(algorithm::LevelAt(parameters, tat, now_ns));
  result.reason = Reason::kNone;
  acquisition.outcome = Outcome::kGranted;
  acquisition.source = Source::kStore;
  acquisition.wait_ns = 0;
  acquisition.retry_after_ns = 0;
  acquisition.now_ns = now_ns;
  acquisition.receipt_id = 0;
  if (!taken) {
    if (rule.shadow) {
      result.reason = Reason::kShadowDenied;
    } else {
      const int64_t wait_ns =
          WaitUntil(algorithm::EarliestNs(parameters, charge.permits, word, now_ns), now_ns);
      if (wait_ns <= acquisition.max_wait_ns) return false;
      result.reason = Reason::kNotEnough;
      acquisition.outcome = Outcome::kDenied;
      acquisition.retry_after_ns = wait_ns - acquisition.max_wait_ns;
    }
  }
  return true;
}

void MemoryStore::AcquireSimple(Acquisition& acquisition, uint64_t hash, int64_t now_ns) {
  const Charge& charge = acquisition.charges[0];
  Record* record = index_.Find(hash, *charge.rule, charge.key);
  if (record != nullptr) {
    for (uint64_t word = record->word(); Record::IsPlain(word);) {
      uint64_t new_word;
      if (!Try(acquisition, word, now_ns, &new_word)) break;
      if (new_word == word || record->Swap(&word, new_word)) return;
    }
  }
  // There is none, or it is not plain, or is to be reserved in.
  AcquireLocked(acquisition, now_ns);
}

void MemoryStore::AcquireLocked(Acquisition& acquisition, int64_t now_ns) {
  Held held_array[common::bounds::kMaxCharges];
  ABSL_RAW_CHECK(acquisition.charges.size() <= common::bounds::kMaxCharges, "too many charges");
  const absl::Span<Held> held = absl::MakeSpan(held_array, acquisition.charges.size());
  for (size_t i = 0; i < held.size(); ++i) {
    held[i].rule = acquisition.charges[i].rule;
    held[i].key = acquisition.charges[i].key;
    held[i].hash = index_.Hash(*held[i].rule, held[i].key);
    index_.PrefetchSlot(held[i].hash);
  }
  if (held.size() > 1) {
    for (const Held& h : held) __builtin_prefetch(index_.Candidate(h.hash), 1);
  }
  acquisition.source = Source::kStore;
  acquisition.wait_ns = 0;
  acquisition.retry_after_ns = 0;
  acquisition.receipt_id = 0;
  acquisition.now_ns = now_ns;
  if (!LockAll(held, now_ns)) {
    acquisition.outcome = Outcome::kStaleRule;
    return;
  }
  Decide(acquisition, held, now_ns);
  for (const Held& h : held) {
    if (h.record != nullptr) h.record->Unlock(h.word);
  }
}

bool MemoryStore::LockAll(absl::Span<Held> held, std::optional<int64_t> create_at_ns) {
  Held* order[common::bounds::kMaxCharges];
  return LockAll(held, create_at_ns, order);
}

bool MemoryStore::LockAll(absl::Span<Held> held, std::optional<int64_t> create_at_ns,
                          Held** order) {
  // To make one bucket may drop another of the same acquisition, which is still full: where the two
  // share a small table, each in its turn, for ever.
  constexpr int kSweepingAttempts = 4;
  for (int attempt = 0;; ++attempt) {
    const auto may_sweep =
        attempt < kSweepingAttempts ? BucketIndex::MaySweep::kYes : BucketIndex::MaySweep::kNo;
    for (size_t i = 0; i < held.size(); ++i) {
      Held& h = held[i];
      order[i] = &h;
      h.record = index_.Find(h.hash, *h.rule, h.key);
      if (h.record != nullptr) continue;
      const BucketIndex::Lookup lookup =
          create_at_ns.has_value()
              ? index_.FindOrCreate(h.hash, *h.rule, h.key, *create_at_ns, may_sweep)
              : index_.FindExisting(h.hash, *h.rule, h.key);
      if (lookup.status == BucketIndex::Status::kStaleRule) return false;
      h.record = lookup.record;
    }
    // All threads lock in the order of addresses, so nobody waits for one who waits for him.
    std::sort(order, order + held.size(),
              [](const Held* a, const Held* b) { return a->record < b->record; });
    size_t locked = 0;
    for (; locked < held.size(); ++locked) {
      Held& h = *order[locked];
      if (h.record == nullptr) continue;
      ABSL_RAW_CHECK(locked == 0 || h.record != order[locked - 1]->record,
                     "two charges of an acquisition on one bucket");
      if (!h.record->Lock(&h.word, index_.lock_yields())) break;
    }
    if (locked == held.size()) return true;
    // One was dropped or converted meanwhile.
    for (size_t i = 0; i < locked; ++i) {
      if (order[i]->record != nullptr) order[i]->record->Unlock(order[i]->word);
    }
  }
}

void MemoryStore::Decide(Acquisition& acquisition, absl::Span<Held> held, int64_t now_ns) {
  bool needs_wall = false;
  bool booked = false;
  for (const Held& h : held) {
    now_ns = std::max(now_ns, index_.NotBefore(h.hash));
    needs_wall |= h.rule->parameters.kind == Kind::kFixedWindow;
    if (h.record == nullptr) continue;
    if (const BucketState* state = View{h.rule->parameters, h.word}.Booked(); state != nullptr) {
      booked = true;
      now_ns = std::max(now_ns, state->NotBeforeNs());
    }
  }
  const Moment at{now_ns, needs_wall ? clock_.WallNs() : 0};
  for (const Held& h : held) {
    if (h.rule->parameters.kind != Kind::kTokenBucket) index_.SetNotBefore(h.hash, now_ns);
  }
  acquisition.now_ns = now_ns;
  uint64_t set = 0;
  if (booked || acquisition.max_wait_ns > 0) {
    for (Held& h : held) {
      set += h.hash;  // whatever their order
      if (booked && h.record != nullptr) Fold(h, at);
    }
  }

  bool granted = true;
  bool room = true;
  bool shadow_fits[common::bounds::kMaxCharges] = {};
  for (size_t i = 0; i < held.size(); ++i) {
    const Charge& charge = acquisition.charges[i];
    const Rule& rule = *charge.rule;
    ChargeResult& result = acquisition.results[i];
    result.reason = Reason::kNone;
    if (held[i].record == nullptr) {
      if (overflow_ == OverflowPolicy::kAllow) {
        overflow_allowed_.fetch_add(1, std::memory_order_relaxed);
        acquisition.source = Source::kOverflow;
        continue;
      }
      overflow_denied_.fetch_add(1, std::memory_order_relaxed);
      if (rule.shadow) {
        result.reason = Reason::kShadowDenied;
        continue;
      }
      result.reason = Reason::kOverflow;
      acquisition.source = Source::kOverflow;
      acquisition.retry_after_ns = std::max(acquisition.retry_after_ns, kOverflowRetryNs);
      granted = false;
      room = false;
      continue;
    }
    const View view{rule.parameters, held[i].word};
    const bool fits = view.CanTake(charge.permits, at, set);
    if (rule.shadow) {
      shadow_fits[i] = fits;
      if (!fits) result.reason = Reason::kShadowDenied;
    } else if (!fits) {
      result.reason = Reason::kNotEnough;
      granted = false;
    }
  }
  const bool reserved = !granted && room && Reserve(acquisition, held, at, set);
  acquisition.outcome = granted || reserved ? Outcome::kGranted : Outcome::kDenied;
  if (granted && acquisition.want_receipt) {
    acquisition.receipt_id = next_receipt_.fetch_add(1, std::memory_order_relaxed);
  }
  for (size_t i = 0; i < held.size(); ++i) {
    const Charge& charge = acquisition.charges[i];
    const algorithm::Parameters& parameters = charge.rule->parameters;
    Held& h = held[i];
    if (h.record == nullptr) {
      acquisition.results[i].level = FullLevel(parameters, at);
      continue;
    }
    if (granted && (!charge.rule->shadow || shadow_fits[i])) {
      Take(h, charge, at, acquisition.receipt_id, set);
    }
    acquisition.results[i].level = View{parameters, h.word}.Level(at);
    h.word = Collapse(*charge.rule, h.word, at);
  }
}

bool MemoryStore::Reserve(Acquisition& acquisition, absl::Span<Held> held, Moment at,
                          uint64_t set) {
  // The enforced charges, which alone decide.
  size_t enforced[common::bounds::kMaxCharges];
  size_t n = 0;
  int64_t after_all_ns = at.now_ns;
  for (size_t i = 0; i < held.size(); ++i) {
    if (held[i].record == nullptr || held[i].rule->shadow) continue;
    enforced[n++] = i;
    const BucketState* state = View{held[i].rule->parameters, held[i].word}.Booked();
    if (state != nullptr) after_all_ns = std::max(after_all_ns, state->LastGrantTimeNs());
  }
  const auto earliest = [&](size_t i, int64_t from_ns) {
    return View{held[i].rule->parameters, held[i].word}.EarliestNs(acquisition.charges[i].permits,
                                                                   at, set, from_ns);
  };
  const int64_t grant_time_ns = algorithm::JointGrantTimeNs(
      n, at.now_ns, after_all_ns,
      [&](size_t e, int64_t from_ns) { return earliest(enforced[e], from_ns); });
  const int64_t wait_ns = WaitUntil(grant_time_ns, at.now_ns);
  if (wait_ns > acquisition.max_wait_ns) {
    acquisition.retry_after_ns =
        grant_time_ns == kNeverNs ? kNeverNs : wait_ns - acquisition.max_wait_ns;
    if (acquisition.max_wait_ns == 0) return false;
    // To blame are those that alone would be too late, if there are such.
    const int64_t until_ns = at.now_ns + acquisition.max_wait_ns;
    bool late[common::bounds::kMaxCharges] = {};
    bool any = false;
    for (size_t e = 0; e < n; ++e) any |= late[e] = earliest(enforced[e], at.now_ns) > until_ns;
    for (size_t e = 0; e < n && any; ++e) {
      acquisition.results[enforced[e]].reason = late[e] ? Reason::kNotEnough : Reason::kNone;
    }
    return false;
  }

  bool bounded = false;
  for (size_t e = 0; e < n; ++e) {
    const Held& h = held[enforced[e]];
    const BucketState* state = View{h.rule->parameters, h.word}.Booked();
    const bool full =
        (state != nullptr && state->bookings() >= common::bounds::kMaxBookingsPerBucket) ||
        index_.bookings_of_limit(*h.rule) >= common::bounds::kMaxBookingsPerLimit ||
        index_.bookings() >= common::bounds::kMaxBookings;
    acquisition.results[enforced[e]].reason = full ? Reason::kWaitingBound : Reason::kNone;
    if (!full) continue;
    bounded = true;
    // There is room when the next one's moment has come; nobody knows of the other bounds'.
    const int64_t next_ns = state != nullptr ? state->NextGrantTimeNs() - at.now_ns : 0;
    acquisition.retry_after_ns =
        std::max(acquisition.retry_after_ns, next_ns > 0 ? next_ns : kOverflowRetryNs);
  }
  if (bounded) return false;

  acquisition.wait_ns = wait_ns;
  acquisition.receipt_id = next_receipt_.fetch_add(1, std::memory_order_relaxed);
  for (size_t i = 0; i < held.size(); ++i) {
    Held& h = held[i];
    if (h.record == nullptr) continue;
    acquisition.results[i].reason = Reason::kNone;
    if (h.rule->shadow && earliest(i, grant_time_ns) != grant_time_ns) {
      acquisition.results[i].reason = Reason::kShadowDenied;
      continue;
    }
    BucketState* const state = StateOf(h);
    index_.CountState(*state, *h.rule, -1);
    state->Book(h.rule->parameters,
                {grant_time_ns, acquisition.charges[i].permits, acquisition.receipt_id, set}, at);
    index_.CountState(*state, *h.rule, +1);
  }
  return true;
}

void MemoryStore::Fold(Held& held, Moment at) {
  BucketState* const state = View{held.rule->parameters, held.word}.Booked();
  if (state == nullptr) return;
  index_.CountState(*state, *held.rule, -1);
  const size_t closed = state->Fold(held.rule->parameters, at);
  index_.CountState(*state, *held.rule, +1);
  if (closed != 0) receipts_evicted_.fetch_add(closed, std::memory_order_relaxed);
}

BucketState* MemoryStore::StateOf(Held& held) {
  if (Record::IsPlain(held.word)) {
    auto* state = new BucketState(BucketState::FromTat(held.word));
    index_.CountState(*state, *held.rule, +1);
    held.word = Record::WordOf(state);
  }
  return Record::StateOf(held.word);
}

void MemoryStore::Take(Held& held, const Charge& charge, Moment at, uint64_t receipt_id,
                       uint64_t set) {
  const algorithm::Parameters& parameters = charge.rule->parameters;
  if (Record::IsPlain(held.word) && receipt_id == 0) {
    algorithm::TryTake(parameters.token_bucket, charge.permits,
                       algorithm::ToTicks(parameters.token_bucket, at.now_ns), &held.word);
    return;
  }
  BucketState* state = StateOf(held);
  index_.CountState(*state, *held.rule, -1);
  bool evicted = false;
  state->TryTake(parameters, charge.permits, at, receipt_id, &evicted, set);
  index_.CountState(*state, *held.rule, +1);
  if (evicted) receipts_evicted_.fetch_add(1, std::memory_order_relaxed);
}

uint64_t MemoryStore::Collapse(const Rule& rule, uint64_t word, Moment at) {
  if (Record::IsPlain(word)) return word;
  BucketState* state = Record::StateOf(word);
  if (state->kind() != Kind::kTokenBucket || state->bookings() != 0) return word;
  index_.CountState(*state, rule, -1);
  state->CloseWorthless(rule.parameters, at);
  if (!state->IsPlainTokenBucket()) {
    index_.CountState(*state, rule, +1);
    return word;
  }
  const uint64_t tat = state->tat();
  delete state;
  return tat;
}

void MemoryStore::Query(QueryOperation* operation) {
  const int64_t now_ns = clock_.NowNs();
  {
    EpochGuard guard(index_.epochs());
    for (QueryItem& item : operation->items) QueryOne(item, now_ns);
  }
  operation->Done();
}

void MemoryStore::QueryOne(QueryItem& item, int64_t now_ns) {
  item.source = Source::kStore;
  item.unavailable = false;
  item.waiting = 0;
  item.next_grant_after_ns = 0;
  const uint64_t hash = index_.Hash(*item.rule, item.key);
  for (;;) {
    const Rule* rule = item.rule;
    Record* record = index_.Find(hash, *rule, item.key);
    if (record == nullptr) {
      const BucketIndex::Lookup lookup = index_.FindExisting(hash, *rule, item.key);
      record = lookup.record;
      // The limits changed since the caller looked; the newer parameters are the ones that hold.
      if (lookup.status == BucketIndex::Status::kStaleRule) {
        const memory::RuleRegistry::Entry* entry = index_.rules().Find(record->rule_id());
        if (entry == nullptr) continue;
        rule = entry->rule.get();
      }
    }
    now_ns = std::max(now_ns, index_.NotBefore(hash));
    const Moment at{now_ns,
                    rule->parameters.kind == Kind::kFixedWindow ? clock_.WallNs() : int64_t{0}};
    item.exists = record != nullptr;
    if (record == nullptr) {
      item.level = FullLevel(rule->parameters, at);
      return;
    }
    uint64_t word = record->word();
    if (Record::IsPlain(word)) {
      item.level = View{rule->parameters, word}.Level(at);
      return;
    }
    if (!record->Lock(&word, index_.lock_yields())) continue;
    Held held;
    held.rule = rule;
    held.word = word;
    Fold(held, at);
    const View view{rule->parameters, held.word};
    item.level = view.Level(at);
    if (const BucketState* state = view.Booked(); state != nullptr) {
      item.waiting = state->bookings();
      item.next_grant_after_ns = std::max<int64_t>(state->NextGrantTimeNs() - at.now_ns, 0);
    }
    record->Unlock(held.word);
    return;
  }
}

void MemoryStore::Refund(RefundOperation* operation) {
  const absl::Span<const Charge> charges = operation->charges;
  ABSL_RAW_CHECK(charges.size() <= common::bounds::kMaxCharges, "too many charges");
  std::fill_n(operation->refunded, charges.size(), uint64_t{0});
  operation->outcome = RefundOutcome::kExpired;
  {
    EpochGuard guard(index_.epochs());
    Held held_array[common::bounds::kMaxCharges];
    const absl::Span<Held> held = absl::MakeSpan(held_array, charges.size());
    for (size_t i = 0; i < held.size(); ++i) {
      held[i].rule = charges[i].rule;
      held[i].key = charges[i].key;
      held[i].hash = index_.Hash(*charges[i].rule, charges[i].key);
    }
    if (!LockAll(held, std::nullopt)) {
      operation->outcome = RefundOutcome::kStaleRule;
    } else {
      int64_t now_ns = clock_.NowNs();
      for (const Held& h : held) {
        now_ns = std::max(now_ns, index_.NotBefore(h.hash));
        if (h.record == nullptr) continue;
        const BucketState* state = View{h.rule->parameters, h.word}.Booked();
        if (state != nullptr) now_ns = std::max(now_ns, state->NotBeforeNs());
      }
      const Moment at{now_ns, clock_.WallNs()};
      bool open = false;
      for (size_t i = 0; i < held.size(); ++i) {
        Held& h = held[i];
        if (h.record == nullptr || Record::IsPlain(h.word)) continue;
        const algorithm::Parameters& parameters = h.rule->parameters;
        Fold(h, at);
        BucketState* state = Record::StateOf(h.word);
        index_.CountState(*state, *h.rule, -1);
        // The same moment in all buckets, so it has come in all or in none.
        if (operation->grant_time_ns > at.now_ns) {
          if (state->CancelBooking(parameters, operation->grant_time_ns, operation->receipt_id)) {
            open = true;
            operation->refunded[i] = charges[i].permits;
          }
        } else if (const std::optional<uint64_t> given =
                       state->Refund(parameters, operation->receipt_id, at);
                   given.has_value()) {
          open = true;
          operation->refunded[i] = *given;
        }
        index_.CountState(*state, *h.rule, +1);
        h.word = Collapse(*h.rule, h.word, at);
      }
      // Before the buckets are let go, so that a second refund of the same receipt, which finds it
      // closed, finds it here.
      if (open) {
        used_receipts_.Add(operation->receipt_id);
        operation->outcome = RefundOutcome::kRefunded;
      }
      for (const Held& h : held) {
        if (h.record != nullptr) h.record->Unlock(h.word);
      }
      if (!open && used_receipts_.Contains(operation->receipt_id)) {
        operation->outcome = RefundOutcome::kAlreadyRefunded;
      }
    }
  }
  operation->Done();
}

void MemoryStore::Reset(const Rule& rule, std::string_view key, ResetDone done, void* context) {
  bool existed = false;
  {
    EpochGuard guard(index_.epochs());
    const uint64_t hash = index_.Hash(rule, key);
    for (;;) {
      const BucketIndex::Lookup lookup = index_.FindExisting(hash, rule, key);
      existed = lookup.record != nullptr;
      if (!existed) break;
      uint64_t word;
      if (!lookup.record->Lock(&word, index_.lock_yields())) continue;
      const memory::RuleRegistry::Entry* entry = index_.rules().Find(lookup.record->rule_id());
      const algorithm::Parameters& parameters = entry->rule->parameters;
      const int64_t now_ns = std::max(clock_.NowNs(), index_.NotBefore(hash));
      const Moment at{now_ns, clock_.WallNs()};
      if (Record::IsPlain(word)) {
        word = algorithm::ToTicks(parameters.token_bucket, now_ns);
      } else {
        BucketState* state = Record::StateOf(word);
        index_.CountState(*state, *entry->rule, -1);
        state->Reset(parameters, at);
        index_.CountState(*state, *entry->rule, +1);
        word = Collapse(*entry->rule, word, at);
      }
      lookup.record->Unlock(word);
      break;
    }
  }
  done(context, existed ? ResetOutcome::kReset : ResetOutcome::kNotInUse);
}

StoreStats MemoryStore::Stats() const {
  StoreStats stats;
  stats.buckets = index_.buckets();
  stats.max_buckets = max_buckets_;
  stats.memory_bytes = index_.memory_bytes() + used_receipts_.memory_bytes();
  stats.created = index_.created();
  stats.dropped = index_.dropped();
  stats.overflow_allowed = overflow_allowed_.load(std::memory_order_relaxed);
  stats.overflow_denied = overflow_denied_.load(std::memory_order_relaxed);
  stats.open_receipts = index_.open_receipts();
  stats.receipts_evicted = receipts_evicted_.load(std::memory_order_relaxed);
  stats.bookings = index_.bookings();
  stats.lock_yields = index_.lock_yields()->load(std::memory_order_relaxed);
  return stats;
}

}  // namespace sluice::store
