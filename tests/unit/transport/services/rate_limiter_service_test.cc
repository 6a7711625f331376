// RateLimiterService on a memory store: large batches, which are handled in steps.
#include "server/transport/services/rate_limiter_service.h"

#include <algorithm>
#include <memory>
#include <string>
#include <utility>

#include "gtest/gtest.h"
#include "sluice/v1/rate_limiter.pb.h"
#include "tests/support/gzip.h"
#include "tests/support/h2_peer.h"
#include "tests/support/late_store.h"
#include "tests/unit/service/fixture.h"

namespace sluice::transport {
namespace {

using ::sluice::testing::Framed;
using ::sluice::testing::Gzip;
using ::sluice::testing::H2Client;
using ::sluice::testing::H2Server;

constexpr char kBatch[] = "/sluice.v1.RateLimiter/AcquireBatch";
constexpr char kStream[] = "/sluice.v1.RateLimiter/AcquireStream";
constexpr int64_t kPermits = 1'000'000;

// Each acquisition takes one permit of each of `charges` keys.
v1::AcquireBatchRequest Batch(int acquisitions, int charges) {
  v1::AcquireBatchRequest batch;
  for (int i = 0; i < acquisitions; ++i) {
    v1::AcquireRequest* const one = batch.add_acquisitions();
    for (int c = 0; c < charges; ++c) {
      v1::Charge* const charge = one->add_charges();
      charge->set_limit("big");
      charge->set_key("k" + std::to_string(c));
    }
  }
  return batch;
}

class RateLimiterServiceTest : public service::ServiceTest {
 protected:
  RateLimiterServiceTest() {
    Load({service::PerSecond("big", kPermits), service::PerSecond("few", 5)});
    service_.Register(&server_.methods);
    attacker_ = std::make_unique<H2Client>(server_);
    honest_ = std::make_unique<H2Client>(server_);
    attacker_->Pump();
    honest_->Pump();
  }

  static std::string Compressed(const v1::AcquireBatchRequest& batch) {
    return Framed(Gzip(batch.SerializeAsString()), true);
  }
  int32_t CallCompressed(const char* method, const v1::AcquireBatchRequest& batch) {
    return attacker_->Call(method, Compressed(batch), {{"grpc-encoding", "gzip"}});
  }

  H2Server server_;
  service::WatchHub watches_{limiter_};
  RateLimiterService service_{limiter_, watches_, 1};
  std::unique_ptr<H2Client> attacker_;
  std::unique_ptr<H2Client> honest_;
};

TEST_F(RateLimiterServiceTest, CountsAWatchUntilItIsCancelled) {
  v1::WatchRequest request;
  for (int i = 0; i < 256; ++i) {
    v1::QueryRequest::Bucket* const bucket = request.add_buckets();
    bucket->set_limit("big");
    bucket->set_key(std::to_string(i));
  }
  const size_t before = server_.server.memory_in_use();
  const int32_t id =
      attacker_->Call("/sluice.v1.RateLimiter/Watch", Framed(request.SerializeAsString()));
  attacker_->Pump();
  EXPECT_EQ(watches_.watches(), 1u);
  EXPECT_GT(server_.server.memory_in_use(), before + 256 * 384);
  attacker_->Reset(id);
  attacker_->Pump();
  server_.loop->RunOnce(0);
  EXPECT_EQ(watches_.watches(), 0u);
  EXPECT_LT(server_.server.memory_in_use(), before + 8192);
}

TEST_F(RateLimiterServiceTest, AnswersALargeBatchInOrder) {
  v1::AcquireBatchRequest batch = Batch(4096, 1);
  for (int i = 0; i < 4096; i += 100) {
    batch.mutable_acquisitions(i)->mutable_charges(0)->set_limit(i % 200 == 0 ? "few" : "absent");
  }
  for (const char* method : {kBatch, kStream}) {
    clock_.Advance(service::kSecond * 10);
    const int32_t id = CallCompressed(method, batch);
    attacker_->Pump();
    ASSERT_EQ(attacker_->calls[id].status(), "0");
    ASSERT_EQ(attacker_->calls[id].messages().size(), 1u);
    v1::AcquireBatchResponse response;
    ASSERT_TRUE(response.ParseFromString(attacker_->calls[id].messages()[0]));
    ASSERT_EQ(response.results_size(), 4096);
    int of_big = 0;
    int of_few = 0;
    for (int i = 0; i < 4096; ++i) {
      const v1::AcquireResult& result = response.results(i);
      if (i % 200 == 0) {
        EXPECT_EQ(result.response().granted(), ++of_few <= 5);
      } else if (i % 100 == 0) {
        EXPECT_EQ(result.error().message().rfind("acquisitions[" + std::to_string(i) + "]", 0), 0u);
      } else {
        EXPECT_EQ(result.response().charges(0).remaining(), kPermits - ++of_big);
      }
    }
  }
}

TEST_F(RateLimiterServiceTest, ServesOthersBetweenTheStepsOfALargeBatch) {
  const int32_t id = CallCompressed(kBatch, Batch(4096, 16));
  attacker_->connection.FeedOnce(attacker_->TakeOutput());
  v1::AcquireRequest small;
  small.add_charges()->set_limit("big");
  const int32_t quick =
      honest_->Call("/sluice.v1.RateLimiter/Acquire", Framed(small.SerializeAsString()));
  honest_->connection.FeedOnce(honest_->TakeOutput());
  honest_->Read();
  EXPECT_EQ(honest_->calls[quick].status(), "0");
  EXPECT_GT(Remaining("big", "k0"), kPermits - 2000);  // the batch is far from its end
  attacker_->Pump();
  EXPECT_EQ(attacker_->calls[id].status(), "0");
  EXPECT_EQ(Remaining("big", "k0"), kPermits - 4096);
}

TEST_F(RateLimiterServiceTest, BatchThatIsBrokenAtItsEndDebitsNothing) {
  const std::string bytes = Batch(4000, 1).SerializeAsString() + "\x0a\x7f";
  for (const char* method : {kBatch, kStream}) {
    const int32_t id = attacker_->Call(method, Framed(bytes));
    attacker_->Pump();
    EXPECT_EQ(attacker_->calls[id].status(), "3");
    EXPECT_EQ(Remaining("big", "k0"), kPermits);
  }
}

TEST_F(RateLimiterServiceTest, BatchThatIsResetBetweenItsStepsDebitsNothingFurther) {
  for (const char* method : {kBatch, kStream}) {
    clock_.Advance(service::kSecond * 10);
    const int32_t id = CallCompressed(method, Batch(4096, 4));
    attacker_->connection.FeedOnce(attacker_->TakeOutput());
    int64_t before = Remaining("big", "k0");
    for (int i = 0; i < 1000 && before == kPermits; ++i) {
      server_.loop->RunOnce(0);
      before = Remaining("big", "k0");
    }
    EXPECT_LT(before, kPermits);
    attacker_->Reset(id);
    attacker_->connection.FeedOnce(attacker_->TakeOutput());
    const int64_t after = Remaining("big", "k0");
    EXPECT_GT(after, kPermits - 3000);
    attacker_->Pump();
    EXPECT_EQ(Remaining("big", "k0"), after);
  }
}

TEST_F(RateLimiterServiceTest, RefusesAnAcquisitionThatIsTooLarge) {
  v1::AcquireBatchRequest batch = Batch(1, 1);
  batch.mutable_acquisitions(0)->mutable_charges(0)->set_key(std::string(65 << 10, 'k'));
  const int32_t id = attacker_->Call(kBatch, Framed(batch.SerializeAsString()));
  attacker_->Pump();
  EXPECT_EQ(attacker_->calls[id].status(), "3");
  EXPECT_EQ(attacker_->calls[id].Header("grpc-message").rfind("acquisitions[0]: ", 0), 0u);
}

// Each of these requests has 4 KB, and each of its items an error.
TEST_F(RateLimiterServiceTest, CountsWhatACallHoldsBetweenItsSlices) {
  std::string batch;
  std::string receipts;
  for (int i = 0; i < 2048; ++i) batch += std::string("\x0a\x00", 2);
  for (int i = 0; i < 1000; ++i) receipts += "\x0a\x02ww";
  for (const auto& [method, bytes] :
       {std::pair("AcquireBatch", batch), std::pair("AcquireStream", batch),
        std::pair("SettleBatch", batch), std::pair("Renew", receipts)}) {
    SCOPED_TRACE(method);
    const size_t before = server_.server.memory_in_use();
    const int32_t id =
        attacker_->Call(std::string("/sluice.v1.RateLimiter/") + method, Framed(bytes));
    attacker_->connection.FeedOnce(attacker_->TakeOutput());
    size_t most = 0;
    attacker_->connection.Take();
    while (attacker_->connection.stream.output.size() < 1000) {  // the answer is not made
      most = std::max(most, server_.server.memory_in_use());
      server_.loop->RunOnce(0);
    }
    EXPECT_GT(most, before + 150'000);
    attacker_->Pump();
    EXPECT_EQ(attacker_->calls[id].status(), "0");
    EXPECT_LT(server_.server.memory_in_use(), before + 8192);
  }
}

// ---- Settlements and renewals

constexpr char kSettleBatch[] = "/sluice.v1.RateLimiter/SettleBatch";
constexpr char kRenew[] = "/sluice.v1.RateLimiter/Renew";

v1::SettleBatchRequest Settlements(int count, const std::string& receipt) {
  v1::SettleBatchRequest request;
  for (int i = 0; i < count; ++i) request.add_settlements()->set_receipt(receipt);
  return request;
}

TEST_F(RateLimiterServiceTest, AnswersALargeSettleBatchInOrder) {
  std::vector<std::string> receipts;
  for (int i = 0; i < 4096; ++i) {
    service::AcquisitionOptions options;
    options.settle_within = service::WireDuration{60, 0};
    receipts.emplace_back(Acquire("big", "k" + std::to_string(i % 100), 3, options).receipt);
  }
  v1::SettleBatchRequest request;
  for (int i = 0; i < 4096; ++i) {
    v1::SettleRequest* const one = request.add_settlements();
    one->set_receipt(i % 10 == 0 ? "wrong" : receipts[static_cast<size_t>(i)]);
    v1::Charge* const actual = one->add_actual();
    actual->set_limit("big");
    actual->set_key("k" + std::to_string(i % 100));
    actual->set_permits(1);
  }
  const int32_t id = attacker_->Call(kSettleBatch, Framed(request.SerializeAsString()));
  attacker_->Pump();
  ASSERT_EQ(attacker_->calls[id].status(), "0");
  v1::SettleBatchResponse response;
  ASSERT_TRUE(response.ParseFromString(attacker_->calls[id].messages().at(0)));
  ASSERT_EQ(response.results_size(), 4096);
  for (int i = 0; i < 4096; ++i) {
    const v1::SettleResult& result = response.results(i);
    if (i % 10 == 0) {
      EXPECT_EQ(result.error().code(), 3);
      continue;
    }
    ASSERT_EQ(result.response().outcome(), v1::SETTLE_OUTCOME_SETTLED) << i;
    ASSERT_EQ(result.response().charges_size(), 1);
    EXPECT_EQ(result.response().charges(0).key(), "k" + std::to_string(i % 100));
    EXPECT_EQ(result.response().charges(0).given_back(), 2u);
  }
}

// 4096 wrong receipts, each of which costs a MAC; and a message that is mostly unknown fields.
TEST_F(RateLimiterServiceTest, ServesOthersBetweenTheStepsOfReceipts) {
  v1::RenewRequest renew;
  for (int i = 0; i < 4096; ++i) renew.add_receipts(std::string(100, 'w'));
  std::string unknown;
  while (unknown.size() < 4'000'000) unknown += "\x78\x01";
  for (const auto& [method, bytes] :
       {std::pair(kSettleBatch, Settlements(4096, std::string(100, 'w')).SerializeAsString()),
        std::pair(kRenew, renew.SerializeAsString()), std::pair(kSettleBatch, unknown),
        std::pair(kRenew, unknown)}) {
    const int32_t id =
        attacker_->Call(method, Framed(Gzip(bytes), true), {{"grpc-encoding", "gzip"}});
    attacker_->connection.FeedOnce(attacker_->TakeOutput());
    v1::AcquireRequest small;
    small.add_charges()->set_limit("big");
    const int32_t quick =
        honest_->Call("/sluice.v1.RateLimiter/Acquire", Framed(small.SerializeAsString()));
    honest_->connection.FeedOnce(honest_->TakeOutput());
    honest_->Read();
    attacker_->Read();
    EXPECT_EQ(honest_->calls[quick].status(), "0");
    EXPECT_FALSE(attacker_->calls[id].closed);
    attacker_->Pump();
    EXPECT_TRUE(attacker_->calls[id].closed);
  }
}

TEST_F(RateLimiterServiceTest, RefusesASettlementThatIsTooLarge) {
  v1::SettleBatchRequest request = Settlements(2, "r");
  for (int i = 0; i < 40'000; ++i) request.mutable_settlements(1)->add_actual();
  const int32_t id = attacker_->Call(kSettleBatch, Framed(request.SerializeAsString()));
  attacker_->Pump();
  EXPECT_EQ(attacker_->calls[id].status(), "3");
  EXPECT_EQ(attacker_->calls[id].Header("grpc-message").rfind("settlements[1]: ", 0), 0u);
}

// A store that answers when the test says so, as Redis does.
class LateServiceTest : public service::ServiceTest {
 protected:
  LateServiceTest() {
    Load({service::PerSecond("big", kPermits), Slots()});
    service_.Register(&server_.methods);
    client_ = std::make_unique<H2Client>(server_);
    client_->Pump();
  }
  ~LateServiceTest() override {
    while (late_.Step()) server_.loop->RunOnce(0);
  }
  static limits::LimitSpec Slots() {
    limits::LimitSpec spec;
    spec.name = "slots";
    spec.algorithm = algorithm::Kind::kConcurrency;
    spec.permits = 10;
    spec.hold_for_ns = 30 * service::kSecond;
    return spec;
  }
  void Answer() {
    while (late_.Step()) {
      server_.loop->RunOnce(0);
      client_->Pump();
    }
  }

  H2Server server_;
  ::sluice::testing::LateStore late_{store_, {.shared = true}, 1};
  service::RateLimiter later_{registry_, late_, clock_, metrics_, usage_, signer_};
  service::WatchHub watches_{later_};
  RateLimiterService service_{later_, watches_, 1};
  std::unique_ptr<H2Client> client_;
};

TEST_F(LateServiceTest, NextCallsWaitWhileUndecidedSettlementsHoldTheShare) {
  service::AcquisitionOptions options;
  options.settle_within = service::WireDuration{60, 0};
  const std::string receipt(Acquire("big", "k", 3, options).receipt);
  v1::SettleBatchRequest request = Settlements(4096, receipt);
  for (v1::SettleRequest& one : *request.mutable_settlements()) {
    for (int i = 0; i < 16; ++i) one.add_actual();
  }
  // Only the first settlement has no wrong actuals, and so gets to the store.
  request.mutable_settlements(0)->clear_actual();
  const std::string body = Framed(Gzip(request.SerializeAsString()), true);
  std::vector<int32_t> ids;
  // Each has 3 MB of settlements and actuals.
  for (int i = 0; i < 8; ++i) {
    ids.push_back(client_->Call(kSettleBatch, body, {{"grpc-encoding", "gzip"}}));
    client_->Pump();
  }
  EXPECT_GE(late_.under_way(), 2u);
  EXPECT_LE(late_.under_way(), 4u);
  Answer();
  for (const int32_t id : ids) EXPECT_EQ(client_->calls[id].status(), "0");
}

TEST_F(LateServiceTest, CountsWhatAnUndecidedRenewHolds) {
  const std::string receipt(Acquire("slots", "k").receipt);
  v1::RenewRequest request;
  for (int i = 0; i < 4096; ++i) request.add_receipts(receipt);
  const std::string body = request.SerializeAsString();
  const size_t before = server_.server.memory_in_use();
  const int32_t id = client_->Call(kRenew, Framed(body));
  client_->Pump();
  EXPECT_EQ(late_.under_way(), 1u);
  EXPECT_GT(server_.server.memory_in_use(),
            before + 4096 * (sizeof(std::string_view) + sizeof(service::RenewCall::Result)));
  Answer();
  ASSERT_EQ(client_->calls[id].status(), "0");
  v1::RenewResponse response;
  ASSERT_TRUE(response.ParseFromString(client_->calls[id].messages().at(0)));
  ASSERT_EQ(response.results_size(), 4096);
  EXPECT_EQ(response.results(4095).outcome(), v1::RENEW_OUTCOME_RENEWED);
}

// A client that cancels its calls holds as much as one that waits for them.
TEST_F(LateServiceTest, CountsCancelledCallsUntilTheStoreHasDecidedThem) {
  service::AcquisitionOptions options;
  options.settle_within = service::WireDuration{60, 0};
  const std::string receipt(Acquire("big", "k", 3, options).receipt);
  for (const auto& [method, bytes] :
       {std::pair(kBatch, Batch(4096, 1).SerializeAsString()),
        std::pair(kSettleBatch, Settlements(4096, receipt).SerializeAsString())}) {
    SCOPED_TRACE(method);
    const size_t before = server_.server.memory_in_use();
    size_t under_way = 0;
    for (int i = 0; i < 30; ++i) {
      const int32_t id = client_->Call(method, Framed(bytes));
      client_->Pump();
      client_->Reset(id);
      client_->Pump();
      if (late_.under_way() > under_way) {
        under_way = late_.under_way();
        EXPECT_GT(server_.server.memory_in_use(), before + under_way * 600'000);
      }
    }
    EXPECT_GT(under_way, 2u);
    EXPECT_LT(under_way, 20u);
    Answer();
    server_.loop->RunOnce(0);
    EXPECT_LT(server_.server.memory_in_use(), before + 8192);
  }
}

// It is dropped at the end of the slice.
TEST_F(LateServiceTest, SettleBatchThatIsResetSettlesNothingFurther) {
  service::AcquisitionOptions options;
  options.settle_within = service::WireDuration{60, 0};
  v1::SettleBatchRequest request;
  for (int i = 0; i < 200; ++i) {
    v1::SettleRequest* const one = request.add_settlements();
    one->set_receipt(std::string(Acquire("big", "k", 3, options).receipt));
    v1::Charge* const actual = one->add_actual();
    actual->set_limit("big");
    actual->set_key("k");
    actual->set_permits(2);
  }
  const int32_t id = client_->Call(kSettleBatch, Framed(request.SerializeAsString()));
  client_->Pump();
  client_->Reset(id);
  client_->Pump();
  Answer();
  const int64_t back = Remaining("big", "k") - (kPermits - 200 * 3);
  EXPECT_GT(back, 0);
  EXPECT_LE(back, 32);
}

}  // namespace
}  // namespace sluice::transport
