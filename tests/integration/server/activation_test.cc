// Sockets that systemd passes (LISTEN_FDS).
#include <fcntl.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/net/listening_socket.h"
#include "tests/integration/server/takeover_test.h"

namespace sluice::testing {
namespace {

using ::testing::HasSubstr;

class ActivationTest : public TakeoverTest {
 protected:
  static net::ListeningSockets Listen(const std::string& address, int count = 1) {
    auto opened = net::ListeningSockets::Open(*net::Address::Parse(address), count, {});
    EXPECT_TRUE(opened.ok()) << opened.status();
    return *std::move(opened);
  }
  void StartWith(const std::vector<int>& sockets, const std::string& names,
                 std::vector<std::string> flags = {}) {
    Start({.limits = kTakeoverLimits,
           .flags = std::move(flags),
           .sockets = sockets,
           .socket_names = names});
    ASSERT_TRUE(server_->ready()) << server_->log();
  }
  static int FailsToStart(const std::vector<int>& sockets, const std::string& names,
                          const std::string& text, std::vector<std::string> flags = {}) {
    ServerProcess server(
        {.flags = std::move(flags), .may_fail = true, .sockets = sockets, .socket_names = names});
    EXPECT_FALSE(server.ready());
    const int code = server.WaitForExit();
    EXPECT_THAT(server.log(), HasSubstr(text));
    return code;
  }
  static int Fd(const net::ListeningSockets& sockets) { return sockets.sockets().front().get(); }
};

TEST_F(ActivationTest, UsesTheSocketsInsteadOfTheAddresses) {
  const auto data = Listen("127.0.0.1:0", 2);
  const auto admin = Listen("127.0.0.1:0");
  const auto http = Listen("unix:" + files_.Path("data.sock"));
  StartWith({data.sockets()[0].get(), Fd(http), data.sockets()[1].get(), Fd(admin)},
            "data:http:data:admin");
  EXPECT_EQ(server_->data_address(), data.address().ToString());
  EXPECT_EQ(server_->admin_address(), admin.address().ToString());
  EXPECT_EQ(server_->http_address(), http.address().ToString());
  EXPECT_TRUE(Granted("huge", "k"));
  server_->Signal(SIGTERM);
  EXPECT_EQ(server_->WaitForExit(), 0);
  EXPECT_EQ(access(files_.Path("data.sock").c_str(), F_OK), 0) << "the file is systemd's";
}

TEST_F(ActivationTest, ARestartRefusesNoConnectionAndKeepsTheState) {
  const auto data = Listen("127.0.0.1:0");
  const std::string state = "--state_dir=" + files_.Path("state");
  StartWith({Fd(data)}, "data", {state});
  ASSERT_TRUE(Granted("daily", "k", 10));
  server_->Signal(SIGTERM);
  ASSERT_EQ(server_->WaitForExit(), 0);
  // No server runs, and the connection waits.
  const net::Descriptor client(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  net::SocketAddress address = data.address();
  ASSERT_EQ(connect(client.get(), address.get(), address.length), 0);
  StartWith({Fd(data)}, "data", {state});
  constexpr char kPreface[] = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
  ASSERT_GT(send(client.get(), kPreface, sizeof(kPreface) - 1, 0), 0);
  char first = 0;
  EXPECT_EQ(recv(client.get(), &first, 1, 0), 1) << "the server's SETTINGS";
  EXPECT_EQ(Remaining("daily", "k"), 90);
}

TEST_F(ActivationTest, AServerWithSystemdsSocketsHandsThemOver) {
  const auto data = Listen("127.0.0.1:0");
  StartWith({Fd(data)}, "data", Flags());
  ASSERT_TRUE(Granted("daily", "k", 10));
  ASSERT_NO_FATAL_FAILURE(TakeOver({"--listen=" + data.address().ToString()}));
  EXPECT_EQ(Remaining("daily", "k"), 90);
}

TEST_F(ActivationTest, WrongSocketsAreRefused) {
  const auto data = Listen("127.0.0.1:0");
  const auto other = Listen("127.0.0.1:0");
  EXPECT_EQ(FailsToStart({Fd(data)}, "sluiced.socket",
                         "LISTEN_FDNAMES: descriptor 3 is named \"sluiced.socket\"; name the port "
                         "that it is for (FileDescriptorName=): data, admin, http"),
            2);
  EXPECT_EQ(FailsToStart({Fd(data)}, "metrics", "is named \"metrics\""), 2)
      << "there is no such port";
  EXPECT_EQ(FailsToStart({Fd(data), Fd(other)}, "data", "descriptor 4 is named \"\""), 2);
  EXPECT_EQ(
      FailsToStart({Fd(data), Fd(other)}, "data:data",
                   "LISTEN_FDS: the socket \"data\": it listens on " + other.address().ToString() +
                       ", and another socket of the port on " + data.address().ToString()),
      2);
  const net::Descriptor idle(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  EXPECT_EQ(FailsToStart({idle.get()}, "data", "the socket \"data\": it does not listen"), 2);
  const net::Descriptor packets(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  EXPECT_EQ(FailsToStart({packets.get()}, "data",
                         "it is a socket of type 2; pass a stream socket (ListenStream=)"),
            2);
  const net::Descriptor file(open("/dev/null", O_RDONLY | O_CLOEXEC));
  EXPECT_EQ(FailsToStart({file.get()}, "data", "it is not a socket"), 2);
}

TEST_F(ActivationTest, AnAdminSocketThatLeavesTheMachineNeedsAToken) {
  const auto admin = Listen("0.0.0.0:0");
  EXPECT_EQ(FailsToStart({Fd(admin)}, "admin",
                         "--admin_listen=" + admin.address().ToString() + ": leaves this machine"),
            2);
}

}  // namespace
}  // namespace sluice::testing
