#include "server/store/redis/connection/endpoint.h"

#include <gtest/gtest.h>

#include "absl/status/status.h"
#include "tests/unit/store/redis/command_scene.h"

namespace sluice::store::redis {
namespace {

constexpr int64_t kSecond = 1'000'000'000;

class EndpointTest : public CommandScene {
 protected:
  // From now on the owner waits for a reply, which does not come, before it admits a server.
  void AwaitIdentity() {
    on_ready = [](Endpoint& endpoint) {
      endpoint.Call({"GET", "ns:identity"}, [](const Reply*) {});
    };
  }
};

TEST_F(EndpointTest, ReconnectsToServerThatFallsSilentBeforeItServesAgain) {
  AwaitIdentity();
  servers[0].HangUp();
  Pass(kSecond / 10);
  ASSERT_EQ(servers[0].accepted, 2u);
  ASSERT_FALSE(servers[0].asked.empty());
  EXPECT_EQ(servers[0].asked[0][0], "GET");
  Pass(3 * kSecond);
  EXPECT_GE(servers[0].accepted, 3u);
  EXPECT_TRUE(endpoints[0]->unavailable());
  on_ready = [](Endpoint& endpoint) { endpoint.Serve(); };
  Pass(3 * kSecond);
  EXPECT_FALSE(endpoints[0]->unavailable());
}

TEST_F(EndpointTest, ReportsServerThatFallsSilentAtTheStart) {
  endpoints[1]->Stop();
  ASSERT_TRUE(Until([&] { return endpoints[1]->stopped(); }));
  AwaitIdentity();
  endpoints[1] = MakeEndpoint(1);
  endpoints[1]->Start();
  Pass(3 * kSecond);
  EXPECT_GE(servers[1].accepted, 3u);
  EXPECT_TRUE(endpoints[1]->unavailable());
  ASSERT_FALSE(failures.empty());
  EXPECT_TRUE(absl::IsDeadlineExceeded(failures[0])) << failures[0];
}

TEST_F(EndpointTest, AnsweredProbesDoNotCloseTheBreakerBeforeTheServerIsAdmitted) {
  on_ready = [](Endpoint&) {};
  servers[0].HangUp();
  Pass(3 * kSecond);
  EXPECT_EQ(servers[0].accepted, 2u) << "the server is alive";
  EXPECT_TRUE(breaker_.Health().unavailable);
  endpoints[0]->Serve();
  EXPECT_FALSE(endpoints[0]->unavailable());
  EXPECT_FALSE(breaker_.Health().unavailable);
}

}  // namespace
}  // namespace sluice::store::redis
