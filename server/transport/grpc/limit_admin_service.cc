#include "server/transport/grpc/limit_admin_service.h"

#include <string>
#include <utility>

#include "server/transport/services/limit_admin_messages.h"

namespace sluice::transport {

LimitAdminService::LimitAdminService(service::LimitAdmin& admin, const BearerToken& token,
                                     common::Log& log, const common::Clock& clock,
                                     common::Metrics& metrics)
    : admin_(admin),
      token_(token),
      log_(log),
      list_limits_meter_(metrics, clock, "/sluice.v1.LimitAdmin/ListLimits"),
      get_limit_meter_(metrics, clock, "/sluice.v1.LimitAdmin/GetLimit"),
      put_limit_meter_(metrics, clock, "/sluice.v1.LimitAdmin/PutLimit"),
      delete_limit_meter_(metrics, clock, "/sluice.v1.LimitAdmin/DeleteLimit"),
      reset_key_meter_(metrics, clock, "/sluice.v1.LimitAdmin/ResetKey"),
      list_keys_meter_(metrics, clock, "/sluice.v1.LimitAdmin/ListKeys"),
      config_meter_(metrics, clock, "/sluice.v1.LimitAdmin/GetConfigStatus"),
      stats_meter_(metrics, clock, "/sluice.v1.LimitAdmin/GetStats") {}

void LimitAdminService::Call::Finish(const absl::Status& status) const {
  meter->Finish(started_ns, status.code());
  reactor->Finish(ToGrpc(status));
}

LimitAdminService::Call LimitAdminService::Begin(::grpc::CallbackServerContext* context,
                                                 MethodMeter& meter) {
  Call call;
  call.reactor = context->DefaultReactor();
  call.meter = &meter;
  call.started_ns = meter.Start();
  const auto& metadata = context->client_metadata();
  const auto it = metadata.find("authorization");
  const absl::Status status =
      token_.Check(it == metadata.end() ? std::string_view()
                                        : std::string_view(it->second.data(), it->second.size()));
  call.admitted = status.ok();
  if (!call.admitted) {
    log_.Warning("admin_call_refused", {{"peer", context->peer()}, {"error", status.message()}});
    call.Finish(status);
  }
  return call;
}

::grpc::ServerUnaryReactor* LimitAdminService::ListLimits(::grpc::CallbackServerContext* context,
                                                          const v1::ListLimitsRequest*,
                                                          v1::ListLimitsResponse* response) {
  const Call call = Begin(context, list_limits_meter_);
  if (!call.admitted) return call.reactor;
  const auto table = admin_.List();
  for (const limits::Limit* limit : table->limits()) {
    wire::Write(limit->spec(), response->add_limits());
  }
  call.Finish(absl::OkStatus());
  return call.reactor;
}

::grpc::ServerUnaryReactor* LimitAdminService::GetLimit(::grpc::CallbackServerContext* context,
                                                        const v1::GetLimitRequest* request,
                                                        v1::Limit* response) {
  const Call call = Begin(context, get_limit_meter_);
  if (!call.admitted) return call.reactor;
  const auto found = admin_.Get(request->name());
  if (found.ok()) wire::Write(found->limit->spec(), response);
  call.Finish(found.status());
  return call.reactor;
}

::grpc::ServerUnaryReactor* LimitAdminService::PutLimit(::grpc::CallbackServerContext* context,
                                                        const v1::PutLimitRequest* request,
                                                        v1::PutLimitResponse* response) {
  const Call call = Begin(context, put_limit_meter_);
  if (!call.admitted) return call.reactor;
  absl::StatusOr<limits::LimitSpec> spec = wire::Read(request->limit());
  if (!spec.ok()) {
    call.Finish(spec.status());
    return call.reactor;
  }
  const auto put = admin_.Put(*std::move(spec));
  if (put.ok()) {
    wire::Write(put->limit->spec(), response->mutable_limit());
    response->set_replaced(put->replaced);
  }
  call.Finish(put.status());
  return call.reactor;
}

::grpc::ServerUnaryReactor* LimitAdminService::DeleteLimit(::grpc::CallbackServerContext* context,
                                                           const v1::DeleteLimitRequest* request,
                                                           v1::DeleteLimitResponse*) {
  const Call call = Begin(context, delete_limit_meter_);
  if (call.admitted) call.Finish(admin_.Delete(request->name()));
  return call.reactor;
}

::grpc::ServerUnaryReactor* LimitAdminService::ResetKey(::grpc::CallbackServerContext* context,
                                                        const v1::ResetKeyRequest* request,
                                                        v1::ResetKeyResponse* response) {
  const Call call = Begin(context, reset_key_meter_);
  if (!call.admitted) return call.reactor;
  admin_.ResetKey(request->limit(), request->key(), [call, response](absl::StatusOr<bool> existed) {
    if (existed.ok()) response->set_existed(*existed);
    call.Finish(existed.status());
  });
  return call.reactor;
}

::grpc::ServerUnaryReactor* LimitAdminService::ListKeys(::grpc::CallbackServerContext* context,
                                                        const v1::ListKeysRequest* request,
                                                        v1::ListKeysResponse* response) {
  const Call call = Begin(context, list_keys_meter_);
  if (!call.admitted) return call.reactor;
  admin_.ListKeys(request->limit(), wire::Read(request->order()), request->max_keys(),
                  [call, response](absl::StatusOr<service::ListedKeys> keys) {
                    if (keys.ok()) wire::Write(*keys, response);
                    call.Finish(keys.status());
                  });
  return call.reactor;
}

::grpc::ServerUnaryReactor* LimitAdminService::GetConfigStatus(
    ::grpc::CallbackServerContext* context, const v1::GetConfigStatusRequest*,
    v1::ConfigStatus* response) {
  const Call call = Begin(context, config_meter_);
  if (!call.admitted) return call.reactor;
  wire::Write(admin_.GetConfigStatus(), response);
  call.Finish(absl::OkStatus());
  return call.reactor;
}

::grpc::ServerUnaryReactor* LimitAdminService::GetStats(::grpc::CallbackServerContext* context,
                                                        const v1::GetStatsRequest*,
                                                        v1::Stats* response) {
  const Call call = Begin(context, stats_meter_);
  if (!call.admitted) return call.reactor;
  wire::Write(admin_.GetStats(), response);
  call.Finish(absl::OkStatus());
  return call.reactor;
}

}  // namespace sluice::transport
