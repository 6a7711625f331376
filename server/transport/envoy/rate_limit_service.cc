#include "server/transport/envoy/rate_limit_service.h"

#include <string_view>

#include "common/bounds.h"
#include "envoy/service/ratelimit/v3/rls.pb.h"
#include "kuadrant/service/ratelimit/v1/ratelimit.pb.h"
#include "server/transport/envoy/codec.h"
#include "server/transport/services/unary_use_case.h"

namespace sluice::transport {
namespace {

constexpr char kEnvoy[] = "envoy.service.ratelimit.v3.RateLimitService";
constexpr char kKuadrant[] = "kuadrant.service.ratelimit.v1.RateLimitService";

template <DescriptorCall::Method kMethod>
struct DescriptorKind : AnyKind<DescriptorCall, &DescriptorLimiter::Decide> {
  using Limiter = DescriptorLimiter;
  static constexpr int64_t kUnits = 4;
  static absl::Status Decode(absl::Span<const uint8_t> bytes, DescriptorCall* call) {
    call->Reset(kMethod);
    using Method = DescriptorCall::Method;
    if constexpr (kMethod == Method::kReserve) return DecodeReserveRequest(bytes, &call->request());
    if constexpr (kMethod == Method::kCommit) return DecodeCommitRequest(bytes, &call->request());
    return DecodeRateLimitRequest(bytes, &call->request());
  }
  static void Encode(const DescriptorCall& call, Buffer* out) { call.Encode(out); }
  // Requests of many descriptors are rare.
  static bool Drops(const DescriptorCall& call) { return call.memory() > kLargeBytes; }
  static constexpr size_t kLargeBytes = 16 << 10;
};

class NotConfigured final : public UnaryMethod {
 public:
  void OnCall(ServerCall& rpc, absl::Span<const uint8_t>) override {
    rpc.Finish(absl::StatusCode::kUnimplemented,
               "this server has no rate-limit configuration of Envoy; start it with "
               "--ratelimit_config or --ratelimit_xds");
  }
};

template <DescriptorCall::Method kMethod>
std::unique_ptr<UnaryMethod> Make(DescriptorLimiter* limiter, size_t loops) {
  if (limiter == nullptr) return std::make_unique<NotConfigured>();
  return std::make_unique<UnaryUseCase<DescriptorKind<kMethod>>>(*limiter, loops);
}

}  // namespace

std::vector<std::string> RateLimitService::ServiceNames() {
  // Puts the services' files into the pool.
  google::protobuf::LinkMessageReflection<::envoy::service::ratelimit::v3::RateLimitRequest>();
  google::protobuf::internal::StrongReference(
      descriptor_table_kuadrant_2fservice_2fratelimit_2fv1_2fratelimit_2eproto);
  return {kEnvoy, kKuadrant};
}

RateLimitService::RateLimitService(DescriptorLimiter* limiter, size_t loops)
    : should_rate_limit_(Make<DescriptorCall::Method::kShouldRateLimit>(limiter, loops)),
      check_(Make<DescriptorCall::Method::kCheck>(limiter, loops)),
      report_(Make<DescriptorCall::Method::kReport>(limiter, loops)),
      reserve_(Make<DescriptorCall::Method::kReserve>(limiter, loops)),
      commit_(Make<DescriptorCall::Method::kCommit>(limiter, loops)) {}

RateLimitService::~RateLimitService() = default;

void RateLimitService::Register(MethodTable* methods) {
  const auto options = [](access::Call call) {
    return MethodOptions{.max_request_bytes = common::bounds::kMaxEnvoyRequestBytes, .call = call};
  };
  const std::string envoy = std::string("/") + kEnvoy;
  const std::string kuadrant = std::string("/") + kKuadrant;
  methods->AddUnary(envoy + "/ShouldRateLimit", *should_rate_limit_,
                    options(access::Call::kAcquire));
  methods->AddUnary(kuadrant + "/CheckRateLimit", *check_, options(access::Call::kQuery));
  methods->AddUnary(kuadrant + "/Report", *report_, options(access::Call::kAcquire));
  methods->AddUnary(kuadrant + "/Reserve", *reserve_, options(access::Call::kAcquire));
  methods->AddUnary(kuadrant + "/Commit", *commit_, options(access::Call::kAcquire));
}

}  // namespace sluice::transport
