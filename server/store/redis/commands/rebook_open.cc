#include "server/store/redis/commands/rebook_open.h"

#include <algorithm>
#include <array>

#include "absl/container/flat_hash_map.h"
#include "common/bounds.h"
#include "server/algorithm/calendar/calendar.h"
#include "server/store/kept_bookings.h"
#include "server/store/redis/wire/reply_numbers.h"

namespace sluice::store::redis {
namespace {

using algorithm::kNeverNs;
using common::bounds::kMaxCharges;

// Returns which were booked, or debited, and are so no more.
std::vector<bool> TakeOut(absl::Span<const RebookItem> items, absl::Span<OpenBucket> buckets,
                          int64_t now_ns) {
  std::vector<bool> taken_out(items.size());
  // The last first, which is the quickest where all of a bucket's go.
  for (size_t i = items.size(); i-- > 0;) {
    const Rebooking& asked = *items[i].asked;
    for (const uint32_t place : items[i].buckets) {
      OpenBucket& bucket = buckets[place];
      const bool out = asked.grant_time_ns > now_ns
                           ? bucket.Cancel(asked.grant_time_ns, asked.receipt_id)
                           // Debited since, by limits that did not hold any more.
                           : bucket.Refund(asked.receipt_id, now_ns).has_value();
      if (out) taken_out[i] = true;
    }
  }
  return taken_out;
}

// At the earliest moment from from_ns on, if that is not too late.
void Place(RebookItem* item, absl::Span<OpenBucket> buckets, int64_t from_ns, int64_t now_ns) {
  const Rebooking& asked = *item->asked;
  const absl::Span<const Charge> charges = asked.charges;
  const auto bucket = [&](size_t c) -> OpenBucket& { return buckets[item->buckets[c]]; };
  std::array<size_t, kMaxCharges> enforced;
  size_t count = 0;
  int64_t after_all_ns = now_ns;
  for (size_t c = 0; c < charges.size(); ++c) {
    if (charges[c].rule->shadow) continue;
    enforced[count++] = c;
    if (bucket(c).bookings() != 0)
      after_all_ns = std::max(after_all_ns, bucket(c).LastGrantTimeNs());
  }
  // Whom it comes behind is in from_ns.
  const auto earliest = [&](size_t c, int64_t not_before_ns) {
    return bucket(c).EarliestNs(charges[c].permits, now_ns, /*set=*/0, not_before_ns);
  };
  const int64_t grant_time_ns = algorithm::JointGrantTimeNs(
      count, from_ns, after_all_ns,
      [&](size_t e, int64_t not_before_ns) { return earliest(enforced[e], not_before_ns); });
  const auto deny = [&](int64_t retry_after_ns, Reason reason) {
    item->outcome = Rebooking::Outcome::kDenied;
    item->retry_after_ns = retry_after_ns;
    for (size_t c = 0; c < charges.size(); ++c) {
      asked.results[c] = {};
      asked.results[c].level = ToBucketLevel(bucket(c).LevelAt(now_ns));
    }
    for (size_t e = 0; e < count; ++e) asked.results[enforced[e]].reason = reason;
  };
  if (grant_time_ns > asked.until_ns) {
    return deny(
        grant_time_ns == kNeverNs ? kNeverNs : grant_time_ns - std::max(asked.until_ns, now_ns),
        Reason::kNotEnough);
  }
  // Those that were debited since were not booked before.
  for (size_t e = 0; e < count && grant_time_ns > now_ns; ++e) {
    const OpenBucket& full = bucket(enforced[e]);
    if (full.bookings() >= kMaxBookingsInRedis) {
      return deny(full.NextGrantTimeNs() - now_ns, Reason::kWaitingBound);
    }
  }
  item->outcome = Rebooking::Outcome::kBooked;
  item->grant_time_ns = grant_time_ns;
  for (size_t c = 0; c < charges.size(); ++c) {
    OpenBucket& one = bucket(c);
    if (charges[c].rule->shadow &&
        (earliest(c, grant_time_ns) != grant_time_ns || one.bookings() >= kMaxBookingsInRedis)) {
      continue;
    }
    if (grant_time_ns > now_ns) {
      one.Book({grant_time_ns, charges[c].permits, asked.receipt_id, item->set}, now_ns);
    } else {
      one.Take(charges[c].permits, now_ns, asked.receipt_id, /*set=*/0);
    }
  }
}

}  // namespace

void Rebook(absl::Span<RebookItem> items, absl::Span<OpenBucket> buckets, int64_t now_ns) {
  const std::vector<bool> taken_out = TakeOut(items, buckets, now_ns);
  KeptBookings standing;
  for (size_t i = 0; i < items.size(); ++i) {
    if (taken_out[i]) standing.Follow(items[i].set);
  }
  for (const OpenBucket& bucket : buckets) {
    bucket.ForEachBooking([&](const algorithm::Booking& booking) { standing.Add(booking); });
  }
  standing.Seal();
  absl::flat_hash_map<uint64_t, int64_t> last_of_set;
  for (size_t i = 0; i < items.size(); ++i) {
    RebookItem& item = items[i];
    if (!taken_out[i]) {
      item.outcome = Rebooking::Outcome::kGone;
      continue;
    }
    int64_t from_ns = now_ns;
    if (const auto last = last_of_set.find(item.set); last != last_of_set.end()) {
      from_ns = std::max(from_ns, last->second);
    }
    from_ns = std::max(from_ns, standing.LatestBefore(item.set, item.asked->receipt_id));
    Place(&item, buckets, from_ns, now_ns);
    if (item.outcome == Rebooking::Outcome::kBooked) last_of_set[item.set] = item.grant_time_ns;
  }
}

}  // namespace sluice::store::redis
