// Estimates and Settle over the wire, on a server with its store in memory and on one with Redis.
#include <gmock/gmock.h>

#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "tests/integration/server/server_test.h"
#include "tests/support/redis_server.h"

namespace sluice::testing {
namespace {

using ::testing::HasSubstr;

// Slow enough that no permit is refilled while a test runs.
constexpr char kLimits[] = R"(
limits:
  - { name: tokens, rate: 100/24h, max_owed: 20, charges: [overall] }
  - { name: overall, rate: 1000/24h, max_owed: 100 }
  - { name: calls, algorithm: concurrency, permits: 2, hold_for: 10m }
  - { name: later, rate: 1/s }
)";

enum class StoreKind { kMemory, kRedis };

class SettleServerTest : public ServerTest, public ::testing::WithParamInterface<StoreKind> {
 protected:
  SettleServerTest() {
    ServerProcess::Options options = {.limits = kLimits};
    if (GetParam() == StoreKind::kRedis) {
      redis_ = std::make_unique<RedisServer>();
      // Generous, since a busy machine is slow.
      options.flags = {"--store=" + redis_->url(), "--redis_budget=2s"};
    }
    Start(std::move(options));
  }

  static v1::AcquireRequest Estimate(uint64_t permits, int64_t seconds = 60, int32_t nanos = 0) {
    v1::AcquireRequest request = Request("tokens", "k", permits);
    request.mutable_settle_within()->set_seconds(seconds);
    request.mutable_settle_within()->set_nanos(nanos);
    return request;
  }
  std::string ReceiptOf(const v1::AcquireRequest& request) {
    v1::AcquireResponse response;
    EXPECT_TRUE(GrantedBy(*data_, request, &response));
    EXPECT_FALSE(response.receipt().empty());
    return response.receipt();
  }
  static v1::SettleRequest Settlement(const std::string& receipt, uint64_t actual,
                                      const std::string& limit = "tokens") {
    v1::SettleRequest request;
    request.set_receipt(receipt);
    v1::Charge* const charge = request.add_actual();
    charge->set_limit(limit);
    charge->set_key("k");
    charge->set_permits(actual);
    return request;
  }
  grpc::Status Settle(const v1::SettleRequest& request, v1::SettleResponse* response) {
    grpc::ClientContext context;
    context.set_deadline(Soon());
    return data_->Settle(&context, request, response);
  }
  v1::SettleOutcome OutcomeOf(const v1::SettleRequest& request) {
    v1::SettleResponse response;
    const grpc::Status status = Settle(request, &response);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return response.outcome();
  }
  void ExpectInvalid(const v1::SettleRequest& request, const std::string& text) {
    v1::SettleResponse response;
    const grpc::Status status = Settle(request, &response);
    EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
    EXPECT_THAT(status.error_message(), HasSubstr(text));
  }
  grpc::Status Refund(const std::string& receipt) {
    grpc::ClientContext context;
    context.set_deadline(Soon());
    v1::RefundRequest request;
    request.set_receipt(receipt);
    v1::RefundResponse response;
    return data_->Refund(&context, request, &response);
  }

  std::unique_ptr<RedisServer> redis_;
};

TEST_P(SettleServerTest, GivesBackChargesAndAnswersTwiceAlike) {
  const std::string less = ReceiptOf(Estimate(40));
  for (int i = 0; i < 2; ++i) {
    v1::SettleResponse response;
    ASSERT_TRUE(Settle(Settlement(less, 10), &response).ok());
    EXPECT_EQ(response.outcome(), v1::SETTLE_OUTCOME_SETTLED);
    ASSERT_EQ(response.charges_size(), 2);
    EXPECT_EQ(response.charges(0).given_back(), 30u);
    EXPECT_EQ(response.charges(1).limit(), "overall");
    EXPECT_EQ(response.charges(1).given_back(), 30u);
  }
  EXPECT_EQ(Remaining("tokens", "k"), 90);
  EXPECT_EQ(Remaining("overall", ""), 990);
  EXPECT_EQ(OutcomeOf(Settlement(less, 11)), v1::SETTLE_OUTCOME_ALREADY_SETTLED);

  v1::SettleResponse more;
  ASSERT_TRUE(Settle(Settlement(ReceiptOf(Estimate(40)), 120), &more).ok());
  EXPECT_EQ(more.charges(0).charged(), 70u);
  EXPECT_EQ(more.charges(0).forgiven(), 10u);
  EXPECT_EQ(Remaining("tokens", "k"), -20);
  EXPECT_EQ(Remaining("overall", ""), 880);
}

TEST_P(SettleServerTest, MoreChargesAsTheWorkGoesOn) {
  const std::string receipt = ReceiptOf(Estimate(10));
  v1::SettleRequest part = Settlement(receipt, 25);
  part.set_more(true);
  EXPECT_EQ(OutcomeOf(part), v1::SETTLE_OUTCOME_SETTLED);
  EXPECT_EQ(Remaining("tokens", "k"), 75);
  ExpectInvalid(Settlement(receipt, 24), "actual[0].permits: 24, but 25 before");
  EXPECT_EQ(OutcomeOf(Settlement(receipt, 30)), v1::SETTLE_OUTCOME_SETTLED);
  EXPECT_EQ(Remaining("tokens", "k"), 70);
}

TEST_P(SettleServerTest, LateSettlementGivesNothingBack) {
  const std::string less = ReceiptOf(Estimate(10, 0, 1));
  const std::string more = ReceiptOf(Estimate(10, 0, 1));
  EXPECT_EQ(OutcomeOf(Settlement(less, 1)), v1::SETTLE_OUTCOME_LATE);
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(OutcomeOf(Settlement(more, 15)), v1::SETTLE_OUTCOME_LATE);
  }
  EXPECT_EQ(Remaining("tokens", "k"), 75);
}

TEST_P(SettleServerTest, BatchAnswersEachSettlementByItself) {
  v1::SettleBatchRequest batch;
  *batch.add_settlements() = Settlement(ReceiptOf(Estimate(10)), 4);
  *batch.add_settlements() = Settlement("forged", 4);
  *batch.add_settlements() = Settlement(ReceiptOf(Estimate(10)), 5);
  v1::SettleBatchResponse response;
  grpc::ClientContext context;
  context.set_deadline(Soon());
  ASSERT_TRUE(data_->SettleBatch(&context, batch, &response).ok());
  ASSERT_EQ(response.results_size(), 3);
  EXPECT_EQ(response.results(0).response().charges(0).given_back(), 6u);
  EXPECT_EQ(response.results(1).error().code(), 3);
  EXPECT_EQ(response.results(2).response().charges(0).given_back(), 5u);

  for (int i = 0; i < 4097; ++i) batch.add_settlements();
  grpc::ClientContext again;
  again.set_deadline(Soon());
  const grpc::Status status = data_->SettleBatch(&again, batch, &response);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(status.error_message(), HasSubstr("settlements: 4100; at most 4096"));
}

TEST_P(SettleServerTest, EndsSlotsTogetherWithTheRate) {
  v1::AcquireRequest request = Estimate(10);
  v1::Charge* const slot = request.add_charges();
  slot->set_limit("calls");
  slot->set_key("k");
  const std::string receipt = ReceiptOf(request);
  EXPECT_EQ(Remaining("calls", "k"), 1);
  ExpectInvalid(Settlement(receipt, 1, "calls"), "actual[0].limit: \"calls\" has algorithm");
  EXPECT_EQ(OutcomeOf(Settlement(receipt, 3)), v1::SETTLE_OUTCOME_SETTLED);
  EXPECT_EQ(Remaining("calls", "k"), 2);
  EXPECT_EQ(Remaining("tokens", "k"), 97);
  // Without settle_within, and without actuals.
  v1::SettleRequest done;
  done.set_receipt(ReceiptOf(Request("calls", "k")));
  EXPECT_EQ(OutcomeOf(done), v1::SETTLE_OUTCOME_SETTLED);
  EXPECT_EQ(OutcomeOf(done), v1::SETTLE_OUTCOME_SETTLED) << "the same call again";
  EXPECT_EQ(Remaining("calls", "k"), 2);
}

TEST_P(SettleServerTest, RefusesBadInput) {
  for (const auto& [seconds, nanos] : {std::pair<int64_t, int32_t>{0, 0}, {25 * 3600, 0}}) {
    v1::AcquireResponse response;
    const grpc::Status status = Acquire(Estimate(1, seconds, nanos), &response);
    EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
    EXPECT_THAT(status.error_message(), HasSubstr("settle_within: "));
  }
  const std::string receipt = ReceiptOf(Estimate(10));
  ExpectInvalid(Settlement(receipt, uint64_t{1} << 63),
                "actual[0].permits: 9223372036854775808; at most 2^63-1");
  ExpectInvalid(Settlement(receipt, 1, "later"), "no such charge");
  std::string changed = receipt;
  changed.back() ^= 1;
  ExpectInvalid(Settlement(changed, 1), "receipt: ");
  v1::AcquireRequest plain = Request("tokens", "k", 1);
  plain.set_want_receipt(true);
  ExpectInvalid(Settlement(ReceiptOf(plain), 1), "without settle_within and without slots");

  // Of an acquisition that was refunded, and the other way round.
  const std::string refunded = ReceiptOf(Estimate(10));
  EXPECT_TRUE(Refund(refunded).ok());
  ExpectInvalid(Settlement(refunded, 1), "was refunded");
  EXPECT_EQ(OutcomeOf(Settlement(receipt, 1)), v1::SETTLE_OUTCOME_SETTLED);
  const grpc::Status status = Refund(receipt);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(status.error_message(), HasSubstr("was settled"));
}

TEST_P(SettleServerTest, RefusesToSettleBeforeTheGrantTime) {
  ASSERT_TRUE(Granted("later", "k"));
  v1::AcquireRequest ahead = Request("later", "k");
  ahead.mutable_settle_within()->set_seconds(60);
  ahead.mutable_max_wait()->set_seconds(600);
  std::string receipt;
  // The last one is minutes ahead.
  for (int i = 0; i < 120; ++i) receipt = ReceiptOf(ahead);
  v1::SettleResponse response;
  const grpc::Status status = Settle(Settlement(receipt, 1, "later"), &response);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_THAT(status.error_message(), HasSubstr("its grant time has not come"));
}

INSTANTIATE_TEST_SUITE_P(Stores, SettleServerTest,
                         ::testing::Values(StoreKind::kMemory, StoreKind::kRedis));

}  // namespace
}  // namespace sluice::testing
