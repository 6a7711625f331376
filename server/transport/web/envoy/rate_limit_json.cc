#include "server/transport/web/envoy/rate_limit_json.h"

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "common/bounds.h"
#include "common/buffer.h"
#include "common/protobuf_wire.h"
#include "envoy/service/ratelimit/v3/rls.pb.h"
#include "server/transport/envoy/codec.h"

namespace sluice::web {
namespace {

using ::envoy::service::ratelimit::v3::RateLimitRequest;
using ::envoy::service::ratelimit::v3::RateLimitResponse;
using transport::DescriptorCall;

const google::protobuf::MethodDescriptor& Rpc() {
  return *RateLimitRequest::descriptor()
              ->file()
              ->FindServiceByName("RateLimitService")
              ->FindMethodByName("ShouldRateLimit");
}

bool IsOverLimit(std::string_view answer) {
  common::WireReader reader(answer);
  uint64_t code = 0;
  while (reader.Next()) {
    if (reader.field() == RateLimitResponse::kOverallCodeFieldNumber && reader.ReadVarint(&code)) {
      break;
    }
  }
  return code == RateLimitResponse::OVER_LIMIT;
}

class Call final : public JsonCall {
 public:
  explicit Call(transport::DescriptorLimiter& limiter) : limiter_(limiter) {}

  void Execute() override {
    call_.Reset(DescriptorCall::Method::kShouldRateLimit);
    const absl::Status decoded = transport::DecodeRateLimitRequest(
        {reinterpret_cast<const uint8_t*>(request().data()), request().size()}, &call_.request());
    if (!decoded.ok()) return Answer(decoded);
    call_.UseCaller(caller());
    // In the background a call is decided as a whole: many that are under way would hold more.
    if (!in_background()) call_.DecideInSlices();
    under_way_ = shared_from_this();
    CountMemory(request().capacity() + std::max(call_.memory(), call_.request_memory()));
    limiter_.Decide(
        &call_, store::kNoDeadline,
        [](void* of, DescriptorCall*) {
          auto* const self = static_cast<Call*>(of);
          net::OnLoop(self->work(), [self] { self->Decided(); });
        },
        this);
  }

 private:
  // A small call goes on in the background if it is more than one slice of work.
  void Decided() {
    if (call_.more()) {
      CountMemory(request().capacity() + call_.memory());
      return ContinueInBackground([this] { limiter_.Continue(&call_); });
    }
    const std::shared_ptr<JsonCall> self = std::exchange(under_way_, nullptr);
    if (cancelled()) return Drop();
    if (!call_.status().ok()) return Answer(call_.status(), 400);
    common::Buffer encoded;
    call_.Encode(&encoded);
    std::string answer(reinterpret_cast<const char*>(encoded.data()), encoded.size());
    const int status = IsOverLimit(answer) ? 429 : 200;
    Answer(std::move(answer), status);
  }

  transport::DescriptorLimiter& limiter_;
  DescriptorCall call_;
  std::shared_ptr<JsonCall> under_way_;  // this, until the limiter has called back
};

}  // namespace

RateLimitJson::RateLimitJson(transport::DescriptorLimiter& limiter, const JsonCodec& json,
                             net::EventLoop& background)
    : JsonMethod({.json = json,
                  .background = background,
                  .rpc = Rpc(),
                  .always_in_background = false,
                  .any_content_type = true,
                  .many_items = true}),
      limiter_(limiter) {}

void RateLimitJson::Register(const http1::Gate& gate, http1::RouteTable* routes) {
  routes->Add("/json", *this,
              {.methods = {http1::Method::kPost},
               .max_body_bytes = common::bounds::kMaxSmallJsonBytes,
               .gate = &gate});
}

std::shared_ptr<JsonCall> RateLimitJson::NewCall() { return std::make_shared<Call>(limiter_); }

}  // namespace sluice::web
