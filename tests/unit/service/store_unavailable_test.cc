// Answers and counters while the shared store is unavailable.
#include <fcntl.h>
#include <unistd.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "common/errors.h"
#include "server/service/limit_admin.h"
#include "tests/unit/service/fixture.h"

namespace sluice::service {
namespace {

using ::testing::HasSubstr;

// A shared store that is unavailable on demand.
class SharedStore final : public store::Store {
 public:
  explicit SharedStore(store::Store& inner) : inner_(inner) {}
  std::string_view Kind() const override { return "shared"; }
  void Register(std::shared_ptr<const store::Rule> rule) override { inner_.Register(rule); }
  void Acquire(store::AcquireOperation* operation) override {
    if (!health.unavailable) return inner_.Acquire(operation);
    for (store::Acquisition& one : operation->acquisitions) {
      bool allow = true;
      for (const store::Charge& charge : one.charges)
        allow &= charge.rule->allow_when_store_unavailable;
      one.source = store::Source::kStoreUnavailable;
      one.outcome = allow ? store::Outcome::kGranted : store::Outcome::kUnavailable;
      one.may_be_debited = asked;
    }
    operation->Done();
  }
  void Query(store::QueryOperation* operation) override {
    if (!health.unavailable) return inner_.Query(operation);
    for (store::QueryItem& item : operation->items) {
      item.unavailable = true;
      item.source = store::Source::kStoreUnavailable;
    }
    operation->Done();
  }
  void Refund(store::RefundOperation* operation) override { inner_.Refund(operation); }
  void Reset(const store::Rule& rule, std::string_view key, ResetDone done,
             void* context) override {
    if (health.unavailable) {
      return done(context,
                  asked ? store::ResetOutcome::kUnknown : store::ResetOutcome::kUnavailable);
    }
    inner_.Reset(rule, key, done, context);
  }
  bool Shared() const override { return true; }
  void LiftFloor(std::string_view limit, FloorDone done) override {
    if (health.unavailable) return done(std::nullopt);
    done(std::exchange(floor_wall_ns, 0));
  }
  store::StoreStats Stats() const override { return inner_.Stats(); }
  store::StoreHealth Health() const override { return health; }

  store::StoreHealth health;
  int64_t floor_wall_ns = 0;
  bool asked = false;  // if unavailable: it was asked and its answer is lost

 private:
  store::Store& inner_;
};

class StoreUnavailableTest : public ServiceTest {
 protected:
  StoreUnavailableTest()
      : null_(open("/dev/null", O_WRONLY)), log_(clock_, common::LogLevel::kError, null_) {
    shared_.health.shared = true;
  }
  ~StoreUnavailableTest() override { close(null_); }
  void SetUp() override {
    limits::LimitSpec open = PerSecond("open", 1);
    open.on_store_failure = limits::OnStoreFailure::kAllow;
    limits::LimitSpec both = open;
    both.name = "both";
    both.charges = {"strict"};
    Load({open, both, PerSecond("strict", 1), PerSecond("idle", 1)});
  }

  absl::Status Reset(std::string_view key) {
    absl::Status status;
    admin_.ResetKey("open", key, [&](absl::StatusOr<bool> existed) { status = existed.status(); });
    return status;
  }

  AcquisitionResult Ask(std::string_view limit) {
    call_.Reset(AcquireCall::Form::kUnary);
    call_.BeginAcquisition({});
    call_.AddCharge(limit, "k", 1);
    limiter_shared_.Acquire(&call_, store::kNoDeadline, [](void*, AcquireCall*) {}, nullptr);
    return call_.result(0);
  }

  SharedStore shared_{store_};
  RateLimiter limiter_shared_{registry_, shared_, clock_, metrics_, usage_, signer_};
  int null_;
  common::Log log_;
  LimitAdmin admin_{{registry_, shared_, clock_, metrics_, usage_, signer_}, log_, "1.2.3", [] {
                      return limits::FileStatus();
                    }};
};

TEST_F(StoreUnavailableTest, CountsDecisionsOfOnStoreFailureByLimit) {
  EXPECT_TRUE(Ask("open").granted);
  EXPECT_FALSE(Ask("open").granted);
  EXPECT_TRUE(admin_.GetConfigStatus().store.decided_while_unavailable.empty());

  shared_.health.unavailable = true;
  for (int i = 0; i < 3; ++i) {
    const AcquisitionResult allowed = Ask("open");
    EXPECT_TRUE(allowed.granted);
    EXPECT_EQ(allowed.source, store::Source::kStoreUnavailable);
  }
  EXPECT_EQ(Ask("strict").status.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(Ask("both").status.code(), absl::StatusCode::kUnavailable);

  const StoreStatus status = admin_.GetConfigStatus().store;
  EXPECT_EQ(status.kind, "shared");
  EXPECT_TRUE(status.health.unavailable);
  ASSERT_EQ(status.decided_while_unavailable.size(), 3u);
  const auto expect = [&](size_t i, const char* limit, uint64_t allowed, uint64_t denied) {
    const NamedLimitTotals& decided = status.decided_while_unavailable[i];
    EXPECT_EQ(decided.limit, limit);
    EXPECT_EQ(decided.totals.allowed_while_unavailable, allowed) << limit;
    EXPECT_EQ(decided.totals.denied_while_unavailable, denied) << limit;
  };
  expect(0, "both", 0, 1);
  expect(1, "open", 3, 0);
  expect(2, "strict", 0, 2);
  EXPECT_EQ(admin_.GetStats().limits[2].totals.granted, 4u) << "what was allowed is granted too";
}

TEST_F(StoreUnavailableTest, LiftsTheFloorOfAKnownLimitWhileTheStoreIsAvailable) {
  absl::StatusOr<int64_t> floor = absl::UnknownError("not called");
  const auto lift = [&](std::string_view limit) {
    admin_.LiftFloor(limit, [&](absl::StatusOr<int64_t> lifted) { floor = lifted; });
    return floor;
  };
  shared_.floor_wall_ns = 7;
  EXPECT_EQ(lift("opne").status().code(), absl::StatusCode::kNotFound);
  shared_.health.unavailable = true;
  EXPECT_EQ(lift("open").status().code(), absl::StatusCode::kUnavailable);
  shared_.health.unavailable = false;
  EXPECT_EQ(lift("open").value(), 7);
  EXPECT_EQ(lift("open").value(), 0);
}

TEST_F(StoreUnavailableTest, QueryReportsUnknownLevels) {
  shared_.health.unavailable = true;
  QueryCall call;
  call.Reset();
  call.AddBucket("open", "k");
  limiter_shared_.Query(&call, store::kNoDeadline, [](void*, QueryCall*) {}, nullptr);
  EXPECT_EQ(call.bucket(0).source, store::Source::kStoreUnavailable);
  EXPECT_THAT(std::string(call.bucket(0).error.message()), HasSubstr("what is left is not known"));
}

TEST_F(StoreUnavailableTest, DenialSaysWhetherPermitsMayHaveBeenTaken) {
  shared_.health.unavailable = true;
  const absl::Status not_asked = Ask("strict").status;
  EXPECT_THAT(std::string(not_asked.message()), HasSubstr("nothing was taken"));
  EXPECT_TRUE(common::errors::WasNotExecuted(not_asked));
  shared_.asked = true;
  const absl::Status lost = Ask("strict").status;
  EXPECT_EQ(lost.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(lost.message()), HasSubstr("may have been taken"));
  EXPECT_FALSE(common::errors::WasNotExecuted(lost));
}

TEST_F(StoreUnavailableTest, ResetSaysWhetherItMayHaveTakenEffect) {
  EXPECT_TRUE(Reset("k").ok());
  shared_.health.unavailable = true;
  const absl::Status not_asked = Reset("k");
  EXPECT_EQ(not_asked.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(not_asked.message()), HasSubstr("the bucket is as it was"));
  shared_.asked = true;
  const absl::Status lost = Reset("k");
  EXPECT_EQ(lost.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(lost.message()), HasSubstr("may have been reset"));
}

TEST_F(StoreUnavailableTest, ListsTopKeysWithoutTheirBuckets) {
  EXPECT_TRUE(Ask("open").granted);
  const auto list = [&] {
    ListedKeys listed;
    admin_.ListKeys("", KeyOrder::kUse, 0, [&](absl::StatusOr<ListedKeys> keys) {
      ASSERT_TRUE(keys.ok()) << keys.status();
      listed = *std::move(keys);
    });
    EXPECT_EQ(listed.keys.size(), 1u);
    return listed.keys.at(0);
  };
  EXPECT_TRUE(list().bucket.ok());
  shared_.health.unavailable = true;
  const ListedKey unavailable = list();
  EXPECT_EQ(unavailable.estimate, 1u);
  EXPECT_EQ(unavailable.level.capacity, 1u);
  EXPECT_EQ(unavailable.bucket.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(unavailable.bucket.message()), HasSubstr("what is left is not known"));
}

TEST_F(StoreUnavailableTest, MemoryStoreIsNeverUnavailable) {
  LimitAdmin own({registry_, store_, clock_, metrics_, usage_, signer_}, log_, "1.2.3",
                 [] { return limits::FileStatus(); });
  const StoreStatus status = own.GetConfigStatus().store;
  EXPECT_EQ(status.kind, "memory");
  EXPECT_FALSE(status.health.shared);
  EXPECT_EQ(status.health.since_wall_ns, 0);
}

}  // namespace
}  // namespace sluice::service
