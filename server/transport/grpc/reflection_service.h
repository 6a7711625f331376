// grpc.reflection.v1 and v1alpha on grpc++'s callback API.
#ifndef SLUICE_SERVER_TRANSPORT_GRPC_REFLECTION_SERVICE_H_
#define SLUICE_SERVER_TRANSPORT_GRPC_REFLECTION_SERVICE_H_

#include "grpc/reflection/v1/reflection.grpc.pb.h"
#include "grpc/reflection/v1alpha/reflection.grpc.pb.h"
#include "server/transport/services/reflection.h"

namespace sluice::transport {

// One request, one response, until the client is through.
template <typename Request, typename Response>
class ReflectionReactor final : public ::grpc::ServerBidiReactor<Request, Response> {
 public:
  explicit ReflectionReactor(const Reflection& reflection) : reflection_(reflection) {
    this->StartRead(&request_);
  }
  void OnReadDone(bool ok) override {
    if (!ok) {
      this->Finish(::grpc::Status::OK);
      return;
    }
    response_.Clear();
    reflection_.Answer(request_, &response_);
    this->StartWrite(&response_);
  }
  void OnWriteDone(bool ok) override {
    if (ok) {
      this->StartRead(&request_);
    } else {
      this->Finish(::grpc::Status::CANCELLED);
    }
  }
  void OnDone() override { delete this; }

 private:
  const Reflection& reflection_;
  Request request_;
  Response response_;
};

// Thread-safe. Outlives its server; the reflection outlives it.
template <typename CallbackService, typename Request, typename Response>
class ReflectionService final : public CallbackService {
 public:
  explicit ReflectionService(const Reflection& reflection) : reflection_(reflection) {}

  ::grpc::ServerBidiReactor<Request, Response>* ServerReflectionInfo(
      ::grpc::CallbackServerContext*) override {
    return new ReflectionReactor<Request, Response>(reflection_);
  }

 private:
  const Reflection& reflection_;
};

using ReflectionServiceV1 =
    ReflectionService<::grpc::reflection::v1::ServerReflection::CallbackService,
                      ::grpc::reflection::v1::ServerReflectionRequest,
                      ::grpc::reflection::v1::ServerReflectionResponse>;
using ReflectionServiceV1Alpha =
    ReflectionService<::grpc::reflection::v1alpha::ServerReflection::CallbackService,
                      ::grpc::reflection::v1alpha::ServerReflectionRequest,
                      ::grpc::reflection::v1alpha::ServerReflectionResponse>;

}  // namespace sluice::transport

#endif  // SLUICE_SERVER_TRANSPORT_GRPC_REFLECTION_SERVICE_H_
