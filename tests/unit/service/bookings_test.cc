// How far ahead requests book: max_wait of the limits, direct, and the bound of a connection.
#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "common/bounds.h"
#include "server/service/connection_bookings.h"
#include "server/service/registry_rules.h"
#include "server/waiting/held_callers.h"
#include "tests/unit/service/fixture.h"

namespace sluice::service {
namespace {

constexpr AcquisitionOptions kDayAhead = {.max_wait = {86400, 0}};

class BookingsTest : public ServiceTest {
 protected:
  static limits::LimitSpec Bounded(std::string name, int64_t max_wait_ns) {
    limits::LimitSpec spec = PerSecond(std::move(name), 1);
    spec.max_wait_ns = max_wait_ns;
    return spec;
  }
  // `child` charges `parent`, which charges `overall`; `other` charges `overall`.
  void SetUp() override {
    auto child = PerSecond("child", 1);
    child.charges = {"parent"};
    auto parent = Bounded("parent", 5 * kSecond);
    parent.charges = {"overall"};
    auto overall = Bounded("overall", 2 * kSecond);
    overall.direct = false;
    auto other = PerSecond("other", 100);
    other.charges = {"overall"};
    auto shadow = Bounded("shadow", kSecond);
    shadow.mode = limits::Mode::kShadow;
    auto trial = PerSecond("trial", 1);
    trial.charges = {"shadow"};
    Load({child, parent, overall, other, PerSecond("hour", 1), Bounded("never", 0),
          Bounded("day", 86400 * kSecond), shadow, trial});
  }

  // Books one permit after another until it is denied; returns how many waited.
  int BookAll(std::string_view limit) {
    for (int booked = 0;; ++booked) {
      const AcquisitionResult result = Acquire(limit, "k", 1, kDayAhead);
      if (!result.granted) return booked - 1;  // the first is granted now
    }
  }
};

TEST_F(BookingsTest, MaxWaitIsCutToTheLimits) {
  EXPECT_EQ(BookAll("hour"), 3600) << "the default";
  EXPECT_EQ(BookAll("never"), 0);
  EXPECT_EQ(BookAll("parent"), 2) << "its own allows 5 s, that of its parent 2 s";
}

TEST_F(BookingsTest, MaxWaitIsCutToTheLeastOfAllParents) {
  EXPECT_EQ(BookAll("child"), 2);
  EXPECT_FALSE(Acquire("other", "victim", 1, kDayAhead).granted);
  clock_.Advance(kSecond);
  EXPECT_TRUE(Acquire("other", "victim", 1, kDayAhead).granted);
}

TEST_F(BookingsTest, RetryAfterCountsFromTheCutMaxWait) {
  for (const int64_t asked_s : {1, 2, 3, 86400}) {
    SCOPED_TRACE(asked_s);
    clock_.Advance(kSecond / 3);
    BookAll("child");
    const AcquisitionOptions options = {.max_wait = {asked_s, 0}};
    const AcquisitionResult denied = Acquire("child", "k", 1, options);
    ASSERT_FALSE(denied.granted);
    ASSERT_GT(denied.retry_after_ns, 0);
    clock_.Advance(denied.retry_after_ns - 1);
    const AcquisitionResult before = Acquire("child", "k", 1, options);
    EXPECT_FALSE(before.granted);
    EXPECT_EQ(before.retry_after_ns, 1);
    clock_.Advance(1);
    const AcquisitionResult granted = Acquire("child", "k", 1, options);
    EXPECT_TRUE(granted.granted);
    EXPECT_EQ(granted.wait_ns, std::min<int64_t>(asked_s, 2) * kSecond);
  }
}

TEST_F(BookingsTest, EachAcquisitionOfABatchIsCutByItsOwnLimits) {
  call_.Reset(AcquireCall::Form::kBatch);
  for (int i = 0; i < 20; ++i) {
    call_.BeginAcquisition(kDayAhead);
    call_.AddCharge(i % 2 == 0 ? "child" : "hour", "k", 1);
  }
  Run(&call_);
  int child = 0, hour = 0;
  for (size_t i = 0; i < call_.size(); ++i) {
    (i % 2 == 0 ? child : hour) += call_.result(i).granted ? 1 : 0;
  }
  EXPECT_EQ(child, 3);
  EXPECT_EQ(hour, 10);
}

TEST_F(BookingsTest, AllChargesOfARequestCut) {
  for (const bool granted : {true, false}) {
    call_.Reset(AcquireCall::Form::kUnary);
    call_.BeginAcquisition(kDayAhead);
    call_.AddCharge("never", "k", 1);
    call_.AddCharge("hour", "k", 1);
    Run(&call_);
    EXPECT_EQ(call_.result(0).granted, granted);
    if (!granted) {
      EXPECT_EQ(call_.result(0).retry_after_ns, kSecond);
    }
  }
}

TEST_F(BookingsTest, ShadowLimitsDoNotCut) {
  ASSERT_TRUE(Acquire("trial", "k").granted);
  for (int i = 1; i < 5; ++i) {
    EXPECT_EQ(Acquire("trial", "k", 1, kDayAhead).wait_ns, i * kSecond);
  }
}

TEST_F(BookingsTest, LimitThatIsNotDirectIsChargedOnlyByOthers) {
  const std::string text =
      "charges[0].limit: \"overall\" is charged only by other limits (direct: false); charge a "
      "limit whose `charges` name it";
  const AcquisitionResult refused = Acquire("overall", "");
  EXPECT_EQ(refused.status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(refused.status.message(), text);
  EXPECT_EQ(Acquire("overall", "another key", 1, kDayAhead).status.message(), text);
  call_.Reset(AcquireCall::Form::kBatch);
  for (const char* limit : {"child", "overall"}) {
    call_.BeginAcquisition({.want_receipt = true});
    call_.AddCharge(limit, "", 1);
  }
  Run(&call_);
  ASSERT_TRUE(call_.result(0).granted);
  EXPECT_EQ(call_.result(1).status.message(), "acquisitions[1]." + text);
  EXPECT_EQ(Remaining("overall", ""), 0) << "Query is allowed; the batch charged it once";
  const std::string receipt(call_.result(0).receipt);
  RefundCall refund;
  EXPECT_TRUE(Refund(receipt, &refund).ok());
  EXPECT_EQ(Remaining("overall", ""), 1);
}

// Held calls need an alarm; the test advances by itself.
class HeldBookingsTest : public BookingsTest {
 protected:
  struct NoAlarm final : waiting::Alarm {
    void SetAt(int64_t) override {}
  };
  struct Held {
    AcquireCall call;
    bool answered = false;
  };

  HeldBookingsTest() { limiter_.UseHeldCallers(&held_callers_); }

  std::unique_ptr<Held> Hold(std::string_view limit, int64_t max_wait_s,
                             int64_t deadline_ns = store::kNoDeadline) {
    auto held = std::make_unique<Held>();
    held->call.Reset(AcquireCall::Form::kUnary);
    held->call.BeginAcquisition({.max_wait = {max_wait_s, 0}, .hold = true});
    held->call.AddCharge(limit, "k", 1);
    held->call.UseConnection(connection_.get());
    limiter_.Acquire(
        &held->call, deadline_ns,
        [](void* of, AcquireCall*) { static_cast<Held*>(of)->answered = true; }, held.get());
    return held;
  }
  void Advance(int64_t by_ns) {
    clock_.Advance(by_ns);
    while (held_callers_.Advance() <= clock_.NowNs()) {
    }
  }

  std::shared_ptr<ConnectionBookings> connection_ = std::make_shared<ConnectionBookings>(3);
  RegistryRules rules_{registry_};
  NoAlarm alarm_;
  waiting::HeldCallers held_callers_{store_, clock_, rules_, alarm_};
};

TEST_F(HeldBookingsTest, HeldCallsAreCutToo) {
  ASSERT_TRUE(Hold("child", 60)->call.result(0).granted);
  const auto first = Hold("child", 60);
  const auto second = Hold("child", 60);
  EXPECT_FALSE(first->answered || second->answered);
  const auto third = Hold("child", 60);
  ASSERT_TRUE(third->answered);
  EXPECT_FALSE(third->call.result(0).granted);
  EXPECT_EQ(third->call.result(0).retry_after_ns, kSecond);
  Advance(2 * kSecond);
  EXPECT_TRUE(first->answered && second->answered);
}

TEST_F(HeldBookingsTest, DeadlineIsNotBlamedForTheCutOfALimit) {
  ASSERT_TRUE(Hold("child", 60)->call.result(0).granted);
  const auto first = Hold("child", 60);
  const auto second = Hold("child", 60);
  const auto late = Hold("child", 60, clock_.NowNs() + 10 * kSecond);
  ASSERT_TRUE(late->answered);
  for (size_t c = 0; c < 3; ++c) {
    EXPECT_EQ(late->call.charge(0, c).reason, store::Reason::kNotEnough);
  }
  Advance(2 * kSecond);
}

TEST_F(HeldBookingsTest, LoweredMaxWaitDeniesHeldCallersThatNoLongerFit) {
  ASSERT_TRUE(Hold("day", 3600)->call.result(0).granted);
  std::vector<std::unique_ptr<Held>> held;
  for (int i = 0; i < 3; ++i) held.push_back(Hold("day", 3600));
  Advance(kSecond / 2);
  Load({Bounded("day", 2 * kSecond)});
  held_callers_.LimitsChanged();
  Advance(0);
  EXPECT_FALSE(held[0]->answered);
  EXPECT_FALSE(held[1]->answered);
  ASSERT_TRUE(held[2]->answered) << "granted 3 s after its arrival";
  EXPECT_FALSE(held[2]->call.result(0).granted);
  const int64_t retry_after_ns = held[2]->call.result(0).retry_after_ns;
  EXPECT_EQ(retry_after_ns, kSecond / 2) << "in 2.5 s, of which max_wait covers 2";
  Advance(retry_after_ns - 1);
  EXPECT_FALSE(Acquire("day", "k", 1, {.max_wait = {3600, 0}}).granted);
  Advance(1);
  EXPECT_EQ(Acquire("day", "k", 1, {.max_wait = {3600, 0}}).wait_ns, 2 * kSecond);
  EXPECT_TRUE(held[0]->answered && held[0]->call.result(0).granted);
  Advance(kSecond);
  EXPECT_TRUE(held[1]->answered && held[1]->call.result(0).granted);
}

TEST_F(HeldBookingsTest, HeldCallsTakePlacesOfTheirConnection) {
  ASSERT_TRUE(Hold("hour", 60)->call.result(0).granted);
  std::vector<std::unique_ptr<Held>> held;
  for (int i = 0; i < 3; ++i) held.push_back(Hold("hour", 60));
  EXPECT_EQ(connection_->Count(clock_), 3u);
  const auto refused = Hold("hour", 60);
  ASSERT_TRUE(refused->answered);
  EXPECT_FALSE(refused->call.result(0).granted);
  EXPECT_EQ(refused->call.charge(0, 0).reason, store::Reason::kWaitingBound);
  const auto hurried = Hold("hour", 60, clock_.NowNs() + 10 * kSecond);
  ASSERT_TRUE(hurried->answered);
  EXPECT_EQ(hurried->call.charge(0, 0).reason, store::Reason::kWaitingBound);
  limiter_.CancelHeld(&held[2]->call);
  EXPECT_EQ(connection_->Count(clock_), 2u);
  const auto next = Hold("hour", 60);
  EXPECT_FALSE(next->answered);
  Advance(kSecond);
  EXPECT_TRUE(held[0]->answered);
  EXPECT_EQ(connection_->Count(clock_), 2u);
  Advance(kSecond * 3);
  EXPECT_EQ(connection_->Count(clock_), 0u);
}

// Reservations over a connection that may have three.
class ConnectionBookingsTest : public BookingsTest {
 protected:
  AcquisitionResult Reserve(std::string_view limit, std::string_view key = "k") {
    call_.Reset(AcquireCall::Form::kUnary);
    call_.BeginAcquisition({.max_wait = {60, 0}});
    call_.AddCharge(limit, key, 1);
    call_.UseConnection(connection_.get());
    Run(&call_);
    return call_.result(0);
  }
  void Refund(const std::string& receipt) {
    RefundCall refund;
    refund.Reset(receipt);
    refund.UseConnection(connection_.get());
    limiter_.Refund(&refund, store::kNoDeadline, [](void*, RefundCall*) {}, nullptr);
    EXPECT_TRUE(refund.status().ok()) << refund.status();
  }

  std::shared_ptr<ConnectionBookings> connection_ = std::make_shared<ConnectionBookings>(3);
};

TEST_F(ConnectionBookingsTest, DeniesBookingsBeyondTheBound) {
  EXPECT_EQ(Reserve("hour").wait_ns, 0);
  EXPECT_EQ(connection_->Count(clock_), 0u) << "granted now";
  for (int i = 1; i <= 3; ++i) EXPECT_EQ(Reserve("hour").wait_ns, i * kSecond);
  EXPECT_EQ(connection_->Count(clock_), 3u);
  const AcquisitionResult denied = Reserve("hour");
  EXPECT_FALSE(denied.granted);
  EXPECT_EQ(call_.charge(0, 0).reason, store::Reason::kWaitingBound);
  EXPECT_EQ(denied.retry_after_ns, 4 * kSecond) << "when it would be granted without a booking";
  EXPECT_TRUE(Reserve("hour", "another").granted) << "granted now, without a booking";
  EXPECT_TRUE(Acquire("hour", "k", 1, kDayAhead).granted) << "another connection";
  const auto limits = metrics_.Snapshot(registry_.Current()->limit_id_end()).limits;
  EXPECT_EQ(limits[registry_.Current()->Find("hour")->limit_id()].bookings_denied, 1u);
}

TEST_F(ConnectionBookingsTest, AConnectionHasAThirdOfWhatIsLeft) {
  ConnectionBookings large;
  EXPECT_FALSE(large.TakePlace(clock_, 0));
  size_t places = 0;
  while (large.TakePlace(clock_, 1000 - places)) ++places;
  EXPECT_EQ(places, 250u) << "alone: a quarter";
  ConnectionBookings newcomer;
  EXPECT_TRUE(newcomer.TakePlace(clock_, 1));
}

TEST_F(ConnectionBookingsTest, PassedGrantTimesDoNotCount) {
  for (int i = 0; i <= 3; ++i) EXPECT_TRUE(Reserve("hour").granted);
  clock_.Advance(kSecond + 70'000'000);
  EXPECT_EQ(connection_->Count(clock_), 2u);
  EXPECT_TRUE(Reserve("hour").granted);
  EXPECT_FALSE(Reserve("hour").granted);
  clock_.Advance(60 * kSecond);
  EXPECT_EQ(connection_->Count(clock_), 0u);
}

TEST_F(ConnectionBookingsTest, ForgetsPassedGrantTimesWithTheirMemory) {
  ConnectionBookings bookings;
  const size_t before = bookings.memory();
  EXPECT_FALSE(bookings.ForgetSome(clock_.NowNs()));
  constexpr int kBookings = 1000;
  for (int i = 0; i < kBookings; ++i) bookings.Add(clock_.NowNs() + i * kSecond, 0);
  EXPECT_GE(bookings.memory(), before + kBookings * sizeof(std::pair<int64_t, size_t>));
  EXPECT_FALSE(bookings.ForgetSome(clock_.NowNs()));
  clock_.Advance((kBookings + 1) * kSecond);
  int calls = 1;
  while (bookings.ForgetSome(clock_.NowNs())) ++calls;
  EXPECT_GT(calls, 2) << "it takes a few microseconds at a time";
  EXPECT_EQ(bookings.memory(), before);
  EXPECT_EQ(bookings.Count(clock_), 0u);
}

TEST_F(ConnectionBookingsTest, RefundedBookingsDoNotCount) {
  std::vector<std::string> receipts;
  for (int i = 0; i <= 3; ++i) receipts.emplace_back(Reserve("hour").receipt);
  EXPECT_FALSE(Reserve("hour").granted);
  Refund(receipts[3]);
  EXPECT_EQ(connection_->Count(clock_), 2u);
  Refund(receipts[3]);
  EXPECT_EQ(connection_->Count(clock_), 2u) << "refunded once";
  EXPECT_TRUE(Reserve("hour").granted);
  clock_.Advance(10 * kSecond);
  Refund(receipts[1]);
  EXPECT_EQ(connection_->Count(clock_), 0u);
}

TEST_F(ConnectionBookingsTest, ABatchTakesAPlaceForEachAcquisitionThatMayBeBooked) {
  call_.Reset(AcquireCall::Form::kBatch);
  for (int i = 0; i < 6; ++i) {
    call_.BeginAcquisition({.max_wait = {60, 0}});
    call_.AddCharge("hour", "k", 1);
  }
  call_.UseConnection(connection_.get());
  Run(&call_);
  int granted = 0;
  for (size_t i = 0; i < call_.size(); ++i) granted += call_.result(i).granted ? 1 : 0;
  EXPECT_EQ(granted, 3) << "one now, two booked";
  EXPECT_EQ(call_.charge(5, 0).reason, store::Reason::kWaitingBound);
  EXPECT_EQ(connection_->Count(clock_), 2u);
}

TEST_F(ConnectionBookingsTest, RefusedRequestsTakeNoPlace) {
  for (int i = 0; i < 5; ++i) {
    EXPECT_FALSE(Reserve("none").status.ok());
    EXPECT_FALSE(Reserve("overall").status.ok());
    Reserve("never");
  }
  EXPECT_EQ(connection_->Count(clock_), 0u);
  EXPECT_EQ(connection_.use_count(), 1) << "no call keeps it";
}

}  // namespace
}  // namespace sluice::service
