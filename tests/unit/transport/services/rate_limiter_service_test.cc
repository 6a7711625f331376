// RateLimiterService on a memory store: large batches, which are handled in steps.
#include "server/transport/services/rate_limiter_service.h"

#include <memory>
#include <string>

#include "gtest/gtest.h"
#include "sluice/v1/rate_limiter.pb.h"
#include "tests/support/gzip.h"
#include "tests/support/h2_peer.h"
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

  // Each acquisition takes one permit of each of `charges` keys.
  static v1::AcquireBatchRequest Batch(int acquisitions, int charges) {
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

}  // namespace
}  // namespace sluice::transport
