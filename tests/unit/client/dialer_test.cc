// A Dialer among the addresses of a name: refused, silent and wrong ones before the right one.
#include "client/src/transport/dialer.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

namespace sluice::client_internal {
namespace {

using std::chrono::milliseconds;
using std::chrono::minutes;
using std::chrono::steady_clock;
using ::testing::AllOf;
using ::testing::HasSubstr;

// A TCP port on an address of the loopback network.
class Port {
 public:
  enum class Kind {
    kListening,
    kRefused,  // bound, but not listening
    kSilent,   // leaves connects without an answer: its queue is full
  };

  explicit Port(Kind kind, const std::string& ip = "127.0.0.1") {
    fd_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    auto* const in = reinterpret_cast<sockaddr_in*>(&address_.storage);
    in->sin_family = AF_INET;
    inet_pton(AF_INET, ip.c_str(), &in->sin_addr);
    address_.size = sizeof(sockaddr_in);
    auto* const generic = reinterpret_cast<sockaddr*>(in);
    if (bind(fd_, generic, address_.size) != 0) std::abort();
    getsockname(fd_, generic, &address_.size);
    address_.text = ip + ":" + std::to_string(ntohs(in->sin_port));
    if (kind != Kind::kRefused) listen(fd_, kind == Kind::kSilent ? 0 : 16);
    if (kind == Kind::kSilent) FillQueue(generic);
  }
  ~Port() {
    for (const int fd : queued_) close(fd);
    close(fd_);
  }
  Port(const Port&) = delete;
  Port& operator=(const Port&) = delete;

  const SocketAddress& address() const { return address_; }
  const std::string& text() const { return address_.text; }

 private:
  void FillQueue(const sockaddr* to) {
    for (int i = 0; i < 4; ++i) {
      const int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
      connect(fd, to, address_.size);
      queued_.push_back(fd);
    }
  }

  int fd_ = -1;
  SocketAddress address_;
  std::vector<int> queued_;
};

class DialerTest : public ::testing::Test {
 protected:
  // Dials a name with these addresses.
  Status Dial(std::vector<const Port*> ports, const Dialer::Greet& greet,
              std::chrono::nanoseconds timeout = minutes(1)) {
    const Dialer dialer(*ServerAddress::Parse("sluice.example:7200"), {}, nullptr,
                        [&](const ServerAddress& server) -> Result<std::vector<SocketAddress>> {
                          EXPECT_EQ(server.host, "sluice.example");
                          std::vector<SocketAddress> addresses;
                          for (const Port* port : ports) addresses.push_back(port->address());
                          return addresses;
                        });
    return dialer.Dial(steady_clock::now() + timeout, cancel_, greet);
  }
  Status Dial(std::vector<const Port*> ports, std::chrono::nanoseconds timeout = minutes(1)) {
    return Dial(
        std::move(ports),
        [this](std::unique_ptr<Channel> channel, TimePoint) {
          connected_ = PeerOf(*channel);
          return Status();
        },
        timeout);
  }
  static std::string PeerOf(const Channel& channel) {
    sockaddr_in peer = {};
    socklen_t size = sizeof(peer);
    getpeername(channel.fd(), reinterpret_cast<sockaddr*>(&peer), &size);
    char ip[INET_ADDRSTRLEN];
    inet_ntop(AF_INET, &peer.sin_addr, ip, sizeof(ip));
    return std::string(ip) + ":" + std::to_string(ntohs(peer.sin_port));
  }

  DialCancel cancel_;
  std::string connected_;
};

TEST_F(DialerTest, TakesTheFirstAddressThatConnects) {
  const Port refused(Port::Kind::kRefused);
  const Port first(Port::Kind::kListening, "127.0.0.2");
  const Port second(Port::Kind::kListening, "127.0.0.3");
  EXPECT_TRUE(Dial({&refused, &first, &second}).ok());
  EXPECT_EQ(connected_, first.text());
}

TEST_F(DialerTest, DoesNotWaitForASilentAddress) {
  const Port silent(Port::Kind::kSilent);
  const Port other(Port::Kind::kListening, "127.0.0.2");
  EXPECT_TRUE(Dial({&silent, &other}).ok());
  EXPECT_EQ(connected_, other.text());
}

TEST_F(DialerTest, TriesTheNextAddressAfterAServerThatIsNotAccepted) {
  const Port wrong(Port::Kind::kListening);
  const Port right(Port::Kind::kListening, "127.0.0.2");
  std::vector<std::string> greeted;
  const Status status = Dial({&wrong, &right}, [&](std::unique_ptr<Channel> channel, TimePoint) {
    greeted.push_back(PeerOf(*channel));
    return greeted.size() == 1 ? Status(StatusCode::kUnavailable, "no HTTP/2") : Status();
  });
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_EQ(greeted, (std::vector<std::string>{wrong.text(), right.text()}));
}

TEST_F(DialerTest, LeavesTimeForTheAddressesAfterAServerThatSaysNothing) {
  const Port mute(Port::Kind::kListening);
  const Port other(Port::Kind::kListening, "127.0.0.2");
  std::vector<TimePoint> deadlines;
  const TimePoint start = steady_clock::now();
  const Status status = Dial({&mute, &other}, [&](std::unique_ptr<Channel>, TimePoint deadline) {
    deadlines.push_back(deadline);
    return deadlines.size() == 1 ? Status(StatusCode::kUnavailable, "no answer in time") : Status();
  });
  EXPECT_TRUE(status.ok()) << status;
  ASSERT_EQ(deadlines.size(), 2u);
  EXPECT_LT(deadlines[0], deadlines[1]);
  EXPECT_GE(deadlines[1], start + minutes(1));
}

TEST_F(DialerTest, TriesASilentAddressAgainThatAnswersLater) {
  const Port silent(Port::Kind::kSilent);
  const Port wrong(Port::Kind::kListening, "127.0.0.2");
  const Status status = Dial(
      {&silent, &wrong},
      [](const std::unique_ptr<Channel>&, TimePoint) {
        return Status(StatusCode::kUnavailable, "wrong");
      },
      milliseconds(600));
  EXPECT_EQ(status.code(), StatusCode::kUnavailable);
  EXPECT_THAT(status.message(), AllOf(HasSubstr(wrong.text() + ": wrong"),
                                      HasSubstr(silent.text() + ": no answer in time")));
}

TEST_F(DialerTest, ErrorHasTheCauseOfEachAddress) {
  const Port one(Port::Kind::kRefused);
  const Port two(Port::Kind::kRefused, "127.0.0.2");
  const Status status = Dial({&one, &two});
  EXPECT_EQ(status.code(), StatusCode::kUnavailable);
  EXPECT_FALSE(status.may_have_executed());
  EXPECT_THAT(status.message(), AllOf(HasSubstr("cannot connect to sluice.example:7200"),
                                      HasSubstr(one.text() + ": Connection refused"),
                                      HasSubstr(two.text() + ": Connection refused"),
                                      HasSubstr("start sluiced there")));
}

TEST_F(DialerTest, EndsAtTheDeadline) {
  const Port silent(Port::Kind::kSilent);
  const Status status = Dial({&silent}, milliseconds(50));
  EXPECT_EQ(status.code(), StatusCode::kUnavailable);
  EXPECT_THAT(status.message(), HasSubstr(silent.text() + ": no answer in time"));
}

TEST_F(DialerTest, EndsWhenItIsCancelled) {
  const Port silent(Port::Kind::kSilent);
  std::thread canceller([&] { cancel_.Cancel(); });
  const Status status = Dial({&silent}, minutes(10));
  canceller.join();
  EXPECT_EQ(status.code(), StatusCode::kUnavailable);
  EXPECT_THAT(status.message(), HasSubstr("the client was shut down"));
}

TEST_F(DialerTest, LooksTheNameUpForEachDial) {
  int lookups = 0;
  const Dialer dialer(*ServerAddress::Parse("sluice.example:7200"), {}, nullptr,
                      [&](const ServerAddress&) -> Result<std::vector<SocketAddress>> {
                        return Status(StatusCode::kUnavailable,
                                      "no answer " + std::to_string(++lookups));
                      });
  for (const char* cause : {"no answer 1", "no answer 2"}) {
    const Status status =
        dialer.Dial(steady_clock::now() + minutes(1), cancel_,
                    [](const std::unique_ptr<Channel>&, TimePoint) { return Status(); });
    EXPECT_EQ(status.code(), StatusCode::kUnavailable);
    EXPECT_THAT(status.message(), HasSubstr(cause));
  }
}

TEST(ResolveTest, FindsNumericAddresses) {
  for (const std::string address : {"127.0.0.1:7200", "[::1]:7200"}) {
    const auto found = Resolve(*ServerAddress::Parse(address));
    ASSERT_TRUE(found.ok()) << found.status();
    ASSERT_EQ(found->size(), 1u);
    EXPECT_EQ(found->front().text, address);
  }
}

}  // namespace
}  // namespace sluice::client_internal
