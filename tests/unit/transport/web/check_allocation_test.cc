// A request to /v1/check in steady state allocates nothing.
#include <cstdint>
#include <string>

#include "gtest/gtest.h"
#include "server/limits/limit_registry.h"
#include "server/service/key_usage.h"
#include "server/service/rate_limiter.h"
#include "server/service/receipt.h"
#include "server/store/memory/memory_store.h"
#include "server/transport/web/access.h"
#include "server/transport/web/check_handler.h"
#include "server/transport/web/json_codec.h"
#include "tests/support/counted_allocations.h"
#include "tests/support/http_peer.h"

namespace sluice::testing {
namespace {

TEST(CheckAllocationTest, CheckInSteadyStateAllocatesNothing) {
  HttpUnderTest server;
  store::MemoryStore store{server.clock};
  limits::LimitRegistry registry{&store};
  service::KeyUsage usage;
  service::ReceiptSigner signer;
  service::RateLimiter limiter{registry, store, server.clock, server.metrics, usage, signer};
  limits::LimitSpec spec;
  spec.name = "api";
  spec.rate = {500, 1'000'000'000};
  ASSERT_TRUE(registry.ApplyFile({spec}, "1").ok());
  web::Access access({.listen = {"127.0.0.1", 0, ""}, .hosts = {}});
  web::JsonCodec json;
  web::CheckHandler check(limiter, json, 1, *server.loop);
  check.Register(access, &server.routes);
  HttpPeer peer(server);
  // A few keys: first grants and, once the burst is spent, denials.
  std::string round;
  for (int i = 0; i < 60; ++i) {
    round += "GET /v1/check?limit=api&key=user%3A" + std::to_string(i % 3) +
             "&x_ratelimit=1 HTTP/1.1\r\nHost: localhost:7202\r\nUser-Agent: gateway\r\n"
             "Accept: */*\r\n\r\n";
  }
  peer.stream.output.reserve(1 << 20);
  for (int i = 0; i < 100; ++i) {
    peer.Feed(round);
    peer.stream.output.clear();
  }
  const uint64_t before = allocations;
  for (int i = 0; i < 40; ++i) {
    peer.Feed(round);
    if (i < 39) peer.stream.output.clear();
  }
  EXPECT_EQ(allocations - before, 0u);
  EXPECT_EQ(StatusesOf(peer.stream.output), std::vector<std::string>(60, "429"));
}

}  // namespace
}  // namespace sluice::testing
