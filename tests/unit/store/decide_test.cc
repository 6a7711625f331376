// The decision on open buckets, with a bucket that is simple enough to check by hand: it grants a
// number of permits in each slot of ten nanoseconds.
#include "server/store/decide.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "server/algorithm/parameters.h"
#include "server/store/rebook.h"

namespace sluice::store {
namespace {

using algorithm::Booking;
using algorithm::kNeverNs;

constexpr int64_t kSlotNs = 10;
constexpr int64_t SlotOf(int64_t at_ns) { return at_ns / kSlotNs; }

class SlotBucket {
 public:
  explicit SlotBucket(uint64_t capacity) : capacity_(capacity) {}

  // Grant times that have come become takes.
  void Fold(int64_t now_ns) {
    for (const Booking& one : bookings_) {
      if (one.grant_time_ns <= now_ns) receipts_[one.id] = {one.grant_time_ns, one.permits};
    }
    std::erase_if(bookings_, [&](const Booking& one) { return one.grant_time_ns <= now_ns; });
  }

  bool missing() const { return is_missing; }
  bool CanTake(uint64_t permits, int64_t now_ns, uint64_t set) const {
    return EarliestNs(permits, now_ns, set, now_ns) == now_ns;
  }
  void Take(uint64_t permits, int64_t now_ns, uint64_t receipt_id, uint64_t) {
    used_[SlotOf(now_ns)] += permits;
    if (receipt_id != 0) receipts_[receipt_id] = {now_ns, permits};
  }
  uint64_t Force(uint64_t permits, uint64_t max_owed, int64_t now_ns, uint64_t receipt_id) {
    const uint64_t counted = std::min(permits, capacity_ + max_owed - UsedAt(now_ns));
    Take(counted, now_ns, receipt_id, /*set=*/0);
    return permits - counted;
  }
  void GiveBack(uint64_t permits, int64_t now_ns) {
    uint64_t& used = used_[SlotOf(now_ns)];
    used -= std::min(used, permits);
  }
  int64_t EarliestNs(uint64_t permits, int64_t, uint64_t set, int64_t from_ns,
                     SearchBudget* = nullptr) const {
    if (permits > capacity_) return kNeverNs;
    for (const Booking& one : bookings_) {
      if (set != 0 && one.set == set) from_ns = std::max(from_ns, one.grant_time_ns);
    }
    while (UsedAt(from_ns) + permits > capacity_) from_ns = (SlotOf(from_ns) + 1) * kSlotNs;
    return from_ns;
  }
  algorithm::Level LevelAt(int64_t now_ns, SearchBudget* = nullptr) const {
    return {.remaining = static_cast<int64_t>(capacity_ - UsedAt(now_ns)), .capacity = capacity_};
  }
  std::optional<uint64_t> Refund(uint64_t id, int64_t now_ns) {
    const auto found = receipts_.find(id);
    if (found == receipts_.end()) return std::nullopt;
    const auto [at_ns, permits] = found->second;
    receipts_.erase(found);
    if (SlotOf(at_ns) != SlotOf(now_ns)) return 0;
    used_[SlotOf(at_ns)] -= permits;
    return permits;
  }
  // These are no slots of concurrency.
  std::optional<int64_t> HeldUntilNs(uint64_t, int64_t) const { return std::nullopt; }
  std::optional<int64_t> RenewHold(uint64_t, int64_t) { return std::nullopt; }
  // Nor has it room for estimates.
  bool HasRoomForEstimate(int64_t) const { return false; }
  void BeginEstimate(uint64_t, uint64_t, int64_t, int64_t) {}
  std::optional<algorithm::Estimate> FindEstimate(uint64_t) const { return std::nullopt; }
  uint64_t Settle(uint64_t, const algorithm::BucketState::Settlement&, int64_t) { return 0; }
  void CloseReceipt(uint64_t) {}
  void Book(const Booking& booking, int64_t) {
    used_[SlotOf(booking.grant_time_ns)] += booking.permits;
    bookings_.push_back(booking);
  }
  bool CancelBooking(int64_t, uint64_t id) {
    const auto found = Find(id);
    if (found == bookings_.end()) return false;
    used_[SlotOf(found->grant_time_ns)] -= found->permits;
    bookings_.erase(found);
    return true;
  }
  bool FindBooking(int64_t grant_time_ns, uint64_t id, Booking* booking,
                   int64_t* previous_ns) const {
    const auto found = Find(id);
    if (found == bookings_.end()) return false;
    *booking = *found;
    *previous_ns = INT64_MIN;
    for (const Booking& one : bookings_) {
      if (one.set != found->set || one.id >= id || one.grant_time_ns > grant_time_ns) continue;
      *previous_ns = std::max(*previous_ns, one.grant_time_ns);
    }
    return true;
  }
  size_t bookings() const { return bookings_.size(); }
  bool BookingsFull(size_t more = 0) const { return bookings_.size() + more >= max_bookings; }
  void ForEachBooking(absl::FunctionRef<void(const Booking&)> visit) const {
    for (const Booking& one : bookings_) visit(one);
  }
  int64_t NextGrantTimeNs() const {
    return std::min_element(bookings_.begin(), bookings_.end(), Before)->grant_time_ns;
  }
  int64_t LastGrantTimeNs() const {
    return std::max_element(bookings_.begin(), bookings_.end(), Before)->grant_time_ns;
  }

  uint64_t UsedAt(int64_t at_ns) const {
    const auto found = used_.find(SlotOf(at_ns));
    return found == used_.end() ? 0 : found->second;
  }
  // The fullest slot holds no more than the capacity.
  bool Keeps() const {
    return std::all_of(used_.begin(), used_.end(),
                       [&](const auto& slot) { return slot.second <= capacity_; });
  }
  bool operator==(const SlotBucket& other) const {
    return used_ == other.used_ && receipts_ == other.receipts_ &&
           bookings_.size() == other.bookings_.size();
  }

  bool is_missing = false;
  size_t max_bookings = 100;

 private:
  static bool Before(const Booking& a, const Booking& b) {
    return a.grant_time_ns < b.grant_time_ns;
  }
  std::vector<Booking>::const_iterator Find(uint64_t id) const {
    return std::find_if(bookings_.begin(), bookings_.end(),
                        [&](const Booking& one) { return one.id == id; });
  }

  uint64_t capacity_;
  std::map<int64_t, uint64_t> used_;  // by slot, bookings included
  std::map<uint64_t, std::pair<int64_t, uint64_t>> receipts_;
  std::vector<Booking> bookings_;
};
static_assert(OpenForDecision<SlotBucket>);

// Buckets of slots, and the acquisitions on them.
class Scene {
 public:
  explicit Scene(const std::vector<uint64_t>& capacities) : rules_(capacities.size()) {
    for (const uint64_t capacity : capacities) buckets.emplace_back(capacity);
  }

  struct Decided {
    Acquisition of;
    std::vector<ChargeResult> results;
    bool granted = false;
  };

  Decided Ask(const std::vector<uint64_t>& permits, int64_t now_ns, int64_t max_wait_ns = 0,
              uint64_t set = 1, OverflowPolicy overflow = OverflowPolicy::kDeny) {
    Decided decided;
    decided.results.resize(permits.size());
    const std::vector<Charge> charges = ChargesOf(permits);
    decided.of.charges = charges;
    decided.of.results = decided.results.data();
    decided.of.max_wait_ns = max_wait_ns;
    decided.of.want_receipt = true;
    Fold(now_ns);
    decided.granted = Decide(
                          &decided.of, Open(permits.size()), now_ns, set,
                          [&] { return ++last_id_; }, overflow) == Outcome::kGranted;
    return decided;
  }

  bool GiveBack(const Decided& decided, int64_t now_ns, std::vector<uint64_t>* given) {
    const std::vector<Charge> charges = ChargesOf(*given);
    RefundOperationFor operation;
    operation.receipt_id = decided.of.receipt_id;
    operation.grant_time_ns = decided.of.now_ns + decided.of.wait_ns;
    operation.charges = charges;
    operation.refunded = given->data();
    Fold(now_ns);
    return Refund(operation, Open(given->size()), now_ns);
  }

  MoveOutcome MoveUp(const Decided& decided, const std::vector<uint64_t>& permits, int64_t now_ns,
                     int64_t* booked_ns) {
    const std::vector<Charge> charges = ChargesOf(permits);
    Fold(now_ns);
    return Move(decided.of.receipt_id, charges, Open(permits.size()), now_ns, booked_ns);
  }

  // Books them again, in this order. Each has one permit of the first bucket.
  std::vector<Rebooking> BookAgain(const std::vector<Decided>& all, int64_t now_ns) {
    const std::vector<Charge> charges = ChargesOf({1});
    std::vector<Rebooking> asked(all.size());
    std::vector<ChargeResult> results(all.size());
    std::vector<RebookItem> items(all.size());
    for (size_t i = 0; i < all.size(); ++i) {
      asked[i].receipt_id = all[i].of.receipt_id;
      asked[i].charges = charges;
      asked[i].results = &results[i];
      asked[i].grant_time_ns = all[i].of.now_ns + all[i].of.wait_ns;
      asked[i].until_ns = now_ns + 1000;
      items[i].asked = &asked[i];
      items[i].set = 1;
      items[i].buckets = {0};
    }
    Fold(now_ns);
    Rebook(absl::MakeSpan(items), Open(1), now_ns);
    WriteOutcomes(items, now_ns);
    return asked;
  }

  void MakeShadow(size_t bucket) { rules_[bucket].shadow = true; }

  std::vector<SlotBucket> buckets;

 private:
  struct RefundOperationFor final : RefundOperation {
    void Done() override {}
  };

  std::vector<Charge> ChargesOf(const std::vector<uint64_t>& permits) const {
    std::vector<Charge> charges;
    for (size_t i = 0; i < permits.size(); ++i) charges.push_back({&rules_[i], "k", permits[i]});
    return charges;
  }
  absl::Span<SlotBucket> Open(size_t count) { return absl::MakeSpan(buckets).first(count); }
  void Fold(int64_t now_ns) {
    for (SlotBucket& bucket : buckets) bucket.Fold(now_ns);
  }

  std::vector<Rule> rules_;
  uint64_t last_id_ = 0;
};

TEST(DecideTest, TakesFromEveryBucketWhenAllChargesFit) {
  Scene scene({5, 3});
  const Scene::Decided decided = scene.Ask({2, 3}, 100);
  EXPECT_TRUE(decided.granted);
  EXPECT_NE(decided.of.receipt_id, 0u);
  EXPECT_EQ(decided.of.now_ns, 100);
  EXPECT_EQ(decided.results[0].level.remaining, 3);
  EXPECT_EQ(decided.results[1].level.remaining, 0);
}

TEST(DecideTest, DenialLeavesNoTraceAndNamesTheChargeThatDidNotFit) {
  Scene scene({5, 3});
  ASSERT_TRUE(scene.Ask({0, 1}, 100).granted);
  const std::vector<SlotBucket> before = scene.buckets;
  const Scene::Decided denied = scene.Ask({2, 3}, 104);
  EXPECT_FALSE(denied.granted);
  EXPECT_EQ(scene.buckets, before);
  EXPECT_EQ(denied.of.receipt_id, 0u);
  EXPECT_EQ(denied.of.retry_after_ns, 6) << "the next slot";
  EXPECT_EQ(denied.results[0].reason, Reason::kNone);
  EXPECT_EQ(denied.results[1].reason, Reason::kNotEnough);
}

TEST(DecideTest, ShadowChargeIsTakenOrReportedAndNeverDenies) {
  Scene scene({5, 3});
  scene.MakeShadow(1);
  EXPECT_EQ(scene.Ask({1, 3}, 100).results[1].reason, Reason::kNone);
  const Scene::Decided decided = scene.Ask({1, 1}, 100);
  EXPECT_TRUE(decided.granted);
  EXPECT_EQ(decided.results[1].reason, Reason::kShadowDenied);
  EXPECT_EQ(scene.buckets[0].UsedAt(100), 2u);
  EXPECT_EQ(scene.buckets[1].UsedAt(100), 3u);
}

TEST(DecideTest, OverflowPolicyDecidesChargesWithoutABucket) {
  Scene scene({5, 3});
  scene.buckets[1].is_missing = true;
  const Scene::Decided denied = scene.Ask({1, 1}, 100);
  EXPECT_FALSE(denied.granted);
  EXPECT_EQ(denied.results[1].reason, Reason::kOverflow);
  EXPECT_EQ(denied.of.retry_after_ns, kOverflowRetryNs);
  EXPECT_EQ(scene.buckets[0].UsedAt(100), 0u);
  const Scene::Decided allowed = scene.Ask({1, 1}, 100, 0, 1, OverflowPolicy::kAllow);
  EXPECT_TRUE(allowed.granted);
  EXPECT_EQ(allowed.of.source, Source::kOverflow);
}

TEST(DecideTest, BooksAtTheFirstMomentThatSuitsAllBuckets) {
  Scene scene({2, 1});
  ASSERT_TRUE(scene.Ask({0, 1}, 100).granted);
  ASSERT_EQ(scene.Ask({2}, 100, 1000, /*set=*/2).of.wait_ns, 0);
  ASSERT_EQ(scene.Ask({2}, 100, 1000, /*set=*/2).of.wait_ns, 10);
  // Slot 100 is full in both, slot 110 in the first.
  const Scene::Decided booked = scene.Ask({1, 1}, 104, 1000);
  EXPECT_TRUE(booked.granted);
  EXPECT_EQ(booked.of.wait_ns, 16);
  EXPECT_NE(booked.of.receipt_id, 0u);
  EXPECT_EQ(scene.buckets[0].UsedAt(120), 1u);
  EXPECT_EQ(scene.buckets[1].UsedAt(120), 1u);
}

TEST(DecideTest, DenialOfAWaitNamesOnlyChargesThatMissTheDeadlineAlone) {
  Scene scene({1, 1});
  ASSERT_TRUE(scene.Ask({1, 1}, 100).granted);
  ASSERT_TRUE(scene.Ask({1}, 100, 1000, /*set=*/2).granted);
  const Scene::Decided denied = scene.Ask({1, 1}, 105, /*max_wait_ns=*/5);
  EXPECT_FALSE(denied.granted);
  EXPECT_EQ(denied.results[0].reason, Reason::kNotEnough) << "booked until 120";
  EXPECT_EQ(denied.results[1].reason, Reason::kNone) << "free at 110";
  EXPECT_EQ(denied.of.retry_after_ns, 120 - 105 - 5);
}

TEST(DecideTest, FullCalendarDeniesWithWaitingBoundUntilItsNextGrantTime) {
  Scene scene({1});
  scene.buckets[0].max_bookings = 1;
  ASSERT_TRUE(scene.Ask({1}, 100).granted);
  ASSERT_EQ(scene.Ask({1}, 100, 1000).of.wait_ns, 10);
  const Scene::Decided denied = scene.Ask({1}, 103, 1000);
  EXPECT_FALSE(denied.granted);
  EXPECT_EQ(denied.results[0].reason, Reason::kWaitingBound);
  EXPECT_EQ(denied.of.retry_after_ns, 7);
}

TEST(DecideTest, RequestThatCanNeverFitIsDeniedForEver) {
  Scene scene({3});
  const Scene::Decided denied = scene.Ask({4}, 100, 1000);
  EXPECT_FALSE(denied.granted);
  EXPECT_EQ(denied.of.retry_after_ns, kNeverNs);
}

TEST(RefundTest, CancelsABookingBeforeItsGrantTimeAndRefundsATakeAfterIt) {
  Scene scene({1});
  ASSERT_TRUE(scene.Ask({1}, 100).granted);
  const Scene::Decided first = scene.Ask({1}, 100, 1000);
  const Scene::Decided second = scene.Ask({1}, 100, 1000);
  std::vector<uint64_t> given = {1};
  EXPECT_TRUE(scene.GiveBack(first, 105, &given));
  EXPECT_EQ(given, std::vector<uint64_t>{1});
  EXPECT_EQ(scene.buckets[0].UsedAt(110), 0u);
  // Its slot has passed: closed, and worth nothing.
  EXPECT_TRUE(scene.GiveBack(second, 135, &given));
  EXPECT_EQ(given, std::vector<uint64_t>{0});
  EXPECT_FALSE(scene.GiveBack(second, 135, &given)) << "once";
}

TEST(MoveTest, TakesTheFirstMomentThatBecameFree) {
  Scene scene({1, 5});
  ASSERT_TRUE(scene.Ask({1, 1}, 100).granted);
  const Scene::Decided first = scene.Ask({1, 1}, 100, 1000);
  const Scene::Decided second = scene.Ask({1, 1}, 100, 1000);
  std::vector<uint64_t> given = {1, 1};
  ASSERT_TRUE(scene.GiveBack(first, 101, &given));
  int64_t booked_ns = second.of.now_ns + second.of.wait_ns;
  ASSERT_EQ(booked_ns, 120);
  EXPECT_EQ(scene.MoveUp(second, {1, 1}, 102, &booked_ns), MoveOutcome::kMoved);
  EXPECT_EQ(booked_ns, 110);
  EXPECT_EQ(scene.buckets[1].UsedAt(120), 0u);
  EXPECT_EQ(scene.MoveUp(second, {1, 1}, 103, &booked_ns), MoveOutcome::kStays);
  EXPECT_EQ(scene.MoveUp(second, {1, 1}, 115, &booked_ns), MoveOutcome::kGone);
}

TEST(MoveTest, NeverOvertakesAnEarlierBookingOfItsSet) {
  Scene scene({2});
  ASSERT_TRUE(scene.Ask({2}, 100).granted);
  const Scene::Decided first = scene.Ask({2}, 100, 1000);   // at 110
  const Scene::Decided second = scene.Ask({2}, 100, 1000);  // at 120
  const Scene::Decided third = scene.Ask({1}, 100, 1000);   // at 130
  std::vector<uint64_t> given = {2};
  ASSERT_TRUE(scene.GiveBack(first, 101, &given));
  int64_t booked_ns = third.of.now_ns + third.of.wait_ns;
  ASSERT_EQ(booked_ns, 130);
  EXPECT_EQ(scene.MoveUp(third, {1}, 102, &booked_ns), MoveOutcome::kStays);
  EXPECT_EQ(booked_ns, 130);
}

// Other limits' bookings count for the bound, so it may have been reached since.
TEST(RebookTest, RebookingDeniesNoneThatWasBookedAndStillFits) {
  Scene scene({1});
  ASSERT_TRUE(scene.Ask({1}, 100).granted);
  std::vector<Scene::Decided> booked;
  for (int i = 0; i < 3; ++i) booked.push_back(scene.Ask({1}, 100, 1000));
  scene.buckets[0].max_bookings = 1;
  const std::vector<Rebooking> rebooked = scene.BookAgain(booked, 101);
  for (size_t i = 0; i < booked.size(); ++i) {
    EXPECT_EQ(rebooked[i].outcome, Rebooking::Outcome::kBooked) << i;
    EXPECT_EQ(rebooked[i].grant_time_ns, 110 + 10 * static_cast<int64_t>(i));
  }
}

TEST(RebookTest, ReservationThatWasTakenMeanwhileFindsTheRoomThatBookingsLeave) {
  for (const size_t max_bookings : {2, 3}) {
    Scene scene({1});
    ASSERT_TRUE(scene.Ask({1}, 100).granted);
    std::vector<Scene::Decided> booked;
    for (int i = 0; i < 3; ++i) booked.push_back(scene.Ask({1}, 100, 1000));
    // The first one's time has come. It does not fit beside this debit any more.
    scene.buckets[0].Force(1, /*max_owed=*/1, 112, /*receipt_id=*/0);
    scene.buckets[0].max_bookings = max_bookings;
    const std::vector<Rebooking> rebooked = scene.BookAgain(booked, 115);
    const bool room = max_bookings > 2;
    EXPECT_EQ(rebooked[0].outcome,
              room ? Rebooking::Outcome::kBooked : Rebooking::Outcome::kDenied);
    EXPECT_EQ(rebooked[1].outcome, Rebooking::Outcome::kBooked);
    EXPECT_EQ(rebooked[2].outcome, Rebooking::Outcome::kBooked);
    EXPECT_EQ(scene.buckets[0].bookings(), room ? 3u : 2u);
  }
}

// The same request again, on a copy, at another time.
bool GrantedAt(Scene scene, const std::vector<uint64_t>& permits, int64_t now_ns,
               int64_t max_wait_ns, uint64_t set) {
  return scene.Ask(permits, now_ns, max_wait_ns, set).granted;
}

RC_GTEST_PROP(DecidePropertyTest, NoSlotOverflowsAndRetryAfterIsExact, ()) {
  Scene scene({*rc::gen::inRange<uint64_t>(1, 4), *rc::gen::inRange<uint64_t>(1, 4)});
  std::vector<std::pair<Scene::Decided, std::vector<uint64_t>>> granted;
  int64_t now_ns = 1000;
  const int steps = *rc::gen::inRange(1, 40);
  for (int i = 0; i < steps; ++i) {
    now_ns += *rc::gen::inRange(0, 8);
    if (!granted.empty() && *rc::gen::inRange(0, 4) == 0) {
      const auto chosen = *rc::gen::inRange<size_t>(0, granted.size());
      std::vector<uint64_t> given = granted[chosen].second;
      scene.GiveBack(granted[chosen].first, now_ns, &given);
      granted.erase(granted.begin() + static_cast<std::ptrdiff_t>(chosen));
    }
    const std::vector<uint64_t> permits = {*rc::gen::inRange<uint64_t>(0, 4),
                                           *rc::gen::inRange<uint64_t>(0, 4)};
    const int64_t max_wait_ns = *rc::gen::elementOf(std::vector<int64_t>{0, 0, 7, 30, 1000});
    const uint64_t set = *rc::gen::inRange<uint64_t>(1, 3);
    std::vector<SlotBucket> before = scene.buckets;
    for (SlotBucket& bucket : before) bucket.Fold(now_ns);
    const Scene::Decided decided = scene.Ask(permits, now_ns, max_wait_ns, set);
    RC_ASSERT(scene.buckets[0].Keeps() && scene.buckets[1].Keeps());
    if (decided.granted) {
      RC_ASSERT(decided.of.wait_ns <= max_wait_ns);
      // It could not have been granted earlier.
      for (int64_t wait_ns = 0; wait_ns < decided.of.wait_ns; ++wait_ns) {
        const int64_t at_ns = now_ns + wait_ns;
        RC_ASSERT(before[0].EarliestNs(permits[0], now_ns, set, at_ns) != at_ns ||
                  before[1].EarliestNs(permits[1], now_ns, set, at_ns) != at_ns);
      }
      granted.emplace_back(decided, permits);
      continue;
    }
    RC_ASSERT(scene.buckets == before);
    const int64_t retry_ns = decided.of.retry_after_ns;
    RC_ASSERT(retry_ns > 0);
    if (retry_ns == kNeverNs) continue;
    RC_ASSERT(!GrantedAt(scene, permits, now_ns + retry_ns - 1, max_wait_ns, set));
    RC_ASSERT(GrantedAt(scene, permits, now_ns + retry_ns, max_wait_ns, set));
  }
}

}  // namespace
}  // namespace sluice::store
