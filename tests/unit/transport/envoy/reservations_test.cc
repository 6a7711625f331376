// Reserve and Commit of Kuadrant's service.
#include <algorithm>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/late_store.h"
#include "tests/unit/transport/envoy/fixture.h"

namespace sluice::transport {
namespace {

using service::kSecond;
using ::testing::HasSubstr;

class ReservationTest : public DescriptorTest {
 protected:
  // "OK" or "OVER_LIMIT", or the error. Keeps the reservation_id, of which there is one only where
  // something was taken.
  std::string Reserve(const std::vector<Asked>& asked, uint64_t amount,
                      service::WireDuration ttl = {}) {
    descriptors_.Reset(Method::kReserve);
    Fill(asked, 0, "d");
    descriptors_.request().amount = amount;
    descriptors_.request().ttl = ttl;
    if (const absl::Status status = Decide(); !status.ok()) return status.ToString();
    id_ = descriptors_.reservation_id();
    const bool over = OverallCode(descriptors_.statuses()) == Code::kOverLimit;
    EXPECT_TRUE(!over || id_.empty());
    return over ? "OVER_LIMIT" : "OK";
  }
  std::string Commit(const std::vector<Asked>& asked, const std::string& id, uint64_t actual) {
    descriptors_.Reset(Method::kCommit);
    Fill(asked, 0, "d");
    const std::string kept = id;
    descriptors_.request().amount = actual;
    descriptors_.request().reservation_id = kept;
    const absl::Status status = Decide();
    common::Buffer answer;
    if (status.ok()) descriptors_.Encode(&answer);
    EXPECT_TRUE(answer.empty());
    return status.ok() ? "OK" : status.ToString();
  }
  // What a check answers.
  std::string Left(Asked asked) {
    asked.hits = 0;
    return Ask({asked});
  }

  std::string id_;

 private:
  absl::Status Decide() {
    int done = 0;
    if (sliced_) descriptors_.DecideInSlices();
    limiter().Decide(
        &descriptors_, store::kNoDeadline,
        [](void* context, DescriptorCall*) { ++*static_cast<int*>(context); }, &done);
    for (slices_ = 1; descriptors_.more(); ++slices_) limiter().Continue(&descriptors_);
    EXPECT_EQ(done, slices_);
    return descriptors_.status();
  }
};

const Asked kA = {{{"k", "a"}}};
const Asked kB = {{{"k", "b"}}};

TEST_F(ReservationTest, CommitGivesBackWhatWasNotUsed) {
  Configure({Configured("k", "", 10)});
  EXPECT_EQ(Reserve({kA}, 8), "OK");
  const std::string first = id_;
  EXPECT_EQ(Reserve({kA}, 5), "OVER_LIMIT");
  EXPECT_EQ(Left(kA), "O2 OK") << "what was denied took nothing";
  EXPECT_EQ(Commit({kA}, first, 3), "OK");
  EXPECT_EQ(Left(kA), "O7 OK");
  EXPECT_EQ(Reserve({kA}, 5), "OK");
  EXPECT_EQ(Commit({kA}, id_, 0), "OK");
  EXPECT_EQ(Left(kA), "O7 OK");
  const envoy::CallTotals calls = limiter().counters().Calls();
  EXPECT_EQ(calls.reserved, 2u);
  EXPECT_EQ(calls.not_reserved, 1u);
  EXPECT_EQ(calls.committed, 2u);
  EXPECT_EQ(calls.reported, 0u);
}

TEST_F(ReservationTest, CommitFoldsBookingsInSlices) {
  sliced_ = true;
  ConfigureWithPassedBookings();
  const Asked f = {{{"f", "x"}}};
  EXPECT_EQ(Reserve({f}, 5), "OK");
  const std::string id = id_;
  BookAndLetPass();
  EXPECT_EQ(Commit({f}, id, 5), "OK");
  EXPECT_GT(slices_, 2);
  EXPECT_EQ(limiter().counters().Calls().committed, 1u);
  // One whose reservation is not known goes on with another settlement's memory.
  EXPECT_EQ(Commit({f}, "", 5), "OK");
  EXPECT_EQ(limiter().counters().Calls().reported, 1u);
}

// The loop reads it while a thread of the store answers the call.
TEST_F(ReservationTest, CommitLeavesItsCostAloneWhileASharedStoreAnswers) {
  Configure({Configured("k", "", 10)});
  EXPECT_EQ(Reserve({kA}, 4), "OK");
  ::sluice::testing::LateStore late(store_, {.shared = true}, 1);
  DescriptorLimiter later({registry_, late, clock_, metrics_, usage_, signer_}, {});
  descriptors_.Reset(Method::kCommit);
  Fill({kA}, 0, "d");
  descriptors_.DecideInSlices();
  descriptors_.request().amount = 3;
  descriptors_.request().reservation_id = id_;
  bool done = false;
  later.Decide(
      &descriptors_, store::kNoDeadline,
      [](void* context, DescriptorCall*) { *static_cast<bool*>(context) = true; }, &done);
  EXPECT_FALSE(done);
  const size_t cost = descriptors_.slice_cost();
  while (late.Step()) {
  }
  EXPECT_TRUE(done);
  EXPECT_EQ(descriptors_.slice_cost(), cost);
  EXPECT_EQ(Left(kA), "O7 OK");
}

TEST_F(ReservationTest, CommitCountsWhatExceedsTheReservation) {
  Configure({Configured("k", "", 10)});
  EXPECT_EQ(Reserve({kA}, 4), "OK");
  EXPECT_EQ(Commit({kA}, id_, 25), "OK");
  EXPECT_EQ(Left(kA), "X0 OVER");
  // 15 over the limit.
  EXPECT_EQ(Ask({{.entries = {{"k", "a"}}, .hits = 16, .negative = true}}), "O1 OK");
}

TEST_F(ReservationTest, ReservesAllDescriptorsOrNone) {
  Configure({Configured("k", "", 10), Configured("small", "", 3)});
  const Asked small = {{{"small", "1"}}};
  EXPECT_EQ(Reserve({kA, small, {{{"unknown", "1"}}}}, 2), "OK");
  const std::string first = id_;
  EXPECT_EQ(Reserve({kA, small}, 2), "OVER_LIMIT");
  EXPECT_EQ(Left(kA), "O8 OK");
  EXPECT_EQ(Left(small), "O1 OK");
  EXPECT_EQ(Commit({kA, small}, first, 1), "OK");
  EXPECT_EQ(Left(kA), "O9 OK");
  EXPECT_EQ(Left(small), "O2 OK");
}

TEST_F(ReservationTest, ABucketCountsOnceHoweverManyDescriptorsLeadToIt) {
  Configure({Configured("k", "", 10)});
  EXPECT_EQ(Reserve({kA, kA}, 6), "OK");
  EXPECT_EQ(Left(kA), "O4 OK");
  EXPECT_EQ(Commit({kA, kA}, id_, 5), "OK");
  EXPECT_EQ(Left(kA), "O5 OK");
  EXPECT_EQ(Commit({kA, kA}, "", 2), "OK");
  EXPECT_EQ(Left(kA), "O3 OK");
}

// A Commit whose answer was lost is sent again.
TEST_F(ReservationTest, RepeatedCommitChangesNothing) {
  Configure({Configured("k", "", 10)});
  EXPECT_EQ(Reserve({kA}, 8), "OK");
  const std::string id = id_;
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(Commit({kA}, id, 3), "OK");
    EXPECT_EQ(Left(kA), "O7 OK");
  }
  EXPECT_THAT(Commit({kA}, id, 4), HasSubstr("FAILED_PRECONDITION"));
  EXPECT_EQ(Left(kA), "O7 OK");
}

TEST_F(ReservationTest, CommitWithoutAKnownReservationCountsAsReport) {
  Configure({Configured("k", "", 10)});
  EXPECT_EQ(Commit({kA}, "", 3), "OK");
  EXPECT_EQ(Left(kA), "O7 OK");
  EXPECT_EQ(Commit({kA}, "no reservation", 3), "OK");
  EXPECT_EQ(Left(kA), "O4 OK");
  // Of a server in memory before it started again.
  EXPECT_EQ(Reserve({kA}, 1), "OK");
  std::string foreign = id_;
  foreign[foreign.size() / 2] = foreign[foreign.size() / 2] == 'A' ? 'B' : 'A';
  EXPECT_EQ(Commit({kA}, foreign, 20), "OK");
  EXPECT_EQ(Left(kA), "X0 OVER");
  EXPECT_EQ(limiter().counters().Calls().reported, 3u);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(Commit({kB}, "", UINT64_MAX), "OK");
  EXPECT_EQ(Left(kB), "X0 OVER");
  EXPECT_EQ(Commit({kA}, "", 0), "OK");
}

TEST_F(ReservationTest, CommitWithAStrangersReservationCountsItsOwnUse) {
  Configure({Configured("k", "", 10)});
  EXPECT_EQ(Reserve({kB}, 6), "OK");
  const std::string of_b = id_;
  EXPECT_EQ(Commit({kA}, of_b, 7), "OK");
  EXPECT_EQ(Left(kA), "O3 OK");
  EXPECT_EQ(Left(kB), "O4 OK");
  EXPECT_EQ(Commit({kB}, of_b, 1), "OK");
  EXPECT_EQ(Left(kB), "O9 OK");
}

// Others free a reservation when its time is over, and the call that still runs is not counted.
TEST_F(ReservationTest, ExpiryDuringTheCallFreesNothing) {
  Configure({Configured("k", "", 10, envoy::Unit::kDay)});
  EXPECT_EQ(Reserve({kA}, 6, {.seconds = 1}), "OK");
  const std::string more = id_;
  EXPECT_EQ(Reserve({kB}, 6, {.seconds = 1}), "OK");
  const std::string less = id_;
  clock_.Advance(2 * kSecond);
  EXPECT_EQ(Reserve({kA}, 5), "OVER_LIMIT");
  EXPECT_EQ(Commit({kA}, more, 8), "OK");
  EXPECT_EQ(Left(kA), "O2 OK") << "8, and not 14";
  EXPECT_EQ(Commit({kB}, less, 1), "OK");
  EXPECT_EQ(Left(kB), "O4 OK");
}

// Without any setting: what is reserved counts whether or not a Commit follows, so callers that
// never commit do not get more than the limit.
TEST_F(ReservationTest, ReservationsWithoutCommitStayWithinTheLimit) {
  Configure({Configured("k", "", 10, envoy::Unit::kYear)});
  uint64_t reserved = 0;
  for (int i = 0; i < 20; ++i) {
    if (Reserve({kA}, 3) == "OK") reserved += 3;
    clock_.Advance(900 * kSecond);
  }
  EXPECT_EQ(reserved, 9u);
}

// A reservation that is forgotten does not keep its part of the limit beyond the window.
TEST_F(ReservationTest, TheNextWindowIsFree) {
  Configure({Configured("k", "", 10)});
  EXPECT_EQ(Reserve({kA}, 10, {.seconds = 3600}), "OK");
  const std::string id = id_;
  clock_.Advance(60 * kSecond);
  EXPECT_EQ(Left(kA), "O10 OK");
  EXPECT_EQ(Reserve({kA}, 4), "OK");
  EXPECT_EQ(Commit({kA}, id, 2), "OK");
  EXPECT_EQ(Left(kA), "O6 OK") << "what is given back was counted in the window before";
}

TEST_F(ReservationTest, AnAmountBeyondTheLimitIsCutToIt) {
  Configure({Configured("k", "", 10)});
  EXPECT_EQ(Reserve({kA}, UINT64_MAX), "OK");
  const std::string id = id_;
  EXPECT_EQ(Reserve({kA}, 1), "OVER_LIMIT");
  EXPECT_EQ(Commit({kA}, id, 4), "OK");
  EXPECT_EQ(Left(kA), "O6 OK");
  EXPECT_EQ(Reserve({kA}, 50), "OVER_LIMIT") << "it needs the whole limit";
  EXPECT_EQ(Reserve({kB}, 50), "OK");
  EXPECT_EQ(Commit({kB}, id_, 50), "OK");
  EXPECT_EQ(Left(kB), "X0 OVER");
}

TEST_F(ReservationTest, ReservesAtMostTheConfiguredPartOfALimit) {
  Use({.max_reservation = 0.25F});
  Configure({Configured("k", "", 10), Configured("one", "", 1)});
  EXPECT_EQ(Reserve({kA}, 100), "OK");
  EXPECT_EQ(Left(kA), "O7 OK") << "a quarter, rounded up";
  EXPECT_EQ(Commit({kA}, id_, 9), "OK");
  EXPECT_EQ(Left(kA), "O1 OK");
  EXPECT_EQ(Reserve({{{{"one", "1"}}}}, 7), "OK");
  EXPECT_EQ(Reserve({{{{"one", "1"}}}}, 7), "OVER_LIMIT");
}

TEST_F(ReservationTest, AmountZeroIsACheck) {
  Configure({Configured("k", "", 2), Configured("none", "", 0)});
  EXPECT_EQ(Reserve({kA}, 0), "OK");
  EXPECT_EQ(id_, "");
  EXPECT_EQ(Left(kA), "O2 OK");
  EXPECT_EQ(Commit({kA}, id_, 2), "OK");
  EXPECT_EQ(Reserve({kA}, 0), "OVER_LIMIT");
  EXPECT_EQ(Reserve({{{{"none", "1"}}}}, 1), "OVER_LIMIT");
  EXPECT_EQ(Reserve({kB, {{{"none", "1"}}}}, 1), "OVER_LIMIT");
  EXPECT_EQ(Left(kB), "O2 OK");
}

TEST_F(ReservationTest, ShadowModeDeniesNothing) {
  envoy::Descriptor shadow = Configured("shadow", "", 2);
  shadow.shadow_mode = true;
  envoy::Descriptor none = Configured("none", "", 0);
  none.shadow_mode = true;
  Configure({Configured("k", "", 10), shadow, none});
  const Asked trial = {{{"shadow", "1"}}};
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(Reserve({kA, trial, {{{"none", "1"}}}}, 2), "OK");
    EXPECT_NE(id_, "");
    EXPECT_EQ(Commit({kA, trial}, id_, 1), "OK");
  }
  EXPECT_EQ(Left(kA), "O7 OK");
}

TEST_F(ReservationTest, ExactLimitsAreReservedAlike) {
  for (const auto algorithm :
       {envoy::ExactAlgorithm::kTokenBucket, envoy::ExactAlgorithm::kSlidingWindow}) {
    Configure({Configured("k", "", 10, envoy::Unit::kDay)},
              {.mode = envoy::CountMode::kExact, .algorithm = algorithm});
    const Asked key = algorithm == envoy::ExactAlgorithm::kTokenBucket ? kA : kB;
    EXPECT_EQ(Reserve({key}, 8), "OK");
    const std::string first = id_;
    EXPECT_EQ(Reserve({key}, 3), "OVER_LIMIT");
    EXPECT_EQ(Commit({key}, first, 5), "OK");
    EXPECT_EQ(Left(key), "O5 OK");
    EXPECT_EQ(Reserve({key}, 3), "OK");
    EXPECT_EQ(Commit({key}, id_, 4), "OK");
    EXPECT_EQ(Left(key), "O1 OK");
  }
}

TEST_F(ReservationTest, LimitsOfRequestsCannotBeReserved) {
  Use({.request_limits = true});
  Configure({Configured("k", "", 10)});
  const Asked own = {.entries = {{"k", "a"}}, .requests_per_unit = 5, .unit = 3};
  EXPECT_THAT(Reserve({kB, own}, 1),
              HasSubstr("descriptors[1].limit: limits of requests cannot be reserved"));
  EXPECT_EQ(Left(kB), "O10 OK");
}

TEST_F(ReservationTest, TtlIsCutToADayAndNeverNegative) {
  Configure({Configured("k", "", 10, envoy::Unit::kYear)});
  EXPECT_THAT(Reserve({kA}, 1, {.seconds = -1}), HasSubstr("ttl: -1 s is before now"));
  EXPECT_THAT(Reserve({kA}, 1, {.seconds = 1, .nanos = -1}), HasSubstr("INVALID_ARGUMENT: ttl"));
  EXPECT_EQ(Reserve({kA}, 6, {.seconds = INT64_MAX, .nanos = 999'999'999}), "OK");
  const std::string id = id_;
  clock_.Advance(int64_t{86'399} * kSecond);
  EXPECT_EQ(Commit({kA}, id, 1), "OK");
  EXPECT_EQ(Left(kA), "O9 OK");
}

TEST_F(ReservationTest, ReloadBetweenReserveAndCommitLosesNothing) {
  Configure({Configured("k", "", 10)});
  EXPECT_EQ(Reserve({kA}, 8), "OK");
  Configure({Configured("k", "", 20)});
  EXPECT_EQ(Commit({kA}, id_, 3), "OK");
  EXPECT_EQ(Left(kA), "O17 OK");
  // The value has a limit of its own now.
  EXPECT_EQ(Reserve({kB}, 8), "OK");
  Configure({Configured("k", "", 20), Configured("k", "b", 5)});
  EXPECT_EQ(Commit({kB}, id_, 3), "OK");
  EXPECT_EQ(Left(kB), "O2 OK");
}

TEST_F(ReservationTest, CommitCountsWhatTheReservationLacks) {
  const Asked added = {{{"added", "1"}}};
  Configure({Configured("k", "", 20, envoy::Unit::kDay)});
  EXPECT_EQ(Reserve({kA, added}, 8), "OK");
  Configure(
      {Configured("k", "", 20, envoy::Unit::kDay), Configured("added", "", 20, envoy::Unit::kDay)});
  EXPECT_EQ(Commit({kA, added}, id_, 3), "OK");
  EXPECT_EQ(Left(kA), "O17 OK");
  EXPECT_EQ(Left(added), "O17 OK") << "its limit is newer than the reservation";
  // Of descriptors that Commit alone has.
  EXPECT_EQ(Reserve({kB}, 8), "OK");
  std::string id = id_;
  EXPECT_EQ(Commit({kB, added, added}, id, 4), "OK");
  EXPECT_EQ(Left(kB), "O16 OK");
  EXPECT_EQ(Left(added), "O13 OK");
  EXPECT_EQ(Commit({kB, added}, id, 4), "OK");
  EXPECT_EQ(Left(kB), "O16 OK");
  EXPECT_EQ(Left(added), "O9 OK") << "counted again, as by Report";
  // After the end of the ttl.
  EXPECT_EQ(Reserve({kB}, 6, {.seconds = 1}), "OK");
  id = id_;
  clock_.Advance(2 * kSecond);
  EXPECT_EQ(Commit({kB, added}, id, 7), "OK");
  EXPECT_EQ(Left(kB), "O9 OK");
  EXPECT_EQ(Left(added), "O2 OK");
  EXPECT_EQ(limiter().counters().Calls().committed, 4u);
  EXPECT_EQ(limiter().counters().Calls().reported, 0u);
}

TEST_F(ReservationTest, RandomReservationsKeepTheLimitAndCountWhatWasUsed) {
  for (uint32_t seed = 0; seed < 20; ++seed) {
    std::mt19937 random(seed);
    const uint64_t limit = 20 + random() % 200;
    Configure({Configured("k", "", static_cast<uint32_t>(limit), envoy::Unit::kYear)});
    const std::string key = "key" + std::to_string(seed);
    const Asked asked = {{{"k", key.c_str()}}};
    uint64_t counted = 0;
    std::vector<std::pair<std::string, uint64_t>> open;
    for (int step = 0; step < 200; ++step) {
      if (!open.empty() && random() % 2 == 0) {
        const size_t i = random() % open.size();
        const uint64_t actual = random() % 4 == 0 ? random() % 30 : random() % (open[i].second + 1);
        ASSERT_EQ(Commit({asked}, open[i].first, actual), "OK");
        counted += actual - open[i].second;
        open.erase(open.begin() + static_cast<ptrdiff_t>(i));
      } else {
        const uint64_t amount = 1 + random() % (random() % 8 == 0 ? 2 * limit : limit / 4);
        const uint64_t held = std::min(amount, limit);
        const bool fits = counted + held <= limit;
        ASSERT_EQ(Reserve({asked}, amount), fits ? "OK" : "OVER_LIMIT") << seed << " " << step;
        if (!fits) continue;
        counted += held;
        open.emplace_back(id_, held);
      }
      const std::string left = Left(asked);
      ASSERT_EQ(left, counted > limit ? "X0 OVER" : "O" + std::to_string(limit - counted) + " OK");
    }
  }
}

}  // namespace
}  // namespace sluice::transport
