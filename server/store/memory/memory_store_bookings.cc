// The part of the memory store that places bookings anew: one (Move), and many at once (Rebook).
#include <algorithm>
#include <limits>
#include <utility>
#include <vector>

#include "absl/base/internal/raw_logging.h"
#include "absl/container/flat_hash_map.h"
#include "server/algorithm/calendar/calendar.h"
#include "server/store/kept_bookings.h"
#include "server/store/memory/memory_store.h"
#include "server/store/memory/view.h"

namespace sluice::store {

using algorithm::BucketState;
using algorithm::Kind;
using algorithm::kNeverNs;
using algorithm::Moment;
using memory::EpochGuard;
using memory::Record;

void MemoryStore::Move(MoveOperation* operation) {
  MoveNow(*operation);
  operation->Done();
}

void MemoryStore::MoveNow(MoveOperation& operation) {
  const absl::Span<const Charge> charges = operation.charges;
  ABSL_RAW_CHECK(charges.size() <= common::bounds::kMaxCharges, "too many charges");
  EpochGuard guard(index_.epochs());
  Held held_array[common::bounds::kMaxCharges];
  const absl::Span<Held> held = absl::MakeSpan(held_array, charges.size());
  for (size_t i = 0; i < held.size(); ++i) {
    held[i].rule = charges[i].rule;
    held[i].key = charges[i].key;
    held[i].hash = index_.Hash(*charges[i].rule, charges[i].key);
  }
  if (!LockAll(held, std::nullopt)) {
    operation.outcome = MoveOutcome::kStaleRule;
    return;
  }
  int64_t now_ns = clock_.NowNs();
  for (const Held& h : held) {
    if (h.record == nullptr) continue;
    const BucketState* state = View{h.rule->parameters, h.word}.Booked();
    if (state != nullptr) now_ns = std::max(now_ns, state->NotBeforeNs());
  }
  const Moment at{now_ns, clock_.WallNs()};
  MoveLocked(operation, held, at);
  for (size_t i = 0; i < held.size(); ++i) {
    Held& h = held[i];
    if (h.record != nullptr) h.record->Unlock(Collapse(*h.rule, h.word, at));
  }
}

void MemoryStore::MoveLocked(MoveOperation& operation, absl::Span<Held> held, Moment at) {
  operation.outcome = MoveOutcome::kGone;
  algorithm::Booking booking;
  bool booked[common::bounds::kMaxCharges] = {};
  bool any = false;
  // Were it now it would not be a booking.
  int64_t from_ns = at.now_ns + 1;
  int64_t after_all_ns = at.now_ns + 1;
  for (size_t i = 0; i < held.size(); ++i) {
    if (held[i].record == nullptr) continue;
    Fold(held[i], at);
    const BucketState* state = View{held[i].rule->parameters, held[i].word}.Booked();
    if (state == nullptr) continue;
    after_all_ns = std::max(after_all_ns, state->LastGrantTimeNs());
    int64_t previous_ns = 0;
    booked[i] =
        state->FindBooking(operation.grant_time_ns, operation.receipt_id, &booking, &previous_ns);
    any |= booked[i];
    if (booked[i]) from_ns = std::max(from_ns, previous_ns);
  }
  if (!any) return;
  for (size_t i = 0; i < held.size(); ++i) {
    if (!booked[i]) continue;
    BucketState* const state = StateOf(held[i]);
    index_.CountState(*state, *held[i].rule, -1);
    state->CancelBooking(held[i].rule->parameters, operation.grant_time_ns, operation.receipt_id);
    index_.CountState(*state, *held[i].rule, +1);
  }
  size_t enforced[common::bounds::kMaxCharges];
  size_t n = 0;
  for (size_t i = 0; i < held.size(); ++i) {
    if (held[i].record != nullptr && !held[i].rule->shadow) enforced[n++] = i;
  }
  const auto earliest = [&](size_t i, int64_t not_before_ns) {
    return View{held[i].rule->parameters, held[i].word}.EarliestNs(operation.charges[i].permits, at,
                                                                   /*set=*/0, not_before_ns);
  };
  const int64_t grant_time_ns = algorithm::JointGrantTimeNs(
      n, from_ns, after_all_ns,
      [&](size_t e, int64_t not_before_ns) { return earliest(enforced[e], not_before_ns); });
  // Parameters that were lowered may leave no earlier place, nor its own: what was given stands.
  const bool moved = grant_time_ns < operation.grant_time_ns;
  booking.grant_time_ns = moved ? grant_time_ns : operation.grant_time_ns;
  for (size_t i = 0; i < held.size(); ++i) {
    if (!booked[i]) continue;
    if (held[i].rule->shadow && moved &&
        earliest(i, booking.grant_time_ns) != booking.grant_time_ns) {
      continue;
    }
    booking.permits = operation.charges[i].permits;
    BucketState* const state = StateOf(held[i]);
    index_.CountState(*state, *held[i].rule, -1);
    state->Book(held[i].rule->parameters, booking, at);
    index_.CountState(*state, *held[i].rule, +1);
  }
  operation.grant_time_ns = booking.grant_time_ns;
  operation.outcome = moved ? MoveOutcome::kMoved : MoveOutcome::kStays;
}

// The buckets of a Rebook, each once.
struct MemoryStore::Rebooked {
  std::vector<Held> buckets;
  // Of item i: buckets[bucket[first[i] + c]] is that of its c-th charge.
  std::vector<uint32_t> first;
  std::vector<uint32_t> bucket;
  // Names item i's set of buckets.
  std::vector<uint64_t> set;
  // Item i was booked, or debited, and is so no more.
  std::vector<bool> taken_out;
};

void MemoryStore::Rebook(RebookOperation* operation) {
  RebookNow(*operation);
  operation->Done();
}

void MemoryStore::RebookNow(RebookOperation& operation) {
  EpochGuard guard(index_.epochs());
  Rebooked all;
  absl::flat_hash_map<uint64_t, uint32_t> by_hash;
  for (const Rebooking& item : operation.items) {
    all.first.push_back(static_cast<uint32_t>(all.bucket.size()));
    uint64_t set = 0;
    for (const Charge& charge : item.charges) {
      const uint64_t hash = index_.Hash(*charge.rule, charge.key);
      set += hash;
      for (uint64_t at = hash;; ++at) {
        const auto [found, added] =
            by_hash.try_emplace(at, static_cast<uint32_t>(all.buckets.size()));
        if (added) {
          Held& held = all.buckets.emplace_back();
          held.rule = charge.rule;
          held.key = charge.key;
          held.hash = hash;
        }
        const Held& held = all.buckets[found->second];
        // Else two have one hash.
        if (held.rule->limit_id != charge.rule->limit_id || held.key != charge.key) continue;
        // One has an older rule.
        if (held.rule != charge.rule) {
          operation.status = RebookStatus::kStaleRule;
          return;
        }
        all.bucket.push_back(found->second);
        break;
      }
    }
    all.set.push_back(set);
  }
  std::vector<Held*> order(all.buckets.size());
  int64_t now_ns = clock_.NowNs();
  if (!LockAll(absl::MakeSpan(all.buckets), now_ns, order.data())) {
    operation.status = RebookStatus::kStaleRule;
    return;
  }
  bool needs_wall = false;
  for (const Held& h : all.buckets) {
    now_ns = std::max(now_ns, index_.NotBefore(h.hash));
    needs_wall |= h.rule->parameters.kind == Kind::kFixedWindow;
    if (h.record == nullptr) continue;
    const BucketState* const state = View{h.rule->parameters, h.word}.Booked();
    if (state != nullptr) now_ns = std::max(now_ns, state->NotBeforeNs());
  }
  const Moment at{now_ns, needs_wall ? clock_.WallNs() : 0};
  for (Held& h : all.buckets) {
    if (h.rule->parameters.kind != Kind::kTokenBucket) index_.SetNotBefore(h.hash, now_ns);
    if (h.record == nullptr) continue;
    Fold(h, at);
    if (!Record::IsPlain(h.word)) index_.CountState(*Record::StateOf(h.word), *h.rule, -1);
  }
  TakeOut(operation.items, all, at);
  PlaceAnew(operation.items, all, at);
  for (Held& h : all.buckets) {
    if (h.record == nullptr) continue;
    if (!Record::IsPlain(h.word)) index_.CountState(*Record::StateOf(h.word), *h.rule, +1);
    h.record->Unlock(Collapse(*h.rule, h.word, at));
  }
  operation.status = RebookStatus::kDone;
}

void MemoryStore::TakeOut(absl::Span<const Rebooking> items, Rebooked& all, Moment at) {
  all.taken_out.resize(items.size());
  // The last first, which is the quickest where all of a bucket's go.
  for (size_t i = items.size(); i-- > 0;) {
    const Rebooking& item = items[i];
    for (size_t c = 0; c < item.charges.size(); ++c) {
      const Held& h = all.buckets[all.bucket[all.first[i] + c]];
      if (h.record == nullptr || Record::IsPlain(h.word)) continue;
      BucketState* const state = Record::StateOf(h.word);
      if (item.grant_time_ns > at.now_ns) {
        if (state->CancelBooking(h.rule->parameters, item.grant_time_ns, item.receipt_id)) {
          all.taken_out[i] = true;
        }
      } else if (state->Refund(h.rule->parameters, item.receipt_id, at).has_value()) {
        // Debited since, by limits that did not hold any more.
        all.taken_out[i] = true;
      }
    }
  }
}

void MemoryStore::PlaceAnew(absl::Span<Rebooking> items, Rebooked& all, Moment at) {
  KeptBookings standing;
  for (size_t i = 0; i < items.size(); ++i) {
    if (all.taken_out[i]) standing.Follow(all.set[i]);
  }
  for (const Held& h : all.buckets) {
    if (h.record == nullptr || Record::IsPlain(h.word)) continue;
    Record::StateOf(h.word)->ForEachBooking(
        [&](const algorithm::Booking& booking) { standing.Add(booking); });
  }
  standing.Seal();
  absl::flat_hash_map<uint64_t, int64_t> last_of_set;

  for (size_t i = 0; i < items.size(); ++i) {
    Rebooking& item = items[i];
    item.now_ns = at.now_ns;
    if (!all.taken_out[i]) {
      item.outcome = Rebooking::Outcome::kGone;
      continue;
    }
    const auto held = [&](size_t c) -> Held& { return all.buckets[all.bucket[all.first[i] + c]]; };
    int64_t from_ns = at.now_ns;
    if (const auto last = last_of_set.find(all.set[i]); last != last_of_set.end()) {
      from_ns = std::max(from_ns, last->second);
    }
    from_ns = std::max(from_ns, standing.LatestBefore(all.set[i], item.receipt_id));

    size_t enforced[common::bounds::kMaxCharges];
    size_t n = 0;
    int64_t after_all_ns = at.now_ns;
    bool room = true;
    for (size_t c = 0; c < item.charges.size(); ++c) {
      const Held& h = held(c);
      if (h.rule->shadow) continue;
      if (h.record == nullptr) {
        room &= overflow_ == OverflowPolicy::kAllow;
        continue;
      }
      enforced[n++] = c;
      const BucketState* state = View{h.rule->parameters, h.word}.Booked();
      if (state != nullptr) after_all_ns = std::max(after_all_ns, state->LastGrantTimeNs());
    }
    // Whom it comes behind was looked up above.
    const auto earliest = [&](size_t c, int64_t not_before_ns) {
      return View{held(c).rule->parameters, held(c).word}.EarliestNs(item.charges[c].permits, at,
                                                                     /*set=*/0, not_before_ns);
    };
    const int64_t grant_time_ns = algorithm::JointGrantTimeNs(
        n, from_ns, after_all_ns,
        [&](size_t e, int64_t not_before_ns) { return earliest(enforced[e], not_before_ns); });
    if (!room || grant_time_ns > item.until_ns) {
      item.outcome = Rebooking::Outcome::kDenied;
      item.retry_after_ns = !room ? kOverflowRetryNs
                            : grant_time_ns == kNeverNs
                                ? kNeverNs
                                : grant_time_ns - std::max(item.until_ns, at.now_ns);
      for (size_t c = 0; c < item.charges.size(); ++c) {
        const Held& h = held(c);
        ChargeResult& result = item.results[c];
        result.reason = h.record == nullptr ? Reason::kOverflow : Reason::kNone;
        if (h.record != nullptr) result.level = View{h.rule->parameters, h.word}.Level(at);
      }
      for (size_t e = 0; e < n; ++e) item.results[enforced[e]].reason = Reason::kNotEnough;
      continue;
    }
    item.outcome = Rebooking::Outcome::kBooked;
    item.grant_time_ns = grant_time_ns;
    last_of_set[all.set[i]] = grant_time_ns;
    for (size_t c = 0; c < item.charges.size(); ++c) {
      Held& h = held(c);
      if (h.record == nullptr) continue;
      const algorithm::Parameters& parameters = h.rule->parameters;
      if (h.rule->shadow && earliest(c, grant_time_ns) != grant_time_ns) continue;
      if (Record::IsPlain(h.word)) {
        h.word = Record::WordOf(new BucketState(BucketState::FromTat(h.word)));
      }
      BucketState* const state = Record::StateOf(h.word);
      if (grant_time_ns > at.now_ns) {
        state->Book(parameters,
                    {grant_time_ns, item.charges[c].permits, item.receipt_id, all.set[i]}, at);
        continue;
      }
      bool evicted = false;
      state->TryTake(parameters, item.charges[c].permits, at, item.receipt_id, &evicted);
      if (evicted) receipts_evicted_.fetch_add(1, std::memory_order_relaxed);
    }
  }
}

}  // namespace sluice::store
