#include "sluice/throttler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "sluice/embedded.h"

namespace sluice {
namespace {

using std::chrono::hours;
using std::chrono::milliseconds;
using std::chrono::nanoseconds;
using std::chrono::seconds;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

bool Ready(const auto& future) { return future.wait_for(seconds(0)) == std::future_status::ready; }

class ThrottlerTest : public ::testing::Test {
 protected:
  // "one": 1/s, burst 1; "own": 3/s, also charges "one".
  ThrottlerTest()
      : clock_(std::make_shared<VirtualClock>()),
        embedded_(Embedded::Create({{.name = "one", .rate = {1, seconds(1)}},
                                    {.name = "own", .rate = {3, seconds(1)}, .charges = {"one"}}},
                                   {.clock = clock_})
                      .value()) {}

  Throttler Make(ThrottlerOptions options = {}) {
    options.limit = "one";
    if (options.executor == nullptr) options.executor = std::make_shared<InlineExecutor>();
    options.at_destruction = AtShutdown::kDrop;
    return Throttler::Create(embedded_, std::move(options)).value();
  }

  // Waits until `waiting` callers are blocked.
  static void AwaitWaiting(const Throttler& throttler, size_t waiting) {
    while (throttler.stats().waiting != waiting) std::this_thread::yield();
  }

  const std::shared_ptr<VirtualClock> clock_;
  const std::shared_ptr<Embedded> embedded_;
};

TEST_F(ThrottlerTest, RunReturnsTheFunctionsResult) {
  Throttler throttler = Make();
  const Result<int> number = throttler.Run([] { return 42; });
  ASSERT_TRUE(number.ok());
  EXPECT_EQ(*number, 42);
  clock_->Advance(seconds(1));
  const Status status = throttler.Run([] {});
  EXPECT_TRUE(status.ok()) << status;
  clock_->Advance(seconds(1));
  EXPECT_EQ(throttler.Run([] { return Status(StatusCode::kAborted, "own"); }).code(),
            StatusCode::kAborted)
      << "a Status is returned as it is";
}

TEST_F(ThrottlerTest, RunPassesOnAnException) {
  Throttler throttler = Make();
  EXPECT_THROW(static_cast<void>(throttler.Run([] { throw std::runtime_error("own"); })),
               std::runtime_error);
  EXPECT_EQ(throttler.TryStart().value(), seconds(1)) << "its permit stays taken";
}

TEST_F(ThrottlerTest, SubmitReturnsAFutureOfTheFunctionsResult) {
  Throttler throttler = Make();
  auto moved = std::make_unique<int>(7);
  std::future<Result<int>> first = throttler.Submit([moved = std::move(moved)] { return *moved; });
  std::future<Result<std::string>> second = throttler.Submit([] { return std::string("second"); });
  ASSERT_TRUE(Ready(first));
  EXPECT_EQ(first.get().value(), 7);
  EXPECT_FALSE(Ready(second));
  clock_->Advance(seconds(1));
  EXPECT_EQ(second.get().value(), "second");
}

TEST_F(ThrottlerTest, ExceptionReachesOnlyItsFuture) {
  Throttler throttler = Make();
  auto first = throttler.Submit([] { throw std::runtime_error("own"); });
  auto second = throttler.Submit([]() -> int { throw std::logic_error("other"); });
  auto third = throttler.Submit([] { return 3; });
  clock_->Advance(seconds(2));
  EXPECT_THROW(static_cast<void>(first.get()), std::runtime_error);
  EXPECT_THROW(static_cast<void>(second.get()), std::logic_error);
  EXPECT_EQ(third.get().value(), 3);
}

TEST_F(ThrottlerTest, TryRunRunsOrReturnsHowLongToSleep) {
  Throttler throttler = Make();
  int ran = 0;
  EXPECT_EQ(throttler.TryRun([&] { return ++ran; }).value(), nanoseconds(0));
  EXPECT_EQ(throttler.TryRun([&] { return ++ran; }).value(), seconds(1));
  EXPECT_EQ(ran, 1);
}

TEST_F(ThrottlerTest, FunctionCanSubmitToItsOwnThrottler) {
  for (const bool in_line : {true, false}) {
    ThrottlerOptions options;
    if (!in_line) options.executor = std::make_shared<ThreadExecutor>();
    Throttler throttler = Make(std::move(options));
    clock_->Advance(seconds(10));
    std::promise<void> last;
    std::vector<nanoseconds> at;
    const nanoseconds begin = clock_->Now();
    std::function<void()> again = [&] {
      at.push_back(clock_->Now() - begin);
      if (at.size() == 4) {
        last.set_value();
      } else {
        static_cast<void>(throttler.Submit([&] { again(); }));
      }
    };
    static_cast<void>(throttler.Submit([&] { again(); }));
    std::future<void> over = last.get_future();
    while (!Ready(over)) {
      if (!clock_->AdvanceToNext()) std::this_thread::yield();
    }
    over.wait();
    EXPECT_THAT(at, ElementsAre(seconds(0), seconds(1), seconds(2), seconds(3)));
  }
}

TEST_F(ThrottlerTest, FunctionOnAThreadCanBlockOnItsOwnThrottler) {
  ThrottlerOptions options;
  options.executor = std::make_shared<ThreadExecutor>();
  Throttler throttler = Make(std::move(options));
  auto done = throttler.Submit([&] { return throttler.Start(); });
  AwaitWaiting(throttler, 1);
  clock_->Advance(seconds(1));
  EXPECT_TRUE(done.get().ok());
}

TEST_F(ThrottlerTest, FunctionRunInlineCannotBlockOnItsOwnThrottler) {
  Throttler throttler = Make();
  auto done = throttler.Submit([&] { return throttler.Start(); });
  const Status status = done.get();
  EXPECT_EQ(status.code(), StatusCode::kFailedPrecondition);
  EXPECT_THAT(status.message(), HasSubstr("InlineExecutor"));
}

TEST_F(ThrottlerTest, CancellingRefundsThePermits) {
  Throttler throttler = Make();
  ASSERT_TRUE(throttler.Start().ok());
  std::stop_source stop;
  bool ran = false;
  auto cancelled = throttler.Submit([&] { ran = true; }, {.cancel = stop.get_token()});
  EXPECT_EQ(throttler.stats().waiting, 1u);
  stop.request_stop();
  EXPECT_EQ(cancelled.get().code(), StatusCode::kCancelled);
  EXPECT_EQ(throttler.stats().waiting, 0u);
  EXPECT_EQ(throttler.stats().cancelled, 1u);
  auto next = throttler.Submit([] {});
  clock_->Advance(seconds(1));
  EXPECT_TRUE(next.get().ok()) << "at the grant time of the cancelled one";
  EXPECT_FALSE(ran);
}

TEST_F(ThrottlerTest, FunctionsBehindACancelledOneMoveUp) {
  Throttler throttler = Make();
  const ThrottlerChannel own = throttler.Channel("own").value();
  ASSERT_TRUE(throttler.Start().ok());
  std::stop_source stop;
  std::vector<int> ran;
  auto cancelled = throttler.Submit([] {}, {.cancel = stop.get_token()});
  for (int i = 0; i < 4; ++i) {
    static_cast<void>((i % 2 == 0 ? own : throttler).Submit([&ran, i] { ran.push_back(i); }));
  }
  clock_->Advance(milliseconds(100));
  stop.request_stop();
  clock_->Advance(milliseconds(900));
  EXPECT_THAT(ran, ElementsAre(0));
  clock_->Advance(seconds(3));
  EXPECT_THAT(ran, ElementsAre(0, 1, 2, 3));
}

// More functions than move in one step: each runs exactly once.
TEST_F(ThrottlerTest, OthersMoveUpWhenManyAreCancelledAtOnce) {
  Throttler throttler = Make();
  ASSERT_TRUE(throttler.Start().ok());
  std::stop_source stop;
  std::vector<int> ran;
  for (int i = 0; i < 3000; ++i) {
    if (i % 3 != 0) {
      static_cast<void>(throttler.Submit([] {}, {.cancel = stop.get_token()}));
    } else {
      static_cast<void>(throttler.Submit([&ran, i] { ran.push_back(i); }));
    }
  }
  stop.request_stop();
  EXPECT_EQ(throttler.stats().waiting, 1000u);
  clock_->Advance(seconds(1000));
  ASSERT_EQ(ran.size(), 1000u) << "one a second, without gaps";
  EXPECT_TRUE(std::is_sorted(ran.begin(), ran.end()));
}

TEST_F(ThrottlerTest, CancellingOnAChannelRefundsItsParentsToo) {
  Throttler throttler = Make();
  const ThrottlerChannel own = throttler.Channel("own").value();
  ASSERT_TRUE(own.Start().ok());
  std::stop_source stop;
  auto cancelled = own.Submit([] {}, {.cancel = stop.get_token()});
  EXPECT_EQ(own.waiting(), 1u);
  EXPECT_EQ(throttler.waiting(), 0u);
  stop.request_stop();
  EXPECT_EQ(own.waiting(), 0u);
  auto next = throttler.Submit([] {});
  clock_->Advance(seconds(1));
  EXPECT_TRUE(next.get().ok());
}

TEST_F(ThrottlerTest, CancellingWakesABlockedCaller) {
  Throttler throttler = Make();
  ASSERT_TRUE(throttler.Start().ok());
  std::stop_source stop;
  std::thread canceller([&] {
    AwaitWaiting(throttler, 1);
    stop.request_stop();
  });
  bool ran = false;
  EXPECT_EQ(throttler.Run([&] { ran = true; }, {.cancel = stop.get_token()}).code(),
            StatusCode::kCancelled);
  EXPECT_FALSE(ran);
  canceller.join();
}

TEST_F(ThrottlerTest, TakesNothingIfTheTokenIsStoppedAlready) {
  Throttler throttler = Make();
  std::stop_source stop;
  stop.request_stop();
  EXPECT_EQ(throttler.Start({.cancel = stop.get_token()}).code(), StatusCode::kCancelled);
  EXPECT_EQ(throttler.Submit([] {}, {.cancel = stop.get_token()}).get().code(),
            StatusCode::kCancelled);
  EXPECT_EQ(throttler.TryStart().value(), nanoseconds(0));
}

TEST_F(ThrottlerTest, CancellingAfterTheGrantTimeChangesNothing) {
  Throttler throttler = Make();
  std::stop_source stop;
  auto done = throttler.Submit([] {}, {.cancel = stop.get_token()});
  stop.request_stop();
  EXPECT_TRUE(done.get().ok());
  EXPECT_EQ(throttler.TryStart().value(), seconds(1));
}

TEST_F(ThrottlerTest, BoundsAndCountsWaitingFunctions) {
  ThrottlerOptions options;
  options.max_waiting = 3;
  Throttler throttler = Make(std::move(options));
  EXPECT_EQ(throttler.stats().next_grant_after, std::nullopt);
  ASSERT_TRUE(throttler.Start().ok());
  std::vector<std::future<Status>> futures;
  for (int i = 0; i < 4; ++i) futures.push_back(throttler.Submit([] {}));
  ThrottlerStats stats = throttler.stats();
  EXPECT_EQ(stats.waiting, 3u);
  EXPECT_EQ(stats.refused, 1u);
  EXPECT_EQ(stats.next_grant_after, seconds(1));
  const Status refused = futures[3].get();
  EXPECT_EQ(refused.code(), StatusCode::kResourceExhausted);
  EXPECT_THAT(refused.message(), HasSubstr("max_waiting = 3"));
  EXPECT_EQ(throttler.Start().code(), StatusCode::kResourceExhausted);
  clock_->Advance(milliseconds(1500));
  stats = throttler.stats();
  EXPECT_EQ(stats.waiting, 2u);
  EXPECT_EQ(stats.finished, 1u);
  EXPECT_EQ(stats.next_grant_after, milliseconds(500));
  EXPECT_EQ(throttler.waiting(), 2u);
}

TEST_F(ThrottlerTest, DenialForMaxWaitTakesNothing) {
  Throttler throttler = Make();
  ASSERT_TRUE(throttler.Start().ok());
  const Status status = throttler.Submit([] {}, {.max_wait = milliseconds(999)}).get();
  EXPECT_EQ(status.code(), StatusCode::kDeadlineExceeded);
  EXPECT_EQ(throttler.Start({.max_wait = milliseconds(999)}).code(), StatusCode::kDeadlineExceeded);
  EXPECT_EQ(throttler.Start({.max_wait = nanoseconds(0)}).code(), StatusCode::kDeadlineExceeded);
  EXPECT_EQ(throttler.stats().denied, 3u);
  auto next = throttler.Submit([] {}, {.max_wait = seconds(1)});
  clock_->Advance(seconds(1));
  EXPECT_TRUE(next.get().ok());
}

TEST_F(ThrottlerTest, RejectsInvalidOptionsWithTheValueAndTheBound) {
  Throttler throttler = Make();
  for (const nanoseconds max_wait :
       {nanoseconds(-1), nanoseconds(kMaxThrottlerWait) + nanoseconds(1), nanoseconds::min(),
        nanoseconds::max()}) {
    const Status status = throttler.Start({.max_wait = max_wait});
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_THAT(status.message(), HasSubstr(std::to_string(max_wait.count())));
    EXPECT_EQ(throttler.Submit([] {}, {.max_wait = max_wait}).get().code(),
              StatusCode::kInvalidArgument);
  }
  const Status permits = throttler.Start({.permits = 2});
  EXPECT_EQ(permits.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(permits.message(), HasSubstr("never grant more at once than its burst = 1"));
  EXPECT_EQ(throttler.TryStart().value(), nanoseconds(0)) << "nothing was taken";
}

TEST_F(ThrottlerTest, UnknownLimitIsNotFoundWithASuggestion) {
  const auto throttler = Throttler::Create(embedded_, {.limit = "oen"});
  EXPECT_EQ(throttler.status().code(), StatusCode::kNotFound);
  EXPECT_THAT(throttler.status().message(), HasSubstr("did you mean \"one\"?"));
  EXPECT_EQ(Make().Channel("no").status().code(), StatusCode::kNotFound);
  EXPECT_EQ(Make().Channel("one", std::string(513, 'k')).status().code(),
            StatusCode::kInvalidArgument);
  EXPECT_EQ(Throttler::Create(embedded_, {.limit = "one", .max_waiting = 0}).status().code(),
            StatusCode::kInvalidArgument);
}

TEST_F(ThrottlerTest, InvalidLimitsLeaveTheRunningOnesInForce) {
  Throttler throttler = Make();
  Status status = embedded_->SetLimits({{.name = "one", .rate = {0, seconds(1)}}});
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  status =
      embedded_->SetLimits({{.name = "one", .algorithm = "token_buket", .rate = {1, seconds(1)}}});
  EXPECT_THAT(status.message(), HasSubstr("token_buket"));
  EXPECT_TRUE(throttler.Start().ok());
}

TEST_F(ThrottlerTest, FailsAllCallsAfterShutdown) {
  Throttler throttler = Make();
  const ThrottlerChannel own = throttler.Channel("own").value();
  throttler.Shutdown(AtShutdown::kWait);
  bool ran = false;
  EXPECT_EQ(throttler.Submit([&] { ran = true; }).get().code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(throttler.Run([&] { ran = true; }).code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(throttler.TryRun([&] { ran = true; }).status().code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(own.TryStart().status().code(), StatusCode::kFailedPrecondition);
  EXPECT_FALSE(ran);
  throttler.Shutdown(AtShutdown::kDrop);
}

TEST_F(ThrottlerTest, ChannelCanOutliveItsThrottler) {
  std::optional<Throttler> throttler = Make();
  const ThrottlerChannel own = throttler->Channel("own").value();
  throttler.reset();
  EXPECT_EQ(own.Start().code(), StatusCode::kFailedPrecondition);
}

TEST_F(ThrottlerTest, DestructionDropsWaitingFunctionsAndRefundsThem) {
  std::vector<std::future<Status>> futures;
  {
    Throttler throttler = Make();
    for (int i = 0; i < 4; ++i) futures.push_back(throttler.Submit([] {}));
  }
  EXPECT_TRUE(futures[0].get().ok());
  for (size_t i = 1; i < 4; ++i) EXPECT_EQ(futures[i].get().code(), StatusCode::kCancelled);
  Throttler next = Make();
  auto first = next.Submit([] {});
  clock_->Advance(seconds(1));
  EXPECT_TRUE(first.get().ok());
}

TEST_F(ThrottlerTest, DestructionWaitsForWaitingFunctions) {
  std::vector<std::future<Status>> futures;
  std::vector<int> ran;
  std::thread destroyer;
  {
    auto throttler = std::make_shared<Throttler>(
        Throttler::Create(embedded_, {.limit = "one", .at_destruction = AtShutdown::kWait})
            .value());
    for (int i = 0; i < 4; ++i) {
      futures.push_back(throttler->Submit([&ran, i] { ran.push_back(i); }));
    }
    destroyer = std::thread([throttler = std::move(throttler)]() mutable { throttler.reset(); });
  }
  for (int i = 0; i < 3; ++i) {
    while (!clock_->AdvanceToNext()) std::this_thread::yield();
  }
  destroyer.join();
  EXPECT_THAT(ran, ElementsAre(0, 1, 2, 3));
  for (auto& future : futures) EXPECT_TRUE(future.get().ok());
}

TEST_F(ThrottlerTest, DestructionWakesBlockedCallers) {
  std::optional<Throttler> throttler = Make();
  ASSERT_TRUE(throttler->Start().ok());
  const ThrottlerChannel own = throttler->Channel("own").value();
  std::thread blocked([&own] { EXPECT_EQ(own.Start().code(), StatusCode::kCancelled); });
  AwaitWaiting(*throttler, 1);
  throttler.reset();
  blocked.join();
}

TEST_F(ThrottlerTest, FunctionCanShutDownItsOwnThrottler) {
  for (const bool in_line : {true, false}) {
    ThrottlerOptions options;
    if (!in_line) options.executor = std::make_shared<ThreadExecutor>();
    std::optional<Throttler> throttler = Make(std::move(options));
    clock_->Advance(seconds(10));
    auto first = throttler->Submit([&] { throttler->Shutdown(AtShutdown::kDrop); });
    EXPECT_TRUE(first.get().ok());
    EXPECT_EQ(throttler->Submit([] {}).get().code(), StatusCode::kFailedPrecondition);
  }
}

TEST_F(ThrottlerTest, FunctionCanDestroyItsOwnThrottler) {
  for (const bool in_line : {true, false}) {
    ThrottlerOptions options;
    if (!in_line) options.executor = std::make_shared<ThreadExecutor>();
    std::optional<Throttler> throttler = Make(std::move(options));
    clock_->Advance(seconds(10));
    ASSERT_TRUE(throttler->Start().ok());
    auto first = throttler->Submit([&] { throttler.reset(); });
    auto second = throttler->Submit([] {});
    clock_->Advance(seconds(1));
    EXPECT_TRUE(first.get().ok());
    EXPECT_EQ(second.get().code(), StatusCode::kCancelled);
  }
}

class DroppingExecutor final : public Executor {
 public:
  void Execute(std::function<void()>) override {}
};

TEST_F(ThrottlerTest, FunctionDroppedByTheExecutorIsCancelled) {
  ThrottlerOptions options;
  options.executor = std::make_shared<DroppingExecutor>();
  Throttler throttler = Make(std::move(options));
  EXPECT_EQ(throttler.Submit([] {}).get().code(), StatusCode::kCancelled);
  EXPECT_EQ(throttler.stats().running, 0u);
}

TEST_F(ThrottlerTest, SlowChannelDoesNotDelayOthers) {
  ASSERT_TRUE(embedded_
                  ->SetLimits({{.name = "one", .rate = {100, seconds(1)}},
                               {.name = "slow", .rate = {1, hours(1)}, .charges = {"one"}}})
                  .ok());
  Throttler throttler = Make();
  const ThrottlerChannel slow = throttler.Channel("slow").value();
  std::vector<int> ran;
  for (int i = 0; i < 3; ++i) static_cast<void>(slow.Submit([&ran] { ran.push_back(100); }));
  for (int i = 0; i < 3; ++i) static_cast<void>(throttler.Submit([&ran, i] { ran.push_back(i); }));
  clock_->Advance(seconds(1));
  EXPECT_THAT(ran, ElementsAre(100, 0, 1, 2));
  EXPECT_EQ(slow.waiting(), 2u);
}

TEST_F(ThrottlerTest, MovedThrottlerContinues) {
  Throttler throttler = Make();
  ASSERT_TRUE(throttler.Start().ok());
  auto waiting = throttler.Submit([] {});
  Throttler moved = std::move(throttler);
  clock_->Advance(seconds(1));
  EXPECT_TRUE(waiting.get().ok());
  auto dropped = moved.Submit([] {});
  moved = Make();
  EXPECT_EQ(dropped.get().code(), StatusCode::kCancelled) << "assignment shuts the old one down";
  clock_->Advance(seconds(1));
  EXPECT_TRUE(moved.Start().ok());
}

TEST_F(ThrottlerTest, LoweredLimitDeniesFunctionsBeyondTheirMaxWait) {
  Throttler throttler = Make();
  ASSERT_TRUE(throttler.Start().ok());
  auto patient = throttler.Submit([] {});
  auto hasty = throttler.Submit([] {}, {.max_wait = seconds(2)});
  ASSERT_TRUE(embedded_
                  ->SetLimits({{.name = "one", .rate = {1, seconds(2)}},
                               {.name = "own", .rate = {3, seconds(1)}, .charges = {"one"}}})
                  .ok());
  EXPECT_EQ(hasty.get().code(), StatusCode::kDeadlineExceeded);
  clock_->Advance(seconds(2));
  EXPECT_TRUE(patient.get().ok());
}

TEST_F(ThrottlerTest, ChangeRebooksSeveralThrottlersInTheOrderOfBooking) {
  Throttler first = Make();
  Throttler second = Make();
  ASSERT_TRUE(first.Start().ok());
  std::vector<int> ran;
  for (int i = 0; i < 6; ++i) {
    static_cast<void>((i % 2 == 0 ? first : second).Submit([&ran, i] { ran.push_back(i); }));
  }
  ASSERT_TRUE(embedded_
                  ->SetLimits({{.name = "one", .rate = {2, seconds(1)}, .burst = 1},
                               {.name = "own", .rate = {3, seconds(1)}, .charges = {"one"}}})
                  .ok());
  clock_->Advance(milliseconds(1500));
  EXPECT_THAT(ran, ElementsAre(0, 1, 2));
  clock_->Advance(milliseconds(1500));
  EXPECT_THAT(ran, ElementsAre(0, 1, 2, 3, 4, 5));
}

// After a change of limits, a cancelled function leaves its place to the others.
TEST_F(ThrottlerTest, RebookedFunctionsCanMoveUpAndBeCancelled) {
  Throttler throttler = Make();
  ASSERT_TRUE(throttler.Start().ok());
  std::stop_source stop;
  std::vector<int> ran;
  auto cancelled = throttler.Submit([] {}, {.cancel = stop.get_token()});
  auto next = throttler.Submit([&ran] { ran.push_back(1); });
  ASSERT_TRUE(embedded_
                  ->SetLimits({{.name = "one", .rate = {1, seconds(2)}, .burst = 1},
                               {.name = "own", .rate = {3, seconds(1)}, .charges = {"one"}}})
                  .ok());
  stop.request_stop();
  EXPECT_EQ(cancelled.get().code(), StatusCode::kCancelled);
  clock_->Advance(milliseconds(1999));
  EXPECT_TRUE(ran.empty());
  clock_->Advance(milliseconds(1));
  EXPECT_THAT(ran, ElementsAre(1));
}

TEST_F(ThrottlerTest, DeletedLimitKeepsGrantTimesAlreadyGiven) {
  Throttler throttler = Make();
  ASSERT_TRUE(throttler.Start().ok());
  auto waiting = throttler.Submit([] {});
  ASSERT_TRUE(embedded_->SetLimits({{.name = "other", .rate = {1, seconds(1)}}}).ok());
  EXPECT_EQ(throttler.Submit([] {}).get().code(), StatusCode::kNotFound);
  clock_->Advance(seconds(1));
  EXPECT_TRUE(waiting.get().ok());
}

}  // namespace
}  // namespace sluice
