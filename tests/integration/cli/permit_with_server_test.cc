// Permits and `sluice run` with the real sluiced: callers that are killed, stopped or cut off.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "sluice/admin_client.h"
#include "sluice/client.h"
#include "tests/integration/cli/shell.h"
#include "tests/support/server_process.h"
#include "tests/support/threads_named.h"

namespace sluice {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using testing::Outcome;
using testing::ServerProcess;
using testing::Shell;
using testing::ThreadsNamed;

// `jobs` is renewed every 1.7 s.
constexpr char kLimits[] =
    "limits: [{name: jobs, algorithm: concurrency, permits: 1, hold_for: 5s}, "
    "{name: long, algorithm: concurrency, permits: 1, hold_for: 60s}, "
    "{name: many, algorithm: concurrency, permits: 100000, hold_for: 60s}]";

class PermitWithServerTest : public ::testing::Test {
 protected:
  PermitWithServerTest() { Start(); }
  ~PermitWithServerTest() override {
    server_.reset();
    unlink(folder_.Path("data.sock").c_str());
  }

  void Start() {
    server_ = std::make_unique<ServerProcess>(ServerProcess::Options{
        .limits = kLimits, .flags = {"--listen=unix:" + folder_.Path("data.sock")}});
    setenv("SLUICE_SERVER", ("unix:" + folder_.Path("data.sock")).c_str(), 1);
    setenv("SLUICE_ADMIN", server_->admin_address().c_str(), 1);
    unsetenv("SLUICE_TOKEN_FILE");
  }
  Client MakeClient() {
    ClientOptions options;
    options.servers = {"unix:" + folder_.Path("data.sock")};
    options.deadline = std::chrono::seconds(20);
    return std::move(Client::Create(std::move(options))).value();
  }
  // Waits until another caller gets the slot.
  static Permit TakeWhenFree(Client& client, const std::string& limit) {
    for (;;) {
      Result<Permit> permit = client.AcquirePermit(Acquisition(limit, "k"));
      EXPECT_TRUE(permit.ok()) << permit.status();
      if (!permit.ok() || permit->held()) return *std::move(permit);
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
  }

  testing::TestFiles folder_;
  std::unique_ptr<ServerProcess> server_;
};

// A promise that on_lost keeps.
struct Loss {
  PermitOptions options() {
    return {.on_lost = [this](const Status& why) { why_.set_value(why); }};
  }
  Status Wait() { return why_.get_future().get(); }

 private:
  std::promise<Status> why_;
};

TEST_F(PermitWithServerTest, HoldsASlotForLongerThanHoldFor) {
  Client client = MakeClient();
  {
    const Result<Permit> permit = client.AcquirePermit(Acquisition("jobs", "k"));
    ASSERT_TRUE(permit.ok()) << permit.status();
    ASSERT_TRUE(permit->held());
    std::this_thread::sleep_for(std::chrono::seconds(6));
    // Whatever the machine does meanwhile, it does not take for held what the server took back.
    const Result<Permit> other = client.AcquirePermit(Acquisition("jobs", "k"));
    ASSERT_TRUE(other.ok());
    EXPECT_FALSE(other->held() && permit->held());
  }
  EXPECT_TRUE(TakeWhenFree(client, "jobs").held());
}

// A thread that has ended for the program ends a moment later for the kernel.
void AwaitNoTimer() {
  while (ThreadsNamed("sluice-renew") != 0) std::this_thread::yield();
}

TEST_F(PermitWithServerTest, AllClientsOfAProgramShareOneTimer) {
  AwaitNoTimer();
  {
    std::vector<Client> clients;
    std::vector<Permit> permits;
    for (const char* key : {"a", "b", "c"}) {
      clients.push_back(MakeClient());
      Result<Permit> permit = clients.back().AcquirePermit(Acquisition("jobs", key));
      ASSERT_TRUE(permit.ok() && permit->held());
      permits.push_back(*std::move(permit));
    }
    // Each is renewed.
    for (Permit& permit : permits) {
      for (auto left = permit.left(); permit.left() <= left;) {
        left = permit.left();
        ASSERT_TRUE(permit.held());
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
      }
    }
    EXPECT_EQ(ThreadsNamed("sluice-renew"), 1u);
    // The others are not disturbed when a client ends.
    permits.erase(permits.begin());
    clients.erase(clients.begin());
    EXPECT_EQ(ThreadsNamed("sluice-renew"), 1u);
    for (const Permit& permit : permits) EXPECT_TRUE(permit.held());
  }
  AwaitNoTimer();
}

TEST_F(PermitWithServerTest, ReleaseFreesTheSlotAtOnce) {
  Client client = MakeClient();
  for (int i = 0; i < 3; ++i) {
    Result<Permit> permit = client.AcquirePermit(Acquisition("long", "k"));
    ASSERT_TRUE(permit.ok() && permit->held());
    EXPECT_FALSE(client.AcquirePermit(Acquisition("long", "k"))->held());
    EXPECT_TRUE(permit->Release().ok());
  }
}

TEST_F(PermitWithServerTest, IsLostWhenTheServerStartsAgainWithoutItsState) {
  Client client = MakeClient();
  Loss loss;
  const Result<Permit> permit = client.AcquirePermit(Acquisition("jobs", "k"), loss.options());
  ASSERT_TRUE(permit.ok() && permit->held());
  server_->Kill();
  Start();
  const Status why = loss.Wait();
  EXPECT_FALSE(permit->held());
  EXPECT_EQ(permit->lost(), why);
  EXPECT_TRUE(TakeWhenFree(client, "jobs").held());
}

TEST_F(PermitWithServerTest, IsLostWhenTheServerHangs) {
  Client client = MakeClient();
  Loss loss;
  const Result<Permit> permit = client.AcquirePermit(Acquisition("jobs", "k"), loss.options());
  ASSERT_TRUE(permit.ok() && permit->held());
  server_->Signal(SIGSTOP);
  EXPECT_THAT(loss.Wait().message(), HasSubstr("not renewed in time"));
  EXPECT_FALSE(permit->held());
  server_->Signal(SIGCONT);
  EXPECT_FALSE(permit->held());
}

TEST_F(PermitWithServerTest, IsLostWhenAnAdminTakesTheSlotBack) {
  Client client = MakeClient();
  Result<AdminClient> admin = AdminClient::Create({.server = server_->admin_address()});
  ASSERT_TRUE(admin.ok());
  Loss loss;
  const Result<Permit> permit = client.AcquirePermit(Acquisition("jobs", "k"), loss.options());
  ASSERT_TRUE(permit.ok() && permit->held());
  const auto holds = admin->ListHolds("jobs", "k");
  ASSERT_TRUE(holds.ok() && holds->holds.size() == 1u);
  ASSERT_TRUE(admin->EndHold("jobs", "k", holds->holds[0].id).ok());
  EXPECT_FALSE(loss.Wait().ok());
  EXPECT_FALSE(permit->held());
}

TEST_F(PermitWithServerTest, SixteenThreadsHoldThousandsOfSlots) {
  constexpr int kThreads = 16;
  Client client = MakeClient();
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      std::vector<Permit> kept;
      for (int i = 0; i < 250; ++i) {
        Result<Permit> permit =
            client.AcquirePermit(Acquisition("many", std::to_string(i % 7)),
                                 {.on_lost = [](const Status& why) { ADD_FAILURE() << why; }});
        ASSERT_TRUE(permit.ok() && permit->held());
        if (i % 3 == t % 3) kept.push_back(*std::move(permit));
        if (kept.size() > 50) kept.erase(kept.begin());
        for (const Permit& one : kept) ASSERT_TRUE(one.held());
      }
      for (Permit& one : kept) EXPECT_TRUE(one.Release().ok());
    });
  }
  for (std::thread& thread : threads) thread.join();
  Result<AdminClient> admin = AdminClient::Create({.server = server_->admin_address()});
  // Destructors end slots in the background.
  for (int key = 0; key < 7; ++key) {
    while (admin->ListHolds("many", std::to_string(key))->total != 0) std::this_thread::yield();
  }
}

TEST_F(PermitWithServerTest, RunHoldsTheSlotWhileTheCommandRuns) {
  const Outcome ran = Shell(
      "$SLUICE --deadline 20s run --limit long --key k -- "
      "sh -c '$SLUICE run --limit long --key k -- echo both; echo inner $?; exit 7'");
  EXPECT_EQ(ran.exit_code, 7) << ran.err;
  EXPECT_EQ(ran.out, "inner 1\n");
  EXPECT_THAT(ran.err, HasSubstr("denied"));
  EXPECT_THAT(ran.err, Not(HasSubstr("lost")));
  // It was given back, also by a command that cannot be run.
  EXPECT_EQ(Shell("$SLUICE --deadline 20s run --limit long --key k -- /no/such").exit_code, 127);
  EXPECT_EQ(Shell("$SLUICE --deadline 20s run --limit long --key k -- true").exit_code, 0);
  EXPECT_EQ(Shell("$SLUICE run --limit long --on-lost kill -- true").exit_code, 2);
}

TEST_F(PermitWithServerTest, RunPassesSignalsOn) {
  const Outcome ran = Shell(
      "cd $(mktemp -d); $SLUICE --deadline 20s run --limit long -- "
      "sh -c 'trap \"exit 9\" TERM; touch ready; while :; do sleep 0.05; done' & p=$!; "
      "until [ -e ready ]; do sleep 0.05; done; kill -TERM $p; wait $p");
  EXPECT_EQ(ran.exit_code, 9) << ran.err;
}

TEST_F(PermitWithServerTest, RunLeavesIgnoredSignalsIgnored) {
  const Outcome ran = Shell(
      "trap '' HUP INT QUIT; $SLUICE --deadline 20s run --limit long -- "
      "sh -c 'for s in HUP INT QUIT; do kill -$s $PPID; kill -$s $$; done; exit 6'");
  EXPECT_EQ(ran.exit_code, 6) << ran.err;
}

TEST_F(PermitWithServerTest, RunEndsTheCommandWhenTheSlotIsLost) {
  const std::string end_it =
      "until id=$($SLUICE --deadline 20s holds jobs k --output json | "
      "grep -o '\"id\":[0-9]*'); do sleep 0.05; done; "
      "$SLUICE --deadline 20s holds jobs k --end ${id#*:}; ";
  const Outcome ended =
      Shell("$SLUICE --deadline 20s run --limit jobs --key k -- sleep 1000 & p=$!; " + end_it +
            "wait $p");
  EXPECT_EQ(ended.exit_code, 128 + SIGTERM);
  EXPECT_THAT(ended.err, HasSubstr("lost the slots, ending the command: the server has taken"));
  const Outcome ignored = Shell(
      "cd $(mktemp -d); $SLUICE --deadline 20s run --limit jobs --key k --on-lost ignore -- "
      "sh -c 'until [ -e over ]; do sleep 0.05; done; exit 5' 2>err & p=$!; " +
      end_it +
      "until grep 'lost the slots, the command goes on' err; do sleep 0.05; done; "
      "touch over; wait $p");
  EXPECT_EQ(ignored.exit_code, 5) << ignored.err;
}

// Stopped past its end and continued: the slot is another caller's, so the command must not go on.
TEST_F(PermitWithServerTest, RunThatWasStoppedEndsItsCommand) {
  const Outcome woken = Shell(
      "cd $(mktemp -d); $SLUICE --deadline 20s run --limit jobs --key k -- "
      "sh -c 'touch ready; exec sleep 1000' & p=$!; "
      "until [ -e ready ]; do sleep 0.05; done; kill -STOP $p; "
      "until $SLUICE --deadline 20s acquire jobs k; do sleep 0.05; done; kill -CONT $p; wait $p");
  EXPECT_EQ(woken.exit_code, 128 + SIGTERM);
  EXPECT_THAT(woken.err, HasSubstr("lost the slots, ending the command"));
}

TEST_F(PermitWithServerTest, ASlotOfAKilledCallerComesBackAfterHoldForAndNotBefore) {
  const Outcome killed = Shell(
      "cd $(mktemp -d); $SLUICE --deadline 20s run --limit jobs --key k -- "
      "sh -c 'echo $$ > ready; exec sleep 1000' & p=$!; "
      "until [ -s ready ]; do sleep 0.05; done; kill -KILL $p; "
      "$SLUICE --deadline 20s holds jobs k; "
      // Its command ends with it.
      "while kill -0 $(cat ready); do sleep 0.05; done 2>/dev/null");
  EXPECT_THAT(killed.out, HasSubstr("1 of 1 permits are held, by 1 acquisitions"));
  Client client = MakeClient();
  EXPECT_TRUE(TakeWhenFree(client, "jobs").held());
}

}  // namespace
}  // namespace sluice
