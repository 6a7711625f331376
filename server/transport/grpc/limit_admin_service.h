// sluice.v1.LimitAdmin on grpc++'s callback API.
#ifndef SLUICE_SERVER_TRANSPORT_GRPC_LIMIT_ADMIN_SERVICE_H_
#define SLUICE_SERVER_TRANSPORT_GRPC_LIMIT_ADMIN_SERVICE_H_

#include "common/log.h"
#include "common/metrics.h"
#include "server/service/limit_admin.h"
#include "server/transport/grpc/bearer_token.h"
#include "server/transport/grpc/call_context.h"
#include "sluice/v1/admin.grpc.pb.h"

namespace sluice::transport {

// Thread-safe. Outlives its server, and its collaborators outlive it.
class LimitAdminService final : public v1::LimitAdmin::CallbackService {
 public:
  LimitAdminService(service::LimitAdmin& admin, const BearerToken& token, common::Log& log,
                    const common::Clock& clock, common::Metrics& metrics);

  ::grpc::ServerUnaryReactor* ListLimits(::grpc::CallbackServerContext* context,
                                         const v1::ListLimitsRequest* request,
                                         v1::ListLimitsResponse* response) override;
  ::grpc::ServerUnaryReactor* GetLimit(::grpc::CallbackServerContext* context,
                                       const v1::GetLimitRequest* request,
                                       v1::Limit* response) override;
  ::grpc::ServerUnaryReactor* PutLimit(::grpc::CallbackServerContext* context,
                                       const v1::PutLimitRequest* request,
                                       v1::PutLimitResponse* response) override;
  ::grpc::ServerUnaryReactor* DeleteLimit(::grpc::CallbackServerContext* context,
                                          const v1::DeleteLimitRequest* request,
                                          v1::DeleteLimitResponse* response) override;
  ::grpc::ServerUnaryReactor* ResetKey(::grpc::CallbackServerContext* context,
                                       const v1::ResetKeyRequest* request,
                                       v1::ResetKeyResponse* response) override;
  ::grpc::ServerUnaryReactor* ListKeys(::grpc::CallbackServerContext* context,
                                       const v1::ListKeysRequest* request,
                                       v1::ListKeysResponse* response) override;
  ::grpc::ServerUnaryReactor* GetConfigStatus(::grpc::CallbackServerContext* context,
                                              const v1::GetConfigStatusRequest* request,
                                              v1::ConfigStatus* response) override;
  ::grpc::ServerUnaryReactor* GetStats(::grpc::CallbackServerContext* context,
                                       const v1::GetStatsRequest* request,
                                       v1::Stats* response) override;

 private:
  // A call that passed the token's check, or was finished because it did not.
  struct Call {
    ::grpc::ServerUnaryReactor* reactor = nullptr;
    MethodMeter* meter = nullptr;
    int64_t started_ns = 0;
    bool admitted = false;
    void Finish(const absl::Status& status) const;
  };
  Call Begin(::grpc::CallbackServerContext* context, MethodMeter& meter);

  service::LimitAdmin& admin_;
  const BearerToken& token_;
  common::Log& log_;
  MethodMeter list_limits_meter_;
  MethodMeter get_limit_meter_;
  MethodMeter put_limit_meter_;
  MethodMeter delete_limit_meter_;
  MethodMeter reset_key_meter_;
  MethodMeter list_keys_meter_;
  MethodMeter config_meter_;
  MethodMeter stats_meter_;
};

}  // namespace sluice::transport

#endif  // SLUICE_SERVER_TRANSPORT_GRPC_LIMIT_ADMIN_SERVICE_H_
