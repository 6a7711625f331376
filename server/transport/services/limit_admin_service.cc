#include "server/transport/services/limit_admin_service.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/net/event_loop.h"
#include "common/strings.h"
#include "server/transport/rpc/server_call.h"
#include "server/transport/services/limit_admin_messages.h"
#include "server/transport/services/protobuf_messages.h"

namespace sluice::transport {
namespace {

// Ends a call with its response or an error. Called exactly once, on any thread.
template <typename Response>
using Done = std::function<void(absl::StatusOr<Response>)>;

// A call whose handler has not answered yet.
struct PendingCall {
  explicit PendingCall(ServerCall* call) : call(call), loop(call->loop()) {}
  ServerCall* call;  // used on the loop only; null: the call was cancelled
  net::EventLoop& loop;
};

}  // namespace

// As gRPC calls it, and as others do.
class LimitAdminService::AnyMethod : public UnaryMethod, public Call {};

template <typename Request, typename Response, typename Handler>
class LimitAdminService::Method final : public AnyMethod {
 public:
  Method(const LimitAdminService& service, Handler handler)
      : service_(service), handler_(std::move(handler)) {}

  void OnCall(ServerCall& call, absl::Span<const uint8_t> bytes) override {
    if (!service_.Admit(call)) return;
    auto pending = std::make_shared<PendingCall>(&call);
    call.set_state(pending.get());  // which lives until the handler has answered
    Execute(bytes, [pending](absl::StatusOr<std::string> response) {
      OnLoop(pending->loop, [pending, response = std::move(response)] {
        if (pending->call == nullptr) return;
        if (response.ok()) {
          pending->call->response().Append(std::string_view(*response));
          pending->call->Finish();
        } else {
          pending->call->Finish(response.status());
        }
      });
    });
  }
  void OnCancelled(ServerCall& call) override {
    static_cast<PendingCall*>(call.state())->call = nullptr;
  }

  void Execute(absl::Span<const uint8_t> bytes, Call::Done done) const override {
    Request request;
    if (!Parse(bytes, &request)) {
      done(absl::InvalidArgumentError(
          absl::StrCat(Request::descriptor()->name(), ": the bytes are not such a message")));
      return;
    }
    handler_(request, [done = std::move(done)](absl::StatusOr<Response> response) {
      done(response.ok() ? absl::StatusOr<std::string>(response->SerializeAsString())
                         : absl::StatusOr<std::string>(response.status()));
    });
  }

 private:
  const LimitAdminService& service_;
  const Handler handler_;
};

bool LimitAdminService::Admit(ServerCall& call) const {
  if (token_ == nullptr) return true;
  const absl::Status status = token_->Check(call.metadata("authorization").value_or(""));
  if (status.ok()) return true;
  log_.Warning("admin_call_refused", {{"peer", call.peer_address()}, {"error", status.message()}});
  call.Finish(status);
  return false;
}

template <typename Request, typename Response, typename Handler>
void LimitAdminService::Add(std::string_view name, Handler handler) {
  methods_.emplace_back(
      absl::StrCat("/sluice.v1.LimitAdmin/", common::ToAbsl(name)),
      std::make_unique<Method<Request, Response, Handler>>(*this, std::move(handler)));
}

LimitAdminService::LimitAdminService(service::LimitAdmin& admin, const BearerToken* token,
                                     common::Log& log)
    : admin_(admin), token_(token), log_(log) {
  Add<v1::ListLimitsRequest, v1::ListLimitsResponse>(
      "ListLimits", [this](const auto&, const Done<v1::ListLimitsResponse>& done) {
        v1::ListLimitsResponse response;
        const auto table = admin_.List();
        for (const limits::Limit* limit : table->limits()) {
          wire::Write(limit->spec(), response.add_limits());
        }
        done(std::move(response));
      });
  Add<v1::GetLimitRequest, v1::Limit>(
      "GetLimit", [this](const v1::GetLimitRequest& request, const Done<v1::Limit>& done) {
        const auto found = admin_.Get(request.name());
        if (!found.ok()) return done(found.status());
        v1::Limit response;
        wire::Write(found->limit->spec(), &response);
        done(std::move(response));
      });
  Add<v1::PutLimitRequest, v1::PutLimitResponse>(
      "PutLimit",
      [this](const v1::PutLimitRequest& request, const Done<v1::PutLimitResponse>& done) {
        absl::StatusOr<limits::LimitSpec> spec = wire::Read(request.limit());
        if (!spec.ok()) return done(spec.status());
        const auto put = admin_.Put(*std::move(spec));
        if (!put.ok()) return done(put.status());
        v1::PutLimitResponse response;
        wire::Write(put->limit->spec(), response.mutable_limit());
        response.set_replaced(put->replaced);
        done(std::move(response));
      });
  Add<v1::DeleteLimitRequest, v1::DeleteLimitResponse>(
      "DeleteLimit",
      [this](const v1::DeleteLimitRequest& request, const Done<v1::DeleteLimitResponse>& done) {
        if (absl::Status status = admin_.Delete(request.name()); !status.ok()) return done(status);
        done(v1::DeleteLimitResponse());
      });
  Add<v1::ResetKeyRequest, v1::ResetKeyResponse>(
      "ResetKey",
      [this](const v1::ResetKeyRequest& request, const Done<v1::ResetKeyResponse>& done) {
        admin_.ResetKey(request.limit(), request.key(), [done](absl::StatusOr<bool> existed) {
          if (!existed.ok()) return done(existed.status());
          v1::ResetKeyResponse response;
          response.set_existed(*existed);
          done(std::move(response));
        });
      });
  Add<v1::LiftFloorRequest, v1::LiftFloorResponse>(
      "LiftFloor",
      [this](const v1::LiftFloorRequest& request, const Done<v1::LiftFloorResponse>& done) {
        admin_.LiftFloor(request.limit(), [done](absl::StatusOr<int64_t> floor_wall_ns) {
          if (!floor_wall_ns.ok()) return done(floor_wall_ns.status());
          v1::LiftFloorResponse response;
          if (*floor_wall_ns > 0) SetTime(*floor_wall_ns, response.mutable_floor());
          done(std::move(response));
        });
      });
  Add<v1::ListKeysRequest, v1::ListKeysResponse>(
      "ListKeys",
      [this](const v1::ListKeysRequest& request, const Done<v1::ListKeysResponse>& done) {
        admin_.ListKeys(request.limit(), wire::Read(request.order()), request.max_keys(),
                        [done](absl::StatusOr<service::ListedKeys> keys) {
                          if (!keys.ok()) return done(keys.status());
                          v1::ListKeysResponse response;
                          wire::Write(*keys, &response);
                          done(std::move(response));
                        });
      });
  Add<v1::GetConfigStatusRequest, v1::ConfigStatus>(
      "GetConfigStatus", [this](const auto&, const Done<v1::ConfigStatus>& done) {
        v1::ConfigStatus response;
        wire::Write(admin_.GetConfigStatus(), &response);
        done(std::move(response));
      });
  Add<v1::GetStatsRequest, v1::Stats>("GetStats", [this](const auto&, const Done<v1::Stats>& done) {
    v1::Stats response;
    wire::Write(admin_.GetStats(), &response);
    done(std::move(response));
  });
}

LimitAdminService::~LimitAdminService() = default;

const LimitAdminService::Call& LimitAdminService::Find(std::string_view name) const {
  const auto found = std::find_if(methods_.begin(), methods_.end(), [&](const auto& method) {
    return absl::EndsWith(method.first, absl::StrCat("/", common::ToAbsl(name)));
  });
  return *found->second;
}

void LimitAdminService::Register(MethodTable* methods) {
  for (const auto& [path, method] : methods_)
    methods->AddUnary(path, *method, {.metadata = {"authorization"}});
}

}  // namespace sluice::transport
