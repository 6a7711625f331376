// ServerProcess: the real sluiced as a child process of a test.
//
//   ServerProcess server({.limits = "limits: [{name: api, rate: 5/s}]"});
//   auto stub = v1::RateLimiter::NewStub(server.DataChannel());
#ifndef SLUICE_TESTS_SUPPORT_SERVER_PROCESS_H_
#define SLUICE_TESTS_SUPPORT_SERVER_PROCESS_H_

#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <sys/types.h>

#include <initializer_list>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "tests/support/test_certificates.h"

namespace sluice::testing {

// Not thread-safe, except Signal.
class ServerProcess {
 public:
  struct Options {
    // YAML, written to limits_path(). Empty: no --limits.
    std::string limits = "limits: [{name: api, rate: 5/s}]";
    // Port 0 on loopback unless these flags say otherwise.
    std::vector<std::string> flags = {};
    // Do not fail the test if the server ends before it is ready: WaitForExit and log() say why.
    bool may_fail = false;
    // Passed as systemd does (LISTEN_FDS), under `socket_names` (LISTEN_FDNAMES).
    std::vector<int> sockets = {};
    std::string socket_names = {};
    // NAME=VALUE, beside the environment of the test.
    std::vector<std::string> environment = {};
    // Do not wait for the line on stdout: ReadUntilReady does.
    bool in_background = false;
  };

  explicit ServerProcess(Options options);
  // Kills the server if it still runs.
  ~ServerProcess();
  ServerProcess(const ServerProcess&) = delete;
  ServerProcess& operator=(const ServerProcess&) = delete;

  bool ready() const { return ready_; }
  const std::string& data_address() const { return data_address_; }
  const std::string& admin_address() const { return admin_address_; }
  const std::string& http_address() const { return http_address_; }
  // Stdout and stderr so far. Neither waits.
  std::string out();
  std::string log() const;
  // Waits until the log holds all of `texts`: the server logs what it did after it did it.
  ::testing::AssertionResult Logs(std::initializer_list<std::string_view> texts) const;
  pid_t pid() const { return pid_; }

  std::string limits_path() const { return files_.Path("limits.yaml"); }
  // Replaces the limits file by rename.
  void WriteLimits(const std::string& yaml) { files_.Write("limits.yaml", yaml); }
  TestFiles& files() { return files_; }

  // Each channel has a connection of its own.
  std::shared_ptr<grpc::Channel> DataChannel(
      std::shared_ptr<grpc::ChannelCredentials> credentials = grpc::InsecureChannelCredentials());
  std::shared_ptr<grpc::Channel> AdminChannel(
      std::shared_ptr<grpc::ChannelCredentials> credentials = grpc::InsecureChannelCredentials());

  void Signal(int number) const;
  // Waits until the server ends. Returns -1 if a signal killed it, or if it still runs after 30 s.
  int WaitForExit();
  void Kill();

  // Waits until the server listens, or ends.
  void ReadUntilReady();

 private:
  TestFiles files_;
  pid_t pid_ = -1;
  bool running_ = false;
  bool ready_ = false;
  int exit_code_ = -1;
  int out_fd_ = -1;
  std::string out_;
  std::string data_address_;
  std::string admin_address_;
  std::string http_address_;
};

}  // namespace sluice::testing

#endif  // SLUICE_TESTS_SUPPORT_SERVER_PROCESS_H_
