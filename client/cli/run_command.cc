// run: runs a command once permits are granted.
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <thread>

#include "client/cli/session.h"
#include "client/cli/show.h"
#include "client/cli/text.h"

namespace sluice::cli {

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
  {
    Result<Client> client = session.MakeClient();
    if (!client.ok()) return session.Fail(client.status());
    const auto start = std::chrono::steady_clock::now();
    for (;;) {
      const Result<Decision> decision = client->Acquire(acquisition);
      if (!decision.ok()) return session.Fail(decision.status());
      if (decision->granted) {
        // Warn that no server checked the limit.
        if (decision->source == Source::kUnavailable) {
          std::fprintf(stderr, "sluice: %s\n", DecisionLine(acquisition, *decision).c_str());
        }
        break;
      }
      const auto pause = std::max(decision->retry_after, std::chrono::nanoseconds(1));
      const auto spent = std::chrono::steady_clock::now() - start;
      if (!retry || pause > *timeout - spent) {
        // To stderr, also as JSON: stdout belongs to the command.
        if (session.json()) {
          Json json;
          WriteDecision(acquisition, *decision, &json);
          std::fprintf(stderr, "%s\n", json.text().c_str());
        } else {
          std::fprintf(stderr, "sluice: %s\n", DecisionLine(acquisition, *decision).c_str());
        }
        return decision->source == Source::kUnavailable ? kExitUnavailable : kExitDenied;
      }
      std::this_thread::sleep_for(pause);
    }
    // End the client's threads and sockets before the command replaces the process.
  }
  std::vector<char*> argv;
  argv.reserve(flags.command.size() + 1);
  for (const std::string& word : flags.command) argv.push_back(const_cast<char*>(word.c_str()));
  argv.push_back(nullptr);
  execvp(argv[0], argv.data());
  const int error = errno;
  std::fprintf(stderr, "sluice: cannot run \"%s\": %s\n", argv[0], std::strerror(error));
  return error == ENOENT ? 127 : 126;
}

}  // namespace sluice::cli
