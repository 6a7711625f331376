// ScriptedManagementServer: a management server of Envoy (ADS) that does what the test says.
#ifndef SLUICE_TESTS_SUPPORT_MANAGEMENT_SERVER_H_
#define SLUICE_TESTS_SUPPORT_MANAGEMENT_SERVER_H_

#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "common/mutex.h"
#include "envoy/service/discovery/v3/ads.grpc.pb.h"
#include "ratelimit/config/ratelimit/v3/rls_conf.pb.h"
#include "server/envoy/xds/rate_limit_resources.h"

namespace sluice::testing {

// Thread-safe.
class ScriptedManagementServer final
    : public ::envoy::service::discovery::v3::AggregatedDiscoveryService::Service {
 public:
  using DiscoveryRequest = ::envoy::service::discovery::v3::DiscoveryRequest;
  using DiscoveryResponse = ::envoy::service::discovery::v3::DiscoveryResponse;

  explicit ScriptedManagementServer(
      const std::string& address,
      std::shared_ptr<grpc::ServerCredentials> credentials = grpc::InsecureServerCredentials()) {
    grpc::ServerBuilder builder;
    builder.AddListeningPort(address, std::move(credentials), &port_);
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
  }
  ~ScriptedManagementServer() override { server_->Shutdown(std::chrono::system_clock::now()); }

  std::string address() const { return "localhost:" + std::to_string(port_); }

  // Sends it on each stream that begins.
  void SendToAll(DiscoveryResponse response) {
    const common::MutexLock lock(&mu_);
    to_all_ = std::move(response);
  }
  // Waits for a stream.
  void Send(const DiscoveryResponse& response) {
    const common::MutexLock lock(&mu_);
    while (stream_ == nullptr) changed_.Wait(&mu_);
    stream_->Write(response);
  }
  // The next request, of whatever stream; waits for it.
  DiscoveryRequest Next() {
    const common::MutexLock lock(&mu_);
    while (requests_.empty()) {
      if (!changed_.WaitFor(&mu_, std::chrono::seconds(30)) && requests_.empty()) {
        ADD_FAILURE() << "there is no request";
        return {};
      }
    }
    DiscoveryRequest request = requests_.front();
    requests_.pop_front();
    return request;
  }
  void EndStream() {
    const common::MutexLock lock(&mu_);
    while (context_ == nullptr) changed_.Wait(&mu_);
    context_->TryCancel();
  }

 private:
  grpc::Status StreamAggregatedResources(
      grpc::ServerContext* context,
      grpc::ServerReaderWriter<DiscoveryResponse, DiscoveryRequest>* stream) override {
    SetStream(context, stream);
    if (std::optional<DiscoveryResponse> response = ToAll()) stream->Write(*response);
    DiscoveryRequest request;
    while (stream->Read(&request)) {
      const common::MutexLock lock(&mu_);
      requests_.push_back(request);
      changed_.SignalAll();
    }
    SetStream(nullptr, nullptr);
    return grpc::Status::OK;
  }

  std::optional<DiscoveryResponse> ToAll() {
    const common::MutexLock lock(&mu_);
    return to_all_;
  }
  void SetStream(grpc::ServerContext* context,
                 grpc::ServerReaderWriter<DiscoveryResponse, DiscoveryRequest>* stream) {
    const common::MutexLock lock(&mu_);
    context_ = context;
    stream_ = stream;
    changed_.SignalAll();
  }

  int port_ = 0;
  common::Mutex mu_;
  common::CondVar changed_;
  grpc::ServerContext* context_ = nullptr;
  grpc::ServerReaderWriter<DiscoveryResponse, DiscoveryRequest>* stream_ = nullptr;
  std::list<DiscoveryRequest> requests_;
  std::optional<DiscoveryResponse> to_all_;
  std::unique_ptr<grpc::Server> server_;
};

// With one limit, `domain`//k.
inline ::envoy::service::discovery::v3::DiscoveryResponse ResponseOf(
    const std::string& version, const std::string& domain, uint32_t requests_per_minute = 1) {
  namespace config = ::ratelimit::config::ratelimit::v3;
  config::RateLimitConfig message;
  message.set_name(domain);
  message.set_domain(domain);
  config::RateLimitDescriptor& descriptor = *message.add_descriptors();
  descriptor.set_key("k");
  descriptor.mutable_rate_limit()->set_unit(config::MINUTE);
  descriptor.mutable_rate_limit()->set_requests_per_unit(requests_per_minute);
  ::envoy::service::discovery::v3::DiscoveryResponse response;
  response.set_version_info(version);
  response.set_nonce("nonce of " + version);
  response.set_type_url(envoy::kRateLimitConfigType);
  response.add_resources()->set_type_url(envoy::kRateLimitConfigType);
  response.mutable_resources(0)->set_value(message.SerializeAsString());
  return response;
}

}  // namespace sluice::testing

#endif  // SLUICE_TESTS_SUPPORT_MANAGEMENT_SERVER_H_
