#include "server/store/memory/remembered_grants.h"

#include <atomic>
#include <optional>
#include <thread>
#include <vector>

#include "common/bounds.h"
#include "gtest/gtest.h"

namespace sluice::store::memory {
namespace {

using Grant = RememberedGrants::Grant;

RequestId Id(uint64_t n) { return {{n, ~n}}; }

class RememberedGrantsTest : public ::testing::Test {
 protected:
  // Decides a grant with this fingerprint. Returns the fingerprint of the grant that is remembered,
  // or nullopt if this one was decided.
  std::optional<uint64_t> Ask(uint64_t id, int64_t now_ns, uint64_t fingerprint = 7) {
    const std::optional<Grant> found = grants_.FindOrDecide(
        Id(id), now_ns, [&] { return std::optional<Grant>({fingerprint, 0, 0}); });
    return found.has_value() ? std::optional<uint64_t>(found->fingerprint) : std::nullopt;
  }

  RememberedGrants grants_{1};
};

TEST_F(RememberedGrantsTest, RemembersForAMinute) {
  EXPECT_EQ(Ask(1, 5), std::nullopt);
  EXPECT_EQ(Ask(1, 5, 8), 7u);
  EXPECT_EQ(Ask(1, 5 + kRememberNs - 1, 8), 7u);
  EXPECT_EQ(Ask(1, 5 + kRememberNs, 8), std::nullopt);
  EXPECT_EQ(Ask(1, 6 + kRememberNs, 9), 8u);
}

TEST_F(RememberedGrantsTest, DoesNotRememberDenials) {
  EXPECT_FALSE(grants_.FindOrDecide(Id(1), 0, [] { return std::optional<Grant>(); }).has_value());
  EXPECT_EQ(grants_.size(), 0u);
  EXPECT_EQ(Ask(1, 0), std::nullopt);
}

TEST_F(RememberedGrantsTest, NoCallSeesAGrantAliveWhosePermitsCameBack) {
  const auto ask = [&] {
    return grants_.FindOrDecide(Id(1), 0, [] { return std::optional<Grant>({7, 0, 42}); });
  };
  ask();
  std::optional<Grant> seen;
  std::thread other;
  std::atomic<bool> asks = false;
  grants_.Refund(Id(1), 42, [&] {
    // The permits are back, and a repeat of the request comes.
    other = std::thread([&] {
      asks = true;
      seen = ask();
    });
    while (!asks) std::this_thread::yield();
    return true;
  });
  other.join();
  ASSERT_TRUE(seen.has_value());
  EXPECT_EQ(seen->receipt_id, Grant::kRefunded);
  grants_.FindOrDecide(Id(2), 0, [] { return std::optional<Grant>({7, 0, 43}); });
  grants_.Refund(Id(2), 43, [] { return false; });
  EXPECT_EQ(grants_.FindOrDecide(Id(2), 0, [] { return std::optional<Grant>(); })->receipt_id, 43u)
      << "nothing was refunded";
}

TEST_F(RememberedGrantsTest, DropsEndedGrantsInStepsOfCalls) {
  for (uint64_t i = 0; i < 10'000; ++i) Ask(i, 0);
  EXPECT_EQ(grants_.size(), 10'000u);
  for (uint64_t i = 0; i < 10'000; ++i) Ask(10'000 + i, kRememberNs);
  EXPECT_EQ(grants_.size(), 10'000u);
  for (uint64_t i = 0; i < 10'000; ++i) EXPECT_EQ(Ask(10'000 + i, kRememberNs, 8), 7u);
}

TEST_F(RememberedGrantsTest, MaintainDropsAllThatHasEnded) {
  const uint64_t before = grants_.memory_bytes();
  for (uint64_t i = 0; i < 200'000; ++i) Ask(i, static_cast<int64_t>(i));
  EXPECT_FALSE(grants_.Maintain(kRememberNs - 1));
  EXPECT_EQ(grants_.size(), 200'000u);
  while (grants_.Maintain(kRememberNs + 200'000)) {
  }
  EXPECT_EQ(grants_.size(), 0u);
  EXPECT_EQ(grants_.memory_bytes(), before);
}

// A call in a shard of ended entries is the first to find its own.
TEST_F(RememberedGrantsTest, GrantsAgainWhatHasEndedAndIsNotDroppedYet) {
  for (uint64_t i = 0; i < 10'000; ++i) Ask(i, 0);
  for (uint64_t i = 10'000; i-- > 0;) EXPECT_EQ(Ask(i, kRememberNs, 8), std::nullopt);
  for (uint64_t i = 0; i < 10'000; ++i) EXPECT_EQ(Ask(i, 2 * kRememberNs - 1), 8u);
  while (grants_.Maintain(2 * kRememberNs)) {
  }
  EXPECT_EQ(grants_.size(), 0u);
}

TEST_F(RememberedGrantsTest, RemembersWhatForcedGrantsCountedForOneOfEight) {
  constexpr uint64_t kGrants = 200'000;
  const uint64_t empty = grants_.memory_bytes();
  const auto ask = [&](uint64_t n) {
    return grants_.FindOrDecide(Id(n), 0, [n] {
      return std::optional<Grant>({7, 0, 0, std::vector<uint64_t>(common::bounds::kMaxCharges, n)});
    });
  };
  for (uint64_t n = 0; n < kGrants; ++n) ask(n);
  constexpr uint64_t kCountedBytes = common::bounds::kRememberedGrantBytes / 2;
  EXPECT_LE((grants_.memory_bytes() - empty) / kGrants,
            common::bounds::kRememberedGrantBytes + kCountedBytes);
  uint64_t known = 0;
  for (uint64_t n = 0; n < kGrants; ++n) {
    const std::optional<Grant> grant = ask(n);
    ASSERT_TRUE(grant.has_value());
    if (grant->counted.empty()) continue;
    ++known;
    EXPECT_EQ(grant->counted, std::vector<uint64_t>(common::bounds::kMaxCharges, n));
  }
  EXPECT_GE(known, kGrants / 9);
  EXPECT_LE(known, kGrants / 8);
  while (grants_.Maintain(kRememberNs)) {
  }
  EXPECT_EQ(grants_.memory_bytes(), empty);
}

TEST_F(RememberedGrantsTest, AGrantTakesAtMost64Bytes) {
  const uint64_t empty = grants_.memory_bytes();
  for (uint64_t n = 0; n < 1'000'000; ++n) {
    Ask(n, 0);
    if ((n & (n - 1)) != 0 || n < 100'000) continue;
    EXPECT_LE((grants_.memory_bytes() - empty) / n, common::bounds::kRememberedGrantBytes) << n;
  }
  EXPECT_LE((grants_.memory_bytes() - empty) / 1'000'000, common::bounds::kRememberedGrantBytes);
}

}  // namespace
}  // namespace sluice::store::memory
