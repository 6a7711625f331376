#include "tests/support/server_process.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <thread>
#include <utility>

#include "gtest/gtest.h"

namespace sluice::testing {
namespace {

using std::chrono::steady_clock;

constexpr auto kPatience = std::chrono::seconds(30);

// grpc++ polls an idle connection every 5 s by default, and only then sees a GOAWAY, for which a
// draining server waits.
[[maybe_unused]] const int kPollOften =
    setenv("GRPC_CLIENT_CHANNEL_BACKUP_POLL_INTERVAL_MS", "50", /*overwrite=*/1);

std::shared_ptr<grpc::Channel> Connect(const std::string& address,
                                       std::shared_ptr<grpc::ChannelCredentials> credentials) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 50);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 200);
  return grpc::CreateCustomChannel(address, credentials, arguments);
}

}  // namespace

ServerProcess::ServerProcess(Options options) {
  std::vector<std::string> arguments = {SLUICED_PATH, "--listen=127.0.0.1:0",
                                        "--admin_listen=127.0.0.1:0", "--http_listen=127.0.0.1:0",
                                        "--drain_notice=0s"};
  if (!options.limits.empty()) {
    files_.Write("limits.yaml", options.limits);
    arguments.push_back("--limits=" + limits_path());
  }
  for (const std::string& flag : options.flags) arguments.push_back(flag);  // the last one counts

  int out[2];
  EXPECT_EQ(pipe2(out, O_CLOEXEC), 0);
  files_.Write("stderr", "");
  const std::string log = files_.Path("stderr");
  std::vector<char*> argv;
  for (std::string& argument : arguments) argv.push_back(argument.data());
  argv.push_back(nullptr);
  // Made before the fork: the child may not allocate.
  char process[32] = "";
  std::string count = "LISTEN_FDS=" + std::to_string(options.sockets.size());
  std::string names = "LISTEN_FDNAMES=" + options.socket_names;
  std::vector<char*> environment;
  for (char** one = environ; *one != nullptr; ++one) environment.push_back(*one);
  for (std::string& one : options.environment) environment.push_back(one.data());
  if (!options.sockets.empty()) {
    environment.insert(environment.end(), {process, count.data(), names.data()});
  }
  environment.push_back(nullptr);
  pid_ = fork();
  if (pid_ == 0) {
    std::snprintf(process, sizeof(process), "LISTEN_PID=%d", getpid());
    dup2(out[1], STDOUT_FILENO);
    dup2(open(log.c_str(), O_WRONLY | O_APPEND), STDERR_FILENO);
    // Above the places that they are to have.
    const int first = 3;
    const int aside = 500;
    const int sockets = static_cast<int>(options.sockets.size());
    for (int i = 0; i < sockets; ++i) dup2(options.sockets[i], aside + i);
    for (int i = 0; i < sockets; ++i) dup2(aside + i, first + i);
    for (int i = 0; i < sockets; ++i) close(aside + i);
    execve(argv[0], argv.data(), environment.data());
    _exit(127);
  }
  close(out[1]);
  out_fd_ = out[0];
  fcntl(out_fd_, F_SETFL, O_NONBLOCK);
  running_ = true;
  if (options.in_background) return;
  ReadUntilReady();
  if (!ready_ && !options.may_fail) ADD_FAILURE() << "sluiced is not ready:\n" << this->log();
}

ServerProcess::~ServerProcess() {
  Kill();
  close(out_fd_);
}

void ServerProcess::ReadUntilReady() {
  const auto until = steady_clock::now() + kPatience;
  while (out_.find('\n') == std::string::npos) {
    pollfd ready = {out_fd_, POLLIN, 0};
    if (steady_clock::now() > until) return;
    if (poll(&ready, 1, 100) <= 0) continue;
    char buffer[512];
    const ssize_t got = read(out_fd_, buffer, sizeof(buffer));
    if (got <= 0) return;  // it ended
    out_.append(buffer, static_cast<size_t>(got));
  }
  std::istringstream line(out_);
  std::string word;
  std::string data;
  std::string admin;
  std::string http;
  line >> word >> data >> admin >> http;
  ready_ = word == "ready" && data.rfind("data=", 0) == 0 && admin.rfind("admin=", 0) == 0 &&
           http.rfind("http=", 0) == 0;
  if (ready_) {
    data_address_ = data.substr(5);
    admin_address_ = admin.substr(6);
    http_address_ = http.substr(5);
  }
}

std::string ServerProcess::out() {
  char buffer[512];
  ssize_t got;
  while ((got = read(out_fd_, buffer, sizeof(buffer))) > 0) {
    out_.append(buffer, static_cast<size_t>(got));
  }
  return out_;
}

std::string ServerProcess::log() const {
  std::ifstream file(files_.Path("stderr"));
  std::stringstream content;
  content << file.rdbuf();
  return content.str();
}

::testing::AssertionResult ServerProcess::Logs(
    std::initializer_list<std::string_view> texts) const {
  const auto until = steady_clock::now() + kPatience;
  for (const std::string_view text : texts) {
    while (log().find(text) == std::string::npos) {
      if (steady_clock::now() > until) {
        return ::testing::AssertionFailure() << "not logged: " << text << "\nin:\n" << log();
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
  }
  return ::testing::AssertionSuccess();
}

std::shared_ptr<grpc::Channel> ServerProcess::DataChannel(
    std::shared_ptr<grpc::ChannelCredentials> credentials) {
  return Connect(data_address_, std::move(credentials));
}

std::shared_ptr<grpc::Channel> ServerProcess::AdminChannel(
    std::shared_ptr<grpc::ChannelCredentials> credentials) {
  return Connect(admin_address_, std::move(credentials));
}

void ServerProcess::Signal(int number) const {
  if (running_) kill(pid_, number);
}

int ServerProcess::WaitForExit() {
  const auto until = steady_clock::now() + kPatience;
  while (running_) {
    int status = 0;
    if (waitpid(pid_, &status, WNOHANG) == pid_) {
      running_ = false;
      exit_code_ = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
    } else if (steady_clock::now() > until) {
      return -1;
    } else {
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
  }
  return exit_code_;
}

void ServerProcess::Kill() {
  Signal(SIGKILL);
  WaitForExit();
}

}  // namespace sluice::testing
