#include "server/store/redis/shard/gathered_callers.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <deque>
#include <random>
#include <vector>

namespace sluice::store::redis {
namespace {

using ::testing::ElementsAre;

class GatheredCallersTest : public ::testing::Test {
 protected:
  Caller Make(int64_t deadline_ns) {
    pending_.push_back({.operation = nullptr, .open = 1, .deadline_ns = deadline_ns});
    return {&pending_.back(), &acquisitions_.emplace_back()};
  }
  int64_t PopFront() {
    const int64_t deadline_ns = gathered_.front().pending->deadline_ns;
    gathered_.PopFront();
    return deadline_ns;
  }
  // Their deadlines.
  std::vector<int64_t> TakeLate(int64_t now_ns) {
    std::vector<int64_t> late;
    for (const Caller& caller : gathered_.TakeLate(now_ns)) {
      late.push_back(caller.pending->deadline_ns);
    }
    return late;
  }

  std::deque<PendingAcquire> pending_;
  std::deque<Acquisition> acquisitions_;
  GatheredCallers gathered_;
};

TEST_F(GatheredCallersTest, KeepsTheirOrder) {
  for (const int64_t deadline_ns : {30, 10, 20}) gathered_.PushBack(Make(deadline_ns));
  gathered_.PushFront(Make(40));
  EXPECT_EQ(PopFront(), 40);
  EXPECT_EQ(PopFront(), 30);
  EXPECT_EQ(PopFront(), 10);
  EXPECT_EQ(PopFront(), 20);
  EXPECT_TRUE(gathered_.empty());
}

TEST_F(GatheredCallersTest, TakesLateCallersWhereverTheyWait) {
  for (const int64_t deadline_ns : {10, 30, 11, 31, 12}) gathered_.PushBack(Make(deadline_ns));
  EXPECT_EQ(gathered_.EarliestNs(), 10);
  EXPECT_THAT(TakeLate(10), ElementsAre()) << "not over yet";
  EXPECT_THAT(TakeLate(13), ElementsAre(10, 11, 12));
  EXPECT_EQ(gathered_.EarliestNs(), 30);
  EXPECT_EQ(PopFront(), 30);
  EXPECT_EQ(PopFront(), 31);
  EXPECT_TRUE(gathered_.empty());
  EXPECT_EQ(gathered_.EarliestNs(), kNoDeadline);
}

TEST_F(GatheredCallersTest, IsEmptyWhenAllWereLate) {
  for (const int64_t deadline_ns : {10, 11}) gathered_.PushBack(Make(deadline_ns));
  EXPECT_THAT(TakeLate(20), ElementsAre(10, 11));
  EXPECT_TRUE(gathered_.empty());
}

TEST_F(GatheredCallersTest, TakesFewAtATime) {
  constexpr size_t kMore = 10;
  for (size_t i = 0; i < GatheredCallers::kLateAtOnce + kMore; ++i) gathered_.PushBack(Make(10));
  EXPECT_EQ(TakeLate(20).size(), GatheredCallers::kLateAtOnce);
  EXPECT_EQ(gathered_.EarliestNs(), 10);
  EXPECT_EQ(TakeLate(20).size(), kMore);
}

TEST_F(GatheredCallersTest, CallerMayComeBackWithAnotherInFrontOfIt) {
  gathered_.PushBack(Make(10));
  const Caller back = Make(30);
  gathered_.PushBack(back);
  gathered_.PushBack(Make(20));
  for (int i = 0; i < 2; ++i) gathered_.PopFront();
  // In the place of the one with deadline 10.
  gathered_.PushFront(Make(25));
  gathered_.PushFront(back);
  EXPECT_THAT(TakeLate(15), ElementsAre());
  EXPECT_THAT(TakeLate(40), ElementsAre(20, 25, 30));
  EXPECT_TRUE(gathered_.empty());
}

TEST_F(GatheredCallersTest, ForgetsDeadlinesOfCallersThatLeft) {
  constexpr int kLeft = 10'000;
  for (int i = 0; i < kLeft; ++i) gathered_.PushBack(Make(10 + i));
  gathered_.PushBack(Make(2 * kLeft));
  for (int i = 0; i < kLeft; ++i) gathered_.PopFront();
  int looks = 0;
  for (; gathered_.EarliestNs() < 2 * kLeft; ++looks) {
    EXPECT_THAT(TakeLate(2 * kLeft), ElementsAre());
  }
  EXPECT_LE(looks, 2);
}

TEST_F(GatheredCallersTest, AsksOnlyForThoseThatWait) {
  for (const int64_t deadline_ns : {30, 10, 30}) gathered_.PushBack(Make(deadline_ns));
  TakeLate(20);
  size_t asked = 0;
  EXPECT_TRUE(gathered_.AllOfFirst(2, [&](const Acquisition&) { return ++asked > 0; }));
  EXPECT_EQ(asked, 1u);
}

TEST_F(GatheredCallersTest, TakesAll) {
  for (const int64_t deadline_ns : {30, 10, 31}) gathered_.PushBack(Make(deadline_ns));
  TakeLate(20);
  const std::vector<Caller> all = gathered_.TakeAll();
  ASSERT_EQ(all.size(), 2u);
  EXPECT_EQ(all[1].pending->deadline_ns, 31);
  EXPECT_TRUE(gathered_.empty());
  EXPECT_EQ(gathered_.EarliestNs(), kNoDeadline);
}

// Against a list that is searched from end to end.
TEST_F(GatheredCallersTest, FindsTheSameAsASearch) {
  for (uint32_t seed = 1; seed <= 20; ++seed) {
    std::mt19937 random(seed);
    GatheredCallers gathered;
    std::deque<Caller> model;
    std::vector<Caller> left;  // may come back
    int64_t now_ns = 0;
    for (int step = 0; step < 5000; ++step) {
      const uint32_t what = random() % 16;
      if (what < 7) {
        const Caller caller = Make(random() % 8 == 0 ? kNoDeadline : now_ns + random() % 2000);
        gathered.PushBack(caller);
        model.push_back(caller);
      } else if (what < 12 && !model.empty()) {
        for (uint32_t n = random() % 8; n > 0 && !model.empty(); --n) {
          left.push_back(model.front());
          model.pop_front();
          gathered.PopFront();
        }
      } else if (what == 12) {
        for (; !left.empty(); left.pop_back()) {
          gathered.PushFront(left.back());
          model.push_front(left.back());
        }
      } else if (what == 13) {
        left.clear();
      } else {
        now_ns += random() % 200;
        std::vector<PendingAcquire*> found;
        while (gathered.EarliestNs() < now_ns) {
          for (const Caller& caller : gathered.TakeLate(now_ns)) found.push_back(caller.pending);
        }
        std::vector<PendingAcquire*> late;
        std::erase_if(model, [&](const Caller& caller) {
          if (caller.pending->deadline_ns >= now_ns) return false;
          late.push_back(caller.pending);
          return true;
        });
        EXPECT_THAT(found, ::testing::UnorderedElementsAreArray(late));
      }
      ASSERT_EQ(gathered.empty(), model.empty()) << seed << " " << step;
      if (model.empty()) continue;
      ASSERT_EQ(gathered.front().pending, model.front().pending) << seed << " " << step;
    }
  }
}

}  // namespace
}  // namespace sluice::store::redis
