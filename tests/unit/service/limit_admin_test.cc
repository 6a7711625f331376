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

TEST_F(LimitAdminTest, ATemporaryPutIsUndoneAfterItsTime) {
  Acquire("api", "k", 5);
  ASSERT_TRUE(admin_.Put(PerSecond("api", 100), {"sale", WireDuration{60, 0}}).ok());
  EXPECT_EQ(admin_.Get("api")->limit->spec().reason, "sale");
  EXPECT_EQ(Remaining("api", "k"), 50) << "half of 10 becomes half of 100";
  clock_.Advance(60 * kSecond - 1);
  clock_.SetWall(clock_.WallNs() + 3600 * kSecond);  // the wall clock does not count
  EXPECT_TRUE(admin_.Ended().empty());
  EXPECT_EQ(admin_.Undo("api").code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(Remaining("api", "k"), 100);
  Acquire("api", "k", 100);
  clock_.Advance(1);
  ASSERT_EQ(admin_.Ended(), std::vector<std::string>{"api"});
  ASSERT_TRUE(admin_.Undo("api").ok());
  EXPECT_TRUE(admin_.Ended().empty());
  EXPECT_EQ(Remaining("api", "k"), 0) << "the empty bucket stays empty";
  EXPECT_EQ(admin_.Get("api")->limit->spec().origin, limits::Origin::kFile);
  EXPECT_EQ(admin_.Get("api")->limit->spec().reason, "");
}

TEST_F(LimitAdminTest, ALaterTemporaryPutMovesTheEnd) {
  ASSERT_TRUE(admin_.Put(PerSecond("api", 100), {"", WireDuration{10, 0}}).ok());
  ASSERT_TRUE(admin_.Put(PerSecond("other", 100), {"", WireDuration{10, 0}}).ok());
  clock_.Advance(9 * kSecond);
  ASSERT_TRUE(admin_.Put(PerSecond("api", 200), {"", WireDuration{10, 0}}).ok());
  ASSERT_TRUE(admin_.Put(PerSecond("other", 200)).ok());
  clock_.Advance(9 * kSecond);
  EXPECT_TRUE(admin_.Ended().empty());
  clock_.Advance(kSecond);
  EXPECT_EQ(admin_.Ended(), std::vector<std::string>{"api"});
  ASSERT_TRUE(admin_.Undo("api").ok());
  EXPECT_EQ(Remaining("api", "k"), 10);
  EXPECT_EQ(Remaining("other", "k"), 200);
}

TEST_F(LimitAdminTest, ABadReasonOrEndChangesNothing) {
  const auto put = [&](const PutOptions& options) {
    return std::string(admin_.Put(PerSecond("api", 100), options).status().message());
  };
  const std::string bounds = "; from 1s to 365 days (8760h), or absent for a change without end";
  EXPECT_EQ(put({"", WireDuration{0, 0}}), "expires_after: 0" + bounds);
  EXPECT_EQ(put({"", WireDuration{0, 999'999'999}}), "expires_after: 999.999999ms" + bounds);
  EXPECT_EQ(put({"", WireDuration{-5, 0}}), "expires_after: -5s" + bounds);
  EXPECT_EQ(put({"", WireDuration{365 * 86400, 1}}), "expires_after: 8760h0.000000001s" + bounds);
  EXPECT_EQ(put({"", WireDuration{1, -1}}).substr(0, 14), "expires_after:");
  EXPECT_EQ(put({std::string(257, 'x'), {}}),
            "reason: \"" + std::string(40, 'x') + "...\" has 257 bytes; at most 256");
  EXPECT_EQ(put({"a\xFF", {}}), "reason: \"a\\xff\" is not valid UTF-8");
  EXPECT_EQ(Remaining("api", "k"), 10);
  EXPECT_EQ(put({std::string(256, 'x'), WireDuration{365 * 86400, 0}}), "");
  EXPECT_EQ(put({"", WireDuration{1, 0}}), "");
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
