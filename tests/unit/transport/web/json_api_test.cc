// JsonApi on a memory store: large batches, which are handled in slices in the background.
#include "server/transport/web/json_api.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "common/log.h"
#include "common/net/event_loop.h"
#include "common/strings.h"
#include "server/service/limit_admin.h"
#include "server/transport/services/bookings_state.h"
#include "server/transport/services/limit_admin_service.h"
#include "server/transport/web/access.h"
#include "server/transport/web/background_turns.h"
#include "server/transport/web/json_codec.h"
#include "tests/support/http_peer.h"
#include "tests/unit/service/fixture.h"

namespace sluice::web {
namespace {

using ::sluice::testing::HttpPeer;
using ::sluice::testing::HttpUnderTest;
using ::sluice::testing::StatusesOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::StartsWith;

class JsonApiTest : public service::ServiceTest {
 protected:
  JsonApiTest() { api_.Register(access_, &server_.routes); }

  // A call with `count` times the same item.
  static std::string Call(std::string_view method, std::string_view items, int count,
                          std::string_view item) {
    std::string body = absl::StrCat("{\"", common::ToAbsl(items), "\":[");
    for (int i = 0; i < count; ++i) absl::StrAppend(&body, i > 0 ? "," : "", common::ToAbsl(item));
    body += "]}";
    return absl::StrCat("POST /v1/", common::ToAbsl(method),
                        " HTTP/1.1\r\nHost: localhost\r\nContent-Length: ", body.size(),
                        "\r\nContent-Type: application/json\r\n\r\n", body);
  }
  static std::string Batch(int count, std::string_view acquisition) {
    return Call("acquireBatch", "acquisitions", count, acquisition);
  }
  static std::string Query(int count) {
    return Call("query", "buckets", count, R"({"limit":"api"})");
  }
  // Runs the background once.
  void Step() {
    background_->RunOnce(0);
    server_.loop->RunOnce(0);
  }

  HttpUnderTest server_;
  std::unique_ptr<net::EventLoop> background_ = *net::EventLoop::Create(server_.clock);
  JsonCodec json_;
  common::Log log_{clock_, common::LogLevel::kError, -1};
  service::WatchHub hub_{limiter_};
  service::Collaborators with_{registry_, store_, clock_, metrics_, usage_, signer_};
  service::LimitAdmin admin_{with_, log_, "test", [] { return limits::FileStatus(); }};
  transport::LimitAdminService admin_service_{{.admin = admin_, .log = log_}};
  Access access_{{.listen = {"127.0.0.1", 0, ""}, .hosts = {}}};
  JsonApi api_{{limiter_, hub_, admin_service_, json_, *background_}, "test"};
};

TEST_F(JsonApiTest, CallsOfManyItemsAreInTheBackgroundHoweverShort) {
  Load({service::PerSecond("api", 10)});
  for (const std::string& few : {Batch(17, "{}"), Query(17)}) {
    HttpPeer peer(server_);
    peer.Feed(few);
    EXPECT_THAT(StatusesOf(peer.Take()), ElementsAre("200"));
  }
  std::vector<std::unique_ptr<HttpPeer>> peers;
  for (const std::string& many : {Batch(18, "{}"), Query(18)}) {
    peers.push_back(std::make_unique<HttpPeer>(server_));
    peers.back()->Feed(many);
    EXPECT_EQ(peers.back()->stream.output, "");
  }
  for (const auto& peer : peers) {
    for (int i = 0; i < 100 && peer->stream.output.empty(); ++i) Step();
    EXPECT_THAT(StatusesOf(peer->Take()), ElementsAre("200"));
  }
}

TEST_F(JsonApiTest, ConnectionPaysForThePrintedAnswers) {
  Load({service::PerSecond("api", 10)});
  std::string queries;
  for (int i = 0; i < 40; ++i) queries += Query(16);
  HttpPeer peer(server_);
  peer.FeedOnce(queries);
  // Each has 3 KB, about 1000 units of the 2048 of a turn. There were two turns.
  const size_t answered = StatusesOf(peer.stream.output).size();
  EXPECT_GT(answered, 0u);
  EXPECT_LT(answered, 10u);
  peer.RunTurns();
  EXPECT_EQ(StatusesOf(peer.Take()), std::vector<std::string>(40, "200"));
}

TEST_F(JsonApiTest, CountsWhatABatchHoldsBetweenItsSlices) {
  // The first is begun on the connection's loop, the second in the background.
  for (const int count : {500, 4000}) {
    HttpPeer peer(server_);
    const size_t before = server_.server.memory_in_use();
    peer.Feed(Batch(count, "{}"));
    size_t most = 0;
    int slices = 0;
    for (; peer.stream.output.empty() && slices < 1000; ++slices) {
      Step();
      if (peer.stream.output.empty()) most = std::max(most, server_.server.memory_in_use());
    }
    EXPECT_GT(slices, 4);
    EXPECT_GT(most, before + static_cast<size_t>(count) * 300);
    EXPECT_THAT(StatusesOf(peer.Take()), ElementsAre("200"));
    peer.RunTurns();
    EXPECT_LT(server_.server.memory_in_use(), before + 16'384);
  }
}

TEST_F(JsonApiTest, OnlyAFewBatchesAreHalfDoneAtATime) {
  const size_t before = server_.server.memory_in_use();
  std::vector<std::unique_ptr<HttpPeer>> peers;
  for (int i = 0; i < 16; ++i) {
    peers.push_back(std::make_unique<HttpPeer>(server_));
    peers.back()->Feed(Batch(4000, "{}"));
  }
  size_t most = 0;
  std::vector<std::string> answers(peers.size());
  for (int i = 0; i < 10'000 && absl::c_linear_search(answers, ""); ++i) {
    Step();
    for (size_t peer = 0; peer < peers.size(); ++peer) {
      peers[peer]->RunTurns();
      answers[peer] += peers[peer]->Take();
    }
    most = std::max(most, server_.server.memory_in_use());
  }
  EXPECT_THAT(answers, Each(StartsWith("HTTP/1.1 200 ")));
  const size_t one = size_t{4000} * 300;
  EXPECT_LT(most, before + 8 * one);
}

TEST_F(JsonApiTest, SmallBatchThatGoesOnInTheBackgroundWaitsForATurnToo) {
  std::vector<limits::LimitSpec> specs = {service::PerSecond("a", 1000)};
  for (int i = 0; i < 15; ++i) {
    specs.push_back(service::PerSecond(absl::StrCat("p", i), 1000));
    specs[0].charges.push_back(specs.back().name);
  }
  Load(specs);
  std::vector<std::unique_ptr<HttpPeer>> large;
  for (size_t i = 0; i < BackgroundTurns::kMost; ++i) {
    large.push_back(std::make_unique<HttpPeer>(server_));
    large.back()->Feed(Batch(4000, "{}"));
  }
  HttpPeer small(server_);
  small.Feed(Batch(5, R"({"charges":[{"limit":"a"}],"max_wait":"9s"})"));  // two slices
  EXPECT_EQ(small.stream.output, "");
  const auto answered = [](const auto& peer) { return !peer->stream.output.empty(); };
  for (int i = 0; i < 10'000 && small.stream.output.empty(); ++i) Step();
  EXPECT_TRUE(absl::c_any_of(large, answered));
  EXPECT_THAT(StatusesOf(small.Take()), ElementsAre("200"));
  for (int i = 0; i < 10'000 && !absl::c_all_of(large, answered); ++i) Step();
  EXPECT_TRUE(absl::c_all_of(large, answered));
}

TEST(BackgroundTurnsTest, PeersTakeTurns) {
  common::FakeClock clock;
  const std::unique_ptr<net::EventLoop> background = *net::EventLoop::Create(clock);
  BackgroundTurns turns(*background);
  std::vector<int> begun;
  const auto begin = [&](uint64_t peer, int batch) {
    turns.Begin(peer, [&begun, batch] { begun.push_back(batch); });
  };
  for (size_t i = 0; i < BackgroundTurns::kMost; ++i) begin(/*peer=*/0, 0);
  EXPECT_EQ(begun.size(), BackgroundTurns::kMost);
  begun.clear();
  for (int i = 1; i <= 200; ++i) begin(/*peer=*/1, i);
  begin(/*peer=*/2, 1000);
  EXPECT_THAT(begun, ElementsAre());
  for (size_t i = 0; i < BackgroundTurns::kMost + 1; ++i) {
    turns.Leave();
    background->RunOnce(0);
  }
  EXPECT_THAT(begun, ElementsAre(1, 1000, 2, 3, 4));
  for (int i = 0; i < 1000 && begun.size() < 201; ++i) {
    turns.Leave();
    background->RunOnce(0);
  }
  EXPECT_EQ(begun.size(), 201u);
  EXPECT_EQ(begun.back(), 200);
}

TEST_F(JsonApiTest, BatchWhosePeerLeavesDebitsNothingFurther) {
  Load({service::PerSecond("big", 1'000'000)});
  {
    HttpPeer peer(server_);
    peer.Feed(Batch(4000, R"({"charges":[{"limit":"big","key":"k"}]})"));
    for (int i = 0; i < 100 && Remaining("big", "k") == 1'000'000; ++i) Step();
  }
  const int64_t left = Remaining("big", "k");
  EXPECT_LT(left, 1'000'000);
  EXPECT_GT(left, 1'000'000 - 2000);
  for (int i = 0; i < 100; ++i) Step();
  EXPECT_EQ(Remaining("big", "k"), left);
}

// A slice has 52 bookings.
TEST_F(JsonApiTest, BookingsOfAllSlicesCountForTheConnection) {
  Load({service::PerSecond("api", 10)});
  ASSERT_TRUE(Acquire("api", "k", 10).granted);
  HttpPeer peer(server_);
  peer.Feed(Batch(120, R"({"charges":[{"limit":"api","key":"k"}],"max_wait":"60s"})"));
  for (int i = 0; i < 100 && peer.stream.output.empty(); ++i) Step();
  EXPECT_THAT(StatusesOf(peer.Take()), ElementsAre("200"));
  peer.Feed("GET /held HTTP/1.1\r\nHost: localhost\r\n\r\n");
  auto& state = server_.held.held.at(0)->connection_state();
  EXPECT_EQ(transport::BookingsState::Of(state).Count(clock_), 120u);
}

}  // namespace
}  // namespace sluice::web
