#include "server/store/redis/commands/open_decisions.h"

#include <algorithm>
#include <array>

#include "common/bounds.h"
#include "server/algorithm/calendar/calendar.h"
#include "server/store/redis/wire/reply_numbers.h"

namespace sluice::store::redis {
namespace {

using algorithm::kNeverNs;
using common::bounds::kMaxCharges;

// The charges that alone decide: those whose limits are enforced.
struct Enforced {
  std::array<size_t, kMaxCharges> of;
  size_t size = 0;
  // Not before the last booking of any of them.
  int64_t after_all_ns;

  Enforced(absl::Span<const Charge> charges, absl::Span<const OpenBucket> buckets, int64_t from_ns)
      : after_all_ns(from_ns) {
    for (size_t i = 0; i < charges.size(); ++i) {
      if (charges[i].rule->shadow) continue;
      of[size++] = i;
      if (buckets[i].bookings() != 0) {
        after_all_ns = std::max(after_all_ns, buckets[i].LastGrantTimeNs());
      }
    }
  }
};

// Granted for a moment to come, if it lies within max_wait.
bool Reserve(Acquisition* acquisition, absl::Span<OpenBucket> buckets, int64_t now_ns, uint64_t set,
             absl::FunctionRef<uint64_t()> new_receipt) {
  const absl::Span<const Charge> charges = acquisition->charges;
  const Enforced enforced(charges, buckets, now_ns);
  const auto earliest = [&](size_t i, int64_t from_ns) {
    return buckets[i].EarliestNs(charges[i].permits, now_ns, set, from_ns);
  };
  const int64_t grant_time_ns = algorithm::JointGrantTimeNs(
      enforced.size, now_ns, enforced.after_all_ns,
      [&](size_t e, int64_t from_ns) { return earliest(enforced.of[e], from_ns); });
  const int64_t wait_ns =
      grant_time_ns == kNeverNs ? kNeverNs : std::max<int64_t>(grant_time_ns - now_ns, 0);
  if (wait_ns > acquisition->max_wait_ns) {
    acquisition->retry_after_ns =
        grant_time_ns == kNeverNs ? kNeverNs : wait_ns - acquisition->max_wait_ns;
    if (acquisition->max_wait_ns == 0) return false;
    // To blame are those that alone would be too late, if there are such.
    const int64_t until_ns = now_ns + acquisition->max_wait_ns;
    std::array<bool, kMaxCharges> late = {};
    bool any = false;
    for (size_t e = 0; e < enforced.size; ++e) {
      any |= late[e] = earliest(enforced.of[e], now_ns) > until_ns;
    }
    for (size_t e = 0; e < enforced.size && any; ++e) {
      acquisition->results[enforced.of[e]].reason = late[e] ? Reason::kNotEnough : Reason::kNone;
    }
    return false;
  }

  bool bounded = false;
  for (size_t e = 0; e < enforced.size; ++e) {
    const OpenBucket& bucket = buckets[enforced.of[e]];
    const bool full = bucket.bookings() >= kMaxBookingsInRedis;
    acquisition->results[enforced.of[e]].reason = full ? Reason::kWaitingBound : Reason::kNone;
    if (!full) continue;
    bounded = true;
    // There is room when the next one's moment has come.
    acquisition->retry_after_ns =
        std::max(acquisition->retry_after_ns, bucket.NextGrantTimeNs() - now_ns);
  }
  if (bounded) return false;

  acquisition->wait_ns = wait_ns;
  acquisition->receipt_id = new_receipt();
  for (size_t i = 0; i < charges.size(); ++i) {
    OpenBucket& bucket = buckets[i];
    acquisition->results[i].reason = Reason::kNone;
    if (charges[i].rule->shadow &&
        (earliest(i, grant_time_ns) != grant_time_ns || bucket.bookings() >= kMaxBookingsInRedis)) {
      acquisition->results[i].reason = Reason::kShadowDenied;
      continue;
    }
    bucket.Book({grant_time_ns, charges[i].permits, acquisition->receipt_id, set}, now_ns);
  }
  return true;
}

}  // namespace

int64_t BeginAt(absl::Span<OpenBucket> buckets, int64_t now_ns) {
  for (const OpenBucket& bucket : buckets) now_ns = std::max(now_ns, bucket.NotBeforeNs());
  for (OpenBucket& bucket : buckets) bucket.Fold(now_ns);
  return now_ns;
}

Outcome Decide(Acquisition* acquisition, absl::Span<OpenBucket> buckets, int64_t now_ns,
               uint64_t set, absl::FunctionRef<uint64_t()> new_receipt) {
  const absl::Span<const Charge> charges = acquisition->charges;
  acquisition->source = Source::kStore;
  acquisition->wait_ns = 0;
  acquisition->retry_after_ns = 0;
  acquisition->receipt_id = 0;
  acquisition->now_ns = now_ns;
  bool granted = true;
  std::array<bool, kMaxCharges> fits = {};
  for (size_t i = 0; i < charges.size(); ++i) {
    fits[i] = buckets[i].CanTake(charges[i].permits, now_ns, set);
    ChargeResult& result = acquisition->results[i];
    result.reason = Reason::kNone;
    if (fits[i]) continue;
    result.reason = charges[i].rule->shadow ? Reason::kShadowDenied : Reason::kNotEnough;
    if (!charges[i].rule->shadow) granted = false;
  }
  const bool reserved = !granted && Reserve(acquisition, buckets, now_ns, set, new_receipt);
  if (granted && acquisition->want_receipt) acquisition->receipt_id = new_receipt();
  for (size_t i = 0; i < charges.size(); ++i) {
    if (granted && fits[i]) {
      buckets[i].Take(charges[i].permits, now_ns, acquisition->receipt_id, set);
    }
    acquisition->results[i].level = ToBucketLevel(buckets[i].LevelAt(now_ns));
  }
  return granted || reserved ? Outcome::kGranted : Outcome::kDenied;
}

bool Refund(const RefundOperation& operation, absl::Span<OpenBucket> buckets, int64_t now_ns) {
  bool open = false;
  for (size_t i = 0; i < buckets.size(); ++i) {
    operation.refunded[i] = 0;
    // The same moment in all buckets, so it has come in all or in none.
    if (operation.grant_time_ns > now_ns) {
      if (!buckets[i].Cancel(operation.grant_time_ns, operation.receipt_id)) continue;
      operation.refunded[i] = operation.charges[i].permits;
      open = true;
    } else if (const auto given = buckets[i].Refund(operation.receipt_id, now_ns);
               given.has_value()) {
      operation.refunded[i] = *given;
      open = true;
    }
  }
  return open;
}

uint64_t LastBooking(absl::Span<const OpenBucket> buckets) {
  uint64_t last = 0;
  for (const OpenBucket& bucket : buckets) last = std::max(last, bucket.LastBookingId());
  return last;
}

MoveOutcome Move(uint64_t receipt_id, absl::Span<const Charge> charges,
                 absl::Span<OpenBucket> buckets, int64_t now_ns, int64_t* booked_ns) {
  algorithm::Booking booking;
  std::array<bool, kMaxCharges> booked = {};
  bool any = false;
  // Were it now it would not be a booking.
  int64_t from_ns = now_ns + 1;
  for (size_t i = 0; i < buckets.size(); ++i) {
    int64_t previous_ns = 0;
    booked[i] = buckets[i].Find(*booked_ns, receipt_id, &booking, &previous_ns);
    any |= booked[i];
    if (booked[i]) from_ns = std::max(from_ns, previous_ns);
  }
  if (!any) return MoveOutcome::kGone;
  const Enforced enforced(charges, buckets, now_ns + 1);
  for (size_t i = 0; i < buckets.size(); ++i) {
    if (booked[i]) buckets[i].Cancel(*booked_ns, receipt_id);
  }
  const auto earliest = [&](size_t i, int64_t not_before_ns) {
    return buckets[i].EarliestNs(charges[i].permits, now_ns, /*set=*/0, not_before_ns);
  };
  const int64_t grant_time_ns = algorithm::JointGrantTimeNs(
      enforced.size, from_ns, enforced.after_all_ns,
      [&](size_t e, int64_t not_before_ns) { return earliest(enforced.of[e], not_before_ns); });
  // Parameters that were lowered may leave no earlier place, nor its own: what was given stands.
  const bool moved = grant_time_ns < *booked_ns;
  booking.grant_time_ns = moved ? grant_time_ns : *booked_ns;
  for (size_t i = 0; i < buckets.size(); ++i) {
    if (!booked[i]) continue;
    if (charges[i].rule->shadow && moved &&
        earliest(i, booking.grant_time_ns) != booking.grant_time_ns) {
      continue;
    }
    booking.permits = charges[i].permits;
    buckets[i].Book(booking, now_ns);
  }
  *booked_ns = booking.grant_time_ns;
  return moved ? MoveOutcome::kMoved : MoveOutcome::kStays;
}

}  // namespace sluice::store::redis
