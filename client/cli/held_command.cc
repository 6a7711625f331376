#include "client/cli/held_command.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <optional>
#include <string>

namespace sluice::cli {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kPassedOn[] = {SIGTERM, SIGHUP, SIGINT, SIGQUIT};
constexpr char kLostEvent = 127;  // no signal has this number
constexpr auto kKillAfter = std::chrono::seconds(10);

// Events are bytes in a pipe: signal handlers and threads may write, and the main thread reads.
int events_in = -1;
int events_out = -1;

void Write(char event) {
  // If the pipe is full there are events enough.
  [[maybe_unused]] const ssize_t written = write(events_in, &event, 1);
}

void OnSignal(int signal, siginfo_t* info, void*) {
  // A terminal sends its signals to the command, too.
  if (signal != SIGCHLD && info->si_code == SI_KERNEL) return;
  const int saved = errno;
  Write(static_cast<char>(signal));
  errno = saved;
}

// As after nohup.
bool Ignored(int signal) {
  struct sigaction action = {};
  sigaction(signal, nullptr, &action);
  return action.sa_handler == SIG_IGN;
}

void Handle(int signal) {
  struct sigaction action = {};
  action.sa_sigaction = &OnSignal;
  action.sa_flags = SA_SIGINFO | SA_RESTART;
  sigaction(signal, &action, nullptr);
}

void PrintCannotRun(const char* command, int error) {
  std::fprintf(stderr, "sluice: cannot run \"%s\": %s\n", command, std::strerror(error));
}
int ExitCodeOfFailure(int error) { return error == ENOENT ? 127 : 126; }

// In the child, between fork and exec: only what may be called there.
[[noreturn]] void Execute(char** argv, WhenLost when_lost, pid_t parent, int failure) {
  for (const int signal : kPassedOn) {
    if (!Ignored(signal)) std::signal(signal, SIG_DFL);
  }
  std::signal(SIGCHLD, SIG_DFL);
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  // If this process is killed, its slots are not renewed.
  if (when_lost == WhenLost::kTerm) {
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (getppid() != parent) _exit(128 + SIGTERM);
  }
  execvp(argv[0], argv);
  const int error = errno;
  [[maybe_unused]] const ssize_t written = write(failure, &error, sizeof(error));
  _exit(ExitCodeOfFailure(error));
}

// Starts the command. Returns its process, or the error.
Result<pid_t> Start(const std::vector<std::string>& words, WhenLost when_lost, int* error) {
  std::vector<char*> argv;
  argv.reserve(words.size() + 1);
  for (const std::string& word : words) argv.push_back(const_cast<char*>(word.c_str()));
  argv.push_back(nullptr);
  int failure[2];
  *error = 0;
  if (pipe2(failure, O_CLOEXEC) != 0) {
    *error = errno;
    return Status(StatusCode::kUnavailable, "no pipe");
  }
  // Not handled in the child: the pipe is shared.
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  const pid_t parent = getpid();
  const pid_t child = fork();
  if (child == 0) Execute(argv.data(), when_lost, parent, failure[1]);
  if (child < 0) *error = errno;
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  close(failure[1]);
  // Nothing is written if it runs: exec closes the pipe.
  if (child > 0 && read(failure[0], error, sizeof(*error)) == sizeof(*error)) {
    waitpid(child, nullptr, 0);
  }
  close(failure[0]);
  if (*error != 0) return Status(StatusCode::kUnavailable, "not started");
  return child;
}

// The exit code, if the process has ended.
std::optional<int> Ended(pid_t child) {
  int status = 0;
  if (waitpid(child, &status, WNOHANG) != child) return std::nullopt;
  return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

// Waits for events until the time, if any. Returns them.
std::string Events(std::optional<Clock::time_point> until) {
  int timeout_ms = -1;
  if (until.has_value()) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(*until - Clock::now());
    timeout_ms = static_cast<int>(std::max<int64_t>(left.count(), 0));
  }
  pollfd poll_for = {events_out, POLLIN, 0};
  if (poll(&poll_for, 1, timeout_ms) <= 0) return {};
  char events[64];
  const ssize_t size = read(events_out, events, sizeof(events));
  return size > 0 ? std::string(events, static_cast<size_t>(size)) : std::string();
}

}  // namespace

Status HeldCommand::Prepare() {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC | O_NONBLOCK) != 0) {
    return Status(StatusCode::kUnavailable, std::string("pipe: ") + std::strerror(errno));
  }
  events_out = ends[0];
  events_in = ends[1];
  return Status();
}

void HeldCommand::Lost(const Status&) { Write(kLostEvent); }

int HeldCommand::Run(const std::vector<std::string>& words, const Permit& permit,
                     WhenLost when_lost) {
  for (const int signal : kPassedOn) {
    if (!Ignored(signal)) Handle(signal);
  }
  Handle(SIGCHLD);
  int error = 0;
  const Result<pid_t> child = Start(words, when_lost, &error);
  if (!child.ok()) {
    PrintCannotRun(words[0].c_str(), error);
    return ExitCodeOfFailure(error);
  }
  std::optional<Clock::time_point> kill_at;
  for (;;) {
    for (const char event : Events(kill_at)) {
      if (event == kLostEvent) {
        std::fprintf(stderr, "sluice: lost the slots, %s: %s\n",
                     when_lost == WhenLost::kTerm ? "ending the command" : "the command goes on",
                     permit.lost().message().c_str());
        if (when_lost == WhenLost::kIgnore) continue;
        kill(*child, SIGTERM);
        kill(*child, SIGCONT);
        kill_at = Clock::now() + kKillAfter;
      } else if (event != SIGCHLD) {
        kill(*child, event);
      }
    }
    if (const std::optional<int> code = Ended(*child)) return *code;
    if (kill_at.has_value() && Clock::now() >= *kill_at) {
      kill(*child, SIGKILL);
      kill_at.reset();
    }
  }
}

}  // namespace sluice::cli
