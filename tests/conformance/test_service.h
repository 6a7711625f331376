// grpc.testing.TestService, for gRPC's interoperability clients.
#ifndef SLUICE_TESTS_CONFORMANCE_TEST_SERVICE_H_
#define SLUICE_TESTS_CONFORMANCE_TEST_SERVICE_H_

#include "server/transport/rpc/method.h"

namespace sluice::conformance {

class TestService {
 public:
  TestService();
  ~TestService();
  void Register(transport::MethodTable* methods);

 private:
  struct Handlers;
  Handlers* handlers_;
};

}  // namespace sluice::conformance

#endif  // SLUICE_TESTS_CONFORMANCE_TEST_SERVICE_H_
