#include "server/transport/web/check_handler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/memory_account.h"
#include "common/net/event_loop.h"
#include "server/transport/web/access.h"
#include "server/transport/web/json_codec.h"
#include "tests/support/http_peer.h"
#include "tests/support/late_store.h"
#include "tests/unit/service/fixture.h"

namespace sluice::web {
namespace {

using service::kSecond;
using ::sluice::testing::HttpPeer;
using ::sluice::testing::HttpUnderTest;
using ::sluice::testing::StatusesOf;
using ::testing::ElementsAre;

class CheckHandlerTest : public service::ServiceTest {
 protected:
  CheckHandlerTest() { check_.Register(access_, &server_.routes); }

  // Leaves a bucket with so many bookings whose grant times have passed.
  void Book(int count) {
    Load({service::PerSecond("api", 20'000)});
    ASSERT_TRUE(Acquire("api", "k", 20'000).granted);
    for (int i = 0; i < count; ++i) {
      ASSERT_TRUE(Acquire("api", "k", 1, {.max_wait = {2, 0}}).granted);
    }
    clock_.Advance(3 * kSecond);
  }

  HttpUnderTest server_;
  std::unique_ptr<net::EventLoop> background_ = *net::EventLoop::Create(server_.clock);
  JsonCodec json_;
  Access access_{{.listen = {"127.0.0.1", 0, ""}, .hosts = {}}};
  CheckHandler check_{limiter_, json_, 1, *background_};
};

constexpr char kCheck[] = "GET /v1/check?limit=api&key=k HTTP/1.1\r\nHost: localhost\r\n\r\n";

TEST_F(CheckHandlerTest, ConnectionPaysForThePrintedBody) {
  Load({service::PerSecond("api", 1000)});
  size_t answered[2] = {};  // without a body, and with one
  for (const int body : {0, 1}) {
    std::string checks;
    for (int i = 0; i < 400; ++i) {
      checks += absl::StrCat("GET /v1/check?limit=api&key=k&body=", body,
                             " HTTP/1.1\r\nHost: localhost\r\n\r\n");
    }
    HttpPeer peer(server_);
    peer.FeedOnce(checks);
    answered[body] = StatusesOf(peer.stream.output).size();
    peer.RunTurns();
    EXPECT_EQ(StatusesOf(peer.Take()), std::vector<std::string>(400, "200"));
  }
  EXPECT_GT(answered[1], 0u);
  // A body has about 200 bytes, and takes 66 units beside the 20 of any check.
  EXPECT_LT(answered[1], answered[0] / 2);
}

TEST_F(CheckHandlerTest, GoesOnInTheBackgroundWithMoreThanASliceOfWork) {
  Book(20'000);
  HttpPeer peer(server_);
  peer.Feed(kCheck);
  EXPECT_EQ(peer.Take(), "");
  int slices = 1;
  while (peer.stream.output.empty() && slices < 100) {
    background_->RunOnce(0);
    peer.RunTurns();
    ++slices;
  }
  EXPECT_GT(slices, 2);
  EXPECT_THAT(StatusesOf(peer.Take()), ElementsAre("200"));
  // The bookings are folded now.
  peer.Feed(kCheck);
  EXPECT_THAT(StatusesOf(peer.Take()), ElementsAre("200"));
}

TEST_F(CheckHandlerTest, TakesNothingIfThePeerLeavesBetweenSlices) {
  Book(20'000);
  {
    HttpPeer peer(server_);
    peer.Feed(kCheck);
    EXPECT_EQ(peer.Take(), "");
  }
  for (int i = 0; i < 100; ++i) {
    background_->RunOnce(0);
    server_.loop->RunOnce(0);
  }
  EXPECT_EQ(Remaining("api", "k"), 20'000);
}

TEST_F(CheckHandlerTest, CountsACancelledCheckUntilItIsDecided) {
  Load({service::PerSecond("api", 10)});
  common::MemoryBudget memory(64 << 20);
  http1::ServerOptions options;
  options.memory = &memory;
  HttpUnderTest server(options);
  ::sluice::testing::LateStore late(store_, {.shared = true}, 1);
  service::RateLimiter later(registry_, late, clock_, metrics_, usage_, signer_);
  CheckHandler check(later, json_, 1, *background_);
  check.Register(access_, &server.routes);
  for (int i = 0; i < 20; ++i) {
    HttpPeer peer(server);
    peer.Feed("GET /v1/check?limit=api&key=k HTTP/1.1\r\nHost: localhost\r\nX-A: " +
              std::string(10'000, 'a') + "\r\n\r\n");
  }
  EXPECT_EQ(late.under_way(), 20u);
  EXPECT_GT(memory.held(), 150'000);
  while (late.Step()) server.loop->RunOnce(0);
  server.loop->RunOnce(0);
  EXPECT_LT(memory.held(), common::MemoryPart::kChunk);
}

}  // namespace
}  // namespace sluice::web
