#include "common/net/listener.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "common/clock.h"
#include "common/log.h"
#include "common/mutex.h"
#include "common/net/listening_socket.h"
#include "common/net/loop_group.h"
#include "tests/unit/common/net/net_testing.h"

namespace sluice::net {
namespace {

Address At(std::string_view text) { return *Address::Parse(text); }

// Echoes until the peer ends.
class EchoAcceptor final : public Acceptor {
 public:
  StreamHandler* Accept(Stream& stream) override { return new Echo(*this, stream); }
  void OnDisplaced(EventLoop&) override { ++displaced; }

  std::atomic<int> open{0};
  std::atomic<int> displaced{0};
  std::atomic<int> accepted{0};

 private:
  struct Echo final : StreamHandler {
    Echo(EchoAcceptor& acceptor, Stream& stream) : acceptor(acceptor), stream(stream) {
      ++acceptor.open;
      ++acceptor.accepted;
    }
    void OnData(absl::Span<const uint8_t> data) override { stream.Write(data); }
    void OnEnd() override { stream.CloseAfterWrite(1'000'000'000); }
    void OnClosed(const absl::Status&) override {
      --acceptor.open;
      delete this;
    }
    EchoAcceptor& acceptor;
    Stream& stream;
  };
};

std::string Echoed(RawSocket& raw, std::string_view text) {
  EXPECT_EQ(send(raw.fd(), text.data(), text.size(), MSG_NOSIGNAL), ssize_t(text.size()));
  std::string got(text.size(), '\0');
  const ssize_t n = recv(raw.fd(), got.data(), got.size(), MSG_WAITALL);
  got.resize(std::max<ssize_t>(n, 0));
  return got;
}

class TemporaryFolder {
 public:
  TemporaryFolder() {
    char name[] = "/tmp/sluice-net-XXXXXX";
    path_ = mkdtemp(name);
  }
  ~TemporaryFolder() {
    unlink(File("socket").c_str());
    rmdir(path_.c_str());
  }
  std::string File(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

class LoopGroupTest : public ::testing::Test {
 protected:
  std::unique_ptr<LoopGroup> Group(int threads) {
    LoopGroup::Options options;
    options.threads = threads;
    return *LoopGroup::Create(clock_, options);
  }

  common::SystemClock clock_;
  EchoAcceptor echo_;
  TemporaryFolder folder_;
};

TEST_F(LoopGroupTest, ServesEachKindOfAddress) {
  auto group = Group(2);
  std::vector<SocketAddress> addresses;
  for (const std::string& text :
       {std::string("127.0.0.1:0"), std::string("[::1]:0"), "unix:" + folder_.File("socket"),
        "unix:@sluice-net-test-" + std::to_string(getpid()), std::string("localhost:0")}) {
    const auto address = group->Listen(At(text), echo_, {});
    ASSERT_TRUE(address.ok()) << address.status();
    addresses.push_back(*address);
  }
  EXPECT_NE(addresses[0].port(), 0);
  group->Start();
  for (const SocketAddress& address : addresses) {
    RawSocket raw = ConnectTo(address);
    ASSERT_GE(raw.fd(), 0) << address.ToString();
    EXPECT_EQ(Echoed(raw, "hello"), "hello");
    shutdown(raw.fd(), SHUT_WR);
    char c;
    EXPECT_EQ(recv(raw.fd(), &c, 1, 0), 0);
  }
}

TEST_F(LoopGroupTest, AllLoopsAcceptOnOnePort) {
  auto group = Group(2);
  group->Start();
  const auto address = group->Listen(At("127.0.0.1:0"), echo_, {});  // while they run
  ASSERT_TRUE(address.ok());
  std::vector<RawSocket> raws;
  for (int i = 0; i < 200; ++i) {
    raws.push_back(ConnectTo(*address));
    ASSERT_EQ(Echoed(raws.back(), "x"), "x");
  }
  uint64_t sum = 0;
  for (size_t i = 0; i < group->size(); ++i) {
    const uint64_t accepted = group->loop(i).counters().accepted.value();
    EXPECT_GT(accepted, 20u);
    sum += accepted;
  }
  EXPECT_EQ(sum, 200u);
  raws.clear();
  group->Stop();
  EXPECT_EQ(echo_.open.load(), 0);
}

TEST_F(LoopGroupTest, SecondServerFailsWithPortInUse) {
  auto first = Group(2);
  const auto address = first->Listen(At("127.0.0.1:0"), echo_, {});
  ASSERT_TRUE(address.ok());
  auto second = Group(2);
  const auto refused = second->Listen(At(address->ToString()), echo_, {});
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kAlreadyExists);
  EXPECT_THAT(std::string(refused.status().message()), ::testing::HasSubstr(address->ToString()));
  first.reset();
  EXPECT_TRUE(second->Listen(At(address->ToString()), echo_, {}).ok());
}

TEST_F(LoopGroupTest, OneOfManyConcurrentServersGetsThePort) {
  auto probe = ListeningSockets::Open(At("127.0.0.1:0"), 1, {});
  ASSERT_TRUE(probe.ok());
  const Address address = At(probe->address().ToString());
  {
    ListeningSockets gone(std::move(*probe));
  }
  for (int round = 0; round < 20; ++round) {
    std::atomic<int> ready{0};
    std::atomic<int> got{0};
    std::vector<std::thread> servers;
    for (int i = 0; i < 4; ++i) {
      servers.emplace_back([&] {
        ++ready;
        while (ready < 4) std::this_thread::yield();
        const auto sockets = ListeningSockets::Open(address, 2, {});
        if (sockets.ok()) ++got;
        ++ready;
        while (ready < 8) std::this_thread::yield();
      });
    }
    for (std::thread& server : servers) server.join();
    EXPECT_EQ(got, 1);
  }
}

TEST_F(LoopGroupTest, ReusesPortDespiteLingeringConnections) {
  auto first = Group(1);
  const auto address = first->Listen(At("127.0.0.1:0"), echo_, {});
  first->Start();
  RawSocket raw = ConnectTo(*address);
  EXPECT_EQ(Echoed(raw, "x"), "x");
  first.reset();  // closes first, so its side is in TIME_WAIT
  raw.Close();
  auto second = Group(1);
  const auto again = second->Listen(At(address->ToString()), echo_, {});
  EXPECT_TRUE(again.ok()) << again.status();
}

// The sockets of another group, as another process gets them.
std::shared_ptr<ListeningSockets> CopyOf(const ListeningSockets& sockets) {
  std::vector<Descriptor> copies;
  for (const Descriptor& one : sockets.sockets()) copies.emplace_back(dup(one.get()));
  auto adopted = ListeningSockets::Adopt(std::move(copies));
  EXPECT_TRUE(adopted.ok()) << adopted.status();
  return std::make_shared<ListeningSockets>(*std::move(adopted));
}

TEST_F(LoopGroupTest, ConnectionsInAllQueuesWaitForAnotherGroup) {
  for (const auto& [sockets, loops] : {std::pair(4, 1), std::pair(1, 3), std::pair(3, 2)}) {
    auto opened = ListeningSockets::Open(At("127.0.0.1:0"), sockets, {});
    ASSERT_TRUE(opened.ok());
    const auto first_sockets = std::make_shared<ListeningSockets>(*std::move(opened));
    auto first = Group(sockets);
    ASSERT_TRUE(first->Listen(first_sockets, echo_, {}).ok());
    first->Start();
    RawSocket served = ConnectTo(first_sockets->address());
    EXPECT_EQ(Echoed(served, "x"), "x");
    const auto taken = CopyOf(*first_sockets);
    first->LeaveSockets();
    first->StopAccepting();
    first->Stop();
    first.reset();
    first_sockets->Close();
    std::vector<RawSocket> waiting;
    for (int i = 0; i < 40; ++i) {
      waiting.push_back(ConnectTo(taken->address()));
      ASSERT_GE(waiting.back().fd(), 0);
    }
    auto second = Group(loops);
    ASSERT_TRUE(second->Listen(taken, echo_, {}).ok());
    second->Start();
    for (RawSocket& one : waiting) EXPECT_EQ(Echoed(one, "hello"), "hello");
    second->Stop();
  }
}

TEST_F(LoopGroupTest, ASocketThatTwoGroupsHaveIsServedWhenOneStops) {
  auto opened = ListeningSockets::Open(At("127.0.0.1:0"), 2, {});
  ASSERT_TRUE(opened.ok());
  const auto first_sockets = std::make_shared<ListeningSockets>(*std::move(opened));
  const auto second_sockets = CopyOf(*first_sockets);
  auto first = Group(2);
  auto second = Group(2);
  ASSERT_TRUE(first->Listen(first_sockets, echo_, {}).ok());
  ASSERT_TRUE(second->Listen(second_sockets, echo_, {}).ok());
  first->Start();
  second->Start();
  for (int i = 0; i < 50; ++i) {
    if (i == 10) first->StopAccepting();
    RawSocket one = ConnectTo(second_sockets->address());
    ASSERT_GE(one.fd(), 0);
    EXPECT_EQ(Echoed(one, "x"), "x");
  }
}

TEST_F(LoopGroupTest, TheFileOfAUnixSocketHasOneOwner) {
  const Address address = At("unix:" + folder_.File("socket"));
  auto opened = ListeningSockets::Open(address, 1, {});
  ASSERT_TRUE(opened.ok());
  auto first = std::make_shared<ListeningSockets>(*std::move(opened));
  auto second = CopyOf(*first);
  EXPECT_TRUE(first->owns_file());
  EXPECT_FALSE(second->owns_file());
  second->TakeFile();
  first->GiveUpFile();
  first.reset();
  EXPECT_EQ(access(folder_.File("socket").c_str(), F_OK), 0);
  second.reset();
  EXPECT_NE(access(folder_.File("socket").c_str(), F_OK), 0);
}

TEST_F(LoopGroupTest, ErrorsNameTheAddressAndTheReason) {
  auto group = Group(1);
  EXPECT_EQ(group->Listen(At("192.0.2.1:0"), echo_, {}).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(group->Listen(At("no-such-host.invalid:0"), echo_, {}).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_FALSE(group->Listen(At("unix:/no/such/folder/socket"), echo_, {}).ok());
  LoopGroup::Options none;
  none.threads = 0;
  EXPECT_EQ(LoopGroup::Create(clock_, none).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(LoopGroupTest, ReplacesUnixSocketOnlyIfStale) {
  const std::string file = folder_.File("socket");
  const Address address = At("unix:" + file);
  {
    // As a killed server leaves it.
    RawSocket dead(socket(AF_UNIX, SOCK_STREAM, 0));
    const auto numeric = *SocketAddress::FromNumeric(address);
    ASSERT_EQ(bind(dead.fd(), numeric.get(), numeric.length), 0);
  }
  auto first = Group(2);
  ListeningSockets::Options options;
  options.unix_mode = 0600;
  ASSERT_TRUE(first->Listen(address, echo_, {}, options).ok());
  struct stat made;
  ASSERT_EQ(stat(file.c_str(), &made), 0);
  EXPECT_EQ(made.st_mode & 0777, 0600u);
  auto second = Group(1);
  EXPECT_EQ(second->Listen(address, echo_, {}).status().code(), absl::StatusCode::kAlreadyExists);
  first->Start();
  RawSocket raw = ConnectTo(*SocketAddress::FromNumeric(address));
  EXPECT_EQ(Echoed(raw, "still here"), "still here");
  first.reset();
  EXPECT_NE(stat(file.c_str(), &made), 0);  // cleaned up
  // A file that is not a socket is not replaced.
  close(open(file.c_str(), O_CREAT | O_WRONLY, 0600));
  EXPECT_EQ(second->Listen(address, echo_, {}).status().code(), absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(stat(file.c_str(), &made), 0);
}

class ListenerTest : public ::testing::Test {
 protected:
  void Listen(const ListenerOptions& options = {}) {
    auto sockets = *ListeningSockets::Open(At("127.0.0.1:0"), 1, {});
    address_ = sockets.address();
    listener_ = std::make_unique<Listener>(*loop_, sockets.Release(0), echo_, options);
  }
  void TearDown() override {
    listener_.reset();
    loop_.reset();  // before the acceptor whose handlers it tells
  }
  // Connects, and does not wait for the accept.
  RawSocket Connect() { return ConnectTo(address_); }

  common::FakeClock clock_;
  std::unique_ptr<EventLoop> loop_ = *EventLoop::Create(clock_);
  EchoAcceptor echo_;
  SocketAddress address_;
  std::unique_ptr<Listener> listener_;
};

TEST_F(ListenerTest, AcceptsAtMostABurstPerIteration) {
  ListenerOptions options;
  options.accept_burst = 3;
  Listen(options);
  std::vector<RawSocket> raws;
  for (int i = 0; i < 8; ++i) raws.push_back(Connect());
  loop_->RunOnce(-1);
  EXPECT_EQ(echo_.accepted.load(), 3);
  loop_->RunOnce(-1);
  EXPECT_EQ(echo_.accepted.load(), 6);
  loop_->RunOnce(-1);
  EXPECT_EQ(echo_.accepted.load(), 8);
}

TEST_F(ListenerTest, ClosesAndCountsConnectionsBeyondTheBudget) {
  ConnectionBudget budget(2);
  ListenerOptions options;
  options.budget = &budget;
  Listen(options);
  std::vector<RawSocket> raws;
  for (int i = 0; i < 3; ++i) raws.push_back(Connect());
  Settle(*loop_);
  EXPECT_EQ(budget.open(), 2);
  EXPECT_EQ(loop_->counters().refused.value(), 1u);
  raws[2].Receive();
  EXPECT_TRUE(raws[2].at_end || raws[2].error == ECONNRESET);
  raws[0].Close();
  ASSERT_TRUE(RunUntil(*loop_, [&] { return budget.open() == 1; }));
  raws.push_back(Connect());
  ASSERT_TRUE(RunUntil(*loop_, [&] { return budget.open() == 2; }));
  loop_->Stop();
  loop_->Run();
  EXPECT_EQ(budget.open(), 0);
}

TEST_F(ListenerTest, DisplacesAConnectionOfThePeerThatHasMostAndLogsItOnceASecond) {
  int pipe_fds[2];
  ASSERT_EQ(pipe(pipe_fds), 0);
  common::Log log(clock_, common::LogLevel::kInfo, pipe_fds[1]);
  ConnectionBudget budget(4, {.log = &log});
  ListenerOptions options;
  options.budget = &budget;
  Listen(options);
  std::vector<RawSocket> flood;
  for (int i = 0; i < 5; ++i) flood.push_back(Connect());
  Settle(*loop_);
  EXPECT_TRUE(flood[4].Closed());
  RawSocket others[] = {ConnectTo(address_, "127.0.0.2"), ConnectTo(address_, "127.0.0.2")};
  Settle(*loop_);
  EXPECT_TRUE(flood[0].Closed());
  EXPECT_TRUE(flood[1].Closed());
  EXPECT_FALSE(flood[2].Closed());
  EXPECT_FALSE(others[0].Closed());
  EXPECT_FALSE(others[1].Closed());
  EXPECT_EQ(echo_.open.load(), 4);
  EXPECT_EQ(echo_.displaced.load(), 2);
  char text[4096];
  const std::string logged(text, std::max<ssize_t>(read(pipe_fds[0], text, sizeof(text)), 0));
  EXPECT_THAT(logged, ::testing::HasSubstr("event=connections_displaced peer=127.0.0.1:"));
  EXPECT_EQ(std::count(logged.begin(), logged.end(), '\n'), 1);
  listener_.reset();
  loop_.reset();  // which use the log
  close(pipe_fds[0]);
  close(pipe_fds[1]);
}

TEST_F(ListenerTest, UsersOfAUnixSocketArePeers) {
  int pair[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
  SocketAddress address;
  address.storage.ss_family = AF_UNIX;
  EXPECT_EQ(PeerOf(pair[0], address), getuid());
  close(pair[0]);
  close(pair[1]);
}

TEST_F(ListenerTest, RefusesPeersWithoutBusyLoopWhenOutOfDescriptors) {
  Listen();
  rlimit before;
  getrlimit(RLIMIT_NOFILE, &before);
  std::vector<RawSocket> raws;
  for (int i = 0; i < 5; ++i) raws.push_back(Connect());
  std::vector<RawSocket> hoard;
  rlimit low = before;
  low.rlim_cur = 256;
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &low), 0);
  for (;;) {
    RawSocket one(dup(0));
    if (one.fd() < 0) break;
    hoard.push_back(std::move(one));
  }
  Settle(*loop_);
  EXPECT_EQ(echo_.accepted.load(), 0);
  EXPECT_EQ(loop_->counters().refused.value(), 5u);
  for (RawSocket& raw : raws) {
    raw.Receive();
    EXPECT_TRUE(raw.at_end || raw.error == ECONNRESET);
  }
  const uint64_t errors = loop_->counters().accept_errors.value();
  Settle(*loop_);
  EXPECT_EQ(loop_->counters().accept_errors.value(), errors);
  hoard.clear();
  setrlimit(RLIMIT_NOFILE, &before);
  raws.push_back(Connect());
  ASSERT_TRUE(RunUntil(*loop_, [&] { return echo_.accepted == 1; }));
}

TEST_F(ListenerTest, StopServesQueuedConnectionsAndRefusesLaterOnes) {
  Listen();
  RawSocket raw = Connect();
  listener_->Stop();
  EXPECT_TRUE(listener_->stopped());
  EXPECT_EQ(echo_.accepted.load(), 1);
  EXPECT_LT(Connect().fd(), 0);
  raw.Send("still");
  std::string got;
  ASSERT_TRUE(RunUntil(*loop_, [&] { return (got += raw.Receive()) == "still"; }));
}

}  // namespace
}  // namespace sluice::net
