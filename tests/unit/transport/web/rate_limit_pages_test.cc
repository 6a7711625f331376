#include "server/transport/web/envoy/rate_limit_pages.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>

#include "common/net/event_loop.h"
#include "tests/support/http_peer.h"
#include "tests/unit/transport/envoy/fixture.h"

namespace sluice::transport {
namespace {

using ::sluice::testing::HttpPeer;
using ::sluice::testing::HttpUnderTest;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

TEST_F(DescriptorTest, PagesAreNotWrittenForPeersThatHaveLeft) {
  Configure({Configured("f", "x", 10)});
  envoy::HitCounters counters;
  int written = 0;
  const envoy::Statistics statistics(counters, registry_, [&] {
    ++written;
    return limits::FileStatus();
  });
  HttpUnderTest server;
  const std::unique_ptr<net::EventLoop> background = *net::EventLoop::Create(server.clock);
  web::RateLimitPages pages(statistics, *background);
  pages.Register(&server.routes);
  constexpr char kStats[] = "GET /stats HTTP/1.1\r\nHost: a\r\n\r\n";
  HttpPeer left(server);
  left.Feed(kStats);
  left.Close();
  HttpPeer ended(server);
  ended.Feed(kStats);
  ended.PeerEnds();
  background->RunOnce(0);
  EXPECT_EQ(written, 0);
  HttpPeer peer(server);
  peer.Feed(kStats);
  background->RunOnce(0);
  peer.RunTurns();
  EXPECT_EQ(written, 1);
  EXPECT_THAT(peer.Take(), AllOf(StartsWith("HTTP/1.1 200"), HasSubstr("total_hits: 0")));
  peer.Feed("GET /rlconfig HTTP/1.1\r\nHost: a\r\n\r\n");
  background->RunOnce(0);
  peer.RunTurns();
  EXPECT_THAT(peer.Take(), HasSubstr("d.f_x: unit=MINUTE requests_per_unit=10"));
}

}  // namespace
}  // namespace sluice::transport
