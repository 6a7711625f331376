// The baseline of run.py: grpc++'s callback API with an Acquire handler that answers an empty
// message. Prints `ready data=HOST:PORT` and serves until it is killed.
#include <grpcpp/grpcpp.h>

#include <cstdio>
#include <memory>

#include "absl/synchronization/mutex.h"
#include "sluice/v1/rate_limiter.grpc.pb.h"

namespace {

class Empty final : public sluice::v1::RateLimiter::CallbackService {
 public:
  grpc::ServerUnaryReactor* Acquire(grpc::CallbackServerContext* context,
                                    const sluice::v1::AcquireRequest*,
                                    sluice::v1::AcquireResponse*) override {
    grpc::ServerUnaryReactor* const reactor = context->DefaultReactor();
    reactor->Finish(grpc::Status::OK);
    return reactor;
  }
};

}  // namespace

int main() {
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);
  Empty service;
  grpc::ServerBuilder builder;
  int port = 0;
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
  builder.RegisterService(&service);
  const std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  if (server == nullptr) return 1;
  std::printf("ready data=127.0.0.1:%d\n", port);
  std::fflush(stdout);
  server->Wait();
}
