#include <algorithm>
#include <atomic>
#include <limits>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "tests/unit/service/fixture.h"

namespace sluice::service {
namespace {

using testing::HasSubstr;

class AcquireTest : public ServiceTest {
 protected:
  void SetUp() override {
    auto api = PerSecond("api", 100);
    api.burst = 150;
    api.debt = 50;
    auto child = PerSecond("child", 10);
    child.charges = {"parent"};
    auto shadow = PerSecond("shadow", 1);
    shadow.mode = limits::Mode::kShadow;
    auto team = PerSecond("team", 50);
    team.charges = {"parent"};
    auto user = PerSecond("user", 6);
    user.max_owed = 2;
    user.charges = {"team"};
    auto split = PerSecond("split", 5);
    split.sharing = store::Sharing::kSplit;
    auto splits = PerSecond("splits", 5);
    splits.max_owed = 5;
    splits.charges = {"split"};
    Load({api, child, PerSecond("parent", 5), shadow, PerSecond("one", 1), team, user, split,
          splits});
  }

  // The error of one unary acquisition.
  void ExpectError(const absl::Status& status, absl::StatusCode code, const std::string& text) {
    EXPECT_EQ(status.code(), code) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(text));
  }
};

TEST_F(AcquireTest, GrantsUntilTheBurstIsSpentAndThenSaysWhenToComeBack) {
  EXPECT_TRUE(Acquire("one", "k").granted);
  const AcquisitionResult denied = Acquire("one", "k");
  EXPECT_TRUE(denied.status.ok());
  EXPECT_FALSE(denied.granted);
  EXPECT_EQ(denied.retry_after_ns, kSecond);
  EXPECT_EQ(call_.charge(0, 0).reason, store::Reason::kNotEnough);
  clock_.Advance(denied.retry_after_ns - 1);
  EXPECT_FALSE(Acquire("one", "k").granted);
  clock_.Advance(1);
  EXPECT_TRUE(Acquire("one", "k").granted);
}

TEST_F(AcquireTest, ReportsRequestedChargesBeforeAddedOnes) {
  const AcquisitionResult result = Acquire("child", "k", 2);
  ASSERT_TRUE(result.granted);
  ASSERT_EQ(result.charges, 2u);
  EXPECT_EQ(call_.charge(0, 0).limit, "");
  EXPECT_EQ(call_.charge(0, 0).level.remaining, 8);
  EXPECT_EQ(call_.charge(0, 1).limit, "parent");
  EXPECT_EQ(call_.charge(0, 1).level.remaining, 3);
}

TEST_F(AcquireTest, LeavesTheChildUntouchedWhenAParentDenies) {
  ASSERT_TRUE(Acquire("parent", "", 5).granted);
  const AcquisitionResult denied = Acquire("child", "k", 1);
  EXPECT_FALSE(denied.granted);
  EXPECT_EQ(call_.charge(0, 0).reason, store::Reason::kNone);
  EXPECT_EQ(call_.charge(0, 1).reason, store::Reason::kNotEnough);
  EXPECT_EQ(Remaining("child", "k"), 10);
}

TEST_F(AcquireTest, AddsUpChargesOnTheSameBucket) {
  call_.Reset(AcquireCall::Form::kUnary);
  call_.BeginAcquisition({});
  call_.AddCharge("parent", "k", 3);
  call_.AddCharge("parent", "k", 2);
  Run(&call_);
  ASSERT_TRUE(call_.result(0).granted);
  EXPECT_EQ(call_.charge(0, 0).level.remaining, 0);
  EXPECT_EQ(call_.charge(0, 1).level.remaining, 0);

  call_.Reset(AcquireCall::Form::kUnary);
  call_.BeginAcquisition({});
  call_.AddCharge("parent", "k", 3);
  call_.AddCharge("parent", "k", 3);
  Run(&call_);
  ExpectError(call_.result(0).status, absl::StatusCode::kInvalidArgument, "6");
}

TEST_F(AcquireTest, ShadowModeGrantsAndReportsWouldBeDenials) {
  ASSERT_TRUE(Acquire("shadow", "k").granted);
  EXPECT_EQ(call_.charge(0, 0).reason, store::Reason::kNone);
  ASSERT_TRUE(Acquire("shadow", "k").granted);
  EXPECT_EQ(call_.charge(0, 0).reason, store::Reason::kShadowDenied);
  const auto totals = metrics_.Snapshot(registry_.Current()->limit_id_end())
                          .limits[registry_.Current()->Find("shadow")->limit_id()];
  EXPECT_EQ(totals.granted, 2u);
  EXPECT_EQ(totals.shadow_denied, 1u);
  EXPECT_EQ(totals.permits_granted, 1u);
}

// A caller could keep its loop busy with the search for names.
TEST_F(AcquireTest, OnlySomeErrorsOfAMomentSuggestAName) {
  int suggested = 0;
  // Threads search for themselves.
  std::thread([&] {
    for (int i = 0; i < 1000; ++i) {
      const auto message = Acquire("apii", "k").status.message();
      suggested += absl::StrContains(message, "did you mean") ? 1 : 0;
    }
  }).join();
  EXPECT_GE(suggested, 1);
  EXPECT_LT(suggested, 500);
}

TEST_F(AcquireTest, ErrorsNameFieldValueAndBound) {
  using absl::StatusCode;
  ExpectError(Acquire("apii", "k").status, StatusCode::kNotFound,
              "charges[0].limit: no limit is named \"apii\"; did you mean \"api\"?");
  ExpectError(Acquire("api", "k", 0).status, StatusCode::kInvalidArgument,
              "charges[0].permits: 0; permits must be at least 1");
  ExpectError(Acquire("api", std::string(513, 'x')).status, StatusCode::kInvalidArgument,
              "charges[0].key: 513 bytes; a key has at most 512 bytes");
  ExpectError(Acquire("api", "k", 201).status, StatusCode::kInvalidArgument,
              "charges[0].permits: 201; limit \"api\" could never grant more at once than its "
              "burst + debt = 200");
  ExpectError(Acquire("api", "k", std::numeric_limits<uint64_t>::max()).status,
              StatusCode::kInvalidArgument, "charges[0].permits: 18446744073709551615");
  ExpectError(Acquire("child", "k", 6).status, StatusCode::kInvalidArgument,
              "limit \"parent\" could never grant more at once than its burst = 5");
  // The failed calls took nothing.
  EXPECT_EQ(Remaining("api", "k"), 150);
  EXPECT_EQ(Remaining("child", "k"), 10);
}

TEST_F(AcquireTest, AcceptsTheLongestKeyAndBurstPlusDebtPermits) {
  EXPECT_TRUE(Acquire("api", std::string(512, 'x'), 200).granted);
  EXPECT_EQ(call_.charge(0, 0).level.remaining, -50);
}

TEST_F(AcquireTest, ForcedDebitIsGrantedAndForgivesTheRest) {
  const AcquisitionResult result = Acquire("user", "u", 20, {.force = true});
  ASSERT_TRUE(result.granted);
  ASSERT_EQ(result.charges, 3u);
  EXPECT_EQ(call_.charge(0, 0).level.remaining, -2);
  EXPECT_EQ(call_.charge(0, 0).forgiven, 12u);
  EXPECT_EQ(call_.charge(0, 0).reason, store::Reason::kNotEnough);
  // What the user's bucket counted.
  EXPECT_EQ(call_.charge(0, 1).limit, "team");
  EXPECT_EQ(call_.charge(0, 1).level.remaining, 42);
  EXPECT_EQ(call_.charge(0, 1).forgiven, 12u);
  // It may owe nothing.
  EXPECT_EQ(call_.charge(0, 2).limit, "parent");
  EXPECT_EQ(call_.charge(0, 2).level.remaining, 0);
  EXPECT_EQ(call_.charge(0, 2).forgiven, 15u);
  EXPECT_FALSE(Acquire("user", "u").granted);
}

TEST_F(AcquireTest, ForcedChargesOfSeveralBucketsAddUpInTheirParent) {
  call_.Reset(AcquireCall::Form::kUnary);
  call_.BeginAcquisition({.force = true});
  call_.AddCharge("user", "u", 20);  // counts 8
  call_.AddCharge("user", "v", 3);
  call_.AddCharge("user", "v", 2);
  Run(&call_);
  ASSERT_TRUE(call_.result(0).granted);
  EXPECT_EQ(call_.charge(0, 1).level.remaining, 1);
  EXPECT_EQ(call_.charge(0, 3).limit, "team");
  EXPECT_EQ(call_.charge(0, 3).level.remaining, 37);
}

TEST_F(AcquireTest, ErrorsExplainWhereForceIsNotAllowed) {
  using absl::StatusCode;
  ExpectError(Acquire("one", "k", 1, {.force = true}).status, StatusCode::kInvalidArgument,
              "charges[0].limit: limit \"one\" has no max_owed, so force is not allowed on it");
  ExpectError(Acquire("user", "k", 1, {.max_wait = {1, 0}, .force = true}).status,
              StatusCode::kInvalidArgument, "force: true with max_wait");
  ExpectError(Acquire("user", "k", 1, {.max_wait = {1, 0}, .hold = true, .force = true}).status,
              StatusCode::kInvalidArgument, "force: true with hold");
  ExpectError(Acquire("user", "k", uint64_t{1} << 63, {.force = true}).status,
              StatusCode::kInvalidArgument,
              "charges[0].permits: 9223372036854775808; at most 9223372036854775807");
  ExpectError(Acquire("splits", "k", 1, {.force = true}).status, StatusCode::kInvalidArgument,
              "force: true, but limit \"split\", which is charged too, says sharing: split");
  EXPECT_EQ(Remaining("user", "k"), 6);
}

TEST_F(AcquireTest, ReloadKeepsWhatIsOwed) {
  ASSERT_TRUE(Acquire("user", "u", 20, {.force = true}).granted);
  auto user = PerSecond("user", 6);
  user.max_owed = 10;
  Load({user});
  EXPECT_EQ(Remaining("user", "u"), -2);
  EXPECT_EQ(Acquire("user", "u", 20, {.force = true}).charges, 1u);
  EXPECT_EQ(call_.charge(0, 0).level.remaining, -10);
  EXPECT_EQ(call_.charge(0, 0).forgiven, 12u);
}

TEST_F(AcquireTest, RejectsNoChargesAndMoreThanSixteen) {
  call_.Reset(AcquireCall::Form::kUnary);
  call_.BeginAcquisition({});
  Run(&call_);
  ExpectError(call_.result(0).status, absl::StatusCode::kInvalidArgument, "charges: none");

  for (const size_t charges : {16u, 17u, 100'000u}) {
    call_.Reset(AcquireCall::Form::kUnary);
    call_.BeginAcquisition({});
    for (size_t i = 0; i < charges; ++i) call_.AddCharge("api", "k", 1);
    Run(&call_);
    if (charges == 16) {
      EXPECT_TRUE(call_.result(0).granted);
    } else {
      ExpectError(call_.result(0).status, absl::StatusCode::kInvalidArgument,
                  "charges: " + std::to_string(charges));
    }
  }
}

TEST_F(AcquireTest, CountsParentsTowardsTheSixteenCharges) {
  call_.Reset(AcquireCall::Form::kUnary);
  call_.BeginAcquisition({});
  for (int i = 0; i < 9; ++i) call_.AddCharge("child", "k", 1);
  Run(&call_);
  ExpectError(call_.result(0).status, absl::StatusCode::kInvalidArgument, "charges: 18");
}

TEST_F(AcquireTest, BatchDecidesGoodAcquisitionsAndReportsEachBadOne) {
  call_.Reset(AcquireCall::Form::kBatch);
  for (const char* limit : {"one", "none", "one", "api"}) {
    call_.BeginAcquisition({});
    call_.AddCharge(limit, "k", 1);
  }
  call_.BeginAcquisition({.hold = true});
  call_.AddCharge("api", "k", 1);
  Run(&call_);
  ASSERT_TRUE(call_.status().ok());
  ASSERT_EQ(call_.size(), 5u);
  EXPECT_TRUE(call_.result(0).granted);
  ExpectError(call_.result(1).status, absl::StatusCode::kNotFound, "acquisitions[1].charges[0]");
  EXPECT_TRUE(call_.result(2).status.ok());
  EXPECT_FALSE(call_.result(2).granted) << "decided in order: the first took the one permit";
  EXPECT_TRUE(call_.result(3).granted);
  ExpectError(call_.result(4).status, absl::StatusCode::kInvalidArgument, "acquisitions[4].hold");
  EXPECT_EQ(Remaining("api", "k"), 149);
}

TEST_F(AcquireTest, RejectsABatchOf4097AsAWholeAndAcceptsOneOf4096) {
  std::vector<std::string> keys(5000);
  for (size_t i = 0; i < keys.size(); ++i) keys[i] = std::to_string(i);
  for (const size_t acquisitions : {4096u, 4097u, 5000u}) {
    call_.Reset(AcquireCall::Form::kBatch);
    for (size_t i = 0; i < acquisitions; ++i) {
      call_.BeginAcquisition({});
      call_.AddCharge("api", keys[i], 1);
    }
    Run(&call_);
    if (acquisitions == 4096) {
      ASSERT_TRUE(call_.status().ok());
      EXPECT_TRUE(call_.result(4095).granted);
    } else {
      ExpectError(
          call_.status(), absl::StatusCode::kInvalidArgument,
          "acquisitions: " + std::to_string(acquisitions) + " in one batch; send at most 4096");
    }
  }
  EXPECT_EQ(Remaining("api", "0"), 149) << "the refused batches took nothing";
}

TEST_F(AcquireTest, EmptyBatchHasAnEmptyAnswer) {
  call_.Reset(AcquireCall::Form::kBatch);
  Run(&call_);
  EXPECT_TRUE(call_.status().ok());
  EXPECT_EQ(call_.size(), 0u);
}

TEST_F(AcquireTest, ErrorsExplainBadMaxWaitAndHold) {
  using absl::StatusCode;
  const auto with = [&](WireDuration max_wait, bool hold) {
    return Acquire("api", "k", 1, {.max_wait = max_wait, .hold = hold}).status;
  };
  ExpectError(with({-1, 0}, false), StatusCode::kInvalidArgument, "max_wait: -1s; at most 24 h");
  ExpectError(with({0, -1}, false), StatusCode::kInvalidArgument, "max_wait: -1ns; at most 24 h");
  ExpectError(with({1, -1}, false), StatusCode::kInvalidArgument, "max_wait: seconds 1");
  ExpectError(with({0, 1'000'000'000}, false), StatusCode::kInvalidArgument, "max_wait: seconds 0");
  ExpectError(with({86400, 1}, false), StatusCode::kInvalidArgument, "at most 24 h");
  ExpectError(with({std::numeric_limits<int64_t>::max(), 999'999'999}, false),
              StatusCode::kInvalidArgument, "at most 24 h");
  ExpectError(with({0, 0}, true), StatusCode::kInvalidArgument, "hold: true without max_wait");
  ExpectError(with({1, 0}, true), StatusCode::kUnimplemented, "hold");
  EXPECT_EQ(Remaining("api", "k"), 150);
  EXPECT_TRUE(with({86400, 0}, false).ok());
}

TEST_F(AcquireTest, DebitsNothingAfterTheDeadline) {
  call_.Reset(AcquireCall::Form::kUnary);
  call_.BeginAcquisition({});
  call_.AddCharge("api", "k", 1);
  Run(&call_, clock_.NowNs() - 1);
  ExpectError(call_.result(0).status, absl::StatusCode::kDeadlineExceeded, "nothing was debited");
  EXPECT_EQ(Remaining("api", "k"), 150);
}

TEST_F(AcquireTest, NamesTheFieldThatIsNotUtf8IfTheTransportDidNotCheck) {
  call_.Reset(AcquireCall::Form::kBatch, AcquireCall::Utf8::kUnchecked);
  call_.BeginAcquisition({});
  call_.AddCharge("api", "h\xc3\xa9", 1);
  call_.BeginAcquisition({});
  call_.AddCharge("api", "k", 1);
  call_.AddCharge("api", "\xff", 1);
  Run(&call_);
  EXPECT_TRUE(call_.result(0).granted);
  ExpectError(call_.result(1).status, absl::StatusCode::kInvalidArgument,
              "acquisitions[1].charges[1].key: not valid UTF-8");
}

TEST_F(AcquireTest, ReusedCallKeepsNothingOfEarlierAnswers) {
  ASSERT_TRUE(Acquire("one", "k").granted);
  ASSERT_FALSE(Acquire("one", "k").granted);
  ASSERT_FALSE(Acquire("none", "k").status.ok());
  const AcquisitionResult last = Acquire("child", "x", 1, {.want_receipt = true});
  EXPECT_TRUE(last.granted);
  EXPECT_FALSE(last.receipt.empty());
  EXPECT_TRUE(Acquire("child", "x").receipt.empty());
}

// A store whose first answers are stale rules, as during a reload.
class StaleStore : public store::Store {
 public:
  explicit StaleStore(store::Store& inner) : inner_(inner) {}
  std::string_view Kind() const override { return "stale"; }
  void Register(std::shared_ptr<const store::Rule> rule) override { inner_.Register(rule); }
  void Acquire(store::AcquireOperation* operation) override {
    ++acquires;
    if (stale > 0) {
      --stale;
      // Of several acquisitions only the second, so that the others must keep their decisions.
      operation->acquisitions[operation->acquisitions.size() > 1 ? 1 : 0].outcome =
          store::Outcome::kStaleRule;
      for (store::Acquisition& one : operation->acquisitions) {
        if (one.outcome == store::Outcome::kPending) one.outcome = store::Outcome::kGranted;
      }
      operation->Done();
      return;
    }
    inner_.Acquire(operation);
  }
  void Query(store::QueryOperation* operation) override { inner_.Query(operation); }
  void Refund(store::RefundOperation* operation) override {
    if (stale > 0) {
      --stale;
      operation->outcome = store::RefundOutcome::kStaleRule;
      operation->Done();
      return;
    }
    inner_.Refund(operation);
  }
  void Reset(const store::Rule& rule, std::string_view key, ResetDone done,
             void* context) override {
    inner_.Reset(rule, key, done, context);
  }
  store::StoreStats Stats() const override { return inner_.Stats(); }

  int stale = 0;
  int acquires = 0;

 private:
  store::Store& inner_;
};

TEST_F(AcquireTest, ResolvesStaleAcquisitionsAgainAndKeepsTheOthers) {
  StaleStore stale(store_);
  RateLimiter limiter(registry_, stale, clock_, metrics_, usage_, signer_);
  for (const int times : {1, 2, 7}) {
    stale.stale = times;
    stale.acquires = 0;
    call_.Reset(AcquireCall::Form::kBatch);
    for (const char* limit : {"api", "one", "none", "parent"}) {
      call_.BeginAcquisition({});
      call_.AddCharge(limit, "stale", 1);
    }
    limiter.Acquire(&call_, store::kNoDeadline, [](void*, AcquireCall*) {}, nullptr);
    EXPECT_EQ(stale.acquires, times + 1);
    EXPECT_TRUE(call_.result(0).granted);
    EXPECT_TRUE(call_.result(1).status.ok());
    EXPECT_EQ(call_.charge(1, 0).level.capacity, 1u) << "decided by the store at last";
    EXPECT_EQ(call_.result(2).status.code(), absl::StatusCode::kNotFound);
    EXPECT_TRUE(call_.result(3).granted);
  }
}

TEST_F(AcquireTest, GivesUpWhenTheLimitsKeepChanging) {
  StaleStore stale(store_);
  RateLimiter limiter(registry_, stale, clock_, metrics_, usage_, signer_);
  stale.stale = 1000;
  call_.Reset(AcquireCall::Form::kUnary);
  call_.BeginAcquisition({});
  call_.AddCharge("api", "k", 1);
  limiter.Acquire(&call_, store::kNoDeadline, [](void*, AcquireCall*) {}, nullptr);
  EXPECT_EQ(call_.result(0).status.code(), absl::StatusCode::kUnavailable);
}

TEST_F(AcquireTest, AnswersEveryCallByOldOrNewLimitsDuringReloads) {
  std::atomic<bool> stop{false};
  std::atomic<int> loads{0};
  std::thread reloads([&] {
    while (!stop) {
      auto api = PerSecond("api", 1'000'000);
      api.burst = 1'000'000 + static_cast<uint64_t>(loads.load() % 2);
      Load({api});
      ++loads;
    }
  });
  int answered = 0;
  for (; answered < 200 || loads < 200; ++answered) {
    AcquireCall call;
    call.Reset(AcquireCall::Form::kUnary);
    call.BeginAcquisition({});
    call.AddCharge("api", "k", 1);
    limiter_.Acquire(&call, store::kNoDeadline, [](void*, AcquireCall*) {}, nullptr);
    EXPECT_TRUE(call.result(0).status.ok()) << call.result(0).status;
    if (HasFailure()) break;
  }
  stop = true;
  reloads.join();
}

// ---- Slices

TEST_F(AcquireTest, DecidesALargeBatchInSlicesThatChangeNothing) {
  Load({PerSecond("api", 1000), PerSecond("log", 5)});
  struct Decided {
    bool granted;
    uint64_t remaining;
    std::string error;
    bool operator==(const Decided&) const = default;
  };
  const auto fill = [](AcquireCall* call) {
    call->Reset(AcquireCall::Form::kBatch);
    for (int i = 0; i < 3000; ++i) {
      call->BeginAcquisition({.want_receipt = i % 7 == 0});
      if (i % 100 == 3) {
        call->AddCharge("absent", "k", 1);
        continue;
      }
      call->AddCharge("api", i % 2 == 0 ? "even" : "odd", 1);
      if (i % 5 == 0) call->AddCharge("log", "k", 1);
    }
  };
  const auto decided = [](const AcquireCall& call, size_t i) {
    const AcquisitionResult result = call.result(i);
    if (!result.status.ok()) return Decided{false, 0, std::string(result.status.message())};
    return Decided{result.granted, static_cast<uint64_t>(call.charge(i, 0).level.remaining), ""};
  };
  AcquireCall whole;
  fill(&whole);
  Run(&whole);
  EXPECT_FALSE(whole.more());
  std::vector<Decided> expected;
  for (size_t i = 0; i < whole.size(); ++i) expected.push_back(decided(whole, i));

  clock_.Advance(kSecond * 3600);  // all buckets are full again
  AcquireCall sliced;
  fill(&sliced);
  sliced.DecideInSlices();
  int slices = 0;
  limiter_.Acquire(
      &sliced, store::kNoDeadline,
      [](void* context, AcquireCall*) { ++*static_cast<int*>(context); }, &slices);
  std::vector<Decided> found;
  while (true) {
    EXPECT_LE(sliced.slice_cost(), 512u + 64);
    EXPECT_EQ(sliced.first(), found.size());
    for (size_t i = sliced.first(); i < sliced.end(); ++i) {
      found.push_back(decided(sliced, i));
      EXPECT_EQ(sliced.result(i).receipt.empty(), i % 7 != 0 || !found.back().granted);
    }
    if (!sliced.more()) break;
    limiter_.Continue(&sliced);
  }
  EXPECT_EQ(found, expected);
  EXPECT_GT(slices, 6);
  const common::MetricsSnapshot totals = metrics_.Snapshot(0);
  const auto granted = static_cast<uint64_t>(
      std::count_if(found.begin(), found.end(), [](const Decided& one) { return one.granted; }));
  EXPECT_EQ(totals.granted, 2 * granted);
}

TEST_F(AcquireTest, CallDroppedBetweenSlicesDebitsNothingFurther) {
  Load({PerSecond("api", 100'000)});
  AcquireCall call;
  call.Reset(AcquireCall::Form::kBatch);
  for (int i = 0; i < 4096; ++i) {
    call.BeginAcquisition({});
    call.AddCharge("api", "k", 1);
  }
  call.DecideInSlices();
  limiter_.Acquire(&call, store::kNoDeadline, [](void*, AcquireCall*) {}, nullptr);
  EXPECT_EQ(call.end(), 512u);
  call.Reset(AcquireCall::Form::kBatch);
  EXPECT_EQ(Remaining("api", "k"), 100'000 - 512);
}

TEST_F(AcquireTest, SlicesAfterTheDeadlineDebitNothing) {
  Load({PerSecond("api", 100'000)});
  AcquireCall call;
  call.Reset(AcquireCall::Form::kBatch);
  for (int i = 0; i < 1000; ++i) {
    call.BeginAcquisition({});
    call.AddCharge("api", "k", 1);
  }
  call.DecideInSlices();
  limiter_.Acquire(&call, clock_.NowNs() + kSecond, [](void*, AcquireCall*) {}, nullptr);
  EXPECT_TRUE(call.result(0).granted);
  clock_.Advance(2 * kSecond);
  limiter_.Continue(&call);
  EXPECT_EQ(call.result(999).status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(Remaining("api", "k"), 100'000);  // it has refilled
}

}  // namespace
}  // namespace sluice::service
