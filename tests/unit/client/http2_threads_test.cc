// Threads that share a client, with servers that come and go: each call ends once, no acquisition
// is executed twice, and a call that is said not to have been executed was not.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "sluice/client.h"
#include "tests/support/scripted_server.h"

namespace sluice {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::seconds;
using namespace sluice::testing;  // NOLINT(google-build-using-namespace): the script's words

constexpr int kThreads = 16;
constexpr char kWatched[] = "w";  // the key of queries and watches

// Grants most requests, loses some, refuses some, and ends its connections in every way.
class FickleServer {
 public:
  FickleServer() : server_([this](Peer& peer, int connection) { Run(peer, connection); }) {}

  std::string address() const { return server_.address(); }
  int connections() const { return server_.connections(); }

  // How many times the acquisition of this key was executed.
  int Executed(const std::string& key) {
    std::lock_guard<std::mutex> lock(mu_);
    const auto found = executed_.find(key);
    return found == executed_.end() ? 0 : found->second;
  }
  // From now on it grants everything.
  void Settle() { steady_ = true; }

 private:
  static std::vector<std::string> KeysOf(const std::string& request) {
    std::vector<std::string> keys;
    for (size_t at = 0; (at = request.find("api\x12", at)) != std::string::npos; at += 5) {
      keys.push_back(request.substr(at + 5, static_cast<uint8_t>(request[at + 4])));
    }
    return keys;
  }

  // The answers to the messages of an AcquireStream in one frame: a grant for each acquisition.
  static std::string StreamAnswers(const ReceivedFrame& frame, bool first) {
    std::string bytes;
    if (first) bytes = Frame(kHeaders, kEndHeaders, frame.stream, AnswerHead());
    for (size_t at = 0; at + 5 <= frame.payload.size();) {
      const auto byte = [&](size_t i) { return static_cast<uint8_t>(frame.payload[at + i]); };
      const auto size = static_cast<size_t>(byte(3) << 8 | byte(4));
      std::string message;
      for (size_t i = KeysOf(frame.payload.substr(at + 5, size)).size(); i > 0; --i) {
        message += "\x0A\x06\x0A\x04" + std::string(kGranted);
      }
      bytes += Frame(kData, 0, frame.stream, Message(message));
      at += 5 + size;
    }
    return bytes;
  }
  // `count` answers to a watch, or to a query, of one bucket.
  static std::string Changes(uint32_t stream, size_t count, bool end) {
    std::string bytes = Frame(kHeaders, kEndHeaders, stream, AnswerHead());
    for (size_t i = 0; i < count; ++i) {
      bytes += Frame(kData, 0, stream, Message(std::string("\x0A\0", 2)));
    }
    if (end) {
      bytes += Frame(kHeaders, kEndHeaders | kEndStream, stream, Field("grpc-status", "0"));
    }
    return bytes;
  }

  void Execute(const std::string& key) {
    std::lock_guard<std::mutex> lock(mu_);
    ++executed_[key];
  }

  void Run(Peer& peer, int connection) {
    std::minstd_rand random(static_cast<unsigned>(connection) + 1);
    const auto chance = [&](unsigned in) { return !steady_ && random() % in == 0; };
    if (chance(8)) return;  // before it says anything
    if (!peer.Greet(chance(3) ? Setting(3, 3) : "")) return;
    std::set<uint32_t> streams;  // that were answered and go on
    uint32_t last = 0;
    while (const auto frame = peer.Read()) {
      if (frame->type == kPing && (frame->flags & kAck) == 0) {
        peer.Send(Frame(kPing, kAck, 0, frame->payload));
      }
      if (frame->type != kData) continue;
      const uint32_t stream = frame->stream;
      const std::vector<std::string> keys = KeysOf(frame->payload);
      if (keys.empty()) continue;
      if ((frame->flags & kEndStream) == 0) {
        if (chance(30)) {
          peer.Send(Frame(kRstStream, 0, stream, Number(8, 4)));
          continue;
        }
        last = std::max(last, stream);
        for (const std::string& key : keys) Execute(key);
        if (chance(30)) return;
        peer.Send(StreamAnswers(*frame, /*first=*/streams.insert(stream).second));
        continue;
      }
      if (keys.front() == kWatched) {
        peer.Send(Changes(stream, random() % 4, /*end=*/random() % 2 == 0));
        continue;
      }
      if (chance(40)) {
        // This one and later ones were not looked at.
        peer.Send(Frame(kGoaway, 0, 0, Number(last, 4) + Number(0, 4)));
        return chance(2) ? void() : peer.AwaitEnd();
      }
      if (chance(20)) {
        peer.Send(Frame(kRstStream, 0, stream, Number(7, 4)));  // refused
        continue;
      }
      last = std::max(last, stream);
      Execute(keys.front());
      if (chance(60)) return;    // the answer is lost
      if (chance(20)) continue;  // or never sent
      if (chance(10)) std::this_thread::sleep_for(microseconds(random() % 3000));
      peer.Send(chance(15) ? Refusal(stream, "14", "busy", Field("sluice-executed", "no"))
                           : Answer(stream, kGranted));
    }
  }

  std::mutex mu_;
  std::map<std::string, int> executed_;
  std::atomic<bool> steady_{false};
  ScriptedServer server_;  // last: its threads use the members above
};

class Http2ThreadsTest : public ::testing::Test {
 protected:
  Http2ThreadsTest() {
    ClientOptions options;
    options.servers = {server_.address()};
    options.retry.max_attempts = 1;
    client_ = std::make_unique<Client>(*Client::Create(std::move(options)));
  }

  std::string NextKey() { return "k" + std::to_string(next_key_++); }

  // A refusal with the mark is the server's word; what it did shows in Executed.
  void Check(const std::string& key, const Result<Decision>& result) {
    if (result.status().code() == StatusCode::kCancelled) return;  // by the end of the test
    ASSERT_TRUE(result.ok()) << result.status();
    const int executed = server_.Executed(key);
    EXPECT_LE(executed, 1) << key;
    if (result->granted) {
      EXPECT_EQ(executed, 1) << key;
      ++granted_;
    } else if (!result->status.may_have_executed() && result->status.message() != "busy") {
      EXPECT_EQ(executed, 0) << key << ": " << result->status;
    }
    ++ended_;
  }

  FickleServer server_;
  std::unique_ptr<Client> client_;
  std::atomic<int> next_key_{0};
  std::atomic<int> ended_{0};
  std::atomic<int> granted_{0};
};

TEST_F(Http2ThreadsTest, BlockingCallsOnAFickleServerAreExecutedAtMostOnce) {
  constexpr int kCalls = 300;
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([this, t] {
      std::minstd_rand random(static_cast<unsigned>(t) + 1);
      for (int i = 0; i < kCalls; ++i) {
        const std::string key = NextKey();
        CallOptions options;
        options.deadline = microseconds(200 + random() % 50'000);
        Check(key, client_->Acquire("api", key, 1, options));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(ended_, kThreads * kCalls);
  EXPECT_GT(granted_, 0);
  server_.Settle();
  CallOptions patient;
  patient.deadline = seconds(20);
  EXPECT_TRUE(client_->Acquire("api", NextKey(), 1, patient).ok());
}

TEST_F(Http2ThreadsTest, CallbacksBlockingCallsAndStreamsShareAConnection) {
  constexpr int kCalls = 100;
  std::vector<std::thread> threads;
  std::atomic<int> callbacks{0};
  auto stream = std::make_unique<AcquireStream>(
      client_->OpenStream({.max_batch = 64, .deadline = milliseconds(100)}));
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([this, t, &callbacks, &stream] {
      std::minstd_rand random(static_cast<unsigned>(t) + 100);
      const std::vector<Bucket> buckets = {{"api", kWatched}};
      for (int i = 0; i < kCalls; ++i) {
        const std::string key = NextKey();
        CallOptions options;
        options.deadline = microseconds(200 + random() % 20'000);
        switch (random() % 5) {
          case 3:
            stream->Submit("api", key, 1,
                           [this, key](const Result<Decision>& result) { Check(key, result); });
            break;
          case 0:
            Check(key, client_->Acquire("api", key, 1, options));
            break;
          case 1:
            Check(key, client_->AcquireFuture(Acquisition("api", key), options).get());
            break;
          case 2:
            client_->AcquireAsync(
                Acquisition("api", key),
                [this, key, &callbacks](const Result<Decision>& result) {
                  Check(key, result);
                  ++callbacks;
                },
                options);
            break;
          default: {
            auto watch = client_->Watch(
                buckets, {}, {.on_change = [](auto) {}, .on_closed = [&](auto) { ++callbacks; }});
            if (random() % 2 == 0) watch->Cancel();
            watch.reset();
            static_cast<void>(client_->Query(buckets, options));
            break;
          }
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  // Destruction ends what is open; every callback has run then.
  stream = nullptr;
  client_.reset();
  EXPECT_GT(ended_, 0);
}

TEST_F(Http2ThreadsTest, ShutdownDuringCallsEndsAll) {
  for (int round = 0; round < 10; ++round) {
    ClientOptions options;
    options.servers = {server_.address()};
    options.deadline = seconds(20);
    auto connection_client = std::make_unique<Client>(*Client::Create(options));
    std::atomic<int> callbacks{0};
    std::atomic<int> started{0};
    for (int i = 0; i < 20; ++i) {
      connection_client->AcquireAsync(Acquisition("api", NextKey()),
                                      [&](const Result<Decision>&) { ++callbacks; });
      ++started;
    }
    std::this_thread::sleep_for(microseconds(300 * round));
    connection_client.reset();
    EXPECT_EQ(callbacks, started);
  }
}

}  // namespace
}  // namespace sluice
