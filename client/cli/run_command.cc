// run: runs a command once permits are granted.
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <thread>

#include "client/cli/held_command.h"
#include "client/cli/session.h"
#include "client/cli/show.h"
#include "client/cli/text.h"

namespace sluice::cli {
namespace {

bool HasSlots(const Permit& permit) { return permit.left() != std::chrono::nanoseconds::max(); }

int RunHolding(const Session& session, Permit& permit, WhenLost when_lost) {
  if (const Status lost = permit.lost(); !lost.ok()) {
    std::fprintf(stderr, "sluice: lost the slots before the command was started: %s\n",
                 lost.message().c_str());
    return kExitDenied;
  }
  const int code = HeldCommand::Run(session.arguments().command, permit, when_lost);
  if (const Status failed = permit.Release(); !failed.ok() && permit.lost().ok()) {
    std::fprintf(stderr, "sluice: the server takes the slots back when their time has passed: %s\n",
                 failed.ToString().c_str());
  }
  return code;
}

// Runs the command in place of this process. Returns the exit code if that fails.
int ReplaceBy(const std::vector<std::string>& command) {
  std::vector<char*> argv;
  argv.reserve(command.size() + 1);
  for (const std::string& word : command) argv.push_back(const_cast<char*>(word.c_str()));
  argv.push_back(nullptr);
  execvp(argv[0], argv.data());
  const int error = errno;
  std::fprintf(stderr, "sluice: cannot run \"%s\": %s\n", argv[0], std::strerror(error));
  return error == ENOENT ? 127 : 126;
}

}  // namespace

int RunRun(const Session& session) {
  const Arguments& flags = session.arguments();
  if (!flags.Has("limit")) {
    return session.Fail(Status(StatusCode::kInvalidArgument, "run needs --limit=LIMIT"));
  }
  const auto permits = session.Number("permits", 1);
  if (!permits.ok()) return session.Fail(permits.status());
  const auto timeout = session.Duration("timeout", std::chrono::nanoseconds::max());
  if (!timeout.ok()) return session.Fail(timeout.status());
  const bool retry = flags.Has("retry");
  if (flags.Has("timeout") && !retry) {
    return session.Fail(Status(StatusCode::kInvalidArgument, "--timeout goes with --retry"));
  }
  // --wait without a value: the longest that the server allows.
  const bool any_wait = flags.Get("wait") == "";
  const auto wait = any_wait ? Result<std::chrono::nanoseconds>(std::chrono::hours(24))
                             : session.Duration("wait", std::chrono::nanoseconds(0));
  if (!wait.ok()) return session.Fail(wait.status());
  Acquisition acquisition(flags.Get("limit").value_or(""), flags.Get("key").value_or(""), *permits);
  acquisition.max_wait = *wait;
  acquisition.hold = wait->count() > 0;
  const std::string on_lost(flags.Get("on-lost").value_or("term"));
  if (on_lost != "term" && on_lost != "ignore") {
    return session.Fail(Status(StatusCode::kInvalidArgument,
                               "--on-lost is \"" + on_lost + "\"; valid are term and ignore"));
  }
  {
    Result<Client> client = session.MakeClient();
    if (!client.ok()) return session.Fail(client.status());
    if (Status failed = HeldCommand::Prepare(); !failed.ok()) return session.Fail(failed);
    const auto start = std::chrono::steady_clock::now();
    for (;;) {
      Result<Permit> permit = client->AcquirePermit(acquisition, {.on_lost = &HeldCommand::Lost});
      if (!permit.ok()) return session.Fail(permit.status());
      const Decision& decision = permit->decision();
      if (decision.granted) {
        if (HasSlots(*permit)) {
          return RunHolding(session, *permit,
                            on_lost == "term" ? WhenLost::kTerm : WhenLost::kIgnore);
        }
        // Warn that no server checked the limit.
        if (decision.source == Source::kUnavailable) {
          std::fprintf(stderr, "sluice: %s\n", DecisionLine(acquisition, decision).c_str());
        }
        break;
      }
      const auto pause = std::max(decision.retry_after, std::chrono::nanoseconds(1));
      const auto spent = std::chrono::steady_clock::now() - start;
      if (!retry || pause > *timeout - spent) {
        // To stderr, also as JSON: stdout belongs to the command.
        if (session.json()) {
          Json json;
          WriteDecision(acquisition, decision, &json);
          std::fprintf(stderr, "%s\n", json.text().c_str());
        } else {
          std::fprintf(stderr, "sluice: %s\n", DecisionLine(acquisition, decision).c_str());
        }
        return decision.source == Source::kUnavailable ? kExitUnavailable : kExitDenied;
      }
      std::this_thread::sleep_for(pause);
    }
    // End the client's threads and sockets before the command replaces the process.
  }
  return ReplaceBy(flags.command);
}

}  // namespace sluice::cli
