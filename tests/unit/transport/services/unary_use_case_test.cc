// Unary use cases whose store answers on another thread, as Redis does with --store_threads. Under
// ThreadSanitizer it also checks what the loop reads of a call that is being answered.
#include "server/transport/services/unary_use_case.h"

#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "server/transport/services/rate_limiter_service.h"
#include "sluice/v1/rate_limiter.pb.h"
#include "tests/support/h2_peer.h"
#include "tests/support/late_store.h"
#include "tests/unit/service/fixture.h"

namespace sluice::transport {
namespace {

using ::sluice::testing::Framed;
using ::sluice::testing::H2Client;
using ::sluice::testing::H2Server;

class UnaryUseCaseTest : public service::ServiceTest {
 protected:
  UnaryUseCaseTest() {
    Load({service::PerSecond("big", 1'000'000),
          service::Concurrency("slots", 1'000'000, 3600 * service::kSecond)});
    service_.Register(&server_.methods);
    client_ = std::make_unique<H2Client>(server_);
    client_->Pump();
    thread_ = std::thread([this] {
      while (!ended_.load()) {
        if (!late_.Step()) std::this_thread::yield();
      }
    });
  }
  ~UnaryUseCaseTest() override {
    ended_.store(true);
    thread_.join();
    while (late_.Step()) server_.loop->RunOnce(0);
  }

  std::string Estimate() {
    service::AcquisitionOptions options;
    options.settle_within = service::WireDuration{60, 0};
    return std::string(Acquire("big", "k", 3, options).receipt);
  }
  std::string Slot() {
    service::AcquisitionOptions options;
    options.can_return_receipt = true;
    return std::string(Acquire("slots", "k", 1, options).receipt);
  }
  void Begin(const std::string& method, const std::string& request) {
    ids_.push_back(client_->Call("/sluice.v1.RateLimiter/" + method, Framed(request)));
  }
  bool AllClosed() {
    for (const int32_t id : ids_) {
      if (!client_->calls[id].closed) return false;
    }
    return true;
  }

  H2Server server_;
  ::sluice::testing::LateStore late_{store_, {.shared = true}, 1};
  service::RateLimiter later_{registry_, late_, clock_, metrics_, usage_, signer_};
  service::WatchHub watches_{later_};
  RateLimiterService service_{later_, watches_, 1};
  std::unique_ptr<H2Client> client_;
  std::vector<int32_t> ids_;
  std::atomic<bool> ended_ = false;
  std::thread thread_;
};

TEST_F(UnaryUseCaseTest, CompletesEveryCallThatAnotherThreadAnswers) {
  for (int round = 0; round < 300; ++round) {
    ids_.clear();
    for (int i = 0; i < 4; ++i) {
      v1::AcquireRequest acquire;
      acquire.add_charges()->set_limit("big");
      Begin("Acquire", acquire.SerializeAsString());
      v1::SettleRequest settle;
      settle.set_receipt(Estimate());
      Begin("Settle", settle.SerializeAsString());
      v1::SettleBatchRequest batch;
      for (int j = 0; j < 8; ++j) batch.add_settlements()->set_receipt(Estimate());
      Begin("SettleBatch", batch.SerializeAsString());
      v1::RefundRequest refund;
      refund.set_receipt(Slot());
      Begin("Refund", refund.SerializeAsString());
      v1::RenewRequest renew;
      renew.add_receipts(Slot());
      Begin("Renew", renew.SerializeAsString());
    }
    client_->Pump();
    while (!AllClosed()) {
      server_.loop->RunOnce(0);
      client_->Pump();
    }
    for (const int32_t id : ids_) EXPECT_EQ(client_->calls[id].status(), "0");
  }
}

}  // namespace
}  // namespace sluice::transport
