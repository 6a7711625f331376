// The joint moment of several buckets, against looking at every moment; and beyond its bound.
#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "server/algorithm/calendar/calendar.h"

namespace sluice::algorithm {
namespace {

// A bucket that fits at some moments below the end, and at all from there on.
struct Bucket {
  std::vector<bool> fits;
  int64_t EarliestNs(int64_t from_ns) const {
    while (from_ns < static_cast<int64_t>(fits.size()) && !fits[static_cast<size_t>(from_ns)]) {
      ++from_ns;
    }
    return from_ns;
  }
};

struct Answer {
  int64_t grant_time_ns;
  int asked = 0;
};

constexpr int kSteps = 2048;

Answer Joint(const std::vector<Bucket>& buckets, int64_t from_ns, int64_t after_all_ns,
             SearchBudget budget = SearchBudget(kSteps)) {
  Answer answer{};
  answer.grant_time_ns = JointGrantTimeNs(buckets.size(), from_ns, after_all_ns, &budget,
                                          [&](size_t bucket, int64_t not_before_ns) {
                                            ++answer.asked;
                                            return buckets[bucket].EarliestNs(not_before_ns);
                                          });
  return answer;
}

int64_t ByLookingAtEach(const std::vector<Bucket>& buckets, int64_t from_ns) {
  for (int64_t grant_time_ns = from_ns;; ++grant_time_ns) {
    bool all = true;
    for (const Bucket& bucket : buckets) all &= bucket.EarliestNs(grant_time_ns) == grant_time_ns;
    if (all) return grant_time_ns;
  }
}

TEST(JointGrantTimeTest, IsTheEarliestTimeAtWhichAllBucketsFit) {
  std::mt19937_64 random(1);
  for (int round = 0; round < 2000; ++round) {
    std::vector<Bucket> buckets(1 + random() % 5);
    const size_t moments = 1 + random() % 900;
    const uint64_t rarely = 2 + random() % 12;
    for (Bucket& bucket : buckets) {
      for (size_t m = 0; m < moments; ++m) bucket.fits.push_back(random() % rarely == 0);
    }
    const auto from_ns = static_cast<int64_t>(random() % moments);
    // Fewer questions than steps: exact, whatever after_all_ns is.
    const auto end_ns = static_cast<int64_t>(moments + random() % 1000);
    EXPECT_EQ(Joint(buckets, from_ns, end_ns, SearchBudget()).grant_time_ns,
              ByLookingAtEach(buckets, from_ns));
  }
}

// Two buckets whose gaps miss each other `times` times; then both fit.
std::vector<Bucket> Missing(int times) {
  std::vector<Bucket> buckets(2);
  for (int i = 0; i < times; ++i) {
    for (int b = 0; b < 2; ++b) {
      for (int m = 0; m < 4; ++m) {
        buckets[static_cast<size_t>(b)].fits.push_back(m == 2 * b);
      }
    }
  }
  return buckets;
}

TEST(JointGrantTimeTest, IsTheEarliestTimeUpToTheBudget) {
  const std::vector<Bucket> buckets = Missing(kSteps / 2 - 2);
  const auto end_ns = static_cast<int64_t>(buckets[0].fits.size());
  EXPECT_EQ(Joint(buckets, 0, end_ns + 77).grant_time_ns, end_ns);
}

TEST(JointGrantTimeTest, BeyondTheBudgetIsAfterAllBookings) {
  const std::vector<Bucket> buckets = Missing(10 * kSteps);
  const auto end_ns = static_cast<int64_t>(buckets[0].fits.size());
  const Answer answer = Joint(buckets, 0, end_ns + 77);
  EXPECT_EQ(answer.grant_time_ns, end_ns + 77);
  EXPECT_LE(answer.asked, kSteps + 4);
}

TEST(JointGrantTimeTest, SearchesThatShareABudgetAreShortOnceItIsSpent) {
  const std::vector<Bucket> buckets = Missing(10 * kSteps);
  const auto end_ns = static_cast<int64_t>(buckets[0].fits.size());
  SearchBudget budget(kSteps);
  int asked = 0;
  for (int search = 0; search < 100; ++search) {
    JointGrantTimeNs(2, 0, end_ns, &budget, [&](size_t bucket, int64_t from_ns) {
      ++asked;
      return buckets[bucket].EarliestNs(from_ns);
    });
  }
  EXPECT_LE(asked, kSteps + 100 * 4);
}

}  // namespace
}  // namespace sluice::algorithm
