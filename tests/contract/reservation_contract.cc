// The contract of reservations: permits granted for a later time.
#include <gmock/gmock.h>

#include <algorithm>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "common/bounds.h"
#include "tests/contract/store_contract.h"
#include "tests/support/window_checker.h"

namespace sluice::testing {
namespace {

using store::Charge;
using store::Outcome;
using store::Reason;
using store::RefundOutcome;
using store::Rule;
using test_support::CheckCountInEveryWindow;
using test_support::CheckRateInEveryWindow;
using test_support::Grant;
using ::testing::ElementsAre;

constexpr int64_t kMinute = 60'000'000'000;

TEST_P(ReservationContractTest, GrantsAtOnceWhilePermitsSuffice) {
  const auto rule = TokenBucket(1, 1, 2);
  const Acquired now = Reserve(*rule, "k", kMinute);
  EXPECT_TRUE(now.granted());
  EXPECT_EQ(now.wait_ns, 0);
  EXPECT_EQ(now.receipt_id, 0u);
  ExpectBookings(0);
}

TEST_P(ReservationContractTest, GrantsEarliestTimesInOrder) {
  const auto rule = TokenBucket(1, 1, 1);
  for (int64_t i = 0; i < 20; ++i) {
    const Acquired reserved = Reserve(*rule, "k", kMinute);
    ASSERT_TRUE(reserved.granted());
    EXPECT_EQ(reserved.wait_ns, i * kSecond);
    EXPECT_EQ(reserved.receipt_id != 0, i > 0);
    EXPECT_EQ(reserved.charges[0].reason, Reason::kNone);
  }
  ExpectBookings(19);
  const store::QueryItem item = Query(store(), *rule, "k");
  EXPECT_EQ(item.waiting, 19u);
  EXPECT_EQ(item.next_grant_after_ns, kSecond);
  EXPECT_EQ(item.level.remaining, 0);
  EXPECT_EQ(item.level.reset_after_ns, 20 * kSecond);
  EXPECT_EQ(item.level.next_permit_after_ns, 20 * kSecond);

  Advance(3 * kSecond + 1);
  EXPECT_EQ(Query(store(), *rule, "k").waiting, 16u);
  EXPECT_EQ(Query(store(), *rule, "k").next_grant_after_ns, kSecond - 1);
  Advance(kMinute);
  EXPECT_EQ(Query(store(), *rule, "k").waiting, 0u);
  ExpectBookings(0);
}

TEST_P(ReservationContractTest, SpacesDebtLikeGuava) {
  // Costs 1, 1, 2, 4, 8, 1 at 1/s with nothing stored, each requested at the grant time before it.
  const auto rule = TokenBucket(1, 1, 0, 16);
  const std::vector<std::pair<uint64_t, int64_t>> asked = {{1, 0}, {1, 1}, {2, 1},
                                                           {4, 2}, {8, 4}, {1, 8}};
  for (const auto& [permits, wait_s] : asked) {
    const Acquired reserved = Reserve(*rule, "k", kMinute, permits);
    ASSERT_TRUE(reserved.granted());
    EXPECT_EQ(reserved.wait_ns, wait_s * kSecond);
    Advance(reserved.wait_ns);
  }
}

TEST_P(ReservationContractTest, DeniesWithExactRetryAfterAndChangesNothing) {
  for (const auto& rule :
       {TokenBucket(1, 7, 5), Register(2, algorithm::MakeSlidingLog({5, kSecond})),
        Register(3, algorithm::MakeSlidingWindow({5, kSecond}, 4)),
        Register(4, algorithm::MakeFixedWindow({5, kSecond}, 0))}) {
    ASSERT_TRUE(Acquire(store(), *rule, "k", 5).granted());
    Advance(1234);
    ASSERT_TRUE(Reserve(*rule, "k", kMinute, 2).granted());
    const auto before = Query(store(), *rule, "k");
    const Acquired denied = Reserve(*rule, "k", 5 * kMillisecond, 4);
    EXPECT_EQ(denied.outcome, Outcome::kDenied);
    EXPECT_EQ(denied.charges[0].reason, Reason::kNotEnough);
    EXPECT_EQ(denied.receipt_id, 0u);
    const auto after = Query(store(), *rule, "k");
    EXPECT_EQ(after.waiting, before.waiting);
    EXPECT_EQ(after.level.reset_after_ns, before.level.reset_after_ns);
    ASSERT_GT(denied.retry_after_ns, 1);
    Advance(denied.retry_after_ns - 1);
    const Acquired early = Reserve(*rule, "k", 5 * kMillisecond, 4);
    EXPECT_EQ(early.outcome, Outcome::kDenied);
    EXPECT_EQ(early.retry_after_ns, 1);
    Advance(1);
    const Acquired granted = Reserve(*rule, "k", 5 * kMillisecond, 4);
    EXPECT_TRUE(granted.granted());
    EXPECT_EQ(granted.wait_ns, 5 * kMillisecond);
  }
}

TEST_P(ReservationContractTest, CallersThatDoNotWaitObeyTheOrder) {
  const auto rule = TokenBucket(1, 1, 5);
  ASSERT_TRUE(Acquire(store(), *rule, "k", 5).granted());
  const Acquired reserved = Reserve(*rule, "k", kMinute, 3);
  ASSERT_EQ(reserved.wait_ns, 3 * kSecond);
  Advance(2 * kSecond);
  // Two permits are stored, but another caller waits for three.
  const Acquired denied = Acquire(store(), *rule, "k", 1);
  EXPECT_EQ(denied.outcome, Outcome::kDenied);
  EXPECT_EQ(denied.retry_after_ns, 2 * kSecond);
  Advance(2 * kSecond);
  EXPECT_TRUE(Acquire(store(), *rule, "k", 1).granted());
}

TEST_P(ReservationContractTest, SlowChannelDoesNotBlockOthers) {
  const auto overall = TokenBucket(1, 10, 1);
  const auto slow = TokenBucket(2, 1, 1);
  const auto fast = TokenBucket(3, 10, 1);
  const std::vector<Charge> on_slow = {{slow.get(), "", 1}, {overall.get(), "", 1}};
  const std::vector<Charge> on_fast = {{fast.get(), "", 1}, {overall.get(), "", 1}};
  const AcquireOptions wait{.max_wait_ns = kMinute};
  for (int64_t i = 0; i < 5; ++i) {
    EXPECT_EQ(Acquire(store(), on_slow, wait).wait_ns, i * kSecond);
  }
  // Nine a second fit beside the slow channel.
  int64_t last_ns = 0;
  for (int64_t i = 0; i < 36; ++i) {
    const int64_t wait_ns = Acquire(store(), on_fast, wait).wait_ns;
    EXPECT_GT(wait_ns, last_ns);
    EXPECT_NE(wait_ns % kSecond, 0);
    last_ns = wait_ns;
  }
  EXPECT_EQ(last_ns, 3 * kSecond + 900 * kMillisecond);
}

TEST_P(ReservationContractTest, CancelledReservationIsRefundedInFullAndOnce) {
  for (const auto& rule :
       {TokenBucket(1, 1, 2), Register(2, algorithm::MakeSlidingLog({2, kSecond})),
        Register(3, algorithm::MakeSlidingWindow({2, kSecond}, 4)),
        Register(4, algorithm::MakeFixedWindow({2, kSecond}, 0))}) {
    ASSERT_TRUE(Acquire(store(), *rule, "k", 2).granted());
    const Acquired first = Reserve(*rule, "k", kMinute, 2);
    const Acquired second = Reserve(*rule, "k", kMinute, 2);
    ASSERT_GT(first.wait_ns, 0);
    ASSERT_GT(second.wait_ns, first.wait_ns);
    const std::vector<Charge> charges = {{rule.get(), "k", 2}};
    const Refunded cancelled = Cancel(second, charges);
    EXPECT_EQ(cancelled.outcome, RefundOutcome::kRefunded);
    EXPECT_THAT(cancelled.permits, ElementsAre(2));
    const Refunded again = Cancel(second, charges);
    EXPECT_EQ(again.outcome, RefundOutcome::kAlreadyRefunded);
    EXPECT_THAT(again.permits, ElementsAre(0));
    // Its grant time is free again, and is taken.
    EXPECT_EQ(Reserve(*rule, "k", kMinute, 2).wait_ns, second.wait_ns);
    EXPECT_EQ(Query(store(), *rule, "k").waiting, 2u);
  }
}

TEST_P(ReservationContractTest, GrantTimesStandWhenAnEarlierReservationIsCancelled) {
  const auto rule = TokenBucket(1, 1, 1);
  ASSERT_TRUE(Acquire(store(), *rule, "k").granted());
  const Acquired first = Reserve(*rule, "k", kMinute);
  const Acquired second = Reserve(*rule, "k", kMinute);
  const std::vector<Charge> charges = {{rule.get(), "k", 1}};
  ASSERT_EQ(Cancel(first, charges).outcome, RefundOutcome::kRefunded);
  EXPECT_EQ(Query(store(), *rule, "k").next_grant_after_ns, second.wait_ns);
  // In order: after the second, although there is a gap before it.
  EXPECT_EQ(Reserve(*rule, "k", kMinute).wait_ns, 3 * kSecond);
}

TEST_P(ReservationContractTest, AfterItsGrantTimeReservationIsRefundedLikeAnyGrant) {
  const auto rule = TokenBucket(1, 1, 2);
  ASSERT_TRUE(Acquire(store(), *rule, "k", 2).granted());
  const Acquired reserved = Reserve(*rule, "k", kMinute);
  EXPECT_EQ(Query(store(), *rule, "k").refundable, algorithm::Refundable());
  Advance(reserved.wait_ns);
  EXPECT_EQ(Remaining(*rule, "k"), 0);
  EXPECT_EQ(Query(store(), *rule, "k").refundable, (algorithm::Refundable{1, 1}));
  const std::vector<Charge> charges = {{rule.get(), "k", 1}};
  const Refunded refunded = Cancel(reserved, charges);
  EXPECT_EQ(refunded.outcome, RefundOutcome::kRefunded);
  EXPECT_THAT(refunded.permits, ElementsAre(1));
  EXPECT_EQ(Remaining(*rule, "k"), 1);
  EXPECT_EQ(Cancel(reserved, charges).outcome, RefundOutcome::kAlreadyRefunded);
}

TEST_P(ReservationContractTest, CancellingRemovesReservationFromEveryBucket) {
  const auto overall = TokenBucket(1, 10, 10);
  const auto channel = TokenBucket(2, 1, 1);
  const std::vector<Charge> charges = {{channel.get(), "", 1}, {overall.get(), "", 1}};
  ASSERT_TRUE(Acquire(store(), charges).granted());
  const Acquired reserved = Acquire(store(), charges, {.max_wait_ns = kMinute});
  ASSERT_EQ(reserved.wait_ns, kSecond);
  EXPECT_EQ(Query(store(), *overall, "").waiting, 1u);
  EXPECT_THAT(Cancel(reserved, charges).permits, ElementsAre(1, 1));
  EXPECT_EQ(Query(store(), *overall, "").waiting, 0u);
  EXPECT_EQ(Query(store(), *channel, "").waiting, 0u);
  ExpectBookings(0);
}

TEST_P(ReservationContractTest, ShadowLimitDelaysNoCaller) {
  const auto rule = TokenBucket(1, 1, 1);
  const auto shadow = TokenBucket(2, 1, 1, 0, /*shadow=*/true);
  const std::vector<Charge> charges = {{rule.get(), "", 1}, {shadow.get(), "", 1}};
  ASSERT_TRUE(Acquire(store(), *rule, "").granted());
  ASSERT_TRUE(Acquire(store(), *shadow, "").granted());
  const Acquired fits = Acquire(store(), charges, {.max_wait_ns = kMinute});
  EXPECT_EQ(fits.wait_ns, kSecond);
  EXPECT_EQ(fits.charges[1].reason, Reason::kNone);
  EXPECT_EQ(Query(store(), *shadow, "").waiting, 1u);
  ASSERT_EQ(Reserve(*shadow, "", kMinute).charges[0].reason, Reason::kShadowDenied);
}

TEST_P(ReservationContractTest, RaisingTheRateGrantsLaterCallersEarlier) {
  const auto rule = TokenBucket(1, 1, 1);
  ASSERT_TRUE(Acquire(store(), *rule, "k").granted());
  ASSERT_EQ(Reserve(*rule, "k", kMinute).wait_ns, kSecond);
  const auto faster = TokenBucket(1, 10, 1);
  EXPECT_EQ(Query(store(), *faster, "k").waiting, 1u);
  EXPECT_EQ(Reserve(*faster, "k", kMinute).wait_ns, kSecond + 100 * kMillisecond);
}

TEST_P(ReservationContractTest, LoweringTheRateKeepsGrantTimes) {
  const auto rule = TokenBucket(1, 10, 1);
  ASSERT_TRUE(Acquire(store(), *rule, "k").granted());
  std::vector<int64_t> moments;
  for (int i = 0; i < 5; ++i) moments.push_back(Reserve(*rule, "k", kMinute).grant_time_ns());
  const auto slower = TokenBucket(1, 1, 1);
  // The bookings owe 5 s in all from the first on; the next follows when that is paid.
  const Acquired next = Reserve(*slower, "k", kMinute);
  ASSERT_TRUE(next.granted());
  EXPECT_EQ(Query(store(), *slower, "k").waiting, 6u);
  EXPECT_GE(next.grant_time_ns(), moments[0] + 5 * kSecond);
  EXPECT_LE(next.grant_time_ns(), moments[0] + 6 * kSecond);
}

TEST_P(ReservationContractTest, RefusesBookingsBeyondTheBoundOfABucket) {
  const auto rule = TokenBucket(1, 1'000'000, 1);
  ASSERT_TRUE(Acquire(store(), *rule, "k").granted());
  for (uint64_t left = under_test_->max_bookings(); left > 0;) {
    const uint64_t count = std::min<uint64_t>(left, 4096);
    const std::vector<std::vector<Charge>> batch(count, {{rule.get(), "k", 1}});
    for (const Acquired& reserved : AcquireBatch(store(), batch, {.max_wait_ns = kMinute})) {
      ASSERT_TRUE(reserved.granted());
    }
    left -= count;
  }
  const Acquired denied = Reserve(*rule, "k", kMinute);
  EXPECT_EQ(denied.outcome, Outcome::kDenied);
  EXPECT_EQ(denied.charges[0].reason, Reason::kWaitingBound);
  EXPECT_GT(denied.retry_after_ns, 0);
  Advance(denied.retry_after_ns);
  EXPECT_TRUE(Reserve(*rule, "k", kMinute).granted());
}

TEST_P(ReservationContractTest, DropsBucketsAfterTheirBookingsEnd) {
  const auto rule = TokenBucket(1, 10, 1);
  for (int i = 0; i < 100; ++i) {
    const std::string key = "k" + std::to_string(i);
    ASSERT_TRUE(Acquire(store(), *rule, key).granted());
    ASSERT_TRUE(Reserve(*rule, key, kMinute).granted());
  }
  Advance(kMinute);
  for (int i = 0; i < 1000; ++i) store().Maintain();
  if (under_test_->knows_what_it_holds()) {
    EXPECT_EQ(store().Stats().buckets, 0u);
  }
  ExpectBookings(0);
}

// Random reservations, cancellations and calls that do not wait, on two channels and a shared
// bucket: no window of any bucket exceeds its limit, past or future, and each set of buckets is
// served in order.
TEST_P(ReservationContractTest, NoWindowExceedsItsLimit) {
  for (uint64_t seed = 1; seed <= 12; ++seed) {
    Start({});
    std::mt19937_64 random(seed);
    const auto below = [&](uint64_t n) { return random() % n; };
    const uint64_t most[3] = {5 + below(10), 3 + below(5), 1 + below(4)};
    std::vector<std::shared_ptr<const Rule>> rules;
    for (uint32_t b = 0; b < 3; ++b) {
      switch ((seed + b) % 4) {
        case 0:
          rules.push_back(Register(b, algorithm::MakeSlidingLog({most[b], kSecond})));
          break;
        case 1:
          rules.push_back(Register(b, algorithm::MakeSlidingWindow({most[b], kSecond}, 5)));
          break;
        default:
          rules.push_back(TokenBucket(b, most[b], most[b]));
      }
    }
    struct Granted {
      Acquired acquired;
      std::vector<Charge> charges;
      size_t set;
    };
    std::vector<Granted> history;
    int64_t last_of_set[3] = {};
    for (int step = 0; step < 1500; ++step) {
      const int64_t now = NowNs();
      if (below(4) == 0) Advance(static_cast<int64_t>(below(kSecond / 3)));
      if (below(8) == 0 && !history.empty()) {
        const size_t i = history.size() - 1 - below(std::min<size_t>(history.size(), 20));
        if (history[i].acquired.grant_time_ns() > NowNs()) {
          ASSERT_EQ(Cancel(history[i].acquired, history[i].charges).outcome,
                    RefundOutcome::kRefunded);
          history.erase(history.begin() + static_cast<std::ptrdiff_t>(i));
          for (size_t s = 0; s < 3; ++s) last_of_set[s] = 0;
          for (const Granted& g : history) {
            last_of_set[g.set] = std::max(last_of_set[g.set], g.acquired.grant_time_ns());
          }
        }
      }
      const size_t set = below(3);
      std::vector<Charge> charges;
      if (set > 0) charges.push_back({rules[set].get(), "", 1});
      charges.push_back({rules[0].get(), "", 1});
      const Acquired acquired =
          Acquire(store(), charges, {.max_wait_ns = static_cast<int64_t>(below(4)) * kSecond});
      if (!acquired.granted()) continue;
      const int64_t moment = acquired.now_ns + acquired.wait_ns;
      EXPECT_GE(moment, last_of_set[set]);
      EXPECT_GE(moment, now);
      last_of_set[set] = std::max(last_of_set[set], moment);
      history.push_back({acquired, charges, set});
    }
    for (uint32_t b = 0; b < 3; ++b) {
      std::vector<Grant> grants;
      for (const Granted& g : history) {
        for (const Charge& charge : g.charges) {
          if (charge.rule == rules[b].get()) {
            grants.push_back({g.acquired.now_ns + g.acquired.wait_ns, charge.permits});
          }
        }
      }
      std::sort(grants.begin(), grants.end(),
                [](const Grant& x, const Grant& y) { return x.at_ns < y.at_ns; });
      if (rules[b]->parameters.kind == algorithm::Kind::kTokenBucket) {
        EXPECT_EQ(CheckRateInEveryWindow(grants, most[b], kSecond, most[b]), "") << seed;
      } else {
        EXPECT_EQ(CheckCountInEveryWindow(grants, kSecond, most[b]), "") << seed;
      }
      EXPECT_GT(grants.size(), 20u);
    }
  }
}

}  // namespace
}  // namespace sluice::testing
