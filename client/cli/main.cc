// The command `sluice`: asks a server for permits, and looks after it.
#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "client/cli/session.h"

#ifndef SLUICE_VERSION
#define SLUICE_VERSION "unknown"
#endif

namespace sluice::cli {
namespace {

struct Command {
  CommandSpec spec;
  int (*run)(const Session&);
};

std::vector<Command> Commands() {
  const Flag bucket = {"bucket", "'LIMIT KEY'", "one more bucket; may be given again"};
  return {
      {{.name = "acquire",
        .arguments = "LIMIT [KEY]",
        .summary = "Take permits now, or be denied; with --wait, take a place in line.\n"
                   "Exit code: 0 granted, 1 denied, 2 bad usage or refused, 3 no server answered.",
        .flags = {{"permits", "N", "how many (1)"},
                  {"charge", "'LIMIT KEY N'", "one more charge, all or none; may be given again"},
                  {"receipt", "", "print a receipt, with which refund gives the permits back"},
                  {"wait", "TIME",
                   "take a place in line, at most so far ahead, and sleep until its moment"},
                  {"no-sleep", "", "with --wait: end at once; proceed after the wait that is said"},
                  {"hold", "",
                   "with --wait: the server answers at the moment; ended before, the place is "
                   "given up"}},
        .examples =
            "  sluice acquire api user:42\n"
            "  sluice acquire api user:42 --permits 5 --receipt\n"
            "  sluice acquire api user:42 --wait 2s && echo now\n"
            "  sluice acquire api user:42 --wait 1m --hold\n"
            "  sluice acquire api user:42 --wait 1m --no-sleep --output json | jq .wait_ns\n"
            "  sluice acquire --charge 'api user:42' --charge 'egress \"\" 1500'\n"
            "  sluice acquire api user:42 --output json | jq .retry_after_ns\n",
        .max_arguments = 2},
       RunAcquire},
      {{.name = "query",
        .arguments = "LIMIT [KEY]",
        .summary = "Say what remains; takes nothing.",
        .flags = {bucket},
        .examples = "  sluice query api user:42\n"
                    "  sluice query api user:42 --bucket overall\n",
        .max_arguments = 2},
       RunQuery},
      {{.name = "watch",
        .arguments = "LIMIT [KEY]",
        .summary = "Show what remains, again at each change.",
        .flags = {bucket,
                  {"interval", "TIME", "least time between two answers, 10ms to 1h (1s)"},
                  {"count", "N", "end after as many answers"}},
        .examples = "  sluice watch api user:42\n"
                    "  sluice watch overall --interval 100ms --output json\n",
        .max_arguments = 2},
       RunWatch},
      {{.name = "refund",
        .arguments = "RECEIPT",
        .summary = "Give back what an acquisition took, once.\n"
                   "Exit code: 0 refunded, 1 nothing was (used before, or expired).",
        .examples = "  sluice acquire api user:42 --receipt\n"
                    "  sluice refund AXN0...\n",
        .min_arguments = 1,
        .max_arguments = 1},
       RunRefund},
      {{.name = "batch",
        .arguments = "[FILE]",
        .summary = "Many acquisitions, a line each: LIMIT [KEY [PERMITS]], or JSON.\n"
                   "Reads the standard input without FILE. Empty lines and # lines are left out.\n"
                   "Exit code: 0 all granted, 1 some denied, 2 some refused, 3 some undecided.",
        .flags = {{"batch", "N", "acquisitions of a call, 1 to 4096 (1024)"},
                  {"receipt", "", "print receipts"}},
        .examples =
            "  printf 'api user:1\\napi user:2 5\\n' | sluice batch\n"
            "  echo '{\"limit\": \"api\", \"key\": \"a b\", \"permits\": 2}' | sluice batch\n"
            "  sluice batch work.txt --output json\n",
        .max_arguments = 1},
       RunBatch},
      {{.name = "limits list",
        .summary = "All limits that are in force.",
        .examples = "  sluice limits list\n"},
       RunLimitsList},
      {{.name = "limits get",
        .arguments = "NAME",
        .summary = "One limit, with all its parameters.",
        .examples = "  sluice limits get api\n",
        .min_arguments = 1,
        .max_arguments = 1},
       RunLimitsGet},
      {{.name = "limits put",
        .arguments = "NAME",
        .summary = "Add or replace a limit while the server runs.\n"
                   "Over a limit that the server's file names it lasts until the file changes.",
        .flags = {{"rate", "PERMITS/PERIOD", "100/s, 500/250ms, 10000/24h"},
                  {"burst", "N", "most permits stored (the rate's)"},
                  {"debt", "N", "permits that may be owed (0)"},
                  {"algorithm", "NAME",
                   "token_bucket (default), sliding_log, sliding_window, fixed_window"},
                  {"mode", "enforce|shadow", "shadow: grant all, and count what would be denied"},
                  {"on-store-failure", "deny|allow|split", "while the shared store is away (deny)"},
                  {"sharing", "exact|split|relaxed", "how nodes share its buckets (exact)"},
                  {"charges", "LIMIT", "also charge this limit; may be given again"},
                  {"hash-tag", "TAG", "in a Redis Cluster: limits of one tag are in one slot"},
                  {"key", "KEY=RATE[,BURST[,DEBT]]",
                   "a key's own parameters; one that is empty is the limit's; may be given again"},
                  {"sub-windows", "N", "of a sliding_window (10)"},
                  {"utc-offset", "TIME", "of a fixed_window (0s)"}},
        .examples = "  sluice limits put api --rate 100/s --burst 200\n"
                    "  sluice limits put api --rate 100/s --key 'user:42=1000/s,2000'\n"
                    "  sluice limits put api --rate 100/s --key 'user:42=,,50'\n"
                    "  sluice limits put daily --rate 10000/24h --algorithm sliding_window\n",
        .min_arguments = 1,
        .max_arguments = 1},
       RunLimitsPut},
      {{.name = "limits delete",
        .arguments = "NAME",
        .summary = "Remove a limit from those in force.",
        .examples = "  sluice limits delete api\n",
        .min_arguments = 1,
        .max_arguments = 1},
       RunLimitsDelete},
      {{.name = "keys",
        .arguments = "[LIMIT]",
        .summary = "The keys that are used or denied most.",
        .flags = {{"by", "use|denials", "the order (use)"}, {"max", "N", "1 to 1000 (20)"}},
        .examples = "  sluice keys api --by denials\n",
        .max_arguments = 1},
       RunKeys},
      {{.name = "reset",
        .arguments = "LIMIT [KEY]",
        .summary = "Make a bucket full again.",
        .examples = "  sluice reset api user:42\n",
        .min_arguments = 1,
        .max_arguments = 2},
       RunReset},
      {{.name = "stats",
        .summary = "The server's counters.",
        .examples = "  sluice stats\n  sluice stats --output json | jq .decisions\n"},
       RunStats},
      {{.name = "config",
        .summary = "Which limits file is in force, since when, and what was last refused.",
        .examples = "  sluice config\n"},
       RunConfig},
      {{.name = "health",
        .arguments = "[SERVICE]",
        .summary = "Ask whether the server serves: SERVING, or NOT_SERVING while it drains.\n"
                   "Exit code: 0 serving, 1 not serving, 2 no such service, 3 no server answered.",
        .flags = {{"admin-port", "", "ask the control plane"}},
        .examples = "  sluice health\n"
                    "  sluice health sluice.v1.RateLimiter --server 10.0.0.1:7200\n"
                    "  sluice health --admin-port --output json\n",
        .max_arguments = 1},
       RunHealth},
      {{.name = "check",
        .arguments = "FILE",
        .summary = "Check a limits file as the server would; needs no server.\n"
                   "Exit code: 0 good, 2 bad.",
        .examples = "  sluice check deploy/limits.example.yaml\n",
        .min_arguments = 1,
        .max_arguments = 1},
       RunCheck},
      {{.name = "bench",
        .arguments = "LIMIT",
        .summary = "Measure decisions/s, latency and errors. Takes permits of keys bench:N.",
        .flags = {{"mode", "MODE", "stream (default), batch, unary, blocking"},
                  {"duration", "TIME", "(5s)"},
                  {"connections", "N", "(1)"},
                  {"concurrency", "N",
                   "acquisitions outstanding on each (stream, batch 1024; unary 32; blocking 1)"},
                  {"batch", "N", "acquisitions of a message (batch 64; stream: at most 1024)"},
                  {"keys", "N", "different keys (1000)"},
                  {"permits", "N", "of each acquisition (1)"},
                  {"rate", "N/s", "open loop: so many acquisitions, whatever the answers do"}},
        .examples = "  sluice bench api\n"
                    "  sluice bench api --mode unary --connections 8 --concurrency 32\n"
                    "  sluice bench api --rate 20000/s --duration 30s\n",
        .min_arguments = 1,
        .max_arguments = 1},
       RunBench},
      {{.name = "run",
        .summary = "Run a command once permits were granted.\n"
                   "Exit code: the command's; 1 denied, 2 bad usage, 3 no server answered.",
        .flags = {{"limit", "LIMIT", "whose permits"},
                  {"key", "KEY", "(the shared bucket)"},
                  {"permits", "N", "(1)"},
                  {"wait", "TIME", "wait in line for at most so long (24h)", true},
                  {"retry", "", "when denied, sleep for as long as told and ask again"},
                  {"timeout", "TIME", "with --retry: give up when it would take longer"}},
        .examples = "  sluice run --limit mail --key alice -- sendmail alice@example.org\n"
                    "  sluice run --limit mail --wait -- sendmail alice@example.org\n"
                    "  sluice run --limit deploys --retry --timeout 10m -- ./deploy.sh\n",
        .takes_command = true},
       RunRun},
  };
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
  // On by default in Debian's Abseil, and slow.
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);
  // What grpc++ has to say of a connection is in the error; its log lines would stand beside it.
  setenv("GRPC_VERBOSITY", "NONE", /*overwrite=*/0);
  // A reader that went away (sluice batch | head) ends the command quietly.
  std::signal(SIGPIPE, SIG_DFL);
  return sluice::cli::Main({argv + 1, argv + argc});
}
