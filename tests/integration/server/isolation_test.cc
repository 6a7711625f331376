// One client floods the server, within the bounds of the clients file and beyond, while another one
// calls: the other loses no call, each of its permits is granted, and none of its buckets is taken.
// No times are asserted here: tests/bench/run_isolation.py measures them.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "tests/integration/server/server_test.h"
#include "tests/integration/server/tokens.h"

namespace sluice::testing {
namespace {

using ::grpc::StatusCode;

constexpr char kLimits[] = R"(
limits:
  - { name: honest, rate: 1/d, burst: 2 }
  - { name: hostile, rate: 1/d, burst: 20000 }
  - { name: slow, rate: 1/m, burst: 1, max_wait: 10h }
)";
// Each of three limits has room for 250 keys of its own. The others of the honest client fit only
// if the hostile one does not fill the common part.
constexpr char kTable[] = "--max_buckets=1500";
constexpr int kHonestKeys = 500;

class IsolationTest : public ServerTest {
 protected:
  void SetUp() override {
    const std::string clients = files_.Write(
        "clients.yaml",
        absl::StrCat("clients:\n", ClientWithToken("honest"),
                     ClientWithToken("hostile",
                                     "    max_calls_per_second: 2000\n    max_held_calls: 50\n"
                                     "    max_streams: 4\n    max_new_keys_per_minute: 100\n")));
    Start({.limits = kLimits,
           .flags = {"--clients=" + clients, "--threads=2", kTable, "--max_connections=300"}});
    ASSERT_TRUE(server_->ready());
  }
  void TearDown() override { StopFlood(); }

  static void Prepare(grpc::ClientContext* context, const std::string& client) {
    context->AddMetadata("authorization", "Bearer " + client + "-token");
  }

  // Runs work(stub) again and again on threads with connections of their own.
  void Flood(int threads, const std::function<void(v1::RateLimiter::Stub&)>& work) {
    for (int i = 0; i < threads; ++i) {
      flood_.emplace_back([this, work] {
        const auto stub = v1::RateLimiter::NewStub(server_->DataChannel());
        while (!stopping_.load()) work(*stub);
      });
    }
  }
  void StopFlood() {
    stopping_.store(true);
    {
      const std::lock_guard<std::mutex> lock(mu_);
      for (grpc::ClientContext* const one : open_) one->TryCancel();
    }
    for (std::thread& thread : flood_) thread.join();
    flood_.clear();
  }
  // Counts what became of a call of the hostile client.
  void Note(const grpc::Status& status) {
    if (status.error_code() == StatusCode::RESOURCE_EXHAUSTED &&
        status.error_message().find("client \"hostile\" has reached") != std::string::npos) {
      ++refused_;
    }
  }

  // The honest client uses each of its keys up: two permits of each, and no third.
  void HonestLosesNothing() {
    ASSERT_TRUE(Eventually([&] { return hostile_calls_.load() > 20; }));
    const auto stub = v1::RateLimiter::NewStub(server_->DataChannel());
    for (int round = 0; round < 3; ++round) {
      for (int i = 0; i < kHonestKeys; ++i) {
        grpc::ClientContext context;
        Prepare(&context, "honest");
        context.set_deadline(Soon());
        v1::AcquireResponse response;
        const grpc::Status status =
            stub->Acquire(&context, Request("honest", absl::StrCat("key", i)), &response);
        ASSERT_TRUE(status.ok()) << status.error_message() << " in round " << round << ", key "
                                 << i;
        ASSERT_EQ(response.granted(), round < 2) << "in round " << round << ", key " << i;
      }
    }
  }

  TestFiles files_;
  std::atomic<bool> stopping_{false};
  std::atomic<uint64_t> hostile_calls_{0};
  std::atomic<uint64_t> refused_{0};
  std::vector<std::thread> flood_;
  std::mutex mu_;
  std::deque<grpc::ClientContext*> open_;  // to be cancelled at the end
};

TEST_F(IsolationTest, FloodOfCalls) {
  Flood(4, [&](v1::RateLimiter::Stub& stub) {
    // 32 at a time on each connection.
    struct Call {
      grpc::ClientContext context;
      v1::AcquireRequest request = Request("hostile", "k");
      v1::AcquireResponse response;
      grpc::Status status;
    };
    std::deque<Call> calls(32);
    std::atomic<int> left{32};
    for (Call& call : calls) {
      Prepare(&call.context, "hostile");
      stub.async()->Acquire(&call.context, &call.request, &call.response,
                            [&](const grpc::Status& status) {
                              call.status = status;
                              --left;
                            });
    }
    while (left.load() > 0) std::this_thread::yield();
    for (const Call& call : calls) Note(call.status);
    hostile_calls_ += calls.size();
  });
  HonestLosesNothing();
  EXPECT_TRUE(Eventually([&] { return refused_.load() > 0; }));
}

TEST_F(IsolationTest, FloodOfConnections) {
  // Fewer than --max_connections: above it the server closes new connections, whichever client
  // they would have been.
  const std::string& address = server_->data_address();
  sockaddr_in to = {};
  to.sin_family = AF_INET;
  uint32_t port = 0;
  ASSERT_TRUE(absl::SimpleAtoi(address.substr(address.rfind(':') + 1), &port));
  to.sin_port = htons(static_cast<uint16_t>(port));
  to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  Flood(2, [&](v1::RateLimiter::Stub& stub) {
    std::vector<int> sockets;
    const absl::Cleanup close_all = [&] {
      for (const int one : sockets) close(one);
    };
    for (int i = 0; i < 60; ++i) {
      sockets.push_back(socket(AF_INET, SOCK_STREAM, 0));
      // Closed with a reset, so that the machine does not run out of ports.
      constexpr linger kReset = {.l_onoff = 1, .l_linger = 0};
      setsockopt(sockets.back(), SOL_SOCKET, SO_LINGER, &kReset, sizeof(kReset));
      if (connect(sockets.back(), reinterpret_cast<const sockaddr*>(&to), sizeof(to)) != 0) break;
      constexpr char kPreface[] = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
      send(sockets.back(), kPreface, sizeof(kPreface) - 1, MSG_NOSIGNAL);
    }
    ++hostile_calls_;
  });
  HonestLosesNothing();
}

TEST_F(IsolationTest, InventedKeysInGiantBatches) {
  std::atomic<uint64_t> next{0};
  Flood(2, [&](v1::RateLimiter::Stub& stub) {
    v1::AcquireBatchRequest batch;
    for (size_t i = 0; i < common::bounds::kMaxBatch; ++i) {
      *batch.add_acquisitions() = Request("hostile", absl::StrCat("invented", next++));
    }
    grpc::ClientContext context;
    Prepare(&context, "hostile");
    v1::AcquireBatchResponse decided;
    if (!stub.AcquireBatch(&context, batch, &decided).ok()) return;
    for (const auto& result : decided.results()) {
      if (result.error().code() == StatusCode::RESOURCE_EXHAUSTED) ++refused_;
    }
    hostile_calls_ += 10;
  });
  HonestLosesNothing();
  EXPECT_GT(refused_.load(), 0);
}

TEST_F(IsolationTest, HeldCalls) {
  struct Held {
    grpc::ClientContext context;
    v1::AcquireRequest request;
    v1::AcquireResponse response;
  };
  std::deque<Held> held(500);
  std::atomic<int> left{0};
  const auto stub = v1::RateLimiter::NewStub(server_->DataChannel());
  for (Held& one : held) {
    Prepare(&one.context, "hostile");
    one.context.set_deadline(std::chrono::system_clock::now() + std::chrono::hours(20));
    one.request = Request("slow", "k");
    one.request.set_hold(true);
    one.request.mutable_max_wait()->set_seconds(36'000);
    ++left;
    stub->async()->Acquire(&one.context, &one.request, &one.response,
                           [&](const grpc::Status& status) {
                             Note(status);
                             ++hostile_calls_;
                             --left;
                           });
  }
  const absl::Cleanup end = [&] {
    for (Held& one : held) one.context.TryCancel();
    while (left.load() > 0) std::this_thread::yield();
  };
  HonestLosesNothing();
  // One is granted at once.
  EXPECT_TRUE(Eventually([&] { return refused_.load() >= 500 - 51; }));
}

TEST_F(IsolationTest, SlowReads) {
  // Streams that send giant batches and read no answer.
  Flood(6, [&](v1::RateLimiter::Stub& stub) {
    grpc::ClientContext context;
    Prepare(&context, "hostile");
    {
      const std::lock_guard<std::mutex> lock(mu_);
      if (stopping_.load()) return;
      open_.push_back(&context);
    }
    const absl::Cleanup forget = [&] {
      const std::lock_guard<std::mutex> lock(mu_);
      std::erase(open_, &context);
    };
    auto stream = stub.AcquireStream(&context);
    v1::AcquireBatchRequest batch;
    for (size_t i = 0; i < common::bounds::kMaxBatch; ++i) {
      *batch.add_acquisitions() = Request("hostile", "k");
      batch.mutable_acquisitions(static_cast<int>(i))->set_want_receipt(true);
    }
    while (stream->Write(batch)) hostile_calls_ += 10;
    Note(stream->Finish());
  });
  HonestLosesNothing();
  EXPECT_TRUE(Eventually([&] { return refused_.load() > 0; })) << "six streams, four are allowed";
}

}  // namespace
}  // namespace sluice::testing
