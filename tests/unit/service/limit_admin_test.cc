#include "server/service/limit_admin.h"

#include <fcntl.h>
#include <unistd.h>

#include <string>

#include "tests/unit/service/fixture.h"

namespace sluice::service {
namespace {

class LimitAdminTest : public ServiceTest {
 protected:
  LimitAdminTest()
      : null_(open("/dev/null", O_WRONLY)), log_(clock_, common::LogLevel::kError, null_) {}
  ~LimitAdminTest() override { close(null_); }
  void SetUp() override { Load({PerSecond("api", 10), PerSecond("other", 5)}); }

  absl::StatusOr<bool> Reset(std::string_view limit, std::string_view key) {
    absl::StatusOr<bool> result = absl::UnknownError("not called");
    admin_.ResetKey(limit, key, [&](absl::StatusOr<bool> existed) { result = existed; });
    return result;
  }
  absl::StatusOr<ListedKeys> Keys(std::string_view limit, KeyOrder order, uint32_t most) {
    absl::StatusOr<ListedKeys> result = absl::UnknownError("not called");
    admin_.ListKeys(limit, order, most, [&](absl::StatusOr<ListedKeys> keys) { result = keys; });
    return result;
  }

  int null_;
  common::Log log_;
  LimitAdmin admin_{{registry_, store_, clock_, metrics_, usage_, signer_}, log_, "1.2.3", [] {
                      return limits::FileStatus{.version = "abc"};
                    }};
};

TEST_F(LimitAdminTest, ResetMakesABucketFull) {
  Acquire("api", "k", 10);
  EXPECT_EQ(Remaining("api", "k"), 0);
  EXPECT_EQ(Reset("api", "k").value(), true);
  EXPECT_EQ(Remaining("api", "k"), 10);
  EXPECT_EQ(Reset("api", "never").value(), false);
  EXPECT_EQ(Reset("ap", "k").status().message(),
            "limit: no limit is named \"ap\"; did you mean \"api\"?");
  EXPECT_EQ(Reset("api", std::string(513, 'x')).status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST_F(LimitAdminTest, BucketsInMemoryHaveNoFloorToLift) {
  absl::Status status;
  admin_.LiftFloor("api", [&](absl::StatusOr<int64_t> floor) { status = floor.status(); });
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
}

TEST_F(LimitAdminTest, ListsKeysWithTheirBuckets) {
  Acquire("api", "much", 7);
  Acquire("api", "less", 3);
  Acquire("other", "o", 5);
  Acquire("other", "o", 1);
  auto keys = Keys("", KeyOrder::kUse, 0);
  ASSERT_TRUE(keys.ok()) << keys.status();
  ASSERT_EQ(keys->keys.size(), 3u);
  EXPECT_EQ(keys->keys[0].key, "much");
  EXPECT_EQ(keys->keys[0].limit, "api");
  EXPECT_EQ(keys->keys[0].estimate, 7u);
  EXPECT_EQ(keys->keys[0].level.remaining, 3);
  EXPECT_EQ(keys->total, 15u);
  EXPECT_EQ(keys->counters, 512u);
  keys = Keys("other", KeyOrder::kDenials, 5);
  ASSERT_EQ(keys->keys.size(), 1u);
  EXPECT_EQ(keys->keys[0].estimate, 1u);
  EXPECT_EQ(Keys("none", KeyOrder::kUse, 0).status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(Keys("", KeyOrder::kUse, 1001).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(LimitAdminTest, PutAndDeleteTakeEffectAtOnce) {
  auto put = admin_.Put(PerSecond("new", 3));
  ASSERT_TRUE(put.ok()) << put.status();
  EXPECT_FALSE(put->replaced);
  EXPECT_TRUE(Acquire("new", "k", 3).granted);
  EXPECT_EQ(admin_.Get("new")->limit->spec().origin, limits::Origin::kAdmin);
  ASSERT_TRUE(admin_.Delete("new").ok());
  EXPECT_EQ(Acquire("new", "k").status.code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(admin_.Delete("new").code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(admin_.Get("new").status().code(), absl::StatusCode::kNotFound);
}

TEST_F(LimitAdminTest, StatsCountEveryOutcome) {
  Acquire("api", "k", 10);
  Acquire("api", "k", 1);
  const AcquisitionResult taken = Acquire("other", "k", 2, {.want_receipt = true});
  RefundCall refund;
  ASSERT_TRUE(Refund(std::string(taken.receipt), &refund).ok());
  const ServerStats stats = admin_.GetStats();
  EXPECT_EQ(stats.version, "1.2.3");
  EXPECT_EQ(stats.totals.granted, 2u);
  EXPECT_EQ(stats.totals.denied, 1u);
  ASSERT_EQ(stats.limits.size(), 2u);
  EXPECT_EQ(stats.limits[0].limit, "api");
  EXPECT_EQ(stats.limits[0].totals.granted, 1u);
  EXPECT_EQ(stats.limits[0].totals.denied, 1u);
  EXPECT_EQ(stats.limits[0].totals.permits_granted, 10u);
  EXPECT_EQ(stats.limits[1].totals.refunded_permits, 2u);
  EXPECT_EQ(stats.store_kind, "memory");
  EXPECT_EQ(stats.store.buckets, 2u);
  EXPECT_GT(stats.resident_bytes, 0u);
}

}  // namespace
}  // namespace sluice::service
