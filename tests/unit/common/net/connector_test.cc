#include "common/net/connector.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "common/clock.h"
#include "common/net/listening_socket.h"
#include "tests/unit/common/net/net_testing.h"

namespace sluice::net {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kSecond = 1'000'000'000;

class ConnectorTest : public ::testing::Test {
 protected:
  Stream* Start(const std::string& address, Resolver& resolver, ConnectOptions options = {}) {
    return Connect(*loop_, *Address::Parse(address), resolver, options, handler_);
  }
  // The loop calls handlers until it is destroyed, so they live longer.
  RecordingHandler& NewHandler() { return handlers_.emplace_back(); }
  void TearDown() override { loop_.reset(); }
  bool Until(const std::function<bool()>& done) { return RunUntil(*loop_, done); }
  bool UntilClosed() {
    return Until([this] { return handler_.closed.has_value(); });
  }
  // A listening server, and the connections that it accepts.
  ListeningSockets Listen(const std::string& address) {
    return *ListeningSockets::Open(*Address::Parse(address), 1, {});
  }

  common::FakeClock clock_;
  std::unique_ptr<EventLoop> loop_ = *EventLoop::Create(clock_);
  Resolver resolver_;
  RecordingHandler handler_;
  std::deque<RecordingHandler> handlers_;
};

TEST_F(ConnectorTest, ConnectsToIpAddressHostNameAndUnixPath) {
  const std::string unix = "unix:@sluice-connector-" + std::to_string(getpid());
  for (const std::string& where : {std::string("127.0.0.1:0"), std::string("localhost:0"), unix}) {
    auto sockets = Listen(where);
    RawSocket listening(sockets.Release(0));
    const std::string target = where == unix ? unix
                               : where == "localhost:0"
                                   ? "localhost:" + std::to_string(sockets.address().port())
                                   : sockets.address().ToString();
    RecordingHandler& handler = NewHandler();
    Stream* const stream = Connect(*loop_, *Address::Parse(target), resolver_, {}, handler);
    EXPECT_EQ(handler.opens, 0);  // not from within Connect
    stream->Write(Bytes("hello"));
    ASSERT_TRUE(RunUntil(*loop_, [&] { return handler.opens == 1; })) << target;
    RawSocket accepted(accept(listening.fd(), nullptr, nullptr));
    std::string got;
    ASSERT_TRUE(RunUntil(*loop_, [&] { return (got += accepted.Receive()) == "hello"; }));
    accepted.Send("welcome");
    ASSERT_TRUE(RunUntil(*loop_, [&] { return handler.received == "welcome"; }));
    stream->Abort(absl::CancelledError());
    ASSERT_TRUE(RunUntil(*loop_, [&] { return handler.closed.has_value(); }));
  }
  EXPECT_EQ(loop_->counters().connected.value(), 3u);
}

TEST_F(ConnectorTest, NamesTheAddressThatRefused) {
  std::string target;
  {
    const auto gone = Listen("127.0.0.1:0");
    target = gone.address().ToString();
  }
  Start(target, resolver_);
  EXPECT_FALSE(handler_.closed.has_value());
  ASSERT_TRUE(UntilClosed());
  EXPECT_EQ(handler_.closed->code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(handler_.closed->message()), HasSubstr(target));
  EXPECT_EQ(handler_.opens, 0);
  EXPECT_EQ(loop_->counters().connect_failures.value(), 1u);
  RecordingHandler& other = NewHandler();
  Connect(*loop_, *Address::Parse("unix:/no/such/socket"), resolver_, {}, other);
  ASSERT_TRUE(RunUntil(*loop_, [&] { return other.closed.has_value(); }));
  EXPECT_EQ(other.closed->code(), absl::StatusCode::kUnavailable);
}

TEST_F(ConnectorTest, TriesEachAddressOfAName) {
  auto sockets = Listen("127.0.0.1:0");
  const std::string alive = sockets.address().ToString();
  std::string dead;
  {
    const auto gone = Listen("127.0.0.1:0");
    dead = gone.address().ToString();
  }
  Resolver resolver([&](const Address& address) -> Resolver::Addresses {
    EXPECT_EQ(address.host, "some.name");
    return std::vector<SocketAddress>{*SocketAddress::FromNumeric(*Address::Parse(dead)),
                                      *SocketAddress::FromNumeric(*Address::Parse(alive))};
  });
  Stream* const stream = Start("some.name:1", resolver);
  ASSERT_TRUE(Until([&] { return handler_.opens == 1; }));
  EXPECT_EQ(stream->peer_address(), alive);
}

TEST_F(ConnectorTest, ReportsUnresolvedNameAsUnavailable) {
  Resolver resolver(
      [](const Address&) -> Resolver::Addresses { return absl::UnavailableError("no such name"); });
  Start("some.name:1", resolver);
  ASSERT_TRUE(UntilClosed());
  EXPECT_EQ(handler_.closed->code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(handler_.closed->message(), "no such name");
}

TEST_F(ConnectorTest, TimeoutCoversResolvingAndAbortIsSafeMeanwhile) {
  common::Mutex mu;
  common::CondVar changed;
  bool go = false;  // guarded by mu
  {
    Resolver slow([&](const Address&) -> Resolver::Addresses {
      common::MutexLock lock(&mu);
      while (!go) changed.Wait(&mu);
      return absl::UnavailableError("too late");
    });
    ConnectOptions options;
    options.timeout_ns = 3 * kSecond;
    Start("slow.name:1", slow, options);
    RecordingHandler& aborted = NewHandler();
    Connect(*loop_, *Address::Parse("slow.name:1"), slow, options, aborted)
        ->Abort(absl::CancelledError("changed my mind"));
    Settle(*loop_);
    EXPECT_EQ(aborted.closed->message(), "changed my mind");
    EXPECT_FALSE(handler_.closed.has_value());
    clock_.Advance(4 * kSecond);
    ASSERT_TRUE(UntilClosed());
    EXPECT_EQ(handler_.closed->code(), absl::StatusCode::kDeadlineExceeded);
    {
      common::MutexLock lock(&mu);
      go = true;
    }
    changed.SignalAll();
  }
  Settle(*loop_);  // the answer that no caller waits for
}

TEST_F(ConnectorTest, GivesUpOnServerThatDoesNotAnswer) {
  // With a full backlog the kernel does not answer.
  RawSocket listening(socket(AF_INET, SOCK_STREAM, 0));
  SocketAddress address = *SocketAddress::FromNumeric(*Address::Parse("127.0.0.1:0"));
  ASSERT_EQ(bind(listening.fd(), address.get(), address.length), 0);
  ASSERT_EQ(listen(listening.fd(), 0), 0);
  getsockname(listening.fd(), address.get(), &address.length);
  std::vector<RawSocket> fill;
  for (int i = 0; i < 4; ++i) {
    fill.emplace_back(socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0));
    connect(fill.back().fd(), address.get(), address.length);
  }
  Settle(*loop_);
  Start(address.ToString(), resolver_);
  Settle(*loop_);
  EXPECT_EQ(handler_.opens, 0);
  clock_.Advance(6 * kSecond);
  ASSERT_TRUE(UntilClosed());
  EXPECT_EQ(handler_.closed->code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(std::string(handler_.closed->message()), HasSubstr(address.ToString()));
}

TEST_F(ConnectorTest, LoopStopCancelsConnecting) {
  Resolver resolver(
      [](const Address&) -> Resolver::Addresses { return absl::UnavailableError("no such name"); });
  Start("some.name:1", resolver);
  loop_->Stop();
  loop_->Run();
  ASSERT_TRUE(handler_.closed.has_value());
}

}  // namespace
}  // namespace sluice::net
