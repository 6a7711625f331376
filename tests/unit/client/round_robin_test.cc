#include "client/src/round_robin.h"

#include <gtest/gtest.h>

#include "sluice/client.h"
#include "sluice/fake_connection.h"

namespace sluice::client_internal {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

const Status kNotSent(StatusCode::kUnavailable, "connection refused");

class RoundRobinTest : public ::testing::Test {
 protected:
  RoundRobinTest() {
    std::vector<std::shared_ptr<Connection>> connections;
    for (int i = 0; i < 3; ++i) {
      fakes_.push_back(std::make_shared<FakeConnection>());
      connections.push_back(fakes_.back());
    }
    robin_ = std::make_shared<RoundRobin>(std::move(connections));
  }

  std::vector<size_t> Counts() const {
    std::vector<size_t> counts;
    for (const auto& fake : fakes_) counts.push_back(fake->acquisitions().size());
    return counts;
  }

  void Advance(std::chrono::nanoseconds by) {
    for (const auto& fake : fakes_) fake->Advance(by);
  }

  std::vector<std::shared_ptr<FakeConnection>> fakes_;
  std::shared_ptr<RoundRobin> robin_;
};

TEST_F(RoundRobinTest, SpreadsCallsEvenly) {
  Client client(robin_);
  for (int i = 0; i < 9; ++i) ASSERT_TRUE(client.Acquire("api", "")->granted);
  EXPECT_EQ(Counts(), (std::vector<size_t>{3, 3, 3}));
}

TEST_F(RoundRobinTest, ReportsWhichServerAnswered) {
  Client client(robin_);
  std::vector<uint32_t> servers;
  for (int i = 0; i < 4; ++i) servers.push_back(client.Acquire("api", "")->server);
  EXPECT_EQ(servers, (std::vector<uint32_t>{0, 1, 2, 0}));
}

TEST_F(RoundRobinTest, GoesToTheNextServerAtOnceWhenOneCannotBeReached) {
  Client client(robin_);
  fakes_[0]->FailNext(kNotSent);
  const auto decision = client.Acquire("api", "");
  EXPECT_TRUE(decision->granted);
  EXPECT_EQ(decision->server, 1u);
}

TEST_F(RoundRobinTest, SkipsAnUnavailableServerForAWhile) {
  Client client(robin_);
  fakes_[0]->FailNext(kNotSent);
  for (int i = 0; i < 6; ++i) ASSERT_TRUE(client.Acquire("api", "")->granted);
  EXPECT_EQ(Counts()[0], 1u);
  Advance(milliseconds(101));
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(client.Acquire("api", "")->granted);
  EXPECT_EQ(Counts()[0], 2u);
}

TEST_F(RoundRobinTest, SkipsAHangingServerAfterThreeTimeouts) {
  Client client(robin_);
  const Status timeout = Status::MaybeExecuted(StatusCode::kDeadlineExceeded, "");
  fakes_[0]->FailNext(timeout, 3);
  for (int i = 0; i < 9; ++i) (void)client.Acquire("api", "");
  EXPECT_EQ(Counts(), (std::vector<size_t>{3, 3, 3}));
  for (int i = 0; i < 6; ++i) EXPECT_TRUE(client.Acquire("api", "")->granted);
  EXPECT_EQ(Counts()[0], 3u);
}

TEST_F(RoundRobinTest, TriesAllServersWhenAllAreUnavailable) {
  Client client(robin_, {.retry = {.max_attempts = 1}});
  for (const auto& fake : fakes_) fake->FailNext(kNotSent, 2);
  for (int i = 0; i < 6; ++i) {
    EXPECT_EQ(client.Acquire("api", "")->source, Source::kUnavailable);
  }
  EXPECT_EQ(Counts(), (std::vector<size_t>{2, 2, 2}));
  EXPECT_TRUE(client.Acquire("api", "")->granted);
}

TEST_F(RoundRobinTest, DoesNotSkipAServerThatReturnsAnError) {
  Client client(robin_);
  fakes_[0]->FailNext({StatusCode::kNotFound, "no such limit"});
  EXPECT_FALSE(client.Acquire("x", "").ok());
  for (int i = 0; i < 3; ++i) (void)client.Acquire("api", "");
  EXPECT_EQ(Counts()[0], 2u);
}

TEST_F(RoundRobinTest, RefundsAtTheServerThatGranted) {
  Client client(robin_);
  Acquisition acquisition("api");
  acquisition.want_receipt = true;
  (void)client.Acquire("api", "");
  const auto decision = client.Acquire(acquisition);
  ASSERT_EQ(decision->server, 1u);
  ASSERT_TRUE(client.Refund(*decision).ok());
  EXPECT_EQ(fakes_[1]->refunds(), 1);
}

TEST_F(RoundRobinTest, StreamMovesToTheNextServerWhenItsConnectionBreaks) {
  Client client(robin_);
  AcquireStream stream = client.OpenStream();
  EXPECT_EQ(stream.Submit(Acquisition("api")).get()->server, 0u);
  fakes_[0]->BreakStreams(Status::MaybeExecuted(StatusCode::kUnavailable, "reset"));
  EXPECT_EQ(stream.Submit(Acquisition("api")).get()->server, 1u);
}

}  // namespace
}  // namespace sluice::client_internal
