// Request ids: what is refused, what is answered again, and the bounds.
#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "common/errors.h"
#include "tests/unit/service/fixture.h"

namespace sluice::service {
namespace {

namespace errors = common::errors;
using ::testing::HasSubstr;

constexpr std::string_view kId = "0123456789abcdef";

class SharedMemoryStore : public store::Store {
 public:
  explicit SharedMemoryStore(store::Store& inner) : inner_(inner) {}
  std::string_view Kind() const override { return "shared"; }
  void Register(std::shared_ptr<const store::Rule> rule) override { inner_.Register(rule); }
  void Acquire(store::AcquireOperation* operation) override { inner_.Acquire(operation); }
  void Query(store::QueryOperation* operation) override { inner_.Query(operation); }
  void Refund(store::RefundOperation* operation) override { inner_.Refund(operation); }
  void Reset(const store::Rule& rule, std::string_view key, ResetDone done,
             void* context) override {
    inner_.Reset(rule, key, done, context);
  }
  bool Shared() const override { return true; }
  store::StoreStats Stats() const override { return inner_.Stats(); }

 private:
  store::Store& inner_;
};

// Answers the first acquisition that its rule is stale, after a change of the limits.
class ChangingStore final : public SharedMemoryStore {
 public:
  using SharedMemoryStore::SharedMemoryStore;
  void Acquire(store::AcquireOperation* operation) override {
    if (change == nullptr) return SharedMemoryStore::Acquire(operation);
    std::exchange(change, nullptr)();
    for (store::Acquisition& one : operation->acquisitions) {
      one.outcome = store::Outcome::kStaleRule;
    }
    operation->Done();
  }
  std::function<void()> change;
};

class OnceTest : public ServiceTest {
 protected:
  void SetUp() override {
    limits::LimitSpec day = PerSecond("day", 10);
    day.rate.period_ns = 24 * 3600 * kSecond;
    limits::LimitSpec child = day;
    child.name = "child";
    child.charges = {"parent"};
    limits::LimitSpec parent = day;
    parent.name = "parent";
    limits::LimitSpec owed = day;
    owed.name = "owed";
    owed.max_owed = 100;
    limits::LimitSpec many = day;
    many.name = "many";
    many.rate.permits = 1'000'000;
    limits::LimitSpec more = many;
    more.name = "more";
    limits::LimitSpec second = PerSecond("second", 1);
    limits::LimitSpec split = day;
    split.name = "split";
    split.sharing = store::Sharing::kSplit;
    limits::LimitSpec slots = day;
    slots.name = "slots";
    slots.rate = {};
    slots.algorithm = algorithm::Kind::kConcurrency;
    slots.permits = 1;
    slots.hold_for_ns = 20 * kSecond;
    limits::LimitSpec failing = day;
    failing.name = "failing";
    failing.on_store_failure = limits::OnStoreFailure::kSplit;
    Load({day, child, parent, owed, many, more, second, split, slots, failing});
  }

  AcquisitionResult Ask(std::string_view limit, uint64_t permits = 1,
                        AcquisitionOptions options = {}, std::string_view id = kId) {
    call_.Reset(AcquireCall::Form::kUnary);
    call_.UseConnection(connection_.get());
    call_.BeginAcquisition(options);
    call_.AddCharge(limit, "k", permits);
    if (!id.empty()) call_.SetRequestId(id);
    Run(&call_);
    return call_.result(0);
  }
  static std::string NumberedId(int number) {
    std::string id(16, '\0');
    id.replace(0, 4, std::to_string(1000 + number));
    return id;
  }

  std::shared_ptr<ConnectionBookings> connection_;
};

TEST_F(OnceTest, TheSameRequestTakesNothingAgain) {
  const AcquisitionResult first = Ask("day", 3);
  EXPECT_TRUE(first.granted);
  EXPECT_FALSE(first.repeated);
  clock_.Advance(59 * kSecond);
  const AcquisitionResult again = Ask("day", 3);
  EXPECT_TRUE(again.granted);
  EXPECT_TRUE(again.repeated);
  EXPECT_EQ(again.source, store::Source::kStore);
  EXPECT_EQ(call_.charge(0, 0).level.remaining, 7);
  EXPECT_EQ(Remaining("day", "k"), 7);
  clock_.Advance(kSecond);
  EXPECT_FALSE(Ask("day", 3).repeated) << "forgotten after 60 s";
  EXPECT_EQ(Remaining("day", "k"), 4);
}

TEST_F(OnceTest, DenialsAreNotRemembered) {
  EXPECT_TRUE(Ask("second", 1, {}, {}).granted);
  EXPECT_FALSE(Ask("second").granted);
  clock_.Advance(kSecond);
  const AcquisitionResult granted = Ask("second");
  EXPECT_TRUE(granted.granted);
  EXPECT_FALSE(granted.repeated);
}

TEST_F(OnceTest, AReservationIsAnsweredWithTheWaitThatIsLeft) {
  Ask("second", 1, {}, {});
  const AcquisitionOptions ahead = {.max_wait = {5, 0}};
  const AcquisitionResult first = Ask("second", 1, ahead);
  EXPECT_EQ(first.wait_ns, kSecond);
  const std::string receipt(first.receipt);
  clock_.Advance(kSecond / 4);
  const AcquisitionResult again = Ask("second", 1, ahead);
  EXPECT_TRUE(again.repeated);
  EXPECT_EQ(again.wait_ns, kSecond * 3 / 4);
  EXPECT_EQ(again.receipt, receipt);
  clock_.Advance(2 * kSecond);
  const AcquisitionResult past = Ask("second", 1, ahead);
  EXPECT_EQ(past.wait_ns, 0);
  EXPECT_EQ(past.receipt, receipt);
}

TEST_F(OnceTest, TheRepeatedReceiptIsRefundedOnceAndEndsTheGrant) {
  Ask("child", 4, {.want_receipt = true});
  const std::string receipt(Ask("child", 4, {.want_receipt = true}).receipt);
  EXPECT_EQ(Remaining("parent", ""), 6);
  RefundCall refund;
  EXPECT_TRUE(Refund(receipt, &refund).ok());
  EXPECT_EQ(refund.outcome(), store::RefundOutcome::kRefunded);
  EXPECT_EQ(Remaining("child", "k"), 10);
  EXPECT_EQ(Remaining("parent", ""), 10);
  const absl::Status ended = Ask("child", 4, {.want_receipt = true}).status;
  EXPECT_EQ(ended.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(ended.message()),
              HasSubstr("request_id: the acquisition that was granted under this id has ended"));
  EXPECT_EQ(Remaining("child", "k"), 10);
  EXPECT_TRUE(Refund(receipt, &refund).ok());
  EXPECT_EQ(refund.outcome(), store::RefundOutcome::kAlreadyRefunded);
}

TEST_F(OnceTest, SlotsAreAnsweredWithTheTimeThatIsLeft) {
  EXPECT_TRUE(Ask("slots").granted);
  EXPECT_EQ(call_.charge(0, 0).held_for_ns, 20 * kSecond);
  clock_.Advance(15 * kSecond);
  EXPECT_TRUE(Ask("slots").repeated);
  EXPECT_EQ(call_.charge(0, 0).held_for_ns, 5 * kSecond);
  clock_.Advance(5 * kSecond);
  EXPECT_EQ(Ask("slots").status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(Ask("slots", 1, {}, NumberedId(1)).granted);
}

TEST_F(OnceTest, ALimitThatIsDeletedMeanwhileLeavesNoPlaceTaken) {
  store::MemoryStore memory(clock_, {.seed = 1});
  ChangingStore store(memory);
  limits::LimitRegistry registry(&store);
  RateLimiter limiter(registry, store, clock_, metrics_, usage_, signer_, 2);
  for (int i = 0; i < 3; ++i) {
    ASSERT_TRUE(registry.ApplyFile({PerSecond("one", 10)}, std::to_string(2 * i)).ok());
    store.change = [&] {
      ASSERT_TRUE(registry.ApplyFile({PerSecond("two", 10)}, std::to_string(2 * i + 1)).ok());
    };
    call_.Reset(AcquireCall::Form::kUnary);
    call_.BeginAcquisition({});
    call_.AddCharge("one", "k", 1);
    const std::string id = NumberedId(i);
    call_.SetRequestId(id);
    limiter.Acquire(&call_, store::kNoDeadline, [](void*, AcquireCall*) {}, nullptr);
    EXPECT_EQ(call_.result(0).status.code(), absl::StatusCode::kNotFound);
  }
  call_.Reset(AcquireCall::Form::kUnary);
  call_.BeginAcquisition({});
  call_.AddCharge("two", "k", 1);
  call_.SetRequestId(kId);
  limiter.Acquire(&call_, store::kNoDeadline, [](void*, AcquireCall*) {}, nullptr);
  EXPECT_TRUE(call_.result(0).granted) << call_.result(0).status;
}

TEST_F(OnceTest, RepeatsAreNotCountedAsDecisions) {
  for (int i = 0; i < 5; ++i) Ask("day", 2);
  const auto limits = metrics_.Snapshot(registry_.Current()->limit_id_end()).limits;
  const auto& day = limits[registry_.Current()->Find("day")->limit_id()];
  EXPECT_EQ(day.granted, 1u);
}

TEST_F(OnceTest, AnotherRequestWithTheSameIdIsRefused) {
  Ask("owed", 2);
  const auto refused = [&](const AcquisitionResult& result) {
    EXPECT_EQ(result.status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(result.status.message()), HasSubstr("request_id: granted within"));
  };
  refused(Ask("owed", 3));
  refused(Ask("day", 2));
  refused(Ask("owed", 2, {.want_receipt = true}));
  refused(Ask("owed", 2, {.max_wait = {1, 0}}));
  refused(Ask("owed", 2, {.force = true}));
  EXPECT_EQ(Remaining("owed", "k"), 8);
  EXPECT_EQ(Remaining("day", "k"), 10);
  EXPECT_TRUE(Ask("owed", 2).repeated);
}

TEST_F(OnceTest, ForcedDebitsAreMadeOnce) {
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(Ask("owed", 15, {.force = true}).granted);
  EXPECT_EQ(Remaining("owed", "k"), -5);
}

TEST_F(OnceTest, AnIdHas16Bytes) {
  for (const std::string_view id : {"1", "0123456789abcde", "0123456789abcdef0"}) {
    const absl::Status status = Ask("day", 1, {}, id).status;
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()),
                HasSubstr("request_id: " + std::to_string(id.size()) +
                          " bytes; a request id has exactly 16 random bytes"));
  }
  EXPECT_EQ(Remaining("day", "k"), 10);
}

TEST_F(OnceTest, NotWithHold) {
  const absl::Status status = CheckRequestId({}, kId, {.max_wait = {1, 0}, .hold = true});
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("request_id: set with hold"));
}

TEST_F(OnceTest, ABatchNamesTheAcquisition) {
  call_.Reset(AcquireCall::Form::kBatch);
  for (const std::string_view id : {kId, std::string_view("short"), std::string_view(), kId}) {
    call_.BeginAcquisition({});
    call_.AddCharge("day", "k", 2);
    if (!id.empty()) call_.SetRequestId(id);
  }
  Run(&call_);
  EXPECT_TRUE(call_.result(0).granted);
  EXPECT_FALSE(call_.result(0).repeated);
  EXPECT_THAT(std::string(call_.result(1).status.message()),
              HasSubstr("acquisitions[1].request_id: 5 bytes"));
  EXPECT_TRUE(call_.result(2).granted);
  EXPECT_TRUE(call_.result(3).repeated);
  EXPECT_EQ(Remaining("day", "k"), 6);
}

TEST_F(OnceTest, SharedLimitsThatNodesDecideAloneRememberNothing) {
  SharedMemoryStore shared(store_);
  RateLimiter limiter(registry_, shared, clock_, metrics_, usage_, signer_);
  for (const auto& [limit, setting] :
       {std::pair("split", "sharing: split"), {"failing", "on_store_failure: split"}}) {
    call_.Reset(AcquireCall::Form::kUnary);
    call_.BeginAcquisition({});
    call_.AddCharge(limit, "k", 1);
    call_.SetRequestId(kId);
    limiter.Acquire(&call_, store::kNoDeadline, [](void*, AcquireCall*) {}, nullptr);
    const absl::Status status = call_.result(0).status;
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()),
                HasSubstr(std::string("request_id: limit \"") + limit + "\" says " + setting));
  }
}

// A server that may remember eight grants: four of a limit, two of a connection.
class RememberedRoomTest : public OnceTest {
 protected:
  AcquisitionResult AskOf(std::string_view limit, int number) {
    call_.Reset(AcquireCall::Form::kUnary);
    call_.UseConnection(connection_.get());
    call_.BeginAcquisition({});
    call_.AddCharge(limit, "k", 1);
    const std::string id = NumberedId(number);
    call_.SetRequestId(id);
    small_.Acquire(&call_, store::kNoDeadline, [](void*, AcquireCall*) {}, nullptr);
    return call_.result(0);
  }

  RateLimiter small_{registry_, store_, clock_, metrics_, usage_, signer_, 8};
};

TEST_F(RememberedRoomTest, WithoutRoomNothingIsTakenAndRepeatsAreAnswered) {
  for (int i = 0; i < 4; ++i) EXPECT_TRUE(AskOf("many", i).granted);
  const absl::Status full = AskOf("many", 4).status;
  EXPECT_EQ(full.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(errors::WasNotExecuted(full));
  EXPECT_THAT(std::string(full.message()), HasSubstr("request_id: this server"));
  EXPECT_EQ(Remaining("many", "k"), 1'000'000 - 4);
  for (int i = 0; i < 4; ++i) EXPECT_TRUE(AskOf("many", i).repeated);
  // The next limit gets half of the other half, and there is some left for a third one.
  for (int i = 4; i < 6; ++i) EXPECT_TRUE(AskOf("more", i).granted) << i;
  EXPECT_EQ(AskOf("more", 6).status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(AskOf("day", 7).granted);
  clock_.Advance(70 * kSecond);
  EXPECT_TRUE(AskOf("many", 4).granted);
}

TEST_F(RememberedRoomTest, DenialsAndRepeatsTakeNoRoom) {
  EXPECT_TRUE(AskOf("second", 0).granted);
  for (int i = 0; i < 100; ++i) {
    EXPECT_FALSE(AskOf("second", 1).granted);
    EXPECT_TRUE(AskOf("second", 0).repeated);
  }
  for (int i = 1; i < 4; ++i) EXPECT_TRUE(AskOf("many", i).granted);
  EXPECT_TRUE(AskOf("many", 4).granted);
  EXPECT_FALSE(AskOf("many", 5).status.ok());
}

TEST_F(RememberedRoomTest, AConnectionHasAQuarter) {
  connection_ = std::make_shared<ConnectionBookings>();
  EXPECT_TRUE(AskOf("many", 0).granted);
  EXPECT_TRUE(AskOf("more", 1).granted);
  EXPECT_EQ(AskOf("more", 2).status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(AskOf("more", 1).repeated);
  EXPECT_EQ(connection_.use_count(), 1) << "no call keeps it";
  connection_ = std::make_shared<ConnectionBookings>();
  EXPECT_TRUE(AskOf("more", 2).granted);
}

TEST(RememberedRoomSharesTest, FloodedConnectionsAndLimitsLeaveRoomForNewOnes) {
  constexpr size_t kMost = 10'000;
  RememberedRoom room(kMost);
  ConnectionGrants flooding[8];
  size_t taken = 0;
  for (size_t i = 0; i < 3 * kMost; ++i) {
    taken +=
        room.Take({.limit_id = static_cast<uint32_t>(i % 5)}, &flooding[i % 8], kSecond) ? 1 : 0;
  }
  EXPECT_GT(taken, kMost * 2 / 3);
  EXPECT_LT(taken, kMost * 3 / 4);
  ConnectionGrants honest;
  for (uint32_t limit = 0; limit < 6; ++limit) {
    for (int i = 0; i < 100; ++i)
      EXPECT_TRUE(room.Take({.limit_id = limit}, &honest, kSecond)) << limit;
  }
}

TEST(RememberedRoomSharesTest, OneConnectionAloneHasAQuarterAndOneLimitHalf) {
  const auto taken = [](ConnectionGrants* connection) {
    RememberedRoom room(1000);
    size_t count = 0;
    while (room.Take({.limit_id = 1}, connection, kSecond)) ++count;
    return count;
  };
  ConnectionGrants one;
  EXPECT_EQ(taken(&one), 250u);
  EXPECT_EQ(taken(nullptr), 500u);
}

TEST(RecentGrantsTest, CountsForAMinute) {
  RecentGrants grants;
  for (int64_t s = 0; s < 60; ++s) EXPECT_TRUE(grants.Add(s * kSecond, 60));
  EXPECT_FALSE(grants.Add(60 * kSecond - 1, 60));
  EXPECT_EQ(grants.Count(60 * kSecond - 1), 60u);
  // All that the store may still remember is counted.
  for (int64_t s = 60; s < 130; ++s) {
    EXPECT_GE(grants.Count(s * kSecond), static_cast<size_t>(std::max<int64_t>(119 - s, 0)));
  }
  EXPECT_EQ(grants.Count(130 * kSecond), 0u);
  grants.Remove(0);
  EXPECT_EQ(grants.Count(130 * kSecond), 0u) << "forgotten before";
  EXPECT_TRUE(grants.Add(131 * kSecond, 1));
  grants.Remove(131 * kSecond);
  EXPECT_TRUE(grants.Add(131 * kSecond, 1));
}

}  // namespace
}  // namespace sluice::service
