// Books many reservations again, in one step, on open buckets (decide.h): after the parameters of
// their limits have changed.
//
// All reservations are taken out first, then booked again in the order of the list, each at the
// earliest moment at which it fits. Within a set of buckets the order of receipts is kept: a
// reservation is booked neither before the one booked before it here nor before a booking of an
// older receipt that was not taken out (KeptBookings).
//
// The bounds on bookings are for new ones. What was booked keeps its room, also if the bucket, its
// limit or the store has reached a bound since; other bookings find what that leaves.
#ifndef SLUICE_SERVER_STORE_REBOOK_H_
#define SLUICE_SERVER_STORE_REBOOK_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <limits>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/inlined_vector.h"
#include "absl/types/span.h"
#include "server/store/decide.h"

namespace sluice::store {

// The bookings that stay where they are, by set of buckets and receipt. Call Follow for each set of
// interest, then Add for each booking, then Seal, then LatestBefore. Not thread-safe.
class KeptBookings {
 public:
  // Bookings of sets that are not followed are ignored.
  void Follow(uint64_t set) { by_set_.try_emplace(set); }
  void Add(const algorithm::Booking& booking) {
    const auto found = by_set_.find(booking.set);
    if (found != by_set_.end()) found->second.emplace_back(booking.id, booking.grant_time_ns);
  }
  void Seal() {
    for (auto& [set, bookings] : by_set_) {
      std::sort(bookings.begin(), bookings.end());
      for (size_t b = 1; b < bookings.size(); ++b) {
        bookings[b].second = std::max(bookings[b].second, bookings[b - 1].second);
      }
    }
  }
  // The latest grant time among the set's bookings with a lower receipt; INT64_MIN: none.
  // REQUIRES: the set is followed.
  int64_t LatestBefore(uint64_t set, uint64_t receipt_id) const {
    const auto& bookings = by_set_.find(set)->second;
    const auto before =
        std::lower_bound(bookings.begin(), bookings.end(), std::pair(receipt_id, int64_t{0}));
    return before == bookings.begin() ? std::numeric_limits<int64_t>::min()
                                      : std::prev(before)->second;
  }

 private:
  // Sorted by receipt; after Seal each with the latest grant time up to it.
  absl::flat_hash_map<uint64_t, std::vector<std::pair<uint64_t, int64_t>>> by_set_;
};

// One reservation of a rebooking.
struct RebookItem {
  // Read; only the results of its charges are written, if it is denied.
  Rebooking* asked = nullptr;
  // Names its set of buckets (algorithm::Booking::set).
  uint64_t set = 0;
  // By charge: the index of its bucket.
  absl::InlinedVector<uint32_t, 4> buckets;

  // Written by Rebook.
  // A bit for each charge whose bucket had a booking of it.
  uint32_t booked = 0;
  Rebooking::Outcome outcome = Rebooking::Outcome::kPending;
  int64_t grant_time_ns = 0;   // kBooked
  int64_t retry_after_ns = 0;  // kDenied
};

// Copies what was decided to the caller's reservations.
inline void WriteOutcomes(absl::Span<const RebookItem> items, int64_t now_ns) {
  for (const RebookItem& item : items) {
    Rebooking& asked = *item.asked;
    asked.outcome = item.outcome;
    asked.now_ns = now_ns;
    if (item.outcome == Rebooking::Outcome::kBooked) asked.grant_time_ns = item.grant_time_ns;
    if (item.outcome == Rebooking::Outcome::kDenied) asked.retry_after_ns = item.retry_after_ns;
  }
}

// Takes out the bookings of the items, and refunds those that were taken since under parameters
// that no longer hold. Returns which items were taken out. `awaited`: by bucket, how many bookings
// were.
template <OpenForDecision Bucket>
std::vector<bool> TakeOut(absl::Span<RebookItem> items, absl::Span<Bucket> buckets, int64_t now_ns,
                          absl::Span<size_t> awaited) {
  std::vector<bool> taken_out(items.size());
  // The last first: that is the quickest order if all bookings of a bucket go.
  for (size_t i = items.size(); i-- > 0;) {
    RebookItem& item = items[i];
    const Rebooking& asked = *item.asked;
    item.booked = 0;
    for (size_t c = 0; c < item.buckets.size(); ++c) {
      Bucket& bucket = buckets[item.buckets[c]];
      // Bookings of another algorithm have ended, and gave no slots.
      if (algorithm::IsConcurrency(asked.charges[c].rule->parameters)) taken_out[i] = true;
      if (bucket.missing()) continue;
      // A call that read the clock later may have been quicker: then the booking is a receipt.
      if (asked.grant_time_ns > now_ns &&
          bucket.CancelBooking(asked.grant_time_ns, asked.receipt_id)) {
        taken_out[i] = true;
        item.booked |= 1u << c;
        ++awaited[item.buckets[c]];
      } else if (bucket.Refund(asked.receipt_id, now_ns).has_value()) {
        taken_out[i] = true;
      }
    }
  }
  return taken_out;
}

// Books or takes one item at the earliest moment from from_ns on, unless that is past its until_ns.
// `awaited`: as of TakeOut, of this item and those that follow.
template <OpenForDecision Bucket>
void PlaceItem(RebookItem* item, absl::Span<Bucket> buckets, int64_t from_ns, int64_t now_ns,
               OverflowPolicy overflow, absl::Span<size_t> awaited) {
  const Rebooking& asked = *item->asked;
  const absl::Span<const Charge> charges = asked.charges;
  const auto bucket_of = [&](size_t c) -> Bucket& { return buckets[item->buckets[c]]; };
  // from_ns keeps the order of the set, so the search need not. A budget for each item: one that
  // others have spent would deny reservations that still fit.
  SearchBudget budget;
  const EnforcedCharges enforced(charges, bucket_of, now_ns, /*set=*/0, &budget);
  const auto deny = [&](int64_t retry_after_ns, Reason reason) {
    item->outcome = Rebooking::Outcome::kDenied;
    item->retry_after_ns = retry_after_ns;
    for (size_t c = 0; c < charges.size(); ++c) {
      asked.results[c] = {};
      asked.results[c].level = bucket_of(c).LevelAt(now_ns, &budget);
      if (bucket_of(c).missing()) asked.results[c].reason = Reason::kOverflow;
    }
    for (const size_t c : enforced.indexes()) asked.results[c].reason = reason;
  };

  for (size_t c = 0; c < charges.size(); ++c) {
    if (bucket_of(c).missing() && !charges[c].rule->shadow &&
        !AllowsOverflow(charges[c], overflow)) {
      return deny(kOverflowRetryNs, Reason::kNotEnough);
    }
  }
  const int64_t grant_time_ns = enforced.JointGrantTimeNs(from_ns);
  if (grant_time_ns <= asked.until_ns && !enforced.SlotsAreFree()) {
    return deny(std::max(grant_time_ns - now_ns, kOverflowRetryNs), Reason::kNotEnough);
  }
  if (grant_time_ns > asked.until_ns) {
    const bool never = grant_time_ns == algorithm::kNeverNs;
    return deny(never ? grant_time_ns : grant_time_ns - std::max(asked.until_ns, now_ns),
                Reason::kNotEnough);
  }
  // A reservation that was taken meanwhile, or did not charge this bucket, was not among its
  // bookings, so there may be no room.
  const auto full = [&](size_t c) {
    return ((item->booked >> c) & 1) == 0 && bucket_of(c).BookingsFull(awaited[item->buckets[c]]);
  };
  for (const size_t c : enforced.indexes()) {
    if (grant_time_ns > now_ns && full(c)) {
      const int64_t next_ns =
          bucket_of(c).bookings() != 0 ? bucket_of(c).NextGrantTimeNs() - now_ns : 0;
      return deny(next_ns > 0 ? next_ns : kOverflowRetryNs, Reason::kWaitingBound);
    }
  }
  item->outcome = Rebooking::Outcome::kBooked;
  item->grant_time_ns = grant_time_ns;
  for (size_t c = 0; c < charges.size(); ++c) {
    Bucket& bucket = bucket_of(c);
    if (bucket.missing()) continue;
    if (charges[c].rule->shadow && (!enforced.FitsAt(c, grant_time_ns) || full(c))) continue;
    if (grant_time_ns > now_ns) {
      bucket.Book({grant_time_ns, charges[c].permits, asked.receipt_id, item->set}, now_ns);
    } else {
      bucket.Take(charges[c].permits, now_ns, asked.receipt_id, /*set=*/0);
    }
  }
}

// Takes all items out and books them again in their order. REQUIRES: as in decide.h.
template <OpenForDecision Bucket>
void Rebook(absl::Span<RebookItem> items, absl::Span<Bucket> buckets, int64_t now_ns,
            OverflowPolicy overflow = OverflowPolicy::kDeny) {
  std::vector<size_t> awaited(buckets.size());
  const std::vector<bool> taken_out =
      TakeOut<Bucket>(items, buckets, now_ns, absl::MakeSpan(awaited));
  KeptBookings kept;
  for (size_t i = 0; i < items.size(); ++i) {
    if (taken_out[i]) kept.Follow(items[i].set);
  }
  for (const Bucket& bucket : buckets) {
    bucket.ForEachBooking([&](const algorithm::Booking& booking) { kept.Add(booking); });
  }
  kept.Seal();
  absl::flat_hash_map<uint64_t, int64_t> last_of_set;
  for (size_t i = 0; i < items.size(); ++i) {
    RebookItem& item = items[i];
    if (!taken_out[i]) {
      item.outcome = Rebooking::Outcome::kGone;
      continue;
    }
    int64_t from_ns = std::max(now_ns, kept.LatestBefore(item.set, item.asked->receipt_id));
    if (const auto last = last_of_set.find(item.set); last != last_of_set.end()) {
      from_ns = std::max(from_ns, last->second);
    }
    PlaceItem(&item, buckets, from_ns, now_ns, overflow, absl::MakeSpan(awaited));
    for (size_t c = 0; c < item.buckets.size(); ++c) {
      awaited[item.buckets[c]] -= (item.booked >> c) & 1;
    }
    if (item.outcome == Rebooking::Outcome::kBooked) last_of_set[item.set] = item.grant_time_ns;
  }
}

}  // namespace sluice::store

#endif  // SLUICE_SERVER_STORE_REBOOK_H_
