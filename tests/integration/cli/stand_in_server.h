// A stand-in of the server over grpc++, whose answers the test decides: to see how the client takes
// hanging, broken and refusing servers. It knows every limit but "missing"; each bucket holds 10
// permits and gets no new ones.
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

  // Stops as a killed process does: connections break, calls end.
  void Kill();
  // Listens again, on the same ports.
  void Restart();

  // Acquisitions (and streams) are read and not answered until told otherwise.
  void SetHanging(bool hanging);
  // The next `count` Acquire calls end so; `marked`: with the server's word that it executed
  // nothing.
  void FailNext(const grpc::Status& status, bool marked, int count);
  // Admin calls need this token.
  void RequireToken(const std::string& token);
  // The next message of a stream is read, executed and never answered: the stream breaks.
  void BreakNextStreamMessage();

  // Acquisitions executed.
  int executed() const;
  // Messages of streams read.
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
