// The messages of sluice.v1.LimitAdmin, from protobuf's objects to the use cases' values and back.
#ifndef SLUICE_SERVER_TRANSPORT_SERVICES_LIMIT_ADMIN_MESSAGES_H_
#define SLUICE_SERVER_TRANSPORT_SERVICES_LIMIT_ADMIN_MESSAGES_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "server/limits/limit_spec.h"
#include "server/limits/limit_table.h"
#include "server/service/limit_admin.h"
#include "sluice/v1/admin.pb.h"

namespace sluice::transport::wire {

// INVALID_ARGUMENT: the message has a value that LimitSpec cannot hold (an unknown enum value, an
// invalid duration, no rate). The registry checks everything else.
absl::StatusOr<limits::LimitSpec> Read(const v1::Limit& limit);
service::PutOptions ReadOptions(const v1::PutLimitRequest& request);
service::KeyOrder Read(v1::ListKeysRequest::Order order);

// `now_ns`: of the clock of the limits' ends.
void Write(const limits::LimitSpec& spec, int64_t now_ns, v1::Limit* out);
void Write(const service::ListedKeys& keys, v1::ListKeysResponse* out);
void Write(const service::ListedHolds& holds, v1::ListHoldsResponse* out);
void Write(const service::ConfigStatus& status, v1::ConfigStatus* out);
void Write(const service::ServerStats& stats, v1::Stats* out);

}  // namespace sluice::transport::wire

#endif  // SLUICE_SERVER_TRANSPORT_SERVICES_LIMIT_ADMIN_MESSAGES_H_
