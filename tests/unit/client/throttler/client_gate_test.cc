// Throttlers over a connection that the test controls.
#include <gtest/gtest.h>

#include <chrono>
#include <memory>

#include "sluice/client.h"
#include "sluice/fake_connection.h"
#include "sluice/throttler.h"

namespace sluice {
namespace {

using std::chrono::nanoseconds;
using std::chrono::seconds;

class ClientGateTest : public ::testing::Test {
 protected:
  const std::shared_ptr<FakeConnection> fake_ = std::make_shared<FakeConnection>();
  Client client_{fake_, {.servers = {}, .retry = {.max_attempts = 1}}};
};

TEST_F(ClientGateTest, TryingSaysThatNoServerDecided) {
  const Status lost = Status::MaybeExecuted(StatusCode::kUnavailable, "connection reset");
  Result<Throttler> throttler = Throttler::Create(client_, {.limit = "api"});
  ASSERT_TRUE(throttler.ok());
  fake_->FailNext(lost, 3);
  EXPECT_EQ(throttler->TryStart().status(), lost);
  EXPECT_EQ(throttler->TryRun([] { FAIL(); }).status(), lost);
  EXPECT_EQ(throttler->Start({.max_wait = nanoseconds(0)}), lost);
  EXPECT_EQ(throttler->stats().denied, 0u);
  fake_->DenyNext(seconds(3), 2);
  EXPECT_EQ(throttler->TryStart().value(), seconds(3));
  EXPECT_EQ(throttler->Start({.max_wait = nanoseconds(0)}).code(), StatusCode::kDeadlineExceeded);
  EXPECT_EQ(throttler->stats().denied, 1u);
}

// More than a stream's queue has by default.
TEST_F(ClientGateTest, AsManyAsMaxWaitingWaitForTheirAnswers) {
  constexpr size_t kMaxWaiting = 70'000;
  Result<Throttler> throttler =
      Throttler::Create(client_, {.limit = "api", .max_waiting = kMaxWaiting});
  ASSERT_TRUE(throttler.ok());
  fake_->HangNext();
  for (size_t i = 0; i < kMaxWaiting; ++i) throttler->Submit([] {});
  EXPECT_EQ(throttler->waiting(), kMaxWaiting);
  EXPECT_EQ(throttler->Submit([] {}).get().code(), StatusCode::kResourceExhausted);
  fake_->ReleaseHung();
  throttler->Shutdown(AtShutdown::kWait);
  EXPECT_EQ(throttler->stats().finished, kMaxWaiting);
  EXPECT_EQ(throttler->stats().denied, 0u);
}

}  // namespace
}  // namespace sluice
