#include "server/transport/web/json_api.h"

#include <algorithm>
#include <utility>

#include "common/bounds.h"
#include "common/buffer.h"
#include "common/strings.h"
#include "server/service/acquire_call.h"
#include "server/service/query_call.h"
#include "server/service/refund_call.h"
#include "server/service/renew_call.h"
#include "server/service/settle_call.h"
#include "server/transport/http1/exchange.h"
#include "server/transport/services/bookings_state.h"
#include "server/transport/services/rate_limiter_codec.h"
#include "server/transport/web/json_call.h"
#include "server/transport/web/openapi.h"
#include "server/transport/web/watch_method.h"
#include "sluice/v1/admin.pb.h"
#include "sluice/v1/rate_limiter.pb.h"

namespace sluice::web {
namespace {

namespace bounds = common::bounds;
using google::protobuf::MethodDescriptor;
using google::protobuf::ServiceDescriptor;

const ServiceDescriptor& RateLimiterRpcs() {
  return *v1::AcquireRequest::descriptor()->file()->FindServiceByName("RateLimiter");
}
const ServiceDescriptor& LimitAdminRpcs() {
  return *v1::ListLimitsRequest::descriptor()->file()->FindServiceByName("LimitAdmin");
}

// ---- The data plane

// A use case with a call object: how its request is decoded, decided, and its response encoded.
template <typename CallOfKind, auto decode, auto encode, auto decide>
struct DataKind {
  using Call = CallOfKind;
  static constexpr auto Decode = decode;
  static constexpr auto Encode = encode;
  static constexpr auto kDecide = decide;
  // Whether each slice is encoded, and not only the last.
  static constexpr bool kEncodesSlices = false;
  static absl::Status Outcome(const Call& call) { return call.status(); }
};

struct AcquireKind : DataKind<service::AcquireCall, transport::DecodeAcquire,
                              transport::EncodeAcquire, &service::RateLimiter::Acquire> {
  static absl::Status Outcome(const Call& call) {
    return call.status().ok() ? call.result(0).status : call.status();
  }
};
struct AcquireBatchKind : DataKind<service::AcquireCall, transport::DecodeAcquireBatch,
                                   transport::EncodeAcquireBatch, &service::RateLimiter::Acquire> {
  static constexpr bool kEncodesSlices = true;
};
using QueryKind = DataKind<service::QueryCall, transport::DecodeQuery, transport::EncodeQuery,
                           &service::RateLimiter::Query>;
using RefundKind = DataKind<service::RefundCall, transport::DecodeRefund, transport::EncodeRefund,
                            &service::RateLimiter::Refund>;
struct SettleKind : DataKind<service::SettleCall, transport::DecodeSettle, transport::EncodeSettle,
                             &service::RateLimiter::Settle> {
  static absl::Status Outcome(const Call& call) {
    return call.status().ok() ? call.result(0).status : call.status();
  }
};
struct SettleBatchKind : DataKind<service::SettleCall, transport::DecodeSettleBatch,
                                  transport::EncodeSettleBatch, &service::RateLimiter::Settle> {
  static constexpr bool kEncodesSlices = true;
};
using RenewKind = DataKind<service::RenewCall, transport::DecodeRenew, transport::EncodeRenew,
                           &service::RateLimiter::Renew>;

template <typename Kind>
class DataCall final : public JsonCall {
 public:
  explicit DataCall(service::RateLimiter& limiter) : limiter_(limiter) {}

  void Execute() override {
    const absl::Status decoded = Kind::Decode(
        {reinterpret_cast<const uint8_t*>(request().data()), request().size()}, &call_);
    if (!decoded.ok()) return Answer(decoded);
    call_.UseCaller(caller());
    call_.DecideInSlices();
    UseConnection();
    if constexpr (std::is_same_v<Kind, AcquireKind>) {
      if (call_.options_of_last().hold) EndWithPeer();
    }
    under_way_ = shared_from_this();
    CountMemory(memory());
    (limiter_.*Kind::kDecide)(
        &call_, store::kNoDeadline,
        [](void* of, typename Kind::Call*) {
          auto* const self = static_cast<DataCall*>(of);
          net::OnLoop(self->work(), [self] { self->Decided(); });
        },
        this);
  }

  void Cancel() override {
    if constexpr (std::is_same_v<Kind, AcquireKind>) {
      // Completes a held call.
      if (under_way_ != nullptr) limiter_.CancelHeld(&call_);
    }
  }

 private:
  // Not while the store has the call.
  size_t memory() const {
    return sizeof(*this) + request().capacity() + std::max(call_.memory(), call_.request_memory()) +
           encoded_.capacity();
  }

  // A small call too goes on in the background if it is more than one slice of work.
  void Decided() {
    if (call_.status().ok() && call_.more()) {
      if constexpr (Kind::kEncodesSlices) Kind::Encode(call_, &encoded_);
      CountMemory(memory());
      return ContinueInBackground([this] { Continue(); });
    }
    const std::shared_ptr<JsonCall> self = std::exchange(under_way_, nullptr);
    const absl::Status outcome = Kind::Outcome(call_);
    if (!outcome.ok()) return Answer(outcome);
    Kind::Encode(call_, &encoded_);
    Answer(std::string(reinterpret_cast<const char*>(encoded_.data()), encoded_.size()));
  }

  // What is left of a call whose peer has left is dropped.
  void Continue() {
    if (cancelled()) {
      const std::shared_ptr<JsonCall> self = std::exchange(under_way_, nullptr);
      return Drop();
    }
    UseConnection();
    limiter_.Continue(&call_);
  }

  // For one slice.
  void UseConnection() {
    if constexpr (requires { call_.UseConnection(nullptr); }) {
      call_.UseConnection(&transport::BookingsState::Of(connection_state()));
    }
  }

  service::RateLimiter& limiter_;
  typename Kind::Call call_;
  common::Buffer encoded_;               // the response
  std::shared_ptr<JsonCall> under_way_;  // this, until the use case has called back
};

template <typename Kind>
class DataMethod final : public JsonMethod {
 public:
  DataMethod(const Options& options, service::RateLimiter& limiter)
      : JsonMethod(options), limiter_(limiter) {}

 private:
  std::shared_ptr<JsonCall> NewCall() override {
    return std::make_shared<DataCall<Kind>>(limiter_);
  }

  service::RateLimiter& limiter_;
};

// ---- The control plane

class AdminCall final : public JsonCall {
 public:
  explicit AdminCall(const transport::LimitAdminService::Call& admin) : admin_(admin) {}

  void Execute() override {
    admin_.Execute({reinterpret_cast<const uint8_t*>(request().data()), request().size()},
                   {caller(), peer(), actor()}, work(),
                   [self = shared_from_this()](absl::StatusOr<std::string> response) {
                     self->Answer(std::move(response));
                   });
  }

 private:
  const transport::LimitAdminService::Call& admin_;
};

class AdminMethod final : public JsonMethod {
 public:
  AdminMethod(const Options& options, const transport::LimitAdminService::Call& admin)
      : JsonMethod(options), admin_(admin) {}

 private:
  std::shared_ptr<JsonCall> NewCall() override { return std::make_shared<AdminCall>(admin_); }

  const transport::LimitAdminService::Call& admin_;
};

// ---- Others

// A stream of requests has no form in HTTP/1.1.
class NoHttpForm final : public http1::Handler {
  void OnRequest(http1::Exchange& exchange) override {
    exchange.Fail(
        absl::UnimplementedError("AcquireStream has no HTTP form; use /v1/acquireBatch, or gRPC"));
  }
};

class OpenApiHandler final : public http1::Handler {
 public:
  explicit OpenApiHandler(std::string document) : document_(std::move(document)) {}
  void OnRequest(http1::Exchange& exchange) override {
    exchange.Finish(
        {.content_type = "application/json", .body = http1::SharedBytes::Constant(document_)});
  }

 private:
  const std::string document_;
};

}  // namespace

void JsonApi::AddDataMethods(const Collaborators& with) {
  const ServiceDescriptor& rpcs = RateLimiterRpcs();
  using access::Call;
  const auto add = [&](const char* name, Call call, size_t max_bytes, auto make) {
    const MethodDescriptor& rpc = *rpcs.FindMethodByName(name);
    JsonMethod::Options options = {with.json, with.background, rpc};
    if (max_bytes == bounds::kMaxJsonBytes) options.turns = &turns_;
    options.many_items = max_bytes > bounds::kMaxSmallJsonBytes;
    routes_.push_back({PathOf(rpc),
                       call,
                       {.methods = {http1::Method::kPost}, .max_body_bytes = max_bytes},
                       make(options)});
  };
  const auto make = [&]<typename Kind>(Kind) {
    return [&](const JsonMethod::Options& options) {
      return std::make_unique<DataMethod<Kind>>(options, with.limiter);
    };
  };
  add("Acquire", Call::kAcquire, bounds::kMaxSmallJsonBytes, make(AcquireKind()));
  add("AcquireBatch", Call::kAcquire, bounds::kMaxJsonBytes, make(AcquireBatchKind()));
  add("Query", Call::kQuery, bounds::kMaxQueryBytes, make(QueryKind()));
  add("Refund", Call::kRefund, bounds::kMaxSmallJsonBytes, make(RefundKind()));
  add("Renew", Call::kSettle, bounds::kMaxJsonBytes, make(RenewKind()));
  add("Settle", Call::kSettle, bounds::kMaxSmallJsonBytes, make(SettleKind()));
  add("SettleBatch", Call::kSettle, bounds::kMaxJsonBytes, make(SettleBatchKind()));
  add("Watch", Call::kWatch, bounds::kMaxQueryBytes,
      [&](const JsonMethod::Options& options) { return MakeWatchMethod(options, with.watches); });
  add("AcquireStream", Call::kAcquire, bounds::kMaxSmallJsonBytes,
      [](const auto&) { return std::make_unique<NoHttpForm>(); });
}

void JsonApi::AddAdminMethods(const Collaborators& with) {
  const ServiceDescriptor& rpcs = LimitAdminRpcs();
  for (int i = 0; i < rpcs.method_count(); ++i) {
    const MethodDescriptor& rpc = *rpcs.method(i);
    const JsonMethod::Options options = {with.json, with.background, rpc,
                                         /*always_in_background=*/true};
    routes_.push_back({PathOf(rpc),
                       with.admin.Find(rpc.name()).right(),
                       {.methods = {http1::Method::kPost}, .max_body_bytes = bounds::kMaxJsonBytes},
                       std::make_unique<AdminMethod>(options, with.admin.Find(rpc.name()))});
  }
}

JsonApi::JsonApi(const Collaborators& with, std::string_view version) : turns_(with.background) {
  AddDataMethods(with);
  AddAdminMethods(with);
  routes_.push_back({"/openapi.json",
                     std::nullopt,
                     {},
                     std::make_unique<OpenApiHandler>(
                         MakeOpenApi({&RateLimiterRpcs(), &LimitAdminRpcs()}, version))});
}

JsonApi::~JsonApi() = default;

void JsonApi::Register(const Access& gates, http1::RouteTable* routes) {
  for (OneRoute& route : routes_) {
    if (route.call == access::Call::kAdminView) {
      route.options.gate = &gates.reading();
    } else if (route.call == access::Call::kAdminChange) {
      route.options.gate = &gates.changing();
    } else if (route.call.has_value()) {
      route.options.gate = &gates.data(*route.call);
      route.options.shed_when_late = true;
    }
    routes->Add(route.path, *route.handler, route.options);
  }
}

}  // namespace sluice::web
