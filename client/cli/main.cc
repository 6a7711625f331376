// The command `sluice`: acquires permits from a server, and manages it.
#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "client/cli/session.h"
#include "server/algorithm/parameters.h"

#ifndef SLUICE_VERSION
#define SLUICE_VERSION "unknown"
#endif

namespace sluice::cli {
namespace {

struct Command {
  CommandSpec spec;
  int (*run)(const Session&);
};

// "token_bucket (default), sliding_log, ...".
std::string ListOfAlgorithms() {
  std::string list;
  for (const std::string_view name : algorithm::kKindNames) {
    list += list.empty() ? std::string(name) + " (default)" : ", " + std::string(name);
  }
  return list;
}

// The RPCs of sluice.v1.RateLimiter.
std::vector<Command> RateLimiterCommands() {
  const Flag bucket = {"bucket", "'LIMIT KEY'", "another bucket; can be repeated"};
  return {
      {{.name = "acquire",
        .arguments = "LIMIT [KEY]",
        .summary = "Acquire permits now, or with --wait reserve them.\n"
                   "Exit code: 0 granted, 1 denied, 2 bad usage or an error, 3 no server decided.",
        .flags = {{"permits", "N", "number of permits (1)"},
                  {"charge", "'LIMIT KEY N'", "another charge, all or none; can be repeated"},
                  {"receipt", "", "print a receipt for `sluice refund`"},
                  {"settle-within", "TIME",
                   "the permits are an estimate; `sluice settle` corrects it within this time"},
                  {"force", "", "debit permits that were used already (the limit's max_owed)"},
                  {"wait", "TIME",
                   "reserve permits at most this far ahead, and sleep until the grant time"},
                  {"no-sleep", "", "with --wait: exit at once; proceed after the printed time"},
                  {"hold", "",
                   "with --wait: the server answers at the grant time; interrupting cancels the "
                   "reservation"},
                  {"exactly-once", "",
                   "ask again until an answer arrives (--deadline); the permits are taken once"},
                  {"request-id", "HEX",
                   "16 random bytes: the same acquisition with the same id within 60 s takes "
                   "nothing and prints the same grant"}},
        .examples =
            "  sluice acquire api user:42\n"
            "  sluice acquire api user:42 --permits 5 --receipt\n"
            "  sluice acquire api user:42 --wait 2s && echo now\n"
            "  sluice acquire api user:42 --wait 1m --hold\n"
            "  sluice acquire api user:42 --wait 1m --no-sleep --output json | jq .wait_ns\n"
            "  sluice acquire --charge 'api user:42' --charge 'egress \"\" 1500'\n"
            "  sluice acquire payments order:7 --exactly-once --deadline 10s\n"
            "  sluice acquire api user:42 --output json | jq .retry_after_ns\n",
        .max_arguments = 2},
       RunAcquire},
      {{.name = "query",
        .arguments = "LIMIT [KEY]",
        .summary = "Show the permits that remain; takes none.",
        .flags = {bucket},
        .examples = "  sluice query api user:42\n"
                    "  sluice query api user:42 --bucket overall\n",
        .max_arguments = 2},
       RunQuery},
      {{.name = "watch",
        .arguments = "LIMIT [KEY]",
        .summary = "Show the permits that remain, at each change.",
        .flags = {bucket,
                  {"interval", "TIME", "least time between two updates, 10ms to 1h (1s)"},
                  {"count", "N", "exit after this number of updates"}},
        .examples = "  sluice watch api user:42\n"
                    "  sluice watch overall --interval 100ms --output json\n",
        .max_arguments = 2},
       RunWatch},
      {{.name = "refund",
        .arguments = "RECEIPT",
        .summary = "Refund the permits of an acquisition, once.\n"
                   "Exit code: 0 refunded, 1 nothing to refund (used before, or expired).",
        .examples = "  sluice acquire api user:42 --receipt\n"
                    "  sluice refund AXN0...\n",
        .min_arguments = 1,
        .max_arguments = 1},
       RunRefund},
      {{.name = "renew",
        .arguments = "RECEIPT...",
        .summary =
            "Hold the slots of acquisitions for longer (limits with algorithm concurrency).\n"
            "Exit code: 0 all renewed, 1 some are gone, or not known.",
        .examples = "  sluice acquire jobs tenant:7\n"
                    "  sluice renew AXN0...\n",
        .min_arguments = 1,
        .max_arguments = 4096},
       RunRenew},
      {{.name = "settle",
        .arguments = "RECEIPT [LIMIT KEY ACTUAL]...",
        .summary = "Say how many permits the work of an acquisition took (--settle-within).\n"
                   "ACTUAL is the total used so far. Charges that are not named stay as taken.\n"
                   "Exit code: 0 settled, 1 not settled (settled with another ACTUAL; unknown).",
        .flags = {{"more", "", "the work continues: give nothing back, restart --settle-within"}},
        .examples = "  sluice acquire tokens user:42 --permits 4000 --settle-within 2m\n"
                    "  sluice settle AXN0... tokens user:42 813\n"
                    "  sluice settle AXN0... overall '' 813 --more\n",
        .min_arguments = 1,
        .max_arguments = 1 + 3 * 16},
       RunSettle},
      {{.name = "batch",
        .arguments = "[FILE]",
        .summary = "Many acquisitions, one per line: LIMIT [KEY [PERMITS]], or JSON.\n"
                   "Reads standard input if there is no FILE. Skips empty lines and # lines.\n"
                   "Exit code: 0 all granted, 1 some denied, 2 some errors, 3 some undecided.",
        .flags = {{"batch", "N", "acquisitions per call, 1 to 4096 (1024)"},
                  {"receipt", "", "print receipts"}},
        .examples =
            "  printf 'api user:1\\napi user:2 5\\n' | sluice batch\n"
            "  echo '{\"limit\": \"api\", \"key\": \"a b\", \"permits\": 2}' | sluice batch\n"
            "  sluice batch work.txt --output json\n",
        .max_arguments = 1},
       RunBatch},
  };
}

// Changes of limits.
std::vector<Command> LimitsCommands() {
  return {
      {{.name = "limits list",
        .summary = "List all limits in force.",
        .examples = "  sluice limits list\n"},
       RunLimitsList},
      {{.name = "limits get",
        .arguments = "NAME",
        .summary = "Show a limit with all its parameters.",
        .examples = "  sluice limits get api\n",
        .min_arguments = 1,
        .max_arguments = 1},
       RunLimitsGet},
      {{.name = "limits put",
        .arguments = "NAME",
        .summary = "Add or replace a limit while the server runs.\n"
                   "If the server's file has the limit, the change lasts until the file changes.",
        .flags =
            {{"rate", "PERMITS/PERIOD",
              "100/s, 500/250ms, 10000/24h; units: ns, us, ms, s, m, h, d"},
             {"burst", "N", "most permits stored (the permits of the rate)"},
             {"debt", "N", "permits that may be owed (0)"},
             {"max-owed", "N", "permits that forced debits may leave owed (none are allowed)"},
             {"algorithm", "NAME", ListOfAlgorithms()},
             {"permits", "N", "concurrency: permits in use at the same time"},
             {"hold-for", "TIME",
              "concurrency: how long a grant holds them unless it is renewed (30s)"},
             {"mode", "enforce|shadow", "shadow: grant all, and count denials (enforce)"},
             {"on-store-failure", "deny|allow|split",
              "while the shared store is unavailable (deny)"},
             {"sharing", "exact|split|relaxed", "how nodes share the buckets (exact)"},
             {"charges", "LIMIT", "also charge this limit; can be repeated"},
             {"hash-tag", "TAG", "in a Redis Cluster: limits with the same tag are in one slot"},
             {"key", "KEY=RATE[,BURST[,DEBT]]",
              "parameters of one key (concurrency: KEY=PERMITS); empty ones are the limit's; "
              "can be repeated"},
             {"max-wait", "TIME", "how far ahead a reservation may lie, at most 24h (1h)"},
             {"min-keys", "N", "number of keys for which the server reserves room"},
             {"direct", "true|false",
              "false: only the charges of other limits may reach it (true)"},
             {"sub-windows", "N", "sub-windows of a sliding_window (10)"},
             {"utc-offset", "TIME", "offset from UTC of a fixed_window, as 2h or -5h30m (0s)"},
             {"expires-after", "TIME", "undo the change after this time, 1s to 365 days (never)"},
             {"reason", "TEXT", "why, for the logs and `limits list`; at most 256 bytes"}},
        .examples = "  sluice limits put api --rate 100/s --burst 200\n"
                    "  sluice limits put api --rate 500/s --expires-after 2h --reason 'sale'\n"
                    "  sluice limits put api --rate 100/s --key 'user:42=1000/s,2000'\n"
                    "  sluice limits put api --rate 100/s --key 'user:42=,,50'\n"
                    "  sluice limits put daily --rate 10000/24h --algorithm sliding_window\n"
                    "  sluice limits put jobs --algorithm concurrency --permits 5 --hold-for 1m\n",
        .min_arguments = 1,
        .max_arguments = 1},
       RunLimitsPut},
      {{.name = "limits delete",
        .arguments = "NAME",
        .summary = "Delete a limit.",
        .examples = "  sluice limits delete api\n",
        .min_arguments = 1,
        .max_arguments = 1},
       RunLimitsDelete},
  };
}

// The state of a server.
std::vector<Command> ServerCommands() {
  return {
      {{.name = "keys",
        .arguments = "[LIMIT]",
        .summary = "List the keys that are used or denied most.",
        .flags = {{"by", "use|denials", "order (use)"},
                  {"max", "N", "number of keys, 1 to 1000 (20)"}},
        .examples = "  sluice keys api --by denials\n",
        .max_arguments = 1},
       RunKeys},
      {{.name = "reset",
        .arguments = "LIMIT [KEY]",
        .summary = "Make a bucket full.",
        .examples = "  sluice reset api user:42\n",
        .min_arguments = 1,
        .max_arguments = 2},
       RunReset},
      {{.name = "holds",
        .arguments = "LIMIT [KEY]",
        .summary = "List the acquisitions that hold slots of a key, soonest end first; or end "
                   "one.\n"
                   "Exit code with --end: 0 ended, 1 there was no such hold.",
        .flags = {{"max", "N", "number of holds, 1 to 10000 (1000)"},
                  {"end", "ID", "take the slots of this hold back"}},
        .examples = "  sluice holds jobs tenant:7\n"
                    "  sluice holds jobs tenant:7 --end 42\n",
        .min_arguments = 1,
        .max_arguments = 2},
       RunHolds},
      {{.name = "floor lift",
        .arguments = "LIMIT",
        .summary = "Open a limit that waits for grant times promised before Redis lost its data.",
        .examples = "  sluice floor lift api\n",
        .min_arguments = 1,
        .max_arguments = 1},
       RunFloorLift},
      {{.name = "stats",
        .summary = "Show the server's counters.",
        .examples = "  sluice stats\n  sluice stats --output json | jq .decisions\n"},
       RunStats},
      {{.name = "config",
        .summary = "Show the limits file in force, the last failed reload and the store's state.",
        .examples = "  sluice config\n"},
       RunConfig},
      {{.name = "health",
        .arguments = "[SERVICE]",
        .summary = "Show whether the server serves: SERVING, or NOT_SERVING while it drains.\n"
                   "Exit code: 0 serving, 1 not serving, 2 no such service, 3 no server answered.",
        .flags = {{"admin-port", "", "ask the admin port"}},
        .examples = "  sluice health\n"
                    "  sluice health sluice.v1.RateLimiter --server 10.0.0.1:7200\n"
                    "  sluice health --admin-port --output json\n",
        .max_arguments = 1},
       RunHealth},
  };
}

// Tools, which need no RPC of their own.
std::vector<Command> ToolCommands() {
  return {
      {{.name = "check",
        .arguments = "FILE",
        .summary = "Check the text of a limits file; needs no server.\n"
                   "It does not see what depends on a server: room for min_keys, limits that "
                   "admins put, names that Envoy's configuration has too.\n"
                   "Also a file or a folder of Envoy's rate-limit configuration.\n"
                   "Exit code: 0 valid, 2 invalid.",
        .flags = {{"merge-domains", "", "Envoy: files may have a domain in common"}},
        .examples = "  sluice check deploy/limits.example.yaml\n"
                    "  sluice check /srv/runtime_data/current/ratelimit/config\n",
        .min_arguments = 1,
        .max_arguments = 1},
       RunCheck},
      {{.name = "import",
        .arguments = "FILE",
        .summary =
            "Print a file or a folder of Envoy's rate-limit configuration as a limits file.\n"
            "Comments list what a limits file cannot express.",
        .flags = {{"mode", "exact|compatible",
                   "exact: token buckets (default); compatible: fixed windows"},
                  {"merge-domains", "", "files may have a domain in common"}},
        .examples = "  sluice import ratelimit.yaml > limits.yaml\n",
        .min_arguments = 1,
        .max_arguments = 1},
       RunImport},
      {{.name = "bench",
        .arguments = "LIMIT",
        .summary = "Measure decisions/s, latency and errors. Takes permits from keys bench:N.",
        .flags =
            {{"mode", "MODE", "stream (default), batch, unary, blocking"},
             {"duration", "TIME", "length of the run (5s)"},
             {"connections", "N", "number of connections (1)"},
             {"concurrency", "N",
              "outstanding acquisitions per connection (stream, batch 1024; unary 32; blocking 1; "
              "with --rate 100000)"},
             {"batch", "N", "acquisitions per message, at most 4096 (batch 64; stream 1024)"},
             {"keys", "N", "number of different keys (1000)"},
             {"permits", "N", "permits per acquisition (1)"},
             {"rate", "N/s", "open loop: acquisitions per second, independent of the answers"}},
        .examples = "  sluice bench api\n"
                    "  sluice bench api --mode unary --connections 8 --concurrency 32\n"
                    "  sluice bench api --rate 20000/s --duration 30s\n",
        .min_arguments = 1,
        .max_arguments = 1},
       RunBench},
      {{.name = "run",
        .summary = "Run a command once permits are granted; slots are held while it runs.\n"
                   "Exit code: the command's; 128 + N if signal N ended it; 126 it cannot be run; "
                   "127 there is no such command; 1 denied, or the slots were lost before it was "
                   "started; 2 bad usage or an error; 3 no server decided.",
        .flags = {{"limit", "LIMIT", "limit to charge"},
                  {"key", "KEY", "key to charge (the shared bucket)"},
                  {"permits", "N", "number of permits (1)"},
                  {"wait", "TIME", "wait for the permits at most this long (24h)", true},
                  {"retry", "", "if denied, sleep for the time that the server says and try again"},
                  {"timeout", "TIME", "with --retry: give up if it would take longer"},
                  {"on-lost", "term|ignore",
                   "if the slots are lost, or this process is killed: send the command SIGTERM "
                   "(and SIGKILL after 10 s), or let it go on (term)"}},
        .examples = "  sluice run --limit mail --key alice -- sendmail alice@example.org\n"
                    "  sluice run --limit mail --wait -- sendmail alice@example.org\n"
                    "  sluice run --limit deploys --retry --timeout 10m -- ./deploy.sh\n"
                    "  sluice run --limit jobs --key tenant:7 --retry -- ./job.sh\n",
        .takes_command = true},
       RunRun},
  };
}

// In the order of the help.
std::vector<Command> Commands() {
  std::vector<Command> commands;
  for (const auto group : {RateLimiterCommands, LimitsCommands, ServerCommands, ToolCommands}) {
    for (Command& command : group()) commands.push_back(std::move(command));
  }
  return commands;
}

int Main(const std::vector<std::string>& words) {
  const std::vector<Command> commands = Commands();
  std::vector<CommandSpec> specs;
  specs.reserve(commands.size());
  for (const Command& command : commands) specs.push_back(command.spec);
  std::vector<Flag> global = GlobalFlags();
  if (words.size() == 1 && words[0] == "--version") {
    std::printf("sluice %s\n", SLUICE_VERSION);
    return kExitDone;
  }
  const Result<ParsedLine> line = ParseLine(words, specs, global);
  if (!line.ok()) {
    std::fprintf(stderr, "sluice: %s\nsluice --help lists the commands.\n",
                 line.status().message().c_str());
    return kExitUsage;
  }
  if (line->command == nullptr) {
    const bool wanted = line->arguments.Has("help");
    std::fputs(OverviewHelp(specs, global).c_str(), wanted ? stdout : stderr);
    return wanted ? kExitDone : kExitUsage;
  }
  if (line->arguments.Has("help")) {
    std::fputs(CommandHelp(*line->command, global).c_str(), stdout);
    return kExitDone;
  }
  const Result<Session> session = Session::Create(line->arguments);
  if (!session.ok()) {
    std::fprintf(stderr, "sluice: %s\n", session.status().message().c_str());
    return kExitUsage;
  }
  const auto command = std::find_if(commands.begin(), commands.end(), [&](const Command& one) {
    return one.spec.name == line->command->name;
  });
  return command->run(*session);
}

}  // namespace
}  // namespace sluice::cli

int main(int argc, char** argv) {
  // On by default in Debian's Abseil, but slow.
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);
  // Errors have the cause; gRPC would log it a second time.
  setenv("GRPC_VERBOSITY", "NONE", /*overwrite=*/0);
  // If the reader of a pipe exits (sluice batch | head), exit without an error message.
  std::signal(SIGPIPE, SIG_DFL);
  return sluice::cli::Main({argv + 1, argv + argc});
}
