#include "common/metrics.h"

#include <thread>
#include <vector>

#include "gtest/gtest.h"

namespace sluice::common {
namespace {

TEST(HistogramTest, UpperBoundsAreInclusive) {
  for (size_t bucket = 0; bucket + 1 < kHistogramBuckets; ++bucket) {
    ASSERT_EQ(HistogramBucket(HistogramUpperNs(bucket)), bucket);
    ASSERT_EQ(HistogramBucket(HistogramUpperNs(bucket) + 1), bucket + 1);
  }
}

TEST(HistogramTest, UpperBoundsAreAtMostAnEighthAboveTheirSamples) {
  for (size_t bucket = 1; bucket < kHistogramBuckets; ++bucket) {
    const uint64_t least = HistogramUpperNs(bucket - 1) + 1;
    ASSERT_LE(HistogramUpperNs(bucket), least + least / 8);
  }
}

TEST(HistogramTest, AcceptsZeroAndTheGreatestNumber) {
  EXPECT_EQ(HistogramBucket(0), 0u);
  EXPECT_EQ(HistogramBucket(~uint64_t{0}), kHistogramBuckets - 1);
}

TEST(MetricsTest, SumsCountersOfRunningAndEndedThreads) {
  Metrics metrics;
  const uint32_t method = metrics.AddMethod("/a");
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 1000; ++i) {
        metrics.Local().OfLimit(3).granted.Add(1);
        metrics.Local().OfLimit(300).permits_granted.Add(2);
        metrics.Local().OfMethod(method).Finish(0, 100);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  const MetricsSnapshot snapshot = metrics.Snapshot(301);
  EXPECT_EQ(snapshot.limits[3].granted, 4000u);
  EXPECT_EQ(snapshot.limits[300].permits_granted, 8000u);
  EXPECT_EQ(snapshot.methods[method].codes[0], 4000u);
  EXPECT_EQ(snapshot.methods[method].latency.count, 4000u);
  EXPECT_EQ(snapshot.methods[method].latency.sum_ns, 400000u);
}

TEST(MetricsTest, SumsNeverFallWhileThreadsCount) {
  Metrics metrics;
  std::thread thread([&] {
    for (uint32_t i = 0; i < 20000; ++i) metrics.Local().OfLimit(i).granted.Add(1);
  });
  uint64_t last = 0;
  for (int i = 0; i < 20; ++i) {
    uint64_t sum = 0;
    for (const LimitTotals& limit : metrics.Snapshot(20000).limits) sum += limit.granted;
    EXPECT_GE(sum, last);
    last = sum;
  }
  thread.join();
}

TEST(MetricsTest, EachPortHasItsOwnCounters) {
  Metrics metrics;
  uint32_t expected = 0;
  for (const char* port :
       {"data", "admin", "http", "metrics", "ratelimit", "ratelimit_http", "ratelimit_debug"}) {
    EXPECT_EQ(metrics.AddTransport(port), expected++) << port;
  }
}

TEST(MetricsTest, SeparatesTheMetricsOfOneThread) {
  Metrics a;
  Metrics b;
  for (int i = 0; i < 3; ++i) {
    a.Local().granted.Add(1);
    b.Local().granted.Add(10);
  }
  EXPECT_EQ(a.Snapshot(0).granted, 3u);
  EXPECT_EQ(b.Snapshot(0).granted, 30u);
}

TEST(PerThreadTest, ANewThreadTakesOverTheValueOfAnEndedOne) {
  PerThread<OwnedCounter> counters;
  for (int i = 0; i < 10; ++i) std::thread([&] { counters.Local().Add(1); }).join();
  int values = 0;
  uint64_t sum = 0;
  counters.ForEach([&](const OwnedCounter& counter) {
    ++values;
    sum += counter.value();
  });
  EXPECT_EQ(values, 1);
  EXPECT_EQ(sum, 10u);
}

}  // namespace
}  // namespace sluice::common
