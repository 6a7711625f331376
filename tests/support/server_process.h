// ServerProcess: the real sluiced, started for a test and stopped by its process id.
//
//   ServerProcess server({.limits = "limits: [{name: api, rate: 5/s}]"});
//   auto stub = v1::RateLimiter::NewStub(server.DataChannel());
#ifndef SLUICE_TESTS_SUPPORT_SERVER_PROCESS_H_
#define SLUICE_TESTS_SUPPORT_SERVER_PROCESS_H_

#include <grpcpp/grpcpp.h>
#include <sys/types.h>

#include <memory>
#include <string>
#include <vector>

#include "tests/support/test_certificates.h"

namespace sluice::testing {

// What serves the data port. Every integration test runs on all of them.
struct DataTransport {
  std::string name;
  std::vector<std::string> flags;  // that choose it
};
std::vector<DataTransport> DataTransports();

// Not thread-safe, but for Signal.
class ServerProcess {
 public:
  struct Options {
    // YAML, written to limits_path(). Empty: no --limits.
    std::string limits = "limits: [{name: api, rate: 5/s}]";
    // Port 0 on loopback unless these flags say otherwise.
    std::vector<std::string> flags = {};
    // Must be named, so that no test runs on one transport and means both.
    DataTransport transport = {};
    // Do not fail the test when it ends before it is ready: exit_code and log() say why.
    bool may_fail = false;
  };

  explicit ServerProcess(Options options);
  // SIGKILL, if it still runs.
  ~ServerProcess();
  ServerProcess(const ServerProcess&) = delete;
  ServerProcess& operator=(const ServerProcess&) = delete;

  bool ready() const { return ready_; }
  const std::string& data_address() const { return data_address_; }
  const std::string& admin_address() const { return admin_address_; }
  // Everything on stdout so far (waits for nothing).
  std::string out();
  // Everything on stderr so far.
  std::string log() const;
  pid_t pid() const { return pid_; }

  std::string limits_path() const { return files_.Path("limits.yaml"); }
  // Replaces the limits file by rename.
  void WriteLimits(const std::string& yaml) { files_.Write("limits.yaml", yaml); }
  TestFiles& files() { return files_; }

  // Own connections, each with a channel of its own.
  std::shared_ptr<grpc::Channel> DataChannel(
      std::shared_ptr<grpc::ChannelCredentials> credentials = grpc::InsecureChannelCredentials());
  std::shared_ptr<grpc::Channel> AdminChannel(
      std::shared_ptr<grpc::ChannelCredentials> credentials = grpc::InsecureChannelCredentials());

  void Signal(int number) const;
  // Waits for its end; -1: it was killed by a signal, or still runs after 30 s.
  int WaitForExit();
  void Kill();

 private:
  void ReadUntilReady();

  TestFiles files_;
  pid_t pid_ = -1;
  bool running_ = false;
  bool ready_ = false;
  int exit_code_ = -1;
  int out_fd_ = -1;
  std::string out_;
  std::string data_address_;
  std::string admin_address_;
};

}  // namespace sluice::testing

#endif  // SLUICE_TESTS_SUPPORT_SERVER_PROCESS_H_
