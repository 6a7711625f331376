#include "server/transport/web/envoy/rate_limit_json.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/memory_account.h"
#include "common/net/event_loop.h"
#include "server/transport/web/access.h"
#include "server/transport/web/json_codec.h"
#include "tests/support/http_peer.h"
#include "tests/unit/transport/envoy/fixture.h"

namespace sluice::transport {
namespace {

using ::sluice::testing::HttpPeer;
using ::sluice::testing::HttpUnderTest;
using ::sluice::testing::StatusesOf;
using ::testing::ElementsAre;

TEST_F(DescriptorTest, JsonGoesOnInTheBackgroundWithMoreThanASliceOfWork) {
  ConfigureWithPassedBookings();
  HttpUnderTest server;
  const std::unique_ptr<net::EventLoop> background = *net::EventLoop::Create(server.clock);
  web::JsonCodec codec;
  web::Access access({.listen = {"127.0.0.1", 0, ""}, .hosts = {}});
  web::RateLimitJson json(limiter(), codec, *background);
  json.Register(access.data(access::Call::kAcquire), &server.routes);
  HttpPeer peer(server);
  constexpr char kBody[] =
      R"({"domain":"d","descriptors":[{"entries":[{"key":"f","value":"x"}]}]})";
  const std::string request =
      absl::StrCat("POST /json HTTP/1.1\r\nHost: localhost\r\nContent-Length: ", sizeof(kBody) - 1,
                   "\r\n\r\n", kBody);
  peer.Feed(request);
  EXPECT_EQ(peer.Take(), "");
  int slices = 1;
  while (peer.stream.output.empty() && slices < 100) {
    background->RunOnce(0);
    peer.RunTurns();
    ++slices;
  }
  EXPECT_GT(slices, 2);
  EXPECT_THAT(StatusesOf(peer.Take()), ElementsAre("200"));
  peer.Feed(request);
  EXPECT_THAT(StatusesOf(peer.Take()), ElementsAre("200"));
}

TEST_F(DescriptorTest, LargeJsonThatIsCancelledIsCountedUntilItIsFreedAndNotDecided) {
  Configure({Configured("f", "x", 10)});
  common::MemoryBudget memory(64 << 20);
  http1::ServerOptions options;
  options.memory = &memory;
  HttpUnderTest server(options);
  const std::unique_ptr<net::EventLoop> background = *net::EventLoop::Create(server.clock);
  web::JsonCodec codec;
  web::Access access({.listen = {"127.0.0.1", 0, ""}, .hosts = {}});
  web::RateLimitJson json(limiter(), codec, *background);
  json.Register(access.data(access::Call::kAcquire), &server.routes);
  HttpPeer peer(server);
  const std::string body =
      absl::StrCat(R"({"domain":"d","descriptors":[{"entries":[{"key":"f","value":"x"}]}]})",
                   std::string(50'000, ' '));
  peer.Feed(absl::StrCat("POST /json HTTP/1.1\r\nHost: localhost\r\nContent-Length: ", body.size(),
                         "\r\n\r\n", body));
  peer.Close();
  EXPECT_GT(memory.held(), common::MemoryPart::kChunk);
  background->RunOnce(0);
  server.loop->RunOnce(0);
  EXPECT_LT(memory.held(), common::MemoryPart::kChunk);
  EXPECT_EQ(Ask({{{{"f", "x"}}}}, 1), "O9 OK");
}

}  // namespace
}  // namespace sluice::transport
