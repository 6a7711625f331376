#include "server/transport/web/watch_method.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/memory_account.h"
#include "common/net/event_loop.h"
#include "server/transport/web/json_codec.h"
#include "sluice/v1/rate_limiter.pb.h"
#include "tests/support/http_peer.h"
#include "tests/unit/service/fixture.h"

namespace sluice::web {
namespace {

using ::sluice::testing::HttpPeer;
using ::sluice::testing::HttpUnderTest;
using ::testing::HasSubstr;
using ::testing::StartsWith;

class WatchMethodTest : public service::ServiceTest {
 protected:
  explicit WatchMethodTest(const http1::ServerOptions& options = {}) : server_(options) {
    Load({service::PerSecond("api", 10)});
    server_.routes.Add("/v1/watch", *method_,
                       {.methods = {http1::Method::kPost}, .max_body_bytes = size_t{256} << 10});
  }
  static std::string Request(int buckets) {
    std::string body = "{\"buckets\":[";
    for (int i = 0; i < buckets; ++i) {
      absl::StrAppend(&body, i > 0 ? "," : "", "{\"limit\":\"api\",\"key\":\"", i, "\"}");
    }
    body += "]}";
    return absl::StrCat(
        "POST /v1/watch HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: ",
        body.size(), "\r\n\r\n", body);
  }

  std::unique_ptr<http1::Handler> Method(net::EventLoop& background) {
    return MakeWatchMethod({json_, background,
                            *v1::WatchRequest::descriptor()
                                 ->file()
                                 ->FindServiceByName("RateLimiter")
                                 ->FindMethodByName("Watch")},
                           hub_);
  }

  HttpUnderTest server_;
  JsonCodec json_;
  service::WatchHub hub_{limiter_};
  const std::unique_ptr<http1::Handler> method_ = Method(*server_.loop);
};

TEST_F(WatchMethodTest, CountsWhatTheHubHolds) {
  HttpPeer peer(server_);
  const size_t before = server_.server.memory_in_use();
  peer.Feed(Request(256));
  server_.loop->RunOnce(0);
  peer.RunTurns();
  ASSERT_EQ(hub_.watches(), 1u);
  EXPECT_THAT(peer.Take(), StartsWith("HTTP/1.1 200"));
  EXPECT_GT(server_.server.memory_in_use(), before + 256 * 384);
}

TEST_F(WatchMethodTest, CountsAWatchThatIsCancelledBeforeItBeganUntilItIsFreed) {
  common::MemoryBudget memory(64 << 20);
  http1::ServerOptions options;
  options.memory = &memory;
  HttpUnderTest server(options);
  const std::unique_ptr<net::EventLoop> background = *net::EventLoop::Create(server.clock);
  const auto method = Method(*background);
  server.routes.Add("/v1/watch", *method,
                    {.methods = {http1::Method::kPost}, .max_body_bytes = size_t{256} << 10});
  HttpPeer peer(server);
  peer.Feed(Request(256));
  peer.Close();
  EXPECT_GT(memory.held(), common::MemoryPart::kChunk);
  background->RunOnce(0);
  server.loop->RunOnce(0);
  EXPECT_LT(memory.held(), common::MemoryPart::kChunk);
  EXPECT_EQ(hub_.watches(), 0u);
}

class FullWatchMethodTest : public WatchMethodTest {
 protected:
  static http1::ServerOptions Options() {
    http1::ServerOptions options;
    options.max_loop_lasting_bytes = 0;
    return options;
  }
  FullWatchMethodTest() : WatchMethodTest(Options()) {}
};

TEST_F(FullWatchMethodTest, RefusesAllButSmallWatchesOverTheBoundOfThePort) {
  HttpPeer peer(server_);
  peer.Feed(Request(256));
  server_.loop->RunOnce(0);
  peer.RunTurns();
  EXPECT_THAT(peer.Take(), HasSubstr("RESOURCE_EXHAUSTED"));
  peer.Feed(Request(2));
  server_.loop->RunOnce(0);
  peer.RunTurns();
  EXPECT_THAT(peer.Take(), StartsWith("HTTP/1.1 200"));
  EXPECT_EQ(hub_.watches(), 1u);
}

}  // namespace
}  // namespace sluice::web
