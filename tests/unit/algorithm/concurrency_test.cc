#include "server/algorithm/concurrency.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "server/algorithm/bucket_state.h"
#include "server/algorithm/hold_list.h"
#include "server/algorithm/make_parameters.h"

namespace sluice::algorithm {
namespace {

constexpr int64_t kSecond = 1'000'000'000;

Moment At(int64_t now_ns) { return {now_ns, now_ns}; }

Parameters Slots(uint64_t permits, int64_t hold_for_ns) {
  return *MakeConcurrency(permits, hold_for_ns);
}

// What a slot bucket promises, computed from all grants there ever were.
class Reference {
 public:
  Reference(uint64_t permits, int64_t hold_for_ns) : permits_(permits), hold_for_ns_(hold_for_ns) {}

  uint64_t InUse(int64_t now_ns) const {
    uint64_t sum = 0;
    for (const auto& [id, grant] : grants_) sum += grant.end_ns > now_ns ? grant.permits : 0;
    return sum;
  }
  size_t Holds(int64_t now_ns) const {
    return static_cast<size_t>(std::count_if(
        grants_.begin(), grants_.end(), [&](const auto& g) { return g.second.end_ns > now_ns; }));
  }
  bool Fits(uint64_t permits, int64_t now_ns) const { return InUse(now_ns) + permits <= permits_; }
  // The first moment at which the permits fit if nothing else happens.
  int64_t EarliestNs(uint64_t permits, int64_t now_ns) const {
    if (permits > permits_) return kNeverNs;
    std::vector<int64_t> moments = {now_ns};
    for (const auto& [id, grant] : grants_) moments.push_back(grant.end_ns);
    std::sort(moments.begin(), moments.end());
    for (const int64_t moment : moments) {
      if (moment >= now_ns && Fits(permits, moment)) return moment;
    }
    return kNeverNs;
  }
  void Take(uint64_t id, uint64_t permits, int64_t from_ns) {
    grants_[id] = {permits, from_ns + hold_for_ns_};
  }
  std::optional<uint64_t> End(uint64_t id, int64_t now_ns) {
    const auto grant = grants_.find(id);
    if (grant == grants_.end() || grant->second.end_ns <= now_ns) return std::nullopt;
    const uint64_t permits = grant->second.permits;
    grants_.erase(grant);
    return permits;
  }
  std::optional<int64_t> Renew(uint64_t id, int64_t now_ns) {
    const auto grant = grants_.find(id);
    if (grant == grants_.end() || grant->second.end_ns <= now_ns) return std::nullopt;
    return grant->second.end_ns = std::max(grant->second.end_ns, now_ns + hold_for_ns_);
  }
  int64_t LastEndNs(int64_t now_ns) const {
    int64_t last_ns = now_ns;
    for (const auto& [id, grant] : grants_) last_ns = std::max(last_ns, grant.end_ns);
    return last_ns;
  }
  int64_t NextEndNs(int64_t now_ns) const {
    int64_t next_ns = kNeverNs;
    for (const auto& [id, grant] : grants_) {
      if (grant.end_ns > now_ns) next_ns = std::min(next_ns, grant.end_ns);
    }
    return next_ns;
  }
  void Reset() { grants_.clear(); }
  void Change(uint64_t permits, int64_t hold_for_ns) {
    permits_ = permits;
    hold_for_ns_ = hold_for_ns;
  }

 private:
  struct Grant {
    uint64_t permits;
    int64_t end_ns;
  };
  uint64_t permits_;
  int64_t hold_for_ns_;
  std::map<uint64_t, Grant> grants_;
};

RC_GTEST_PROP(ConcurrencyTest, DecidesAsTheSumOfAllGrantsThatHaveNotEnded, ()) {
  constexpr int64_t kMs = 1'000'000;
  const auto any_limit = [] {
    return Slots(*rc::gen::inRange<uint64_t>(1, 200), *rc::gen::inRange<int64_t>(1, 100) * kMs);
  };
  Parameters limit = any_limit();
  BucketState bucket(limit);
  Reference reference(limit.concurrency.permits, limit.concurrency.hold_for_ns);
  int64_t now_ns = *rc::gen::inRange<int64_t>(0, int64_t{1} << 60);
  uint64_t last_id = 0;
  const int steps = *rc::gen::inRange(1, 400);
  for (int s = 0; s < steps; ++s) {
    now_ns += *rc::gen::element<int64_t>(0, 0, 0, 1, kMs, limit.concurrency.hold_for_ns / 8,
                                         limit.concurrency.hold_for_ns);
    const uint64_t id = last_id == 0 ? 1 : *rc::gen::inRange<uint64_t>(1, last_id + 1);
    switch (*rc::gen::inRange(0, 16)) {
      case 0:
        RC_ASSERT(bucket.Refund(limit, id, At(now_ns)) == reference.End(id, now_ns));
        break;
      case 1:
        RC_ASSERT(bucket.EndHold(id, At(now_ns)) == reference.End(id, now_ns));
        break;
      case 2:
      case 3:
        RC_ASSERT(bucket.RenewHold(limit, id, At(now_ns)) == reference.Renew(id, now_ns));
        break;
      case 4:
        if (*rc::gen::inRange(0, 10) == 0) {
          bucket.Reset(limit, At(now_ns));
          reference.Reset();
        }
        break;
      case 5: {
        const Parameters to = any_limit();
        bucket.Convert(limit, to, At(now_ns));
        limit = to;
        reference.Change(to.concurrency.permits, to.concurrency.hold_for_ns);
        break;
      }
      case 6:
        bucket = BucketState::FromImage(limit, bucket.ToImage());
        break;
      case 7: {
        // Held until hold_for after a later grant time; cancelled again or not.
        const uint64_t permits = *rc::gen::inRange<uint64_t>(1, 4);
        if (!bucket.CanTake(limit, permits, At(now_ns))) break;
        const int64_t grant_time_ns = now_ns + 5 * kMs;
        bucket.Book(limit, {grant_time_ns, permits, ++last_id, 1}, At(now_ns));
        reference.Take(last_id, permits, grant_time_ns);
        Booking found;
        int64_t previous_ns = 0;
        RC_ASSERT(bucket.FindBooking(grant_time_ns, last_id, &found, &previous_ns));
        RC_ASSERT(found.permits == permits);
        if (*rc::gen::arbitrary<bool>()) {
          RC_ASSERT(bucket.CancelBooking(limit, grant_time_ns, last_id));
          reference.End(last_id, now_ns);
        }
        break;
      }
      default: {
        const uint64_t permits = *rc::gen::inRange<uint64_t>(1, 8);
        const bool fits = reference.Fits(permits, now_ns);
        RC_ASSERT(bucket.CanTake(limit, permits, At(now_ns)) == fits);
        RC_ASSERT(bucket.EarliestNs(limit, permits, At(now_ns)) ==
                  reference.EarliestNs(permits, now_ns));
        RC_ASSERT(bucket.TryTake(limit, permits, At(now_ns), ++last_id) == fits);
        if (fits) reference.Take(last_id, permits, now_ns);
      }
    }
    const Level level = bucket.LevelAt(limit, At(now_ns));
    RC_ASSERT(level.remaining == static_cast<int64_t>(limit.concurrency.permits) -
                                     static_cast<int64_t>(reference.InUse(now_ns)));
    RC_ASSERT(level.capacity == limit.concurrency.permits);
    RC_ASSERT(level.reset_after_ns == reference.LastEndNs(now_ns) - now_ns);
    const int64_t next_ns = reference.EarliestNs(1, now_ns) - now_ns;
    RC_ASSERT(level.next_permit_after_ns == next_ns);
    RC_ASSERT(bucket.IsFull(limit, At(now_ns)) == (reference.Holds(now_ns) == 0));
    RC_ASSERT(bucket.slots()->HoldsAt(now_ns) == reference.Holds(now_ns));
    RC_ASSERT(bucket.slots()->NextEndNs(now_ns) == reference.NextEndNs(now_ns));
    const Refundable refundable = bucket.RefundableAt(limit, At(now_ns));
    RC_ASSERT(refundable.receipts == reference.Holds(now_ns));
    RC_ASSERT(refundable.permits == reference.InUse(now_ns));
  }
}

RC_GTEST_PROP(HoldListTest, KeepsTheOrderAndTheSumsOfManyHolds, ()) {
  HoldList list;
  std::vector<Hold> model;  // in order
  uint64_t last_id = 0;
  const int steps = *rc::gen::inRange(1, 1000);
  for (int s = 0; s < steps; ++s) {
    const int what = *rc::gen::inRange(0, 10);
    if (what == 0 && !model.empty()) {
      const int64_t now_ns = *rc::gen::inRange<int64_t>(0, 60);
      const size_t most = *rc::gen::inRange<size_t>(0, 100);
      const size_t ended = static_cast<size_t>(std::count_if(
          model.begin(), model.end(), [&](const Hold& hold) { return hold.end_ns <= now_ns; }));
      RC_ASSERT(list.RemoveEnded(now_ns, most) == std::min(ended, most));
      model.erase(model.begin(), model.begin() + static_cast<ptrdiff_t>(std::min(ended, most)));
    } else if (what < 4 && !model.empty()) {
      const size_t at = *rc::gen::inRange<size_t>(0, model.size());
      RC_ASSERT(list.RankOf(model[at].id) == at);
      RC_ASSERT(list.Find(model[at].id) == model[at]);
      RC_ASSERT(list.Remove(model[at].id) == model[at]);
      RC_ASSERT(!list.Remove(model[at].id).has_value());
      model.erase(model.begin() + static_cast<ptrdiff_t>(at));
    } else {
      const Hold hold = {*rc::gen::inRange<int64_t>(0, 1000), ++last_id,
                         *rc::gen::inRange<uint64_t>(1, 9)};
      list.Add(hold);
      model.insert(
          std::upper_bound(model.begin(), model.end(), hold,
                           [](const Hold& a, const Hold& b) { return a.end_ns < b.end_ns; }),
          hold);
    }
    std::vector<Hold> listed;
    list.ForEach([&](const Hold& hold) { listed.push_back(hold); });
    RC_ASSERT(listed == model);
    RC_ASSERT(list.size() == model.size());
    uint64_t sum = 0;
    for (const Hold& hold : model) sum += hold.permits;
    RC_ASSERT(list.permits() == sum);
    if (model.empty()) continue;
    const size_t skip = *rc::gen::inRange<size_t>(0, model.size());
    const size_t count = *rc::gen::inRange<size_t>(0, 20);
    listed.clear();
    list.ForEach([&](const Hold& hold) { listed.push_back(hold); }, skip, count);
    RC_ASSERT(listed.size() == std::min(count, model.size() - skip));
    RC_ASSERT(
        std::equal(listed.begin(), listed.end(), model.begin() + static_cast<ptrdiff_t>(skip)));
  }
}

TEST(ConcurrencyTest, FreesTheSlotsOfACrashedCallerAtTheEndAndNotBefore) {
  const Parameters limit = Slots(2, 30 * kSecond);
  BucketState bucket(limit);
  ASSERT_TRUE(bucket.TryTake(limit, 2, At(kSecond), 1));
  EXPECT_FALSE(bucket.CanTake(limit, 1, At(31 * kSecond - 1)));
  EXPECT_EQ(bucket.EarliestNs(limit, 1, At(2 * kSecond)), 31 * kSecond);
  EXPECT_TRUE(bucket.CanTake(limit, 2, At(31 * kSecond)));
  EXPECT_FALSE(bucket.RenewHold(limit, 1, At(31 * kSecond)).has_value());
}

TEST(ConcurrencyTest, KeepsGrantsAndGrantsNoneUntilTheyAreBelowALoweredNumber) {
  const Parameters before = Slots(3, kSecond);
  const Parameters after = Slots(1, kSecond);
  BucketState bucket(before);
  for (const uint64_t id : {1, 2, 3}) ASSERT_TRUE(bucket.TryTake(before, 1, At(0), id));
  bucket.Convert(before, after, At(0));
  EXPECT_EQ(bucket.LevelAt(after, At(0)).remaining, -2);
  EXPECT_EQ(bucket.RenewHold(after, 1, At(1)), kSecond + 1);
  EXPECT_TRUE(bucket.EndHold(1, At(1)).has_value());
  EXPECT_TRUE(bucket.EndHold(2, At(1)).has_value());
  EXPECT_FALSE(bucket.TryTake(after, 1, At(1), 4));
  EXPECT_TRUE(bucket.EndHold(3, At(1)).has_value());
  EXPECT_TRUE(bucket.TryTake(after, 1, At(1), 5));
}

TEST(ConcurrencyTest, EndsHoldsWhenTheAlgorithmChanges) {
  const Parameters slots = Slots(3, kSecond);
  const Parameters rate = *MakeTokenBucket({5, kSecond}, 5, 0);
  BucketState bucket(slots);
  ASSERT_TRUE(bucket.TryTake(slots, 3, At(kSecond), 1));
  bucket.Convert(slots, rate, At(kSecond));
  EXPECT_EQ(bucket.LevelAt(rate, At(kSecond)).remaining, 5);
  EXPECT_FALSE(bucket.EndHold(1, At(kSecond)).has_value());
  ASSERT_TRUE(bucket.TryTake(rate, 5, At(kSecond), 2));
  bucket.Book(rate, {2 * kSecond, 5, 3, 1}, At(kSecond));
  bucket.Convert(rate, slots, At(kSecond));
  EXPECT_EQ(bucket.bookings(), 0u);
  EXPECT_TRUE(bucket.TryTake(slots, 3, At(kSecond), 4));
  EXPECT_FALSE(bucket.RenewHold(slots, 2, At(kSecond)).has_value());
}

// Other algorithms keep a receipt beside the permits that they count; a hold is both.
TEST(ConcurrencyTest, HoldTakesAtMost64BytesBesideAReceipt) {
  constexpr size_t kMost = 64 + sizeof(OpenReceipts::Receipt);
  constexpr int64_t kHolds = 10'000;
  const Parameters limit = Slots(kHolds, 10 * kSecond);
  BucketState bucket(limit);
  const size_t empty = bucket.MemoryBytes();
  for (int64_t id = 1; id <= kHolds; ++id) {
    ASSERT_TRUE(bucket.TryTake(limit, 1, At(id), static_cast<uint64_t>(id)));
  }
  EXPECT_LE(bucket.MemoryBytes() - empty, kMost * kHolds);
  // Every third ends, and the rest is renewed, in another order.
  for (int64_t id = 1; id <= kHolds; ++id) {
    const auto other = static_cast<uint64_t>(1 + id * 7 % kHolds);
    if (id % 3 == 0) {
      bucket.EndHold(other, At(kSecond + id));
    } else {
      bucket.RenewHold(limit, other, At(kSecond + id));
    }
  }
  EXPECT_LE(bucket.MemoryBytes() - empty, kMost * bucket.slots()->holds().size());
}

TEST(ConcurrencyTest, RefusesParametersOutOfBounds) {
  EXPECT_FALSE(MakeConcurrency(0, kSecond).ok());
  EXPECT_FALSE(MakeConcurrency(uint64_t{1} << 63, kSecond).ok());
  EXPECT_FALSE(MakeConcurrency(1, 0).ok());
  EXPECT_FALSE(MakeConcurrency(1, 999'999).ok());
  EXPECT_FALSE(MakeConcurrency(1, int64_t{24} * 3600 * kSecond + 1).ok());
  EXPECT_TRUE(MakeConcurrency(1, 1'000'000).ok());
  EXPECT_EQ(Capacity(*MakeConcurrency(7, kSecond)), 7u);
  EXPECT_EQ(MaxGrant(*MakeConcurrency(7, kSecond)), 7u);
}

}  // namespace
}  // namespace sluice::algorithm
