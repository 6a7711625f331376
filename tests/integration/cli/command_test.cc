// The command's output, exit codes and error messages, with a stand-in server.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

#include "tests/integration/cli/shell.h"
#include "tests/integration/cli/stand_in_server.h"

namespace sluice {
namespace {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;
using testing::Outcome;
using testing::Shell;
using testing::StandInServer;
using ::testing::StartsWith;

class CommandTest : public ::testing::Test {
 protected:
  CommandTest() {
    setenv("SLUICE_SERVER", server_.address().c_str(), 1);
    setenv("SLUICE_ADMIN", server_.admin_address().c_str(), 1);
    unsetenv("SLUICE_TOKEN_FILE");
    unsetenv("SLUICE_ADMIN_TOKEN_FILE");
  }

  // A long deadline, for slow machines.
  Outcome Sluice(const std::string& arguments) {
    return Shell("$SLUICE --deadline 20s " + arguments);
  }

  StandInServer server_;
};

TEST_F(CommandTest, AcquireExitCodeIsTheDecision) {
  const Outcome granted = Sluice("acquire api user:42 --permits 10");
  EXPECT_EQ(granted.exit_code, 0) << granted.err;
  EXPECT_EQ(granted.out, "granted  api user:42: 0 of 10 left, full in 1m30s\n");
  const Outcome denied = Sluice("acquire api user:42");
  EXPECT_EQ(denied.exit_code, 1);
  EXPECT_EQ(denied.out,
            "denied   retry after 250ms  api user:42: 0 of 10 left, full in 1m30s "
            "(not enough permits)\n");
}

TEST_F(CommandTest, AcquireErrorOfTheServerExitsTwo) {
  const Outcome missing = Sluice("acquire missing");
  EXPECT_EQ(missing.exit_code, 2);
  EXPECT_EQ(missing.out, "");
  EXPECT_EQ(missing.err, "sluice: NOT_FOUND: limit \"missing\" is not configured\n");
}

TEST_F(CommandTest, UnavailableServerExitsThree) {
  server_.Kill();
  const Outcome unavailable = Sluice("--deadline 2s acquire api");
  EXPECT_EQ(unavailable.exit_code, 3) << unavailable.out << unavailable.err;
  EXPECT_THAT(unavailable.out + unavailable.err, HasSubstr("start sluiced there"));
  EXPECT_THAT(unavailable.out + unavailable.err, HasSubstr("(--server)"));
  for (const char* admin : {"limits list", "health --admin-port"}) {
    const Outcome failed = Sluice("--deadline 2s --admin 127.0.0.1:1 " + std::string(admin));
    EXPECT_THAT(failed.err, HasSubstr("name the server in AdminOptions::server (--admin)"));
    EXPECT_THAT(failed.err, Not(HasSubstr("--server)")));
  }
  EXPECT_THAT(unavailable.out, StartsWith("denied   api  (no server decided: UNAVAILABLE"));
  EXPECT_THAT(unavailable.out, Not(HasSubstr("may have been taken")));
  const Outcome allowed = Sluice("--deadline 2s acquire api --on-unavailable allow");
  EXPECT_EQ(allowed.exit_code, 0);
  EXPECT_THAT(allowed.out, StartsWith("granted  api  (no server decided"));
  EXPECT_EQ(Sluice("--deadline 2s query api").exit_code, 3);
  EXPECT_EQ(Sluice("--deadline 2s limits list").exit_code, 3);
  EXPECT_EQ(Sluice("--deadline 2s watch api").exit_code, 3);
  EXPECT_EQ(Sluice("--deadline 2s bench api").exit_code, 3);
  EXPECT_EQ(Sluice("--deadline 2s run --limit api -- true").exit_code, 3);
  EXPECT_EQ(Shell("echo api | $SLUICE --deadline 2s batch").exit_code, 3);
}

TEST_F(CommandTest, HangingServerExitsThreeAndWarnsThatPermitsMayBeTaken) {
  server_.SetHanging(true);
  const Outcome hung = Sluice("--deadline 300ms acquire api");
  EXPECT_EQ(hung.exit_code, 3);
  EXPECT_THAT(hung.out, HasSubstr("DEADLINE_EXCEEDED"));
  EXPECT_THAT(hung.out, HasSubstr("(permits may have been taken)"));
  server_.SetHanging(false);
}

TEST_F(CommandTest, AcquireAsJsonHasStableNames) {
  const Outcome granted = Sluice("acquire api user:42 --output json");
  EXPECT_EQ(granted.out,
            "{\"granted\":true,\"source\":\"store\",\"retry_after_ns\":0,\"wait_ns\":0,\"charges\":"
            "[{\"limit\":"
            "\"api\",\"key\":\"user:42\",\"permits\":1,\"requested\":true,\"remaining\":9,"
            "\"capacity\":10,\"reset_after_ns\":90000000000,\"reason\":\"\"}]}\n");
  const Outcome missing = Sluice("acquire missing --output json");
  EXPECT_EQ(missing.exit_code, 2);
  EXPECT_EQ(missing.out,
            "{\"error\":{\"code\":\"NOT_FOUND\",\"message\":\"limit \\\"missing\\\" is not "
            "configured\",\"may_have_executed\":false}}\n");
}

TEST_F(CommandTest, TakesSeveralChargesAllOrNone) {
  const Outcome both = Sluice("acquire api a --charge 'egress \"\" 10'");
  EXPECT_EQ(both.exit_code, 0) << both.err;
  EXPECT_THAT(both.out, HasSubstr("api a: 9 of 10 left"));
  EXPECT_THAT(both.out, HasSubstr("egress: 0 of 10 left"));
  EXPECT_EQ(Sluice("acquire --charge 'api a' --charge egress").exit_code, 1);
  EXPECT_THAT(Sluice("query api a").out, HasSubstr("9"));
}

TEST_F(CommandTest, RefundsAReceiptOnce) {
  const Outcome granted = Sluice("acquire api a --receipt");
  ASSERT_THAT(granted.out, HasSubstr("\nreceipt  "));
  std::string receipt = granted.out.substr(granted.out.find("receipt  ") + 9);
  receipt.pop_back();
  const Outcome first = Sluice("refund " + receipt);
  EXPECT_EQ(first.exit_code, 0) << first.err;
  EXPECT_EQ(first.out, "refunded\n  api  a  1 permits\n");
  const Outcome second = Sluice("refund " + receipt);
  EXPECT_EQ(second.exit_code, 1);
  EXPECT_EQ(second.out, "refunded before; nothing changed\n");
  EXPECT_EQ(Sluice("refund " + receipt + " --output json").out,
            "{\"outcome\":\"already_refunded\",\"attempts\":1,\"charges\":[]}\n");
  EXPECT_EQ(Sluice("refund Zm9yZ2Vk").exit_code, 2);
  EXPECT_THAT(Sluice("refund 'not!base64'").err, HasSubstr("not base64url"));
}

TEST_F(CommandTest, QueryShowsATable) {
  const Outcome table = Sluice("query api a --bucket 'api b'");
  EXPECT_EQ(table.exit_code, 0);
  EXPECT_EQ(table.out,
            "LIMIT  KEY  LEFT  OF  NEXT  FULL IN\n"
            "api    a      10  10   now     full  (not in use)\n"
            "api    b      10  10   now     full  (not in use)\n");
  EXPECT_THAT(Sluice("query api --output json").out,
              HasSubstr("{\"buckets\":[{\"limit\":\"api\",\"key\":\"\",\"remaining\":10,"));
  EXPECT_EQ(Sluice("query missing").exit_code, 2);
}

TEST_F(CommandTest, WatchPrintsALineForEachChangeWithoutATerminal) {
  EXPECT_EQ(Sluice("watch api a --count 1").out, "api  a  10 of 10 left\n");
  EXPECT_THAT(Sluice("watch api a --count 1 --output json").out, HasSubstr("\"remaining\":10"));
  const Outcome two = Shell(
      "$SLUICE watch api a --count 2 --interval 10ms & while ! $SLUICE acquire api a >/dev/null; "
      "do :; done; sleep 0.2; $SLUICE acquire api a >/dev/null; wait");
  EXPECT_THAT(two.out, HasSubstr("of 10 left\napi  a  "));
}

TEST_F(CommandTest, WatchRedrawsInPlaceOnATerminal) {
  // script(1) gives the command a terminal.
  if (Shell("command -v script").exit_code != 0) GTEST_SKIP() << "no script(1)";
  const Outcome drawn = Shell(
      "(sleep 0.5; $SLUICE acquire api a >/dev/null) & script -qec '\"$SLUICE\" watch api a "
      "--count 2 --interval 10ms' /dev/null; wait");
  EXPECT_THAT(drawn.out, HasSubstr("\x1b[2A\x1b[J"));
}

TEST_F(CommandTest, BatchReadsPlainLinesAndJson) {
  const Outcome batch = Shell(
      "printf '# comment\\n\\napi a 10\\n{\"limit\": \"api\", \"key\": \"b c\"}\\napi a\\n' | "
      "$SLUICE --deadline 20s batch");
  EXPECT_EQ(batch.exit_code, 1);
  EXPECT_THAT(batch.out, StartsWith("granted  api a: 0 of 10 left"));
  EXPECT_THAT(batch.out, HasSubstr("granted  api b c: 9 of 10 left"));
  EXPECT_THAT(batch.out, HasSubstr("denied   retry after 250ms"));
  EXPECT_EQ(batch.err, "2 granted, 1 denied, 0 undecided, 0 errors\n");
}

TEST_F(CommandTest, BatchAnswersInOrderWithInvalidLinesInBetween) {
  const Outcome batch =
      Shell("printf 'api\\na b c d\\nmissing\\napi\\n' | $SLUICE --deadline 20s batch");
  EXPECT_EQ(batch.exit_code, 2);
  EXPECT_EQ(batch.out,
            "granted  api: 9 of 10 left, full in 1m30s\n"
            "error    line 2: INVALID_ARGUMENT: \"a b c d\": write LIMIT [KEY [PERMITS]], or JSON "
            "for a key with spaces\n"
            "error    line 3: NOT_FOUND: limit \"missing\" is not configured\n"
            "granted  api: 8 of 10 left, full in 1m30s\n");
  const Outcome json =
      Shell("printf 'api\\nmissing\\n' | $SLUICE --deadline 20s batch --output json --batch 1");
  EXPECT_THAT(json.out, HasSubstr("{\"line\":1,\"decision\":{\"granted\":true"));
  EXPECT_THAT(json.out, HasSubstr("{\"line\":2,\"error\":{\"code\":\"NOT_FOUND\""));
  EXPECT_EQ(Sluice("batch /no/such/file").exit_code, 2);
  EXPECT_EQ(Sluice("batch --batch 4097 /dev/null").exit_code, 2);
  EXPECT_EQ(Sluice("batch /dev/null").exit_code, 0);
}

TEST_F(CommandTest, ListsPutsAndDeletesLimits) {
  const Outcome put = Sluice(
      "limits put api --rate 100/s --burst 200 --debt 5 --mode shadow --on-store-failure allow "
      "--charges overall "
      "--key 'user:42=1000/s,2000' --key 'user:43=,,50'");
  EXPECT_EQ(put.exit_code, 0) << put.err;
  EXPECT_EQ(put.out,
            "added\n"
            "name              api\n"
            "algorithm         token_bucket\n"
            "rate              100/s\n"
            "burst             200\n"
            "debt              5\n"
            "mode              shadow\n"
            "on_store_failure  allow\n"
            "charges           overall\n"
            "key               user:42: rate 1000/s burst 2000\n"
            "key               user:43: debt 50\n"
            "from              put\n");
  EXPECT_THAT(Sluice("limits list").out,
              HasSubstr("api   token_bucket  100/s    200     5  shadow"));
  EXPECT_THAT(Sluice("limits get api --output json").out,
              StartsWith("{\"name\":\"api\",\"algorithm\":\"token_bucket\",\"rate\":{\"permits\":"
                         "100,\"period_ns\":1000000000},\"burst\":200"));
  EXPECT_THAT(Sluice("limits put api --rate 5/s --output json").out,
              StartsWith("{\"replaced\":true,\"limit\":{\"name\":\"api\""));
  EXPECT_EQ(Sluice("limits delete api").out, "deleted api\n");
  EXPECT_EQ(Sluice("limits delete api").exit_code, 2);
  EXPECT_EQ(Sluice("limits get api").exit_code, 2);
  EXPECT_THAT(Sluice("limits put api --rate 0/s").err, HasSubstr("rate: 0 permits grant nothing"));
  for (const char* bad : {"a", "a=", "a=,,", "a=5", "a=5/s,x", "a=5/s,1,-1", "a=5/s,1,2,3"}) {
    const Outcome refused = Sluice("limits put api --rate 5/s --key " + std::string(bad));
    EXPECT_EQ(refused.exit_code, 2) << bad;
    EXPECT_THAT(refused.err, HasSubstr("--key: \"" + std::string(bad) + "\": ")) << bad;
  }
  EXPECT_THAT(Sluice("limits put api --rate 5").err, HasSubstr("as 100/s or 500/250ms"));
  EXPECT_THAT(Sluice("limits put api --rate 5/s --on-store-failure no").err,
              HasSubstr("on_store_failure: \"no\" is unknown; write deny, allow or split"));
  EXPECT_THAT(Sluice("limits put api --rate 5/s --sharing leased").err,
              HasSubstr("sharing: \"leased\" is not supported yet"));
  EXPECT_THAT(Sluice("limits put api").err, HasSubstr("needs --rate"));
  EXPECT_THAT(Sluice("limits put api --rate 5/s --algorithm leaky").err, HasSubstr("leaky"));
}

TEST_F(CommandTest, PutsEachFlagIntoItsParameter) {
  const Outcome put = Sluice(
      "limits put all --rate 5/s --burst 11 --debt 12 --max-owed 13 --min-keys 14 --permits 15 "
      "--sub-windows 16 --max-wait 65s --hold-for 2h --hash-tag tag --direct false");
  EXPECT_EQ(put.exit_code, 0) << put.err;
  for (const char* const row :
       {"burst +11", "debt +12", "max_owed +13", "min_keys +14", "permits +15", "sub_windows +16",
        "max_wait +1m05s", "hold_for +2h00m", "hash_tag +tag", "direct +false"}) {
    EXPECT_THAT(put.out, ContainsRegex("\n" + std::string(row) + "\n"));
  }
}

TEST_F(CommandTest, ShowsKeysResetStatsAndConfig) {
  EXPECT_THAT(Sluice("keys").out, HasSubstr("api    used   12,345     -5"));
  EXPECT_THAT(Sluice("keys api --by denials --output json").out,
              HasSubstr("\"key\":\"denied\",\"estimate\":12345,\"error\":5"));
  EXPECT_EQ(Sluice("keys --by size").exit_code, 2);
  EXPECT_EQ(Sluice("keys --max 1001").exit_code, 2);
  EXPECT_EQ(Sluice("reset api a").out, "the bucket was not in use\n");
  (void)Sluice("acquire api a");
  EXPECT_EQ(Sluice("reset api a").out, "reset: the bucket is full\n");
  EXPECT_EQ(Sluice("reset api a --output json").out, "{\"existed\":false}\n");
  EXPECT_EQ(Sluice("floor lift api").out, "the limit had no floor of its own\n");
  EXPECT_THAT(Sluice("floor lift booked").out, StartsWith("lifted: the limit was closed until "));
  EXPECT_EQ(Sluice("floor lift booked --output json").out,
            "{\"lifted\":true,\"floor_s\":1900000000}\n");
  EXPECT_THAT(Sluice("stats").out, HasSubstr("decisions    3: 2 granted, 1 denied"));
  EXPECT_THAT(Sluice("stats --output json").out,
              HasSubstr("\"methods\":[{\"method\":\"/sluice.v1.RateLimiter/Acquire\",\"codes\":"
                        "{\"OK\":3}"));
  EXPECT_THAT(Sluice("config").out, HasSubstr("active since    2023-11-14 22:13:20 UTC"));
  EXPECT_THAT(
      Sluice("config").out,
      HasSubstr("store           redis, unavailable since 2023-11-14 22:15:00 UTC, unavailable 2 "
                "times\n"
                "store error     no answer within the budget\n"
                "meanwhile       api: 7 allowed, 5 denied\n"
                "differs         api: token_bucket 5 per 1s, burst 5 here, token_bucket 6 "
                "per 1s, burst 6 at another node; 3 times, last 2023-11-14 22:16:40 UTC"));
  EXPECT_THAT(Sluice("config --output json").out, HasSubstr("\"active_since_s\":1700000000"));
  EXPECT_THAT(
      Sluice("config --output json").out,
      HasSubstr("\"store\":{\"kind\":\"redis\",\"state\":\"unavailable\",\"since_s\":1700000100"));
}

TEST_F(CommandTest, SendsTheTokenOfAFileToBothPorts) {
  server_.RequireToken("secret");
  EXPECT_EQ(Sluice("limits list").exit_code, 2);
  const Outcome with = Shell(
      "f=$(mktemp); echo secret >$f; SLUICE_TOKEN_FILE=$f $SLUICE limits list; a=$?; "
      "$SLUICE limits list --token-file $f; b=$?; $SLUICE acquire api --token-file $f; c=$?; "
      "rm $f; exit $((a + b + c))");
  EXPECT_EQ(with.exit_code, 0) << with.err;
  EXPECT_EQ(Sluice("acquire api").exit_code, 2);
  const Outcome apart = Shell(
      "f=$(mktemp); echo secret >$f; $SLUICE limits list --admin-token-file $f; a=$?; "
      "SLUICE_ADMIN_TOKEN_FILE=$f $SLUICE acquire api; b=$?; rm $f; exit $((10 * a + b))");
  EXPECT_EQ(apart.exit_code, 2) << apart.err;
  EXPECT_EQ(Sluice("limits list --token-file /no/such").exit_code, 2);
}

TEST_F(CommandTest, RunStartsTheCommandOnlyIfGranted) {
  const Outcome ran = Sluice("run --limit api --key k --permits 10 -- sh -c 'echo ran; exit 7'");
  EXPECT_EQ(ran.exit_code, 7);
  EXPECT_EQ(ran.out, "ran\n");
  const Outcome denied = Sluice("run --limit api --key k -- echo ran");
  EXPECT_EQ(denied.exit_code, 1);
  EXPECT_EQ(denied.out, "");
  EXPECT_THAT(denied.err, HasSubstr("retry after 250ms"));
  EXPECT_EQ(Sluice("run --limit api -- /no/such/command").exit_code, 127);
  EXPECT_EQ(Sluice("run --limit api").exit_code, 2);
  EXPECT_EQ(Sluice("run -- true").exit_code, 2);
  EXPECT_EQ(Sluice("run --limit missing -- true").exit_code, 2);
}

TEST_F(CommandTest, RunStartsNoCommandWhoseSlotsAreLostAlready) {
  for (const char* on_lost : {"term", "ignore"}) {
    const Outcome lost =
        Sluice(std::string("run --limit short --on-lost ") + on_lost + " -- echo ran");
    EXPECT_EQ(lost.exit_code, 1);
    EXPECT_EQ(lost.out, "");
    EXPECT_THAT(lost.err, HasSubstr("lost the slots before the command was started: the slots"));
  }
}

TEST_F(CommandTest, RunWithRetryTriesUntilGranted) {
  ASSERT_EQ(Sluice("acquire api k --permits 10").exit_code, 0);
  const Outcome late = Sluice("run --limit api --key k --retry --timeout 100ms -- echo ran");
  EXPECT_EQ(late.exit_code, 1);
  const Outcome granted = Shell(
      "(sleep 0.3; $SLUICE reset api k >/dev/null) & $SLUICE --deadline 20s run --limit api "
      "--key k --retry -- echo ran; wait");
  EXPECT_EQ(granted.out, "ran\n") << granted.err;
  EXPECT_EQ(Sluice("run --limit api --timeout 1s -- true").exit_code, 2);
}

TEST_F(CommandTest, BenchReportsEachMode) {
  for (const std::string mode : {"stream", "batch", "unary", "blocking"}) {
    const Outcome bench = Sluice("bench api --duration 200ms --mode " + mode);
    EXPECT_EQ(bench.exit_code, 0) << bench.err;
    EXPECT_THAT(bench.out, StartsWith(mode + ", 1 connection,"));
    EXPECT_THAT(bench.out, HasSubstr("\ndecisions   "));
    EXPECT_THAT(bench.out, HasSubstr("p99.9 "));
    EXPECT_THAT(bench.out, HasSubstr("client CPU  "));
  }
  const Outcome open =
      Sluice("bench api --duration 200ms --mode unary --rate 500/s --connections 2 --output json");
  EXPECT_EQ(open.exit_code, 0) << open.err;
  EXPECT_THAT(open.out, HasSubstr("\"offered_per_second\":500,"));
  EXPECT_THAT(open.out, HasSubstr("\"decisions\":100,"));
  EXPECT_EQ(Sluice("bench missing").exit_code, 2);
  EXPECT_EQ(Sluice("bench api --mode fast").exit_code, 2);
  EXPECT_EQ(Sluice("bench api --connections 0").exit_code, 2);
}

TEST_F(CommandTest, BadUsageExitsTwoAndSuggests) {
  const Outcome command = Sluice("aquire api");
  EXPECT_EQ(command.exit_code, 2);
  EXPECT_THAT(command.err, HasSubstr("did you mean acquire?"));
  const Outcome flag = Sluice("acquire api --permit 5");
  EXPECT_EQ(flag.exit_code, 2);
  EXPECT_THAT(flag.err, HasSubstr("did you mean --permits?"));
  for (const char* bad : {"",
                          "acquire",
                          "acquire a b c",
                          "acquire api --permits x",
                          "acquire api --permits -1",
                          "acquire api --output xml",
                          "acquire api --deadline 5",
                          "acquire api --deadline 0s",
                          "acquire api --on-unavailable maybe",
                          "--server nowhere acquire api",
                          "acquire --permits 3 --charge api",
                          "acquire --charge 'a b c d'",
                          "query",
                          "watch",
                          "limits",
                          "limits drop",
                          "refund",
                          "check",
                          "acquire api --hold",
                          "acquire api --no-sleep",
                          "acquire api --wait",
                          "acquire api --wait soon",
                          "acquire api --wait nan",
                          "acquire api --wait=-1s",
                          "acquire api --wait 99999999999999999999h",
                          "run --limit api --wait=soon -- true",
                          "--tls-ca /no/such acquire api",
                          "--tls-ca /etc/hostname acquire api",
                          "--tls-cert /etc/hostname acquire api",
                          "acquire api --permits 18446744073709551616"}) {
    const Outcome outcome = Sluice(bad);
    EXPECT_EQ(outcome.exit_code, 2) << bad;
    EXPECT_EQ(outcome.out, "") << bad;
    EXPECT_NE(outcome.err, "") << bad;
  }
}

TEST_F(CommandTest, EveryCommandHasHelpWithExamples) {
  const Outcome overview = Shell("$SLUICE --help");
  EXPECT_EQ(overview.exit_code, 0);
  for (const std::string command :
       {"acquire", "query", "watch", "refund", "batch", "limits list", "limits get", "limits put",
        "limits delete", "keys", "reset", "floor lift", "stats", "config", "health", "check",
        "bench", "run"}) {
    EXPECT_THAT(overview.out, HasSubstr("\n  " + command + " "));
    const Outcome help = Shell("$SLUICE " + command + " --help");
    EXPECT_EQ(help.exit_code, 0);
    EXPECT_THAT(help.out, StartsWith("usage: sluice " + command));
    EXPECT_THAT(help.out, HasSubstr("\nExamples:\n  ")) << command;
  }
  EXPECT_THAT(Shell("$SLUICE --version").out, StartsWith("sluice "));
}

TEST_F(CommandTest, CheckIsTheServersCheckAndNeedsNoServer) {
  server_.Kill();
  const Outcome good = Sluice("check " SLUICE_SOURCE_DIR "/deploy/limits.example.yaml");
  EXPECT_EQ(good.exit_code, 0) << good.err;
  EXPECT_THAT(good.out, HasSubstr("limits.example.yaml: good, "));
  EXPECT_THAT(Sluice("check --output json " SLUICE_SOURCE_DIR "/deploy/limits.example.yaml").out,
              StartsWith("{\"ok\":true,\"limits\":"));
  const Outcome bad = Shell(
      "f=$(mktemp); echo 'limits: [{name: a, rate: 5}]' >$f; $SLUICE check $f; a=$?; "
      "$SLUICE check $f --output json; rm $f; exit $a");
  EXPECT_EQ(bad.exit_code, 2);
  EXPECT_THAT(bad.err, HasSubstr(":1:26: "));
  EXPECT_THAT(bad.out, StartsWith("{\"ok\":false,\"error\":\""));
  EXPECT_EQ(Sluice("check /no/such/file").exit_code, 2);
}

TEST_F(CommandTest, AcceptsSeveralServers) {
  StandInServer other;
  server_.Kill();
  const Outcome granted =
      Sluice("acquire api --server " + server_.address() + "," + other.address());
  EXPECT_EQ(granted.exit_code, 0) << granted.out << granted.err;
}

}  // namespace
}  // namespace sluice
