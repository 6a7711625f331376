#include "server/service/history.h"

#include <malloc.h>

#include <numeric>

#include "gtest/gtest.h"

namespace sluice::service {
namespace {

constexpr int64_t kSecondNs = 1'000'000'000;

class HistoryTest : public testing::Test {
 protected:
  common::LimitTotals& Limit(uint32_t limit_id) {
    if (totals_.limits.size() <= limit_id) totals_.limits.resize(limit_id + 1);
    return totals_.limits[limit_id];
  }
  // Moves on by `seconds` and takes a sample.
  bool SampleAfter(int64_t seconds, uint64_t waiting = 0) {
    now_ns_ += seconds * kSecondNs;
    return history_.Sample(now_ns_, totals_, waiting);
  }
  const History::TotalRow& Newest() const { return history_.total(history_.size() - 1); }

  int64_t now_ns_ = 1'000'000 * kSecondNs + 7;
  common::MetricsSnapshot totals_;
  History history_;
};

TEST_F(HistoryTest, CountsDecisionsInTheSecondOfTheirSample) {
  ASSERT_TRUE(SampleAfter(1));
  totals_.granted = 5;
  Limit(2).granted = 5;
  Limit(2).denied = 3;
  ASSERT_TRUE(SampleAfter(1));
  EXPECT_EQ(Newest()[History::kAllGranted], 5u);
  totals_.granted = 12;
  Limit(2).granted = 12;
  ASSERT_TRUE(SampleAfter(1, 4));
  EXPECT_EQ(history_.size(), 3u);
  EXPECT_EQ(Newest()[History::kAllGranted], 7u);
  EXPECT_EQ(Newest()[History::kWaiting], 4u);

  const History::Series* const series = history_.Find(2);
  ASSERT_NE(series, nullptr);
  EXPECT_EQ(series->Seconds(History::kGranted, 3), (std::vector<uint32_t>{0, 5, 7}));
  EXPECT_EQ(series->Seconds(History::kDenied, 3), (std::vector<uint32_t>{0, 3, 0}));
  EXPECT_EQ(series->LastSecond(), (History::Counts{7, 0, 0, 0}));
  EXPECT_EQ(series->LastMinute(), (History::Counts{12, 3, 0, 0}));
  EXPECT_EQ(history_.Find(1), nullptr);
}

TEST_F(HistoryTest, IgnoresASecondSampleInTheSameSecond) {
  ASSERT_TRUE(SampleAfter(1));
  totals_.granted = 5;
  EXPECT_FALSE(SampleAfter(0));
  ASSERT_TRUE(SampleAfter(1));
  EXPECT_EQ(Newest()[History::kAllGranted], 5u);
}

TEST_F(HistoryTest, SpreadsDecisionsOverSecondsWithoutSample) {
  ASSERT_TRUE(SampleAfter(1));
  totals_.granted = 7;
  Limit(0).granted = 7;
  ASSERT_TRUE(SampleAfter(3));
  EXPECT_EQ(history_.size(), 4u);
  EXPECT_EQ(history_.total(1)[History::kAllGranted] + history_.total(2)[History::kAllGranted] +
                history_.total(3)[History::kAllGranted],
            7u);
  EXPECT_EQ(history_.Find(0)->Seconds(History::kGranted, 4), (std::vector<uint32_t>{0, 2, 2, 3}));
}

TEST_F(HistoryTest, ForgetsWhatIsOlderThanAnHour) {
  ASSERT_TRUE(SampleAfter(1));
  totals_.granted = Limit(0).granted = 9;
  ASSERT_TRUE(SampleAfter(1));
  for (size_t i = 1; i < History::kSeconds; ++i) ASSERT_TRUE(SampleAfter(1));
  EXPECT_EQ(history_.size(), History::kSeconds);
  EXPECT_EQ(history_.total(0)[History::kAllGranted], 9u);
  EXPECT_EQ(history_.Find(0)->Seconds(History::kGranted, History::kSeconds).front(), 9u);
  ASSERT_TRUE(SampleAfter(1));
  EXPECT_EQ(history_.total(0)[History::kAllGranted], 0u);
  // A limit that was idle for an hour gives up its series within the next minute.
  for (int i = 0; i < 120; ++i) ASSERT_TRUE(SampleAfter(1));
  EXPECT_EQ(history_.Find(0), nullptr);
}

TEST_F(HistoryTest, SurvivesAPauseOfHours) {
  ASSERT_TRUE(SampleAfter(1));
  Limit(0).granted = 5;
  ASSERT_TRUE(SampleAfter(1));
  totals_.granted = Limit(0).granted = 3605;
  ASSERT_TRUE(SampleAfter(5 * 3600));
  EXPECT_EQ(history_.size(), History::kSeconds);
  EXPECT_EQ(history_.total(0)[History::kAllGranted], 1u);
  const auto minutes = history_.Find(0)->Minutes(History::kGranted);
  EXPECT_EQ(minutes[30], 60u);
}

TEST_F(HistoryTest, MinutesAddUpToTheSeconds) {
  uint64_t granted = 0;
  for (int i = 0; i < 400; ++i) {
    Limit(0).granted = granted += static_cast<uint64_t>(i % 17);
    ASSERT_TRUE(SampleAfter(1));
  }
  const auto minutes = history_.Find(0)->Minutes(History::kGranted);
  EXPECT_EQ(std::accumulate(minutes.begin(), minutes.end(), uint64_t{0}), granted);
  const auto seconds = history_.Find(0)->Seconds(History::kGranted, 60);
  EXPECT_EQ(history_.Find(0)->LastMinute()[History::kGranted],
            std::accumulate(seconds.begin(), seconds.end(), uint64_t{0}));
}

TEST_F(HistoryTest, SumsLimitsAboveTheBound) {
  constexpr auto kBound = static_cast<uint32_t>(common::bounds::kMaxLimitHistories);
  ASSERT_TRUE(SampleAfter(1));
  for (uint32_t limit_id = 0; limit_id < kBound + 10; ++limit_id) Limit(limit_id).denied = 2;
  ASSERT_TRUE(SampleAfter(1));
  EXPECT_EQ(history_.limits(), kBound);
  EXPECT_NE(history_.Find(kBound - 1), nullptr);
  EXPECT_EQ(history_.Find(kBound), nullptr);
  ASSERT_NE(history_.other(), nullptr);
  EXPECT_EQ(history_.other()->LastSecond()[History::kDenied], 20u);
}

TEST_F(HistoryTest, TellsThe99thPercentileOfTheLastSecond) {
  common::Histogram latency;
  const auto sample = [&] {
    totals_.methods.assign(1, {});
    totals_.methods[0].method = "/sluice.v1.RateLimiter/Acquire";
    latency.AddTo(totals_.methods[0].latency);
    ASSERT_TRUE(SampleAfter(1));
  };
  for (int i = 0; i < 1000; ++i) latency.Record(1'000'000);
  sample();
  EXPECT_NEAR(Newest()[History::kP99Us], 1000, 125);
  for (int i = 0; i < 98; ++i) latency.Record(2'000);
  for (int i = 0; i < 2; ++i) latency.Record(50'000);
  sample();
  EXPECT_NEAR(Newest()[History::kP99Us], 50, 7);
  sample();
  EXPECT_EQ(Newest()[History::kP99Us], 0u);
}

// Every outcome of every limit in every second: the most that a history can hold.
TEST_F(HistoryTest, HoldsAnHourOfAThousandLimitsIn64MiB) {
  const size_t before = mallinfo2().uordblks;
  for (size_t i = 0; i < History::kSeconds + 60; i += 60) {
    for (uint32_t limit_id = 0; limit_id < 1000; ++limit_id) {
      common::LimitTotals& limit = Limit(limit_id);
      limit.granted += 1'000'000;
      limit.denied += 1'000'000;
      limit.shadow_denied += 60;
      limit.denied_while_unavailable += 60;
    }
    ASSERT_TRUE(SampleAfter(60));
  }
  EXPECT_EQ(history_.limits(), 1000u);
  // Sanitizers count nothing here.
  const size_t bytes = mallinfo2().uordblks - before;
  EXPECT_LE(bytes, size_t{64} << 20);
  RecordProperty("bytes", static_cast<int>(bytes));
}

}  // namespace
}  // namespace sluice::service
