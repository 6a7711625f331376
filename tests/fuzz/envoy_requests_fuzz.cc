// Each request of Envoy's and Kuadrant's rate-limit services, from bytes to answer: the codec, the
// matcher and the memory store. The first byte chooses how to count and to answer. The codec must
// accept the messages that protobuf's parser accepts, within its bounds, and protobuf every answer.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>
#include <utility>

#include "common/clock.h"
#include "common/metrics.h"
#include "envoy/service/ratelimit/v3/rls.pb.h"
#include "google/protobuf/stubs/logging.h"
#include "kuadrant/service/ratelimit/v1/ratelimit.pb.h"
#include "server/envoy/limit_specs.h"
#include "server/envoy/matcher.h"
#include "server/limits/limit_registry.h"
#include "server/service/key_usage.h"
#include "server/service/receipt.h"
#include "server/store/memory/memory_store.h"
#include "server/transport/envoy/codec.h"
#include "server/transport/envoy/rate_limit_service.h"

namespace sluice::transport {
namespace {

namespace kuadrant = ::kuadrant::service::ratelimit::v1;
namespace v3 = ::envoy::service::ratelimit::v3;

void Check(bool right) {
  if (!right) std::abort();
}

envoy::Descriptor Limited(std::string key, std::string value, uint32_t requests_per_unit) {
  envoy::Descriptor descriptor;
  descriptor.key = std::move(key);
  descriptor.value = std::move(value);
  descriptor.rate_limit.emplace();
  descriptor.rate_limit->unit = envoy::Unit::kMinute;
  descriptor.rate_limit->requests_per_unit = requests_per_unit;
  return descriptor;
}

std::shared_ptr<const envoy::Matcher> Limits(envoy::Counting counting) {
  envoy::DescriptorTree tree;
  tree.sources = {"fuzz"};
  envoy::Domain& domain = tree.domains.emplace_back();
  domain.name = "d";
  domain.descriptors = {Limited("a", "", 5), Limited("b", "x*y*", 3), Limited("c", "1", 0),
                        Limited("s", "", 2), Limited("q", "", 1)};
  domain.descriptors[0].descriptors = {Limited("b", "", 4), Limited("a", "1", 1)};
  domain.descriptors[0].rate_limit->name = "a";
  domain.descriptors[1].share_threshold = true;
  domain.descriptors[1].rate_limit->replaces.push_back({"a", {}});
  domain.descriptors[2].detailed_metric = true;
  domain.descriptors[3].shadow_mode = true;
  domain.descriptors[4].quota_mode = true;
  envoy::Overrides overrides;
  overrides.all = counting;
  return std::make_shared<const envoy::Matcher>(tree, overrides);
}

// A server without sockets.
struct Parts {
  common::FakeClock clock;
  common::Metrics metrics;
  store::MemoryStore store{clock, {.max_buckets = 4096, .seed = 1}};
  limits::LimitRegistry registry{&store};
  service::KeyUsage usage;
  service::ReceiptSigner signer{7, {}};
  DescriptorLimiter limiter;

  Parts(envoy::Counting counting, DescriptorOptions options)
      : limiter({registry, store, clock, metrics, usage, signer}, std::move(options)) {
    const auto matcher = Limits(counting);
    Check(registry.ApplyEnvoy(envoy::MakeSpecs(*matcher), "1", matcher).ok());
  }
};

Parts& PartsOf(uint8_t choice) {
  constexpr envoy::Counting kExact = {.mode = envoy::CountMode::kExact};
  constexpr envoy::Counting kAllOrNone = {.mode = envoy::CountMode::kExact, .all_or_none = true};
  static Parts parts[] = {
      {{}, {}},
      {{}, {.answer = {.headers = true}, .request_limits = true}},
      {kExact, {.answer = {.metadata = true}}},
      {kAllOrNone, {}},
  };
  return parts[choice % 4];
}

void Decide(Parts& parts, DescriptorCall* call) {
  int done = 0;
  parts.limiter.Decide(
      call, store::kNoDeadline,
      [](void* context, DescriptorCall*) { ++*static_cast<int*>(context); }, &done);
  Check(done == 1);
}

template <typename Message>
bool Decode(const std::string& bytes,
            absl::Status (*decode)(absl::Span<const uint8_t>, RateLimitRequest*),
            DescriptorCall* call, Message* message) {
  const bool parsed = message->ParseFromString(bytes);
  const bool decoded =
      decode({reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size()}, &call->request()).ok();
  Check(decoded == parsed);
  return decoded;
}

void CheckAnswer(const v3::RateLimitRequest& request, const DescriptorCall& call) {
  common::Buffer answer;
  call.Encode(&answer);
  v3::RateLimitResponse response;
  Check(response.ParseFromArray(answer.data(), static_cast<int>(answer.size())));
  Check(response.statuses_size() == request.descriptors_size());
  for (const auto& status : response.statuses()) {
    Check(status.code() != v3::RateLimitResponse::UNKNOWN);
    if (!status.has_current_limit()) continue;
    Check(status.duration_until_reset().seconds() > 0);
    Check(status.limit_remaining() <= status.current_limit().requests_per_unit());
    Check(status.code() == v3::RateLimitResponse::OK || status.limit_remaining() == 0);
  }
}

// What was reserved can be committed with the same descriptors.
void CheckReservation(Parts& parts, const std::string& bytes, const DescriptorCall& reserved) {
  common::Buffer answer;
  reserved.Encode(&answer);
  kuadrant::ReserveResponse response;
  Check(response.ParseFromArray(answer.data(), static_cast<int>(answer.size())));
  Check(response.code() == v3::RateLimitResponse::OK || response.reservation_id().empty());
  if (response.reservation_id().empty()) return;
  const uint64_t before = parts.limiter.counters().Calls().committed;
  DescriptorCall call;
  call.Reset(DescriptorCall::Method::kCommit);
  kuadrant::ReserveRequest request;
  Check(Decode(bytes, &DecodeReserveRequest, &call, &request));
  call.request().reservation_id = response.reservation_id();
  call.request().amount /= 2;
  Decide(parts, &call);
  Check(call.status().ok());
  Check(parts.limiter.counters().Calls().committed == before + 1);
}

void Run(uint8_t choice, const std::string& bytes) {
  using Method = DescriptorCall::Method;
  Parts& parts = PartsOf(choice);
  parts.clock.Advance(int64_t{50'000'000});
  DescriptorCall call;
  const auto method = static_cast<Method>(choice / 4 % 5);
  call.Reset(method);
  v3::RateLimitRequest request;
  kuadrant::ReserveRequest reserve;
  kuadrant::CommitRequest commit;
  const bool decoded =
      method == Method::kReserve  ? Decode(bytes, &DecodeReserveRequest, &call, &reserve)
      : method == Method::kCommit ? Decode(bytes, &DecodeCommitRequest, &call, &commit)
                                  : Decode(bytes, &DecodeRateLimitRequest, &call, &request);
  if (!decoded) return;
  Decide(parts, &call);
  if (!call.status().ok() || method == Method::kCommit) return;
  if (method == Method::kReserve) return CheckReservation(parts, bytes, call);
  CheckAnswer(request, call);
}

}  // namespace
}  // namespace sluice::transport

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const google::protobuf::LogSilencer silence;
  if (size == 0) return 0;
  sluice::transport::Run(data[0], std::string(reinterpret_cast<const char*>(data) + 1, size - 1));
  return 0;
}
