// Multi-channel asynchronous throttler: an overall limit, and channels with their own limits. A
// call on a channel obeys both, and the order is kept. (Throttler 2.)
#include <map>

#include "tests/acceptance/scene.h"
#include "tests/support/window_checker.h"

namespace sluice::acceptance {
namespace {

// Channel 0: no channel, that is, only the overall limit.
constexpr int kNone = 0;

std::vector<LimitInfo> Limits(nanoseconds period) {
  return {
      {.name = "overall", .algorithm = "sliding_log", .rate = {2, period}},
      {.name = "CHANNEL1", .algorithm = "sliding_log", .rate = {3, period}, .charges = {"overall"}},
      {.name = "CHANNEL2",
       .algorithm = "sliding_log",
       .rate = {1, period},
       .charges = {"overall"}}};
}

struct Submission {
  int at_ms = 0;
  int channel = kNone;
};

class MultiChannelThrottler : public ::testing::Test {
 protected:
  MultiChannelThrottler()
      : scene_(Limits(seconds(1))),
        throttler_(scene_.MakeThrottler("overall")),
        channels_({throttler_, throttler_.Channel("CHANNEL1").value(),
                   throttler_.Channel("CHANNEL2").value()}) {}

  // Submits each task at its time, numbered in order, then advances ten seconds.
  void Play(const std::vector<Submission>& submissions) {
    for (size_t i = 0; i < submissions.size(); ++i) {
      scene_.AdvanceTo(milliseconds(submissions[i].at_ms));
      const int number = static_cast<int>(i) + 1;
      static_cast<void>(channels_[static_cast<size_t>(submissions[i].channel)].Submit(
          [this, number] { ran_.push_back({number, scene_.now()}); }));
    }
    scene_.AdvanceTo(seconds(10));
    submissions_ = submissions;
  }

  size_t RunByMs(int ms) const { return RunBy(ran_, milliseconds(ms)); }

  // At most `most` tasks run in any window of a second, on `channel` or on all.
  std::string Windows(int channel, uint64_t most) const {
    std::vector<test_support::Grant> history;
    for (const Ran& one : ran_) {
      if (channel == kNone || ChannelOf(one) == channel) history.push_back({one.at.count(), 1});
    }
    return test_support::CheckCountInEveryWindow(history, 1'000'000'000, most);
  }

  int ChannelOf(const Ran& one) const {
    return submissions_[static_cast<size_t>(one.number) - 1].channel;
  }

  void ExpectAllHolds() const {
    EXPECT_EQ(ran_.size(), submissions_.size());
    EXPECT_EQ(Windows(kNone, 2), "");
    EXPECT_EQ(Windows(1, 3), "");
    EXPECT_EQ(Windows(2, 1), "");
    std::map<int, int> last;
    for (const Ran& one : ran_) {
      int& before = last[ChannelOf(one)];
      EXPECT_LT(before, one.number) << "out of order on channel " << ChannelOf(one);
      before = one.number;
    }
  }

  Scene scene_;
  Throttler throttler_;
  const std::vector<ThrottlerChannel> channels_;
  std::vector<Submission> submissions_;
  std::vector<Ran> ran_;
};

TEST_F(MultiChannelThrottler, TwoTasksAt0NoChannel) {
  Play({{0}, {0}});
  EXPECT_EQ(RunByMs(1), 2u);
}

TEST_F(MultiChannelThrottler, ThreeTasksAt0NoChannel) {
  Play({{0}, {0}, {0}});
  EXPECT_EQ(RunByMs(1), 2u);
  EXPECT_EQ(RunByMs(1001), 3u);
}

TEST_F(MultiChannelThrottler, FiveTasksAt0NoChannel) {
  Play({{0}, {0}, {0}, {0}, {0}});
  EXPECT_EQ(RunByMs(501), 2u);
  EXPECT_EQ(RunByMs(1002), 4u);
  EXPECT_EQ(RunByMs(2002), 5u);
  ExpectAllHolds();
}

TEST_F(MultiChannelThrottler, OneTaskAt0TwoAt777OneAt877NoChannel) {
  Play({{0}, {777}, {777}, {877}});
  EXPECT_EQ(RunByMs(877), 2u);
  EXPECT_EQ(RunByMs(1001), 3u);
  EXPECT_EQ(RunByMs(1776), 3u);
  EXPECT_EQ(RunByMs(1778), 4u);
  ExpectAllHolds();
}

TEST_F(MultiChannelThrottler, OneTaskAt0TwoAt777OneAt877OnChannel1) {
  Play({{0, 1}, {777, 1}, {777, 1}, {877, 1}});
  EXPECT_EQ(RunByMs(877), 2u);
  EXPECT_EQ(RunByMs(1001), 3u);
  EXPECT_EQ(RunByMs(1776), 3u);
  EXPECT_EQ(RunByMs(1778), 4u);
  ExpectAllHolds();
}

TEST_F(MultiChannelThrottler, OneTaskAt0TwoAt777OneAt877OnChannel1AndNoneMixed) {
  for (const auto& submissions : {std::vector<Submission>{{0, 1}, {777}, {777, 1}, {877}},
                                  std::vector<Submission>{{0}, {777, 1}, {777}, {877, 1}},
                                  std::vector<Submission>{{0}, {777}, {777, 1}, {877, 1}}}) {
    MultiChannelThrottler::ran_.clear();
    Scene scene(Limits(seconds(1)));
    const Throttler throttler = scene.MakeThrottler("overall");
    const ThrottlerChannel channel1 = throttler.Channel("CHANNEL1").value();
    for (const Submission& submission : submissions) {
      scene.AdvanceTo(milliseconds(submission.at_ms));
      static_cast<void>((submission.channel == 1 ? channel1 : throttler).Submit([&] {
        ran_.push_back({0, scene.now()});
      }));
    }
    scene.AdvanceTo(seconds(5));
    EXPECT_EQ(RunByMs(877), 2u);
    EXPECT_EQ(RunByMs(1001), 3u);
    EXPECT_EQ(RunByMs(1776), 3u);
    EXPECT_EQ(RunByMs(1778), 4u);
    EXPECT_EQ(Windows(kNone, 2), "");
  }
}

TEST_F(MultiChannelThrottler, Channel2At0At777At877) {
  Play({{0, 2}, {777, 2}, {877, 2}});
  EXPECT_EQ(RunByMs(877), 1u);
  EXPECT_EQ(RunByMs(1001), 2u);
  EXPECT_EQ(RunByMs(2002), 3u);
  EXPECT_EQ(RunByMs(1999), 2u);
  ExpectAllHolds();
}

TEST_F(MultiChannelThrottler, Channels1212211At0RunInTheOrderOfNumbers) {
  Play({{0, 1}, {0, 2}, {0, 1}, {0, 2}, {0, 2}, {0, 1}, {0, 1}});
  EXPECT_EQ(Numbers(ran_), (std::vector<int>{1, 2, 3, 4, 5, 6, 7}));
  ExpectAllHolds();
}

TEST_F(MultiChannelThrottler, SevenTasksAt0At777At877OnBothChannels) {
  Play({{0, 1}, {777, 2}, {777, 1}, {877, 2}, {877, 2}, {877, 1}, {877, 1}});
  ExpectAllHolds();
  EXPECT_EQ(RunByMs(4000), 7u);
}

TEST_F(MultiChannelThrottler, SevenTasksAt0At777At877OnBothChannelsAndNone) {
  Play({{0, 1}, {777, 2}, {777, kNone}, {877, 2}, {877, 2}, {877, kNone}, {877, 1}});
  ExpectAllHolds();
  EXPECT_EQ(RunByMs(4000), 7u);
}

TEST(MultiChannelThrottlerOrder, AThousandTasksAt50PerSecondRunInTheOrderOfSubmission) {
  Scene scene({{.name = "tasks", .algorithm = "sliding_log", .rate = {50, seconds(1)}}});
  const Throttler throttler = scene.MakeThrottler("tasks");
  std::vector<Ran> ran;
  for (int i = 0; i < 1000; ++i) {
    static_cast<void>(throttler.Submit([&ran, &scene, i] { ran.push_back({i, scene.now()}); }));
  }
  scene.AdvanceTo(seconds(20));
  ASSERT_EQ(ran.size(), 1000u);
  for (int i = 0; i < 1000; ++i) {
    ASSERT_EQ(ran[static_cast<size_t>(i)].number, i);
    // Fifty at once, each second; the log's grid adds at most 16 us per second.
    const nanoseconds least = seconds(i / 50);
    ASSERT_GE(ran[static_cast<size_t>(i)].at, least);
    ASSERT_LE(ran[static_cast<size_t>(i)].at, least + milliseconds(1));
  }
}

// On the default executor, which has one thread.
TEST(MultiChannelThrottlerOrder, AThousandTasksAt50PerSecondKeepTheirOrderOnAThread) {
  const auto clock = std::make_shared<VirtualClock>();
  const auto embedded =
      Embedded::Create({{.name = "tasks", .algorithm = "sliding_log", .rate = {50, seconds(1)}}},
                       {.clock = clock})
          .value();
  Throttler throttler = Throttler::Create(embedded, {.limit = "tasks"}).value();
  std::vector<int> ran;
  std::vector<std::future<Status>> futures;
  for (int i = 0; i < 1000; ++i) {
    futures.push_back(throttler.Submit([&ran, i] { ran.push_back(i); }));
  }
  clock->Advance(seconds(20));
  for (auto& future : futures) ASSERT_TRUE(future.get().ok());
  ASSERT_EQ(ran.size(), 1000u);
  EXPECT_TRUE(std::is_sorted(ran.begin(), ran.end()));
}

// Blocking calls on the system clock. Never early, exactly; late by up to two seconds, for busy
// machines.
TEST(MultiChannelThrottlerRealClock, SynchronousCallsOnChannel2AreSpaced250Milliseconds) {
  constexpr milliseconds kPeriod(250);
  const auto embedded = Embedded::Create(Limits(kPeriod)).value();
  const Throttler throttler = Throttler::Create(embedded, {.limit = "overall"}).value();
  const ThrottlerChannel channel2 = throttler.Channel("CHANNEL2").value();
  const nanoseconds begin = embedded->clock()->Now();
  for (int i = 0; i < 5; ++i) {
    nanoseconds at{0};
    ASSERT_TRUE(channel2.Run([&] { at = embedded->clock()->Now() - begin; }).ok());
    EXPECT_GE(at, i * kPeriod);
    EXPECT_LE(at, i * kPeriod + seconds(2));
  }
}

}  // namespace
}  // namespace sluice::acceptance
