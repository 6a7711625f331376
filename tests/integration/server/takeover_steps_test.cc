// --takeover, message by message: the test is the new process, or the old one, and stops at each
// step.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <optional>
#include <thread>

#include "common/bounds.h"
#include "common/net/listening_socket.h"
#include "server/state/fields.h"
#include "server/state/state_file.h"
#include "server/takeover/link.h"
#include "tests/integration/server/takeover_test.h"
#include "tests/support/management_server.h"

namespace sluice::testing {
namespace {

using std::chrono::milliseconds;
using takeover::Kind;
using takeover::Link;
using takeover::Message;
using ::testing::HasSubstr;

constexpr milliseconds kLong{20'000};

class StepsTest : public TakeoverTest {
 protected:
  // ---- The test is the new process.

  Link Connect() {
    const auto address = net::SocketAddress::FromNumeric({.host = "", .unix_path = socket()});
    net::Descriptor fd(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
    EXPECT_EQ(connect(fd.get(), address->get(), address->length), 0);
    return Link(std::move(fd));
  }
  static std::string Hello(uint64_t format = state::kStateVersion) {
    std::string fields;
    state::FieldWriter to(&fields);
    to.Text("test");
    to.Number(format);
    to.Number(0);
    return fields;
  }
  // All messages up to the offer.
  static std::vector<Message> TakeOffer(Link& link) {
    std::vector<Message> messages;
    EXPECT_TRUE(link.Send(Kind::kHello, Hello()).ok());
    do {
      auto message = link.Receive(kLong);
      if (!message.ok()) {
        ADD_FAILURE() << message.status();
        break;
      }
      messages.push_back(*std::move(message));
    } while (messages.back().kind == Kind::kSockets);
    EXPECT_EQ(messages.back().kind, Kind::kOffer) << messages.back().fields;
    return messages;
  }
  static Message TakeState(Link& link) {
    EXPECT_TRUE(link.Send(Kind::kHandOver).ok());
    auto message = link.Receive(kLong);
    EXPECT_TRUE(message.ok()) << message.status();
    if (!message.ok()) return {};
    EXPECT_EQ(message->kind, Kind::kState);
    return *std::move(message);
  }
  std::string RefusalOf(uint32_t version, Kind kind, const std::string& fields) {
    Link link = Connect();
    EXPECT_TRUE(link.SendAs(version, kind, fields, {}).ok());
    const auto answer = link.Receive(kLong);
    EXPECT_TRUE(answer.ok()) << answer.status();
    if (!answer.ok()) return "";
    EXPECT_EQ(answer->kind, Kind::kRefused);
    return answer->fields;
  }
  void StartWithTen() {
    StartFirst({"--state_dir=" + files_.Path("state")});
    ASSERT_TRUE(Granted("daily", "k", 10));
  }
  // The server goes on with the state that it had, and its folder.
  void ExpectGoesOn() {
    EXPECT_TRUE(server_->Logs({"event=takeover_refused"}));
    EXPECT_EQ(Remaining("daily", "k"), 90);
    EXPECT_TRUE(Granted("daily", "k", 10));
    ASSERT_NO_FATAL_FAILURE(TakeOver({"--state_dir=" + files_.Path("state")}));
    EXPECT_EQ(Remaining("daily", "k"), 80);
    server_->Signal(SIGTERM);
    EXPECT_EQ(server_->WaitForExit(), 0) << server_->log();
    StartFirst({"--state_dir=" + files_.Path("state")});
    EXPECT_EQ(Remaining("daily", "k"), 80);
  }

  // ---- The test is the old process, with what it took from a real one.

  struct Taken {
    std::vector<Message> offer;
    Message state;
  };
  // Ends the real server. Its state: 10 of 100 were taken.
  Taken TakeAll() {
    Taken taken;
    Link link = Connect();
    taken.offer = TakeOffer(link);
    taken.state = TakeState(link);
    EXPECT_TRUE(link.Send(Kind::kLoaded).ok());
    EXPECT_TRUE(link.ReceiveOnly(Kind::kYours, kLong).ok());
    EXPECT_EQ(server_->WaitForExit(), 0);
    return taken;
  }
  // Starts a server that takes over from the test, and returns once it asks for the state.
  std::unique_ptr<ServerProcess> StartAfter(Taken& taken, std::optional<Link>* link,
                                            std::vector<std::string> flags = {}) {
    const std::string path = files_.Path("fake");
    flags.push_back("--takeover=" + path);
    auto listening = net::ListeningSockets::Open({.host = "", .unix_path = path}, 1,
                                                 {.unix_type = SOCK_SEQPACKET});
    EXPECT_TRUE(listening.ok()) << listening.status();
    auto next = std::make_unique<ServerProcess>(ServerProcess::Options{.limits = kTakeoverLimits,
                                                                       .flags = std::move(flags),
                                                                       .may_fail = true,
                                                                       .in_background = true});
    const int listener = listening->sockets().front().get();
    fcntl(listener, F_SETFL, 0);  // blocking
    link->emplace(net::Descriptor(accept4(listener, nullptr, nullptr, SOCK_CLOEXEC)));
    const auto hello = (*link)->Receive(kLong);
    EXPECT_TRUE(hello.ok()) << hello.status();
    for (const Message& message : taken.offer) {
      EXPECT_TRUE((*link)->Send(message.kind, message.fields, message.descriptors).ok());
    }
    const absl::Status asked = (*link)->ReceiveOnly(Kind::kHandOver, kLong);
    EXPECT_TRUE(asked.ok()) << asked << next->log();
    return next;
  }
  void SendState(Link& link, const Taken& taken) {
    EXPECT_TRUE(link.Send(Kind::kState, {}, taken.state.descriptors).ok());
    EXPECT_TRUE(link.ReceiveOnly(Kind::kLoaded, kLong).ok());
  }
  static int Fails(ServerProcess& server, const std::string& text) {
    const int code = server.WaitForExit();
    EXPECT_THAT(server.log(), HasSubstr(text));
    EXPECT_EQ(server.out(), "") << "it was never ready";
    return code;
  }
};

TEST_F(StepsTest, MessagesThatAreWrongAreRefused) {
  StartFirst();
  EXPECT_THAT(RefusalOf(2, Kind::kHello, Hello()),
              HasSubstr("it has version 2 of the messages of a takeover, this one has 1"));
  EXPECT_THAT(RefusalOf(1, Kind::kHello, Hello(7)),
              HasSubstr("the new server reads version 7 of the state, the running one writes"));
  EXPECT_THAT(RefusalOf(1, Kind::kHello, "x"), HasSubstr("damaged: it is no greeting"));
  EXPECT_THAT(RefusalOf(1, Kind::kHello, Hello() + "x"), HasSubstr("it is no greeting"));
  EXPECT_THAT(RefusalOf(1, Kind::kLoaded, Hello()), HasSubstr("it is no greeting"));
  EXPECT_THAT(RefusalOf(1, static_cast<Kind>(99), Hello()), HasSubstr("a message is damaged"));
  Link link = Connect();
  EXPECT_TRUE(absl::IsInvalidArgument(
      link.Send(Kind::kHello, std::string(common::bounds::kMaxTakeoverMessageBytes, 'x'))));
  ASSERT_EQ(send(link.fd(), std::string(20'000, 'x').data(), 20'000, 0), 20'000);
  const auto answer = link.Receive(kLong);
  ASSERT_TRUE(answer.ok()) << answer.status();
  EXPECT_THAT(answer->fields, HasSubstr("a message is damaged: too large"));
  EXPECT_TRUE(Granted("huge", "k"));
  TakeOver();
}

TEST_F(StepsTest, AProcessOfAnotherUserIsRefused) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can be another user";
  StartFirst();
  ASSERT_EQ(chmod(socket().c_str(), 0666), 0);
  ASSERT_EQ(chmod(files_.Path("").c_str(), 0755), 0);
  const pid_t child = fork();
  if (child == 0) {
    if (setresuid(65534, 65534, 65534) != 0) _exit(2);
    const auto address = net::SocketAddress::FromNumeric({.host = "", .unix_path = socket()});
    net::Descriptor fd(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
    if (connect(fd.get(), address->get(), address->length) != 0) _exit(3);
    Link link(std::move(fd));
    const auto answer = link.Receive(kLong);
    _exit(answer.ok() && answer->kind == Kind::kRefused && answer->descriptors.empty() ? 0 : 4);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_TRUE(server_->Logs({"the other process has user 65534; it must have user 0"}));
}

TEST_F(StepsTest, AnotherServerWaitsWhileOneIsServed) {
  StartFirst();
  Link first = Connect();
  TakeOffer(first);
  Link second = Connect();
  EXPECT_TRUE(second.Send(Kind::kHello, Hello()).ok());
  EXPECT_TRUE(absl::IsDeadlineExceeded(second.Receive(milliseconds(200)).status()));
  first = Connect();  // closes its link
  const auto offer = second.Receive(kLong);
  ASSERT_TRUE(offer.ok()) << offer.status();
  EXPECT_EQ(offer->kind, Kind::kSockets);
}

TEST_F(StepsTest, TheOldServerGoesOnIfTheNewOneEndsAfterTheOffer) {
  StartWithTen();
  {
    Link link = Connect();
    TakeOffer(link);
  }
  ExpectGoesOn();
  EXPECT_THAT(server_->log(), ::testing::Not(HasSubstr("event=handing_over")));
}

TEST_F(StepsTest, TheOldServerGoesOnIfTheNewOneEndsBeforeTheState) {
  StartWithTen();
  {
    Link link = Connect();
    TakeOffer(link);
    EXPECT_TRUE(link.Send(Kind::kHandOver).ok());
  }
  ExpectGoesOn();
}

TEST_F(StepsTest, TheOldServerGoesOnIfTheNewOneEndsWithTheState) {
  StartWithTen();
  {
    Link link = Connect();
    TakeOffer(link);
    const Message state = TakeState(link);
    EXPECT_EQ(state.descriptors.size(), 2u) << "the state, and the lock of its folder";
  }
  ExpectGoesOn();
}

TEST_F(StepsTest, TheOldServerTakesTheStateBackFromADamagedMessage) {
  StartWithTen();
  Link link = Connect();
  TakeOffer(link);
  TakeState(link);
  EXPECT_TRUE(link.Send(Kind::kLoaded, "x").ok());
  EXPECT_TRUE(link.ReceiveOnly(Kind::kTakenBack, kLong).ok());
  ExpectGoesOn();
}

TEST_F(StepsTest, ClientsOfTheOldServerWaitUntilItGoesOn) {
  StartWithTen();
  Link link = Connect();
  TakeOffer(link);
  TakeState(link);
  std::atomic<bool> answered{false};
  std::thread client([&] {
    // A connection of its own: it waits in the kernel.
    const auto stub = v1::RateLimiter::NewStub(server_->DataChannel());
    EXPECT_TRUE(GrantedBy(*stub, Request("daily", "k", 5)));
    answered = true;
  });
  std::this_thread::sleep_for(milliseconds(200));
  EXPECT_FALSE(answered) << "it was served while another process had the state";
  EXPECT_TRUE(link.Send(Kind::kHello, "x").ok());
  client.join();
  EXPECT_EQ(Remaining("daily", "k"), 85);
}

TEST_F(StepsTest, ACallWhoseDeadlineEndsMeanwhileTakesNothing) {
  StartWithTen();
  Link link = Connect();
  TakeOffer(link);
  TakeState(link);
  const auto stub = v1::RateLimiter::NewStub(server_->DataChannel());
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + milliseconds(200));
  context.set_wait_for_ready(true);
  v1::AcquireResponse response;
  const grpc::Status status = stub->Acquire(&context, Request("daily", "k", 5), &response);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::DEADLINE_EXCEEDED) << status.error_message();
  EXPECT_TRUE(link.Send(Kind::kHello, "x").ok());
  EXPECT_EQ(Remaining("daily", "k"), 90);
}

TEST_F(StepsTest, TheNewServerDoesNotServeWithoutTheState) {
  StartFirst();
  Taken taken = TakeAll();
  std::optional<Link> link;
  const auto next = StartAfter(taken, &link);
  link.reset();
  EXPECT_EQ(Fails(*next, "the other process has ended, or has closed the link"), 1);
}

TEST_F(StepsTest, TheNewServerServesIfTheOldOneDiedWithItsStateSent) {
  StartFirst();
  ASSERT_TRUE(Granted("daily", "k", 10));
  Taken taken = TakeAll();
  std::optional<Link> link;
  auto next = StartAfter(taken, &link);
  SendState(*link, taken);
  link.reset();
  next->ReadUntilReady();
  ASSERT_TRUE(next->ready()) << next->log();
  UseServer(std::move(next));
  EXPECT_EQ(Remaining("daily", "k"), 90);
}

TEST_F(StepsTest, TheNewServerEndsIfTheOldOneTakesTheStateBack) {
  StartFirst();
  Taken taken = TakeAll();
  std::optional<Link> link;
  const auto next = StartAfter(taken, &link);
  SendState(*link, taken);
  EXPECT_TRUE(link->Send(Kind::kTakenBack).ok());
  link.reset();
  EXPECT_EQ(Fails(*next, "the running server goes on"), 1);
}

TEST_F(StepsTest, TheNewServerWritesNoCopyBeforeTheOldOneIsGone) {
  StartFirst();
  Taken taken = TakeAll();
  std::optional<Link> link;
  const std::vector<std::string> flags = {"--state_dir=" + files_.Path("state"),
                                          "--after_crash=trust"};
  auto next = StartAfter(taken, &link, flags);
  SendState(*link, taken);
  // It would be written in some milliseconds.
  std::this_thread::sleep_for(milliseconds(200));
  EXPECT_FALSE(std::filesystem::exists(files_.Path("state") + "/state"));
  EXPECT_TRUE(link->Send(Kind::kTakenBack).ok());
  link.reset();
  EXPECT_EQ(Fails(*next, "the running server goes on"), 1);
  EXPECT_FALSE(std::filesystem::exists(files_.Path("state") + "/state"));

  next = StartAfter(taken, &link, flags);
  SendState(*link, taken);
  EXPECT_TRUE(link->Send(Kind::kYours).ok());
  EXPECT_TRUE(next->Logs({"event=taken_over", "event=state_copied"}));
}

TEST_F(StepsTest, TheNewServerRefusesADamagedState) {
  StartFirst();
  ASSERT_TRUE(Granted("daily", "k", 10));
  Taken taken = TakeAll();
  const int whole = taken.state.descriptors[0].get();
  std::string bytes(1 << 20, '\0');
  const ssize_t size = pread(whole, bytes.data(), bytes.size(), 0);
  ASSERT_GT(size, 0);
  bytes.resize(static_cast<size_t>(size));
  bytes[bytes.size() / 2] ^= 1;
  for (const bool sealed : {false, true}) {
    const int damaged = memfd_create("damaged", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    ASSERT_EQ(write(damaged, bytes.data(), bytes.size()), size);
    if (sealed) ASSERT_EQ(fcntl(damaged, F_ADD_SEALS, F_SEAL_WRITE), 0);
    std::vector<net::Descriptor> descriptors;
    descriptors.emplace_back(damaged);
    std::optional<Link> link;
    const auto next = StartAfter(taken, &link);
    EXPECT_TRUE(link->Send(Kind::kState, {}, descriptors).ok());
    EXPECT_EQ(Fails(*next, sealed ? "its checksum is wrong" : "it can still be changed"), 1);
  }
}

// ---- Limits of a management server, which is down in the middle.

class XdsStepsTest : public StepsTest {
 protected:
  XdsStepsTest() { StartManagementServer(); }
  ~XdsStepsTest() override { StopManagementServer(); }

  void StartManagementServer() {
    management_ = std::make_unique<ScriptedManagementServer>(address());
    management_->SendToAll(ResponseOf("1", "eg", 1000));
  }
  void StopManagementServer() {
    management_.reset();
    unlink(files_.Path("xds").c_str());
  }
  std::string address() const { return "unix:" + files_.Path("xds"); }
  std::vector<std::string> WithXds() const {
    return {"--ratelimit_xds=" + address(), "--state_dir=" + files_.Path("state")};
  }
  void ExpectServes(int64_t remaining) {
    EXPECT_EQ(Remaining("daily", "k"), remaining);
    grpc::ClientContext context;
    v1::GetLimitRequest request;
    request.set_name("eg//k");
    v1::Limit response;
    const grpc::Status status = admin_->GetLimit(&context, request, &response);
    EXPECT_TRUE(status.ok()) << status.error_message();
    EXPECT_EQ(response.rate().permits(), 1000u);
  }

  std::unique_ptr<ScriptedManagementServer> management_;
};

TEST_F(XdsStepsTest, TheOldServerServesUntilTheNewOneHasAConfiguration) {
  StartFirst(WithXds());
  ASSERT_TRUE(Granted("daily", "k", 10));
  StopManagementServer();
  // Also one that may start without a configuration.
  for (const char* flag : {"--drain_notice=0s", "--ratelimit_start_without_config"}) {
    std::vector<std::string> flags = WithXds();
    flags.push_back(flag);
    std::unique_ptr<ServerProcess> next = StartNew(flags, /*in_background=*/true);
    EXPECT_TRUE(next->Logs({"event=xds_waiting"}));
    ExpectServes(90);
    next->Signal(SIGTERM);
    EXPECT_EQ(next->WaitForExit(), 0) << next->log();
    EXPECT_TRUE(server_->Logs({"event=takeover_refused"}));
    ExpectServes(90);
  }
  std::unique_ptr<ServerProcess> next = StartNew(WithXds(), /*in_background=*/true);
  EXPECT_TRUE(next->Logs({"event=xds_waiting"}));
  StartManagementServer();
  next->ReadUntilReady();
  ASSERT_TRUE(next->ready()) << next->log();
  EXPECT_EQ(server_->WaitForExit(), 0) << server_->log();
  UseServer(std::move(next));
  ExpectServes(90);
}

TEST_F(XdsStepsTest, TheNewServerThatWaitsEndsWithTheOldOne) {
  StartFirst(WithXds());
  StopManagementServer();
  const std::unique_ptr<ServerProcess> next = StartNew(WithXds(), /*in_background=*/true);
  EXPECT_TRUE(next->Logs({"event=xds_waiting"}));
  server_->Kill();
  EXPECT_EQ(Fails(*next, "the running server has ended: the management server"), 1);
}

TEST_F(XdsStepsTest, TheNewServerServesIfTheManagementServerIsDownByThen) {
  StartFirst();
  ASSERT_TRUE(Granted("daily", "k", 10));
  Taken taken = TakeAll();
  std::optional<Link> link;
  auto next = StartAfter(taken, &link, WithXds());
  StopManagementServer();
  SendState(*link, taken);
  EXPECT_TRUE(link->Send(Kind::kYours).ok());
  next->ReadUntilReady();
  ASSERT_TRUE(next->ready()) << next->log();
  UseServer(std::move(next));
  ExpectServes(90);
}

TEST_F(XdsStepsTest, TheOldServerGoesOnIfTheManagementServerIsDownByThen) {
  StartFirst(WithXds());
  ASSERT_TRUE(Granted("daily", "k", 10));
  {
    Link link = Connect();
    TakeOffer(link);
    TakeState(link);
    StopManagementServer();
  }
  EXPECT_TRUE(server_->Logs({"event=takeover_refused"}));
  ExpectServes(90);
  server_->Signal(SIGTERM);
  EXPECT_EQ(server_->WaitForExit(), 0) << server_->log();
  StartFirst({"--state_dir=" + files_.Path("state")});
  EXPECT_EQ(Remaining("daily", "k"), 90);
}

}  // namespace
}  // namespace sluice::testing
