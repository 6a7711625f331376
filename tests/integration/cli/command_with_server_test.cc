// The command with the real sluiced.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/integration/cli/shell.h"
#include "tests/support/server_process.h"

namespace sluice {
namespace {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;
using testing::Outcome;
using testing::ServerProcess;
using ::testing::StartsWith;

class CommandWithServerTest : public ::testing::Test {
 protected:
  void Start(const std::string& limits = "limits: [{name: api, rate: 5/s}]",
             std::vector<std::string> flags = {}) {
    server_ = std::make_unique<ServerProcess>(
        ServerProcess::Options{.limits = limits, .flags = std::move(flags)});
    setenv("SLUICE_SERVER", server_->data_address().c_str(), 1);
    setenv("SLUICE_ADMIN", server_->admin_address().c_str(), 1);
    unsetenv("SLUICE_TOKEN_FILE");
  }

  // A long deadline, for slow machines.
  static Outcome Sluice(const std::string& arguments) {
    return testing::Shell("$SLUICE --deadline 20s " + arguments);
  }

  static std::string ReceiptOf(const std::string& acquire) {
    const Outcome taken = Sluice(acquire + " --output json");
    const size_t at = taken.out.find("\"receipt\":\"");
    EXPECT_NE(at, std::string::npos) << taken.out << taken.err;
    if (at == std::string::npos) return {};
    return taken.out.substr(at + 11, taken.out.find('"', at + 11) - at - 11);
  }

  std::unique_ptr<ServerProcess> server_;
};

TEST_F(CommandWithServerTest, HealthReportsEachPortAndService) {
  Start();
  const Outcome serving = Sluice("health");
  EXPECT_EQ(serving.exit_code, 0) << serving.err;
  EXPECT_EQ(serving.out, "SERVING\n");
  EXPECT_EQ(Sluice("health sluice.v1.RateLimiter").out, "SERVING\n");
  EXPECT_EQ(Sluice("health --admin-port").out, "SERVING\n");
  EXPECT_EQ(Sluice("health --admin-port sluice.v1.LimitAdmin --output json").out,
            "{\"server\":\"" + server_->admin_address() +
                "\",\"service\":\"sluice.v1.LimitAdmin\",\"status\":\"SERVING\"}\n");
  // Each port reports only its own service.
  const Outcome unknown = Sluice("health sluice.v1.LimitAdmin");
  EXPECT_EQ(unknown.exit_code, 2);
  EXPECT_EQ(unknown.out, "");
  EXPECT_THAT(unknown.err, HasSubstr("NOT_FOUND"));
}

TEST_F(CommandWithServerTest, HealthReportsADrainingAndAStoppedServer) {
  Start("limits: [{name: api, rate: 5/s}]", {"--drain_notice=30s"});
  server_->Signal(SIGTERM);
  Outcome draining = Sluice("health");
  for (int i = 0; i < 1000 && draining.exit_code == 0; ++i) draining = Sluice("health");
  EXPECT_EQ(draining.exit_code, 1) << draining.err;
  EXPECT_EQ(draining.out, "NOT_SERVING\n");
  const Outcome admin = Sluice("health --admin-port --output json");
  EXPECT_EQ(admin.exit_code, 1) << admin.err;
  EXPECT_THAT(admin.out, HasSubstr("\"status\":\"NOT_SERVING\""));

  // Several servers: one line each, and the worst exit code.
  const ServerProcess other({});
  const Outcome both =
      Sluice("health --server " + other.data_address() + "," + server_->data_address());
  EXPECT_EQ(both.exit_code, 1);
  EXPECT_EQ(both.out,
            other.data_address() + "  SERVING\n" + server_->data_address() + "  NOT_SERVING\n");

  server_->Kill();
  const Outcome unavailable = Sluice("--deadline 2s health");
  EXPECT_EQ(unavailable.exit_code, 3);
  EXPECT_EQ(unavailable.out, "");
  EXPECT_THAT(unavailable.err, HasSubstr("UNAVAILABLE"));
  EXPECT_EQ(Sluice("--deadline 2s health --server " + other.data_address() + "," +
                   server_->data_address())
                .exit_code,
            3);
}

TEST_F(CommandWithServerTest, StatsShowBothPortsAndTheCallsOfEachMethod) {
  Start();
  ASSERT_EQ(Sluice("acquire api").exit_code, 0);
  const std::string stats = Sluice("stats --output json").out;
  EXPECT_THAT(stats, HasSubstr("\"transport\":\"data\""));
  EXPECT_THAT(stats, HasSubstr("\"transport\":\"admin\""));
  EXPECT_THAT(stats,
              HasSubstr("{\"method\":\"/sluice.v1.RateLimiter/Acquire\",\"codes\":{\"OK\":1}"));
}

// `slow` grants one permit per 400 ms; the first is stored.
constexpr char kSlow[] = "limits: [{name: slow, rate: 1/400ms, burst: 1}]";
// Slow enough to start the command again in between, on a busy machine.
constexpr char kSlower[] = "limits: [{name: slow, rate: 1/2s, burst: 1}]";

std::chrono::nanoseconds Taken(const std::function<void()>& run) {
  const auto start = std::chrono::steady_clock::now();
  run();
  return std::chrono::steady_clock::now() - start;
}

TEST_F(CommandWithServerTest, PutsAndGetsAHashTag) {
  Start();
  ASSERT_EQ(Sluice("limits put tagged --rate 5/s --hash-tag orders").exit_code, 0);
  EXPECT_THAT(Sluice("limits get tagged").out, ContainsRegex("hash_tag +orders"));
  EXPECT_THAT(Sluice("--output json limits get tagged").out,
              ContainsRegex("\"hash_tag\": ?\"orders\""));
  EXPECT_THAT(Sluice("limits get api").out, Not(HasSubstr("hash_tag")));
  const Outcome wrong = Sluice("limits put tagged --rate 5/s --hash-tag '{orders}'");
  EXPECT_EQ(wrong.exit_code, 2);
  EXPECT_THAT(wrong.err, HasSubstr("hash_tag"));
  // The limit is unchanged.
  EXPECT_THAT(Sluice("limits get tagged").out, ContainsRegex("hash_tag +orders"));
  ASSERT_EQ(Sluice("limits put tagged --rate 5/s").exit_code, 0);
  EXPECT_THAT(Sluice("limits get tagged").out, Not(HasSubstr("hash_tag")));
}

TEST_F(CommandWithServerTest, PutsAndGetsMaxWaitMinKeysAndDirect) {
  Start();
  ASSERT_EQ(Sluice("limits put all --rate 5/s --max-wait 2s --min-keys 1 --direct false").exit_code,
            0);
  const std::string got = Sluice("limits get all").out;
  EXPECT_THAT(got, ContainsRegex("max_wait +2"));
  EXPECT_THAT(got, ContainsRegex("min_keys +1"));
  EXPECT_THAT(got, ContainsRegex("direct +false"));
  EXPECT_THAT(Sluice("--output json limits get all").out,
              HasSubstr("\"max_wait_ns\":2000000000,\"min_keys\":1,\"direct\":false"));
  const Outcome wrong = Sluice("limits put all --rate 5/s --direct no");
  EXPECT_EQ(wrong.exit_code, 2);
  EXPECT_THAT(wrong.err, HasSubstr("--direct: \"no\": say true or false"));
}

TEST_F(CommandWithServerTest, PutsALimitForATimeWithAReason) {
  Start();
  EXPECT_THAT(Sluice("limits list").out, Not(HasSubstr("EXPIRES IN")));
  const Outcome put = Sluice(
      "limits put api --rate 50/s --expires-after=2h --reason=\"$(printf 'sale \\033[31m')\"");
  ASSERT_EQ(put.exit_code, 0) << put.err;
  EXPECT_THAT(put.out, ContainsRegex("expires_in +[12]h"));
  EXPECT_THAT(put.out, HasSubstr("sale \\x1b[31m")) << "not as bytes for the terminal";
  EXPECT_THAT(Sluice("limits get api").out, ContainsRegex("reason +sale"));
  const std::string list = Sluice("limits list").out;
  EXPECT_THAT(list, ContainsRegex("FROM +EXPIRES IN +REASON"));
  EXPECT_THAT(list, ContainsRegex("put, over .* [12]h[0-9m]* +sale"));
  EXPECT_THAT(Sluice("--output json limits get api").out,
              ContainsRegex("\"reason\":\"sale .*\",\"expires_in_ns\":[0-9]+"));
  for (const auto& [flags, error] :
       {std::pair("--expires-after 0", "expires_after: 0; from 1s to 365 days"),
        std::pair("--expires-after 366d", "expires_after: 8784h; from 1s to 365 days"),
        std::pair("--expires-after -2h", "--expires-after: \"-2h\" is not a duration"),
        std::pair("--reason \"$(printf 'a\\377')\"", "--reason: \"a\\xff\" is not valid UTF-8"),
        std::pair("--reason $(printf %0300d 0)", "has 300 bytes; at most 256")}) {
    const Outcome wrong = Sluice(std::string("limits put api --rate 60/s ") + flags);
    EXPECT_EQ(wrong.exit_code, 2);
    EXPECT_THAT(wrong.err, HasSubstr(error));
  }
  ASSERT_EQ(Sluice("limits put api --rate 50/s --expires-after 1s").exit_code, 0);
  EXPECT_TRUE(server_->Logs({"event=limit_expired", "limit=api"}));
  EXPECT_THAT(Sluice("limits get api").out, ContainsRegex("rate +5/s"));
}

TEST_F(CommandWithServerTest, ForcesDebitsOnALimitWithMaxOwed) {
  Start();
  ASSERT_EQ(Sluice("limits put owing --rate 5/h --max-owed 3").exit_code, 0);
  EXPECT_THAT(Sluice("limits get owing").out, ContainsRegex("max_owed +3"));
  EXPECT_THAT(Sluice("--output json limits get owing").out, HasSubstr("\"max_owed\":3,"));
  const Outcome forced = Sluice("acquire owing k --permits 10 --force");
  EXPECT_EQ(forced.exit_code, 0) << forced.err;
  EXPECT_THAT(forced.out, HasSubstr("owing k: -3 of 5 left"));
  EXPECT_THAT(forced.out, HasSubstr(", 2 forgiven (not enough permits)"));
  EXPECT_THAT(Sluice("--output json acquire owing k --permits 10 --force").out,
              HasSubstr("\"forgiven\":10"));
  EXPECT_EQ(Sluice("acquire owing k").exit_code, 1);
  EXPECT_EQ(Sluice("acquire owing k --force --wait 1s").exit_code, 2);
}

TEST_F(CommandWithServerTest, RepeatsAGrantByItsRequestId) {
  Start();
  ASSERT_EQ(Sluice("limits put payments --rate 5/h").exit_code, 0);
  const std::string ask = "acquire payments k --request-id 000102030405060708090a0b0c0d0e0f";
  EXPECT_THAT(Sluice(ask).out, HasSubstr("granted  payments k: 4 of 5 left"));
  EXPECT_THAT(Sluice(ask).out, HasSubstr("granted, as before  payments k: 4 of 5 left"));
  EXPECT_THAT(Sluice("--output json " + ask).out, HasSubstr("\"repeated\":true"));
  EXPECT_THAT(Sluice(ask + " --permits 2").err, HasSubstr("request_id: granted within"));
  EXPECT_EQ(Sluice("acquire payments k --exactly-once").exit_code, 0);
  EXPECT_EQ(Sluice("acquire payments k --exactly-once").exit_code, 0);
  EXPECT_THAT(Sluice("query payments k").out, ContainsRegex("payments +k +2 +5"));
  for (const char* bad : {"00", "000102030405060708090a0b0c0d0e0g", "x"}) {
    const Outcome refused = Sluice(std::string("acquire payments k --request-id ") + bad);
    EXPECT_EQ(refused.exit_code, 2);
    EXPECT_THAT(refused.err, HasSubstr("give 16 random bytes as 32 hex digits"));
  }
}

TEST_F(CommandWithServerTest, AcquireWithWaitSleepsUntilTheGrantTime) {
  Start(kSlower);
  EXPECT_THAT(Sluice("acquire slow k --wait 10s").out, StartsWith("granted  slow k: "));
  Outcome second;
  const auto taken = Taken([&] { second = Sluice("acquire slow k --wait 30s"); });
  EXPECT_EQ(second.exit_code, 0) << second.err;
  EXPECT_THAT(second.out, StartsWith("granted, proceed in "));
  EXPECT_THAT(second.out, HasSubstr("\nreceipt  "));
  // It slept for the printed time, at most 2 s.
  EXPECT_THAT(second.out, HasSubstr("s  slow k: "));
  EXPECT_GE(taken, std::chrono::milliseconds(1));

  const Outcome denied = Sluice("acquire slow far --permits 1 --wait 0s");
  EXPECT_EQ(denied.exit_code, 0) << denied.out;
  Start("limits: [{name: slow, rate: 1/h, burst: 1}]");
  ASSERT_EQ(Sluice("acquire slow k").exit_code, 0);
  const Outcome too_late = Sluice("acquire slow k --wait 10s");
  EXPECT_EQ(too_late.exit_code, 1);
  EXPECT_THAT(too_late.out, StartsWith("denied   retry after 59m"));
}

TEST_F(CommandWithServerTest, AcquireWithoutSleepExitsAtOnceAndCanBeRefunded) {
  Start("limits: [{name: slow, rate: 1/h, burst: 1}]");
  ASSERT_EQ(Sluice("acquire slow k").exit_code, 0);
  const Outcome place = Sluice("acquire slow k --wait 2h --no-sleep --output json");
  EXPECT_EQ(place.exit_code, 0) << place.err;
  EXPECT_THAT(place.out, HasSubstr("\"wait_ns\":3"));
  const size_t at = place.out.find("\"receipt\":\"");
  ASSERT_NE(at, std::string::npos) << place.out;
  const std::string receipt = place.out.substr(at + 11, place.out.find('"', at + 11) - at - 11);

  // All outputs show the reservation.
  EXPECT_THAT(Sluice("query slow k").out, HasSubstr("WAITING  NEXT GRANT\n"));
  EXPECT_THAT(Sluice("query slow k").out, ContainsRegex(" 1 +59m[0-9]+s\n"));
  EXPECT_THAT(Sluice("query slow k --output json").out,
              HasSubstr("\"waiting\":1,\"next_grant_after_ns\":3"));
  EXPECT_THAT(Sluice("watch slow k --count 1").out, HasSubstr(", 1 waiting, next grant in 59m"));
  EXPECT_THAT(Sluice("keys slow").out, HasSubstr("WAITING  NEXT GRANT\n"));
  EXPECT_THAT(Sluice("keys slow --output json").out,
              HasSubstr("\"waiting\":1,\"next_grant_after_ns\":3"));

  EXPECT_EQ(Sluice("refund " + receipt).exit_code, 0);
  EXPECT_THAT(Sluice("query slow k").out, Not(HasSubstr("WAITING")));
  EXPECT_EQ(Sluice("refund " + receipt).exit_code, 1);
}

TEST_F(CommandWithServerTest, RenewSaysWhichSlotsAreHeld) {
  Start("limits: [{name: jobs, algorithm: concurrency, permits: 3, hold_for: 1h}]");
  const std::string one = ReceiptOf("acquire jobs k");
  const Outcome renewed = Sluice("renew " + one);
  EXPECT_EQ(renewed.exit_code, 0) << renewed.err;
  EXPECT_EQ(renewed.out, "renewed: held for 1h00m\n");
  const std::string json = "{\"results\":[{\"outcome\":\"renewed\",\"held_for_ns\":3600000000000}";
  EXPECT_EQ(Sluice("renew " + one + " --output json").out, json + "]}\n");

  // Several, in their order: the second was ended, and the last is not one of this server.
  const std::string ended = ReceiptOf("acquire jobs k");
  ASSERT_EQ(Sluice("refund " + ended).exit_code, 0);
  const std::string all =
      "renew " + one + " " + ended + " " + ReceiptOf("acquire jobs k") + " AXN0";
  const Outcome some = Sluice(all);
  EXPECT_EQ(some.exit_code, 1) << some.err;
  EXPECT_THAT(some.out, StartsWith("renewed: held for 1h00m\n"
                                   "gone: the slots are not held any more\n"
                                   "renewed: held for 1h00m\n"
                                   "INVALID_ARGUMENT: receipt"));
  EXPECT_THAT(Sluice(all + " --output json").out,
              StartsWith(json + ",{\"outcome\":\"gone\",\"held_for_ns\":0},"
                                "{\"outcome\":\"renewed\",\"held_for_ns\":3600000000000},"
                                "{\"error\":{\"code\":\"INVALID_ARGUMENT\",\"message\":\"receipt"));

  const Outcome unreadable = Sluice("renew " + one + " no-receipt!");
  EXPECT_EQ(unreadable.exit_code, 2);
  EXPECT_EQ(unreadable.out, "");
  EXPECT_EQ(Sluice("renew").exit_code, 2);
}

TEST_F(CommandWithServerTest, SettleSaysWhatAnEstimateTook) {
  Start("limits: [{name: tokens, rate: 100/24h, max_owed: 20}]");
  const auto estimate = [&] {
    return ReceiptOf("acquire tokens k --permits 40 --settle-within 1m");
  };
  const std::string receipt = estimate();
  EXPECT_THAT(Sluice("settle " + receipt + " tokens k 45 --more").out,
              HasSubstr("settled\n  tokens  k  0 given back, 5 charged, 0 forgiven\n"));
  const Outcome falls = Sluice("settle " + receipt + " tokens k 44");
  EXPECT_NE(falls.exit_code, 0);
  EXPECT_THAT(falls.err, HasSubstr("actual[0].permits: 44, but 45 before"));
  EXPECT_EQ(Sluice("settle " + receipt + " tokens k 45").exit_code, 0);
  EXPECT_EQ(Sluice("settle " + receipt + " tokens k 46").exit_code, 1);
  EXPECT_THAT(Sluice("settle " + estimate() + " tokens k 10 --output json").out,
              HasSubstr("\"outcome\":\"settled\",\"charges\":[{\"limit\":\"tokens\",\"key\":\"k\","
                        "\"given_back\":30,\"charged\":0,\"forgiven\":0}]"));
  EXPECT_THAT(Sluice("query tokens k").out, ContainsRegex("tokens +k +45 +100"));
  EXPECT_EQ(Sluice("settle " + receipt + " tokens k").exit_code, 2);
}

TEST_F(CommandWithServerTest, HeldAcquireIsAnsweredAtTheGrantTime) {
  Start(kSlow);
  ASSERT_EQ(Sluice("acquire slow k --wait 10s --hold").exit_code, 0);
  Outcome held;
  // Two reservations in a row: the second is at least 400 ms after the first.
  const auto taken = Taken([&] {
    ASSERT_EQ(Sluice("acquire slow k --wait 30s --hold").exit_code, 0);
    held = Sluice("acquire slow k --wait 30s --hold");
  });
  EXPECT_EQ(held.exit_code, 0) << held.err;
  EXPECT_THAT(held.out, StartsWith("granted  slow k: "));
  EXPECT_GE(taken, std::chrono::milliseconds(400));
}

TEST_F(CommandWithServerTest, KillingAHeldCommandCancelsItsReservation) {
  Start("limits: [{name: slow, rate: 1/h, burst: 1}]");
  ASSERT_EQ(Sluice("acquire slow k").exit_code, 0);
  // The command is a child of this shell, so that `kill` reaches it, once it waits.
  const Outcome killed = testing::Shell(
      "$SLUICE --deadline 20s run --limit slow --key k --wait -- echo ran & p=$!; "
      "until $SLUICE --deadline 20s query slow k | grep -q WAITING; do sleep 0.05; done; "
      "kill -9 $p; wait $p 2>/dev/null; "
      "while $SLUICE --deadline 20s query slow k | grep -q WAITING; do sleep 0.05; done; "
      "echo gone");
  EXPECT_EQ(killed.out, "gone\n") << killed.err;
}

TEST_F(CommandWithServerTest, RunWaitsForItsGrantTime) {
  Start(kSlow);
  ASSERT_EQ(Sluice("acquire slow k").exit_code, 0);
  Outcome ran;
  const auto taken = Taken([&] {
    ASSERT_EQ(Sluice("run --limit slow --key k --wait -- echo one").out, "one\n");
    ran = Sluice("run --limit slow --key k --wait=30s -- sh -c 'echo two; exit 7'");
  });
  EXPECT_EQ(ran.exit_code, 7) << ran.err;
  EXPECT_EQ(ran.out, "two\n");
  EXPECT_GE(taken, std::chrono::milliseconds(400));
  Start("limits: [{name: slow, rate: 1/h, burst: 1}]");
  ASSERT_EQ(Sluice("acquire slow k").exit_code, 0);
  const Outcome denied = Sluice("run --limit slow --key k --wait 100ms -- echo ran");
  EXPECT_EQ(denied.exit_code, 1);
  EXPECT_EQ(denied.out, "");
}

}  // namespace
}  // namespace sluice
