#include "server/store/memory/memory_store.h"

#include <algorithm>
#include <limits>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/base/internal/raw_logging.h"
#include "absl/base/optimization.h"
#include "absl/container/flat_hash_map.h"
#include "common/random.h"
#include "server/algorithm/token_bucket.h"
#include "server/store/decide.h"
#include "server/store/rebook.h"
#include "server/store/repeat.h"
#include "server/store/settle.h"

namespace sluice::store {

using algorithm::Kind;
using algorithm::Moment;
using memory::BucketIndex;
using memory::EpochGuard;
using memory::LockedBucket;
using memory::Record;

namespace {

// Acquisitions of a batch that are hashed and fetched together: enough that their cache misses
// overlap, few enough that what was fetched is still there when it is used.
constexpr size_t kGroup = 32;

// Bookings that are folded under one lock, about 100 us; and the steps (SearchBudget) that one
// takes.
constexpr size_t kFoldsAtOnce = 1024;
constexpr size_t kFoldSteps = 20;

// What a refused bucket takes, in steps: it was looked for, and its error has a text.
constexpr size_t kRefusalSteps = 150;

// Bookings of a bucket for which a refund counts a step.
constexpr size_t kBookingsPerRefundStep = 16;

}  // namespace

MemoryStore::MemoryStore(const common::Clock& clock, const MemoryStoreOptions& options)
    : clock_(clock),
      overflow_(options.overflow),
      max_buckets_(options.max_buckets),
      max_bytes_(options.max_bytes),
      seed_(options.seed != 0 ? options.seed : common::RandomWord()),
      index_(clock, options.max_buckets, options.max_bytes, seed_, options.empty_since,
             options.closed_slots),
      remembered_(seed_) {}

void MemoryStore::Register(std::shared_ptr<const Rule> rule) {
  index_.rules().Add(std::move(rule));
}

void MemoryStore::Acquire(AcquireOperation* operation) {
  const absl::Span<Acquisition> acquisitions = operation->acquisitions;
  const bool single = acquisitions.size() == 1 && acquisitions[0].charges.size() == 1;
  uint64_t hash = 0;
  if (single) {
    hash = index_.Hash(*acquisitions[0].charges[0].rule, acquisitions[0].charges[0].key);
    // On its way while the clock is read.
    index_.PrefetchSlot(hash);
  }
  const int64_t now_ns = clock_.NowNs();
  if (now_ns > operation->deadline_ns) {
    for (Acquisition& acquisition : acquisitions) {
      acquisition.outcome = Outcome::kDeadlineExceeded;
      acquisition.now_ns = now_ns;
    }
  } else {
    SearchBudget own;
    SearchBudget* const budget =
        operation->search_budget != nullptr ? operation->search_budget : &own;
    Work work(budget, operation->most_work);
    work.maker = operation->maker;
    EpochGuard guard(index_.epochs());
    if (single) {
      operation->undecided = AcquireOne(acquisitions[0], hash, now_ns, work) ? 0 : 1;
    } else {
      operation->undecided = AcquireBatch(acquisitions, now_ns, work);
    }
    operation->work = work.taken();
  }
  // Outside of the guard: Done may start the next operation.
  operation->Done();
}

inline bool MemoryStore::Commit(Record* record, uint64_t word, uint64_t new_word) {
  // A denial changes nothing; it holds if the word is still the one it was decided by.
  if (new_word == word) return record->word() == word;
  return record->Swap(&word, new_word);
}

// Three passes over each group. The first two fetch slots and records, so that the cache misses of
// the group overlap. The third decides, without writing, so that the computations overlap too: a
// compare-and-swap lets nothing after it start early. The last loop commits in order. If a word has
// changed since it was read, by another thread or by an earlier acquisition of this batch, the
// acquisition is decided again from scratch.
size_t MemoryStore::AcquireBatch(absl::Span<Acquisition> acquisitions, int64_t now_ns, Work work) {
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
      // Both ends: one record in four is in two cache lines.
      const char* const begin = reinterpret_cast<const char*>(candidates[i]);
      __builtin_prefetch(begin, 1);
      __builtin_prefetch(begin + Record::Bytes(acquisitions[i].charges[0].key.size()) - 1);
    }
    for (size_t i = 0; i < n; ++i) {
      Record*& record = candidates[i];
      if (record == nullptr) continue;
      const Charge& charge = acquisitions[i].charges[0];
      words[i] = record->word();
      if (!IsSimple(acquisitions[i]) || acquisitions[i].once != nullptr ||
          record->rule_id() != charge.rule->id || !record->HasKey(charge.key) ||
          !Record::IsPlain(words[i]) || !Try(acquisitions[i], words[i], now_ns, &new_words[i])) {
        record = nullptr;
      }
    }
    for (size_t i = 0; i < n; ++i) {
      if (candidates[i] != nullptr && Commit(candidates[i], words[i], new_words[i])) continue;
      if (work.done() || !AcquireOne(acquisitions[i], hashes[i], now_ns, work)) {
        return acquisitions.size() - i;
      }
    }
    acquisitions.remove_prefix(n);
  }
  return 0;
}

bool MemoryStore::IsSimple(const Acquisition& acquisition) {
  return acquisition.charges.size() == 1 && !acquisition.want_receipt &&
         acquisition.debit == Debit::kIfAllowed &&
         acquisition.charges[0].rule->parameters.kind == Kind::kTokenBucket;
}

bool MemoryStore::Try(Acquisition& acquisition, uint64_t word, int64_t now_ns, uint64_t* new_word) {
  const Charge& charge = acquisition.charges[0];
  const Rule& rule = *charge.rule;
  const algorithm::TokenBucket& parameters = rule.parameters.token_bucket;
  const uint64_t old_tat = Record::TatOf(word);
  uint64_t tat = old_tat;
  const bool taken =
      algorithm::TryTake(parameters, charge.permits, algorithm::ToTicks(parameters, now_ns), &tat);
  *new_word = Record::WordOf(tat);
  ChargeResult& result = *acquisition.results;
  result.level = algorithm::LevelAt(parameters, tat, now_ns);
  result.reason = Reason::kNone;
  result.forgiven = 0;
  acquisition.outcome = Outcome::kGranted;
  acquisition.source = Source::kStore;
  acquisition.wait_ns = 0;
  acquisition.retry_after_ns = 0;
  acquisition.now_ns = now_ns;
  acquisition.receipt_id = 0;
  if (taken) return true;
  if (rule.shadow) {
    result.reason = Reason::kShadowDenied;
    return true;
  }
  const int64_t earliest_ns = algorithm::EarliestNs(parameters, charge.permits, old_tat, now_ns);
  const int64_t wait_ns =
      earliest_ns == algorithm::kNeverNs ? earliest_ns : std::max<int64_t>(earliest_ns - now_ns, 0);
  if (wait_ns <= acquisition.max_wait_ns) return false;
  result.reason = Reason::kNotEnough;
  acquisition.outcome = Outcome::kDenied;
  acquisition.retry_after_ns = wait_ns - acquisition.max_wait_ns;
  return true;
}

inline bool MemoryStore::Decide(Acquisition& acquisition, uint64_t hash, int64_t now_ns,
                                Work work) {
  const Charge& charge = acquisition.charges[0];
  Record* const record =
      IsSimple(acquisition) ? index_.Find(hash, *charge.rule, charge.key) : nullptr;
  if (record != nullptr) {
    for (uint64_t word = record->word(); Record::IsPlain(word);) {
      uint64_t new_word;
      if (!Try(acquisition, word, now_ns, &new_word)) break;
      if (new_word == word || record->Swap(&word, new_word)) return true;
    }
  }
  // It is not simple, or there is no bucket, or its word is not plain, or permits are to be
  // reserved.
  return AcquireLocked(acquisition, now_ns, work);
}

bool MemoryStore::AcquireOne(Acquisition& acquisition, uint64_t hash, int64_t now_ns, Work work) {
  if (ABSL_PREDICT_FALSE(acquisition.once != nullptr)) {
    return AcquireOnce(acquisition, hash, now_ns, work);
  }
  return Decide(acquisition, hash, now_ns, work);
}

bool MemoryStore::AcquireOnce(Acquisition& acquisition, uint64_t hash, int64_t now_ns, Work work) {
  Once& once = *acquisition.once;
  once.repeated = false;
  bool decided = true;
  const std::optional<RememberedGrant> remembered =
      remembered_.FindOrDecide(once.id, now_ns, [&]() -> std::optional<RememberedGrant> {
        if (!once.may_remember) {
          acquisition.outcome = Outcome::kNotRemembered;
          acquisition.now_ns = now_ns;
          return std::nullopt;
        }
        decided = Decide(acquisition, hash, now_ns, work);
        if (!decided || acquisition.outcome != Outcome::kGranted) return std::nullopt;
        return GrantOf(acquisition);
      });
  return remembered.has_value() ? RepeatOne(acquisition, *remembered, now_ns, work) : decided;
}

bool MemoryStore::RepeatOne(Acquisition& acquisition, const RememberedGrant& grant, int64_t now_ns,
                            Work work) {
  bool held = true;
  for (size_t i = 0; i < acquisition.charges.size(); ++i) {
    const Charge& charge = acquisition.charges[i];
    QueryItem item{.rule = charge.rule,
                   .key = charge.key,
                   .with_refundable = false,
                   .hold_id = grant.receipt_id};
    if (!QueryOne(item, now_ns, work)) return false;
    acquisition.results[i] = {.level = item.level};
    if (!algorithm::IsConcurrency(charge.rule->parameters)) continue;
    held &= RepeatSlots(charge, grant, item.held_until_ns, now_ns, &acquisition.results[i]);
  }
  acquisition.outcome = Repeat(grant, now_ns, &acquisition);
  if (acquisition.outcome == Outcome::kGranted && !held) acquisition.outcome = Outcome::kEnded;
  return true;
}

bool MemoryStore::AcquireLocked(Acquisition& acquisition, int64_t now_ns, Work work) {
  Buckets buckets = BucketsOf(acquisition.charges);
  if (buckets.size() > 1) {
    for (const LockedBucket& bucket : buckets) {
      __builtin_prefetch(index_.Candidate(bucket.hash()), 1);
    }
  }
  int64_t at_ns = now_ns;
  const Opened opened = LockAndOpen(absl::MakeSpan(buckets), /*create=*/true, now_ns, work, &at_ns);
  switch (opened) {
    case Opened::kOpen:
      break;
    case Opened::kStaleRule:
      acquisition.outcome = Outcome::kStaleRule;
      acquisition.now_ns = now_ns;
      return true;
    case Opened::kHasDue:
      return false;
    case Opened::kTooManyNew:
    case Opened::kShareUsedUp:
      acquisition.outcome =
          opened == Opened::kTooManyNew ? Outcome::kTooManyNewBuckets : Outcome::kTableShareUsedUp;
      acquisition.now_ns = now_ns;
      work.budget->Note(kRefusalSteps);
      return true;
  }
  uint64_t set = 0;
  for (LockedBucket& bucket : buckets) {
    set += bucket.hash();  // whatever their order
    work.budget->Note(bucket.DecisionSteps());
    bucket.RefuseToGrow(acquisition.want_receipt, at_ns, work.maker);
    if (!bucket.missing()) continue;
    (overflow_ == OverflowPolicy::kAllow ? overflow_allowed_ : overflow_denied_)
        .fetch_add(1, std::memory_order_relaxed);
  }
  acquisition.outcome = store::Decide(
      &acquisition, absl::MakeSpan(buckets), at_ns, set,
      [this] { return next_receipt_.fetch_add(1, std::memory_order_relaxed); }, overflow_,
      work.budget);
  UnlockAll(absl::MakeSpan(buckets), at_ns);
  return true;
}

MemoryStore::Buckets MemoryStore::BucketsOf(absl::Span<const Charge> charges) {
  ABSL_RAW_CHECK(charges.size() <= common::bounds::kMaxCharges, "too many charges");
  Buckets buckets;
  for (const Charge& charge : charges) {
    index_.PrefetchSlot(buckets.emplace_back(index_, *charge.rule, charge.key).hash());
  }
  return buckets;
}

MemoryStore::Opened MemoryStore::LockAll(absl::Span<LockedBucket> buckets,
                                         std::optional<int64_t> create_at_ns, const Work& work) {
  absl::InlinedVector<LockedBucket*, common::bounds::kMaxCharges> order(buckets.size());
  // Making one bucket may drop another of the same acquisition that is still full. If the two share
  // a small table, each would drop the other for ever.
  constexpr int kSweepingAttempts = 4;
  for (int attempt = 0;; ++attempt) {
    const auto may_sweep =
        attempt < kSweepingAttempts ? BucketIndex::MaySweep::kYes : BucketIndex::MaySweep::kNo;
    for (size_t i = 0; i < buckets.size(); ++i) {
      LockedBucket& bucket = buckets[i];
      order[i] = &bucket;
      // Without a lock it would find a dead record again, as long as the thread that drops it is
      // descheduled; the shard's mutex waits for that thread.
      bucket.set_record(attempt == 0 ? index_.Find(bucket.hash(), bucket.rule(), bucket.key())
                                     : nullptr);
      if (!bucket.missing()) continue;
      const BucketIndex::Lookup lookup =
          create_at_ns.has_value()
              ? index_.FindOrCreate(bucket.hash(), bucket.rule(), bucket.key(), *create_at_ns,
                                    may_sweep, work.budget, work.maker)
              : index_.FindExisting(bucket.hash(), bucket.rule(), bucket.key());
      if (lookup.status == BucketIndex::Status::kStaleRule) return Opened::kStaleRule;
      if (lookup.status == BucketIndex::Status::kTooManyNew) return Opened::kTooManyNew;
      if (lookup.status == BucketIndex::Status::kShareUsedUp) return Opened::kShareUsedUp;
      if (lookup.status == BucketIndex::Status::kHasDue) return Opened::kHasDue;
      bucket.set_record(lookup.record);
    }
    // All threads lock in the order of addresses, so no two wait for each other.
    std::sort(order.begin(), order.end(), [](const LockedBucket* a, const LockedBucket* b) {
      return a->record() < b->record();
    });
    size_t locked = 0;
    for (; locked < buckets.size(); ++locked) {
      LockedBucket& bucket = *order[locked];
      if (bucket.missing()) continue;
      ABSL_RAW_CHECK(locked == 0 || bucket.record() != order[locked - 1]->record(),
                     "two charges of an acquisition on one bucket");
      if (!bucket.Lock()) break;
    }
    if (locked == buckets.size()) return Opened::kOpen;
    // One was dropped or converted meanwhile.
    for (size_t i = 0; i < locked; ++i) order[i]->Abandon();
  }
}

MemoryStore::Opened MemoryStore::LockAndOpen(absl::Span<LockedBucket> buckets, bool create,
                                             int64_t now_ns, Work work, int64_t* at_ns) {
  while (true) {
    const auto create_at_ns = create ? std::optional<int64_t>(now_ns) : std::nullopt;
    const Opened locked = LockAll(buckets, create_at_ns, work);
    if (locked == Opened::kOpen) {
      if (OpenAll(buckets, now_ns, kFoldsAtOnce, at_ns)) return Opened::kOpen;
      UnlockAll(buckets, *at_ns);
    } else if (locked != Opened::kHasDue) {
      return locked;
    }
    work.budget->Note(kFoldsAtOnce * kFoldSteps);
    if (work.done()) return Opened::kHasDue;
  }
}

bool MemoryStore::OpenAll(absl::Span<LockedBucket> buckets, int64_t now_ns, size_t folds,
                          int64_t* at_ns) {
  bool needs_wall = false;
  for (const LockedBucket& bucket : buckets) {
    now_ns = std::max(now_ns, bucket.NotBeforeNs());
    needs_wall |= algorithm::UsesWallClock(bucket.rule().parameters);
  }
  *at_ns = now_ns;
  const Moment at{now_ns, needs_wall ? common::WallAtNs(clock_, now_ns) : 0};
  bool open = true;
  for (LockedBucket& bucket : buckets) open &= bucket.Open(at, &folds);
  return open;
}

void MemoryStore::UnlockAll(absl::Span<LockedBucket> buckets, int64_t now_ns) {
  size_t evicted = 0;
  for (LockedBucket& bucket : buckets) evicted += bucket.Unlock(now_ns);
  if (evicted != 0) receipts_evicted_.fetch_add(evicted, std::memory_order_relaxed);
}

void MemoryStore::Query(QueryOperation* operation) {
  const int64_t now_ns = clock_.NowNs();
  {
    SearchBudget budget;
    const Work work(&budget, operation->most_work);
    EpochGuard guard(index_.epochs());
    operation->undecided = operation->items.size();
    for (QueryItem& item : operation->items) {
      if (work.done() || !QueryOne(item, now_ns, work)) break;
      --operation->undecided;
    }
    operation->work = work.taken();
  }
  operation->Done();
}

bool MemoryStore::QueryOne(QueryItem& item, int64_t now_ns, Work work) {
  item.source = Source::kStore;
  item.unavailable = false;
  item.waiting = 0;
  item.next_grant_after_ns = 0;
  item.refundable = {};
  item.holds = 0;
  item.next_end_after_ns = 0;
  item.held_until_ns.reset();
  const uint64_t hash = index_.Hash(*item.rule, item.key);
  for (;;) {
    const Rule* rule = item.rule;
    Record* record = index_.Find(hash, *rule, item.key);
    if (record == nullptr) {
      const BucketIndex::Lookup lookup = index_.FindExisting(hash, *rule, item.key);
      if (lookup.status == BucketIndex::Status::kHasDue) {
        work.budget->Note(kFoldsAtOnce * kFoldSteps);
        if (work.done()) return false;
        continue;
      }
      record = lookup.record;
      // The limits changed since the caller looked; the newer parameters are the ones that hold.
      if (lookup.status == BucketIndex::Status::kStaleRule) {
        const memory::RuleRegistry::Entry* entry = index_.rules().Find(record->rule_id());
        if (entry == nullptr) continue;
        rule = entry->rule.get();
      }
    }
    item.exists = record != nullptr;
    if (record == nullptr) {
      const int64_t at_ns = std::max(now_ns, index_.NotBefore(hash));
      const bool wall = algorithm::UsesWallClock(rule->parameters);
      item.level =
          memory::NewLevel(index_, *rule, {at_ns, wall ? common::WallAtNs(clock_, at_ns) : 0});
      return true;
    }
    const uint64_t word = record->word();
    if (Record::IsPlain(word)) {
      item.level = algorithm::LevelAt(rule->parameters.token_bucket, Record::TatOf(word),
                                      std::max(now_ns, index_.NotBefore(hash)));
      return true;
    }
    LockedBucket bucket(index_, *rule, item.key);
    bucket.set_record(record);
    if (!bucket.Lock()) continue;
    int64_t at_ns = now_ns;
    if (!OpenAll({&bucket, 1}, now_ns, kFoldsAtOnce, &at_ns)) {
      UnlockAll({&bucket, 1}, at_ns);
      work.budget->Note(kFoldsAtOnce * kFoldSteps);
      if (work.done()) return false;
      continue;
    }
    SearchBudget own;
    const int64_t before = own.work();
    item.level = bucket.LevelAt(at_ns, &own);
    work.budget->Note(bucket.DecisionSteps() + static_cast<size_t>(own.work() - before));
    if (item.with_refundable) {
      constexpr size_t kReceiptsPerStep = 2;
      work.budget->Note(bucket.receipt_places() / kReceiptsPerStep);
      item.refundable = bucket.RefundableAt(at_ns);
    }
    item.waiting = bucket.bookings();
    if (bucket.slots() != nullptr) NoteHolds(*bucket.slots(), at_ns, &item);
    if (item.waiting != 0) {
      item.next_grant_after_ns = std::max<int64_t>(bucket.NextGrantTimeNs() - at_ns, 0);
    }
    UnlockAll({&bucket, 1}, at_ns);
    return true;
  }
}

void MemoryStore::Refund(RefundOperation* operation) {
  SearchBudget budget;
  const Work work(&budget, operation->most_work);
  const std::optional<RefundOutcome> outcome = RefundNow(*operation, work);
  operation->outcome = outcome.value_or(RefundOutcome::kPending);
  operation->undecided = outcome.has_value() ? 0 : 1;
  operation->work = work.taken();
  operation->Done();
}

std::optional<RefundOutcome> MemoryStore::RefundNow(const RefundOperation& operation, Work work) {
  if (operation.request_id == nullptr) return RefundBuckets(operation, work);
  std::optional<RefundOutcome> outcome;
  // As a call with a request id, it locks buckets under the id's lock.
  remembered_.Refund(*operation.request_id, operation.receipt_id, [&] {
    outcome = RefundBuckets(operation, work);
    return outcome == RefundOutcome::kRefunded;
  });
  return outcome;
}

std::optional<RefundOutcome> MemoryStore::RefundBuckets(const RefundOperation& operation,
                                                        Work work) {
  EpochGuard guard(index_.epochs());
  Buckets buckets = BucketsOf(operation.charges);
  int64_t at_ns = 0;
  switch (LockAndOpen(absl::MakeSpan(buckets), /*create=*/false, clock_.NowNs(), work, &at_ns)) {
    case Opened::kOpen:
      break;
    case Opened::kStaleRule:
      std::fill_n(operation.refunded, buckets.size(), uint64_t{0});
      return RefundOutcome::kStaleRule;
    case Opened::kHasDue:
    case Opened::kTooManyNew:  // it makes none
    case Opened::kShareUsedUp:
      return std::nullopt;
  }
  for (const LockedBucket& bucket : buckets) {
    // It may look for the last booking of the same set.
    work.budget->Note(bucket.DecisionSteps() + bucket.bookings() / kBookingsPerRefundStep);
  }
  if (WasSettled(operation.receipt_id, absl::MakeSpan(buckets))) {
    UnlockAll(absl::MakeSpan(buckets), at_ns);
    std::fill_n(operation.refunded, buckets.size(), uint64_t{0});
    return RefundOutcome::kSettled;
  }
  const bool open = store::Refund(operation, absl::MakeSpan(buckets), at_ns);
  // Before the buckets are unlocked: a second refund of the same receipt, which finds it closed in
  // them, must find it here.
  if (open) used_receipts_.Add(operation.receipt_id);
  UnlockAll(absl::MakeSpan(buckets), at_ns);
  if (open) return RefundOutcome::kRefunded;
  if (settled_receipts_.Contains(operation.receipt_id)) return RefundOutcome::kSettled;
  return used_receipts_.Contains(operation.receipt_id) ? RefundOutcome::kAlreadyRefunded
                                                       : RefundOutcome::kExpired;
}

void MemoryStore::Renew(RenewOperation* operation) {
  SearchBudget budget;
  const Work work(&budget, operation->most_work);
  const int64_t now_ns = clock_.NowNs();
  {
    EpochGuard guard(index_.epochs());
    operation->undecided = operation->items.size();
    for (Renewal& renewal : operation->items) {
      if (work.done()) break;
      const std::optional<RenewOutcome> outcome = RenewOne(&renewal, now_ns, work);
      if (!outcome.has_value()) break;
      renewal.outcome = *outcome;
      --operation->undecided;
    }
  }
  operation->work = work.taken();
  operation->Done();
}

std::optional<RenewOutcome> MemoryStore::RenewOne(Renewal* renewal, int64_t now_ns, Work work) {
  Buckets buckets = BucketsOf(renewal->charges);
  int64_t at_ns = 0;
  const Opened opened =
      LockAndOpen(absl::MakeSpan(buckets), /*create=*/false, now_ns, work, &at_ns);
  // Slots have no bookings, but the limit may have had a rate before.
  if (opened == Opened::kHasDue) return std::nullopt;
  if (opened != Opened::kOpen) return RenewOutcome::kStaleRule;
  for (const LockedBucket& bucket : buckets) work.budget->Note(bucket.DecisionSteps());
  const RenewOutcome outcome = store::Renew(renewal, absl::MakeSpan(buckets), at_ns);
  UnlockAll(absl::MakeSpan(buckets), at_ns);
  return outcome;
}

void MemoryStore::Holds(HoldsOperation* operation) {
  operation->outcome = HoldsNow(operation);
  operation->Done();
}

HoldsOperation::Outcome MemoryStore::HoldsNow(HoldsOperation* operation) {
  EpochGuard guard(index_.epochs());
  LockedBucket bucket(index_, *operation->rule, operation->key);
  SearchBudget unused;
  int64_t at_ns = 0;
  if (LockAndOpen({&bucket, 1}, /*create=*/false, clock_.NowNs(), Work(&unused), &at_ns) !=
      Opened::kOpen) {
    return HoldsOperation::Outcome::kStaleRule;
  }
  operation->level = bucket.LevelAt(at_ns);
  if (!bucket.missing() && operation->receipt_id != 0) {
    operation->ended = bucket.Refund(operation->receipt_id, at_ns).has_value();
  } else if (!bucket.missing()) {
    ListHolds(*bucket.slots(), at_ns, operation);
  }
  UnlockAll({&bucket, 1}, at_ns);
  return HoldsOperation::Outcome::kDone;
}

void MemoryStore::Settle(SettleOperation* operation) {
  SearchBudget budget;
  const Work work(&budget, operation->most_work);
  const std::optional<SettleOutcome> outcome = SettleNow(operation, work);
  operation->outcome = outcome.value_or(SettleOutcome::kPending);
  operation->undecided = outcome.has_value() ? 0 : 1;
  operation->work = work.taken();
  operation->Done();
}

std::optional<SettleOutcome> MemoryStore::SettleNow(SettleOperation* operation, Work work) {
  EpochGuard guard(index_.epochs());
  Buckets buckets = BucketsOf(operation->charges);
  int64_t at_ns = 0;
  for (bool create = false;; create = true) {
    switch (LockAndOpen(absl::MakeSpan(buckets), create, clock_.NowNs(), work, &at_ns)) {
      case Opened::kOpen:
        break;
      case Opened::kStaleRule:
        return SettleOutcome::kStaleRule;
      case Opened::kHasDue:
      case Opened::kTooManyNew:  // what it makes has no maker
      case Opened::kShareUsedUp:
        return std::nullopt;
    }
    if (create || !NeedsMissingBuckets(operation, absl::MakeSpan(buckets), at_ns)) break;
    UnlockAll(absl::MakeSpan(buckets), at_ns);
  }
  for (const LockedBucket& bucket : buckets) work.budget->Note(bucket.DecisionSteps());
  const uint64_t receipt_id = operation->receipt_id;
  SettleOutcome outcome = store::Settle(operation, absl::MakeSpan(buckets), at_ns, overflow_);
  if (!operation->estimate) {
    // Under the buckets' locks, as in RefundBuckets.
    if (outcome == SettleOutcome::kSettled && !operation->more) {
      const bool accounts_are_missing = absl::c_any_of(buckets, [&](const LockedBucket& bucket) {
        return !algorithm::IsConcurrency(bucket.rule().parameters) &&
               !bucket.FindEstimate(receipt_id).has_value();
      });
      const bool remembers = NamesActual(*operation) && accounts_are_missing;
      if (remembers && settled_receipts_.Contains(receipt_id) &&
          !settled_receipts_.Contains(NumberOfNamed(*operation))) {
        outcome = SettleOutcome::kAlreadySettled;
      } else {
        settled_receipts_.Add(receipt_id);
        if (remembers) settled_receipts_.Add(NumberOfNamed(*operation));
      }
    }
    if (outcome == SettleOutcome::kUnknown) {
      outcome = OutcomeOfUsed(*operation, settled_receipts_.Contains(receipt_id),
                              used_receipts_.Contains(receipt_id));
      if (outcome == SettleOutcome::kAlreadySettled &&
          settled_receipts_.Contains(NumberOfNamed(*operation))) {
        outcome = SettleOutcome::kSettled;
      }
    }
  }
  UnlockAll(absl::MakeSpan(buckets), at_ns);
  return outcome;
}

void MemoryStore::Move(MoveOperation* operation) {
  operation->outcome = MoveNow(operation);
  operation->Done();
}

MoveOutcome MemoryStore::MoveNow(MoveOperation* operation) {
  EpochGuard guard(index_.epochs());
  Buckets buckets = BucketsOf(operation->charges);
  SearchBudget unused;
  int64_t at_ns = 0;
  if (LockAndOpen(absl::MakeSpan(buckets), /*create=*/false, clock_.NowNs(), Work(&unused),
                  &at_ns) != Opened::kOpen) {
    return MoveOutcome::kStaleRule;
  }
  const MoveOutcome outcome =
      store::Move(operation->receipt_id, operation->charges, absl::MakeSpan(buckets), at_ns,
                  &operation->grant_time_ns);
  UnlockAll(absl::MakeSpan(buckets), at_ns);
  return outcome;
}

void MemoryStore::Rebook(RebookOperation* operation) {
  operation->status = RebookNow(operation->items);
  operation->Done();
}

RebookStatus MemoryStore::RebookNow(absl::Span<Rebooking> asked) {
  EpochGuard guard(index_.epochs());
  // Each bucket once.
  std::vector<LockedBucket> buckets;
  std::vector<RebookItem> items(asked.size());
  absl::flat_hash_map<std::pair<uint32_t, std::string_view>, uint32_t> index_of;
  for (size_t i = 0; i < asked.size(); ++i) {
    items[i].asked = &asked[i];
    for (const Charge& charge : asked[i].charges) {
      const auto [found, added] = index_of.try_emplace({charge.rule->limit_id, charge.key},
                                                       static_cast<uint32_t>(buckets.size()));
      if (added) buckets.emplace_back(index_, *charge.rule, charge.key);
      const LockedBucket& bucket = buckets[found->second];
      // One of the two charges has an older rule.
      if (&bucket.rule() != charge.rule) return RebookStatus::kStaleRule;
      items[i].set += bucket.hash();
      items[i].buckets.push_back(found->second);
    }
  }
  // Whatever others search for: all items are to be booked again.
  SearchBudget unlimited(std::numeric_limits<int64_t>::max());
  int64_t at_ns = 0;
  if (LockAndOpen(absl::MakeSpan(buckets), /*create=*/true, clock_.NowNs(), Work(&unlimited),
                  &at_ns) != Opened::kOpen) {
    return RebookStatus::kStaleRule;
  }
  store::Rebook(absl::MakeSpan(items), absl::MakeSpan(buckets), at_ns, overflow_);
  UnlockAll(absl::MakeSpan(buckets), at_ns);
  WriteOutcomes(items, at_ns);
  return RebookStatus::kDone;
}

void MemoryStore::Reset(const Rule& rule, std::string_view key, ResetDone done, void* context) {
  bool existed = false;
  {
    EpochGuard guard(index_.epochs());
    const uint64_t hash = index_.Hash(rule, key);
    for (;;) {
      const BucketIndex::Lookup lookup = index_.FindExisting(hash, rule, key);
      if (lookup.status == BucketIndex::Status::kHasDue) continue;
      existed = lookup.record != nullptr;
      if (!existed) break;
      // The rule of the bucket, which may be newer than the caller's.
      const memory::RuleRegistry::Entry* entry = index_.rules().Find(lookup.record->rule_id());
      if (entry == nullptr) continue;
      LockedBucket bucket(index_, *entry->rule, key);
      bucket.set_record(lookup.record);
      if (!bucket.Lock()) continue;
      int64_t at_ns = 0;
      const bool open = OpenAll({&bucket, 1}, clock_.NowNs(), kFoldsAtOnce, &at_ns);
      if (open) bucket.Reset(at_ns);
      UnlockAll({&bucket, 1}, at_ns);
      if (open) break;
    }
  }
  done(context, existed ? ResetOutcome::kReset : ResetOutcome::kNotInUse);
}

StoreStats MemoryStore::Stats() const {
  StoreStats stats;
  stats.buckets = index_.buckets();
  stats.max_buckets = max_buckets_;
  stats.memory_bytes = index_.memory_bytes() + used_receipts_.memory_bytes() +
                       settled_receipts_.memory_bytes() + remembered_.memory_bytes();
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
