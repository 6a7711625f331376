// Unary calls in steady state allocate nothing, neither in our code nor in nghttp2; streams between
// two batches hold hardly any memory.
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "gtest/gtest.h"
#include "server/limits/limit_registry.h"
#include "server/service/bucket_watch.h"
#include "server/service/key_usage.h"
#include "server/service/rate_limiter.h"
#include "server/service/receipt.h"
#include "server/store/memory/memory_store.h"
#include "server/transport/services/rate_limiter_service.h"
#include "sluice/v1/rate_limiter.pb.h"
#include "tests/support/counted_allocations.h"
#include "tests/support/echo_methods.h"
#include "tests/support/gzip.h"
#include "tests/support/h2_peer.h"
#include "tests/support/http2_frames.h"

namespace sluice::transport {
namespace {

// Records the bytes of requests after the client's header table is warm, and counts allocations
// while it feeds them.
TEST(AllocationTest, UnaryCallInSteadyStateAllocatesNothing) {
  testing::EchoMethod echo;
  testing::H2Server server;
  server.methods.AddUnary("/t.T/Echo", echo);
  testing::H2Client client(server);
  client.Pump();
  for (int i = 0; i < 100; ++i) {
    for (int j = 0; j < 32; ++j) client.Call("/t.T/Echo", testing::Framed("0123456789"));
    client.Pump();
  }
  ASSERT_EQ(echo.calls, 3200);

  constexpr int kRounds = 20;
  std::string requests[kRounds];
  for (std::string& round : requests) {
    for (int j = 0; j < 32; ++j) client.Call("/t.T/Echo", testing::Framed("0123456789"));
    round = client.TakeOutput();
  }
  client.connection.stream.output.reserve(1 << 20);

  const uint64_t before = allocations;
  for (const std::string& round : requests) client.connection.Feed(round);
  const uint64_t after = allocations;
  EXPECT_EQ(echo.calls, 3200 + 32 * kRounds);
  EXPECT_EQ(after - before, 0u) << "in " << 32 * kRounds << " calls";
}

// A complete Acquire: HTTP/2, decoding, look-up, the memory store, counters, the response.
TEST(AllocationTest, AcquireInSteadyStateAllocatesNothing) {
  testing::H2Server server;
  store::MemoryStore store{server.clock};
  limits::LimitRegistry registry{&store};
  service::KeyUsage usage;
  service::ReceiptSigner signer;
  service::RateLimiter limiter{registry, store, server.clock, server.metrics, usage, signer};
  service::WatchHub watches{limiter};
  limits::LimitSpec spec;
  spec.name = "api";
  spec.rate = {4000, 1'000'000'000};
  ASSERT_TRUE(registry.ApplyFile({spec}, "1").ok());
  RateLimiterService service(limiter, watches, 1);
  service.Register(&server.methods);
  testing::H2Client client(server);
  client.Pump();
  // A few keys: first grants and, once the burst is spent, denials.
  int next_key = 0;
  const auto request = [&] {
    v1::AcquireRequest message;
    v1::Charge* const charge = message.add_charges();
    charge->set_limit("api");
    charge->set_key("user:" + std::to_string(next_key++ % 3));
    charge->set_permits(3);
    return testing::Framed(message.SerializeAsString());
  };
  for (int i = 0; i < 100; ++i) {
    for (int j = 0; j < 32; ++j) client.Call("/sluice.v1.RateLimiter/Acquire", request());
    client.Pump();
  }
  // The responses fit the client's window, and the calls a connection: it reads none of them
  // meanwhile.
  constexpr int kRounds = 30;
  std::string requests[kRounds];
  for (std::string& round : requests) {
    for (int j = 0; j < 32; ++j) client.Call("/sluice.v1.RateLimiter/Acquire", request());
    round = client.TakeOutput();
  }
  client.connection.stream.output.reserve(1 << 20);

  const uint64_t before = allocations;
  for (const std::string& round : requests) client.connection.Feed(round);
  const uint64_t after = allocations;
  EXPECT_EQ(after - before, 0u) << "in " << 32 * kRounds << " calls";
  const common::MetricsSnapshot counted = server.metrics.Snapshot(1);
  EXPECT_EQ(counted.granted + counted.denied, 32u * (100 + kRounds));
  EXPECT_GT(counted.granted, 3200u);  // some of the measured calls were granted,
  EXPECT_GT(counted.denied, 100u);    // and some were denied
}

// The largest batches, which take about 15 MB while they are decided.
TEST(AllocationTest, IdleStreamKeepsHardlyAnyMemory) {
  testing::H2Server server;
  store::MemoryStore store{server.clock};
  limits::LimitRegistry registry{&store};
  service::KeyUsage usage;
  service::ReceiptSigner signer;
  service::RateLimiter limiter{registry, store, server.clock, server.metrics, usage, signer};
  service::WatchHub watches{limiter};
  limits::LimitSpec spec;
  spec.name = "api";
  spec.rate = {1'000'000, 1'000'000'000};
  ASSERT_TRUE(registry.ApplyFile({spec}, "1").ok());
  RateLimiterService service(limiter, watches, 1);
  service.Register(&server.methods);
  v1::AcquireBatchRequest batch;
  for (int i = 0; i < 4096; ++i) {
    v1::AcquireRequest* const acquisition = batch.add_acquisitions();
    for (int c = 0; c < 16; ++c) {
      v1::Charge* const charge = acquisition->add_charges();
      charge->set_limit("api");
      charge->set_key(std::to_string(c));
    }
  }
  const std::string message = testing::Framed(testing::Gzip(batch.SerializeAsString()), true);
  testing::H2Client client(server);
  nghttp2_session_set_local_window_size(client.session, 0, 0, 1 << 30);
  client.Pump();
  const auto idle_streams = [&](int count) {
    for (int i = 0; i < count; ++i) {
      const int32_t id = client.Call("/sluice.v1.RateLimiter/AcquireStream", message,
                                     {{"grpc-encoding", "gzip"}}, /*end=*/false);
      client.Pump();
      EXPECT_EQ(client.calls[id].messages().size(), 1u);
      client.calls.clear();
    }
  };
  idle_streams(3);
  const int64_t before = allocated_bytes;
  idle_streams(50);
  // With the client's half of each stream, and the bytes that it sent.
  EXPECT_LE((allocated_bytes - before) / 50, static_cast<int64_t>(message.size()) + (4 << 10));
}

// A client that sends frames as bytes, and what the server allocates for its calls.
class OpenCallTest : public ::testing::Test {
 protected:
  OpenCallTest() {
    server_.methods.AddUnary("/t.T/Echo", echo_);
    server_.methods.AddStreaming("/t.T/Stream", stream_);
    connection_ = std::make_unique<testing::H2Connection>(server_);
    connection_->Feed(testing::kGreeting);
  }

  // What each call keeps, on average. begin(id) begins one.
  template <typename Begin>
  int64_t BytesOfCall(Begin begin) {
    constexpr uint32_t kCalls = 20;
    uint32_t id = 1;
    int64_t before = 0;
    for (uint32_t i = 0; i < 2 * kCalls; ++i, id += 2) {
      if (i == kCalls) before = allocated_bytes;
      begin(id);
      connection_->Take();
    }
    EXPECT_FALSE(connection_->ended());
    EXPECT_EQ(server_.metrics.Snapshot(0).transports[0].streams_closed, 0u);
    return (allocated_bytes - before) / kCalls;
  }
  void Feed(http2::FrameType type, uint8_t flags, uint32_t id, std::string_view payload) {
    connection_->Feed(testing::Frame(type, flags, id, payload));
  }

  testing::EchoMethod echo_;
  testing::EchoStream stream_;
  testing::H2Server server_;
  std::unique_ptr<testing::H2Connection> connection_;
};

TEST_F(OpenCallTest, FirstByteOfAMessageKeepsLittleMemory) {
  stream_.times = 0;
  const std::string body = testing::Framed(std::string(1'000'000, 'x')) + '\0';
  const int64_t bytes = BytesOfCall([&](uint32_t id) {
    Feed(http2::FrameType::kHeaders, 4, id, testing::RequestHeaders("/t.T/Stream"));
    for (size_t at = 0; at < body.size(); at += 16'384) {
      Feed(http2::FrameType::kData, 0, id, std::string_view(body).substr(at, 16'384));
    }
  });
  EXPECT_EQ(stream_.messages, 40);
  EXPECT_LE(bytes, 3 << 10);
}

TEST_F(OpenCallTest, LastBytesOfAnAnswerKeepLittleMemory) {
  constexpr uint32_t kAnswer = 1'000'000;
  echo_.on_call = [](ServerCall& call) { call.response().Append(std::string(kAnswer, 'x')); };
  Feed(http2::FrameType::kSettings, 0, 0,
       testing::Entry(http2::Setting::kInitialWindowSize, kAnswer - 200));
  Feed(http2::FrameType::kWindowUpdate, 0, 0, testing::Uint32(1 << 30));
  const int64_t bytes = BytesOfCall([&](uint32_t id) {
    Feed(http2::FrameType::kHeaders, 4, id, testing::RequestHeaders("/t.T/Echo"));
    Feed(http2::FrameType::kData, 1, id, testing::Framed(""));
  });
  EXPECT_EQ(echo_.calls, 40);
  EXPECT_LE(bytes, 8 << 10);
}

// It is not gRPC, and is answered at its end.
TEST_F(OpenCallTest, LongPathKeepsLittleMemory) {
  const std::string path = "/" + std::string(9'999, 'p');
  // An indexed method and scheme, and a literal :path whose length is 127 + 17 + 77 * 128.
  const std::string head = "\x83\x86\x04\x7F\x91\x4D" + path + testing::Literal(":authority", "a");
  const int64_t bytes =
      BytesOfCall([&](uint32_t id) { Feed(http2::FrameType::kHeaders, 4, id, head); });
  EXPECT_LE(bytes, 3 << 10);
}

}  // namespace
}  // namespace sluice::transport
