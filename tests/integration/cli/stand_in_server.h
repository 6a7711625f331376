// StandInServer: a server over grpc++ that hangs, breaks and refuses calls as a test says. Every
// limit but "missing" exists. Each bucket starts with 10 permits, and never refills. Grants of the
// limit "short" have slots that end at once.
#ifndef SLUICE_TESTS_INTEGRATION_CLI_STAND_IN_SERVER_H_
#define SLUICE_TESTS_INTEGRATION_CLI_STAND_IN_SERVER_H_

#include <grpcpp/grpcpp.h>

#include <memory>
#include <string>

namespace sluice::testing {

class StandInServer {
 public:
  // Listens on free ports of 127.0.0.1.
  StandInServer();
  ~StandInServer();

  std::string address() const;
  std::string admin_address() const;

  // Stops like a killed process: connections break, calls end.
  void Kill();
  // Listens again on the same ports.
  void Restart();

  // While hanging, acquisitions and streams are read but not answered.
  void SetHanging(bool hanging);
  // The next `count` Acquire calls fail; `marked`: with the metadata that says that the server did
  // not execute them.
  void FailNext(const grpc::Status& status, bool marked, int count);
  // Acquire and the list of limits require this token.
  void RequireToken(const std::string& token);
  // The next message of a stream is executed but not answered: the stream breaks.
  void BreakNextStreamMessage();

  // The number of acquisitions executed.
  int executed() const;
  // The number of stream messages read.
  int stream_messages() const;

 private:
  class State;
  class Limiter;
  class Admin;
  void Start(int data_port, int admin_port);

  std::shared_ptr<State> state_;
  std::unique_ptr<Limiter> limiter_;
  std::unique_ptr<Admin> admin_;
  std::unique_ptr<grpc::Server> data_server_;
  std::unique_ptr<grpc::Server> admin_server_;
  int data_port_ = 0;
  int admin_port_ = 0;
};

}  // namespace sluice::testing

#endif  // SLUICE_TESTS_INTEGRATION_CLI_STAND_IN_SERVER_H_
