// sluice.v1.RateLimiter's messages to the service's calls, and back.
#ifndef SLUICE_SERVER_TRANSPORT_SERVICES_RATE_LIMITER_MESSAGES_H_
#define SLUICE_SERVER_TRANSPORT_SERVICES_RATE_LIMITER_MESSAGES_H_

#include <cstdint>

#include "absl/types/span.h"
#include "server/service/acquire_call.h"
#include "server/service/bucket_watch.h"
#include "server/service/query_call.h"
#include "server/service/refund_call.h"
#include "sluice/v1/rate_limiter.pb.h"

namespace sluice::transport::wire {

// Nanoseconds, negative ones too.
void SetDuration(int64_t ns, google::protobuf::Duration* out);
void SetTimestamp(int64_t wall_ns, google::protobuf::Timestamp* out);

// Resets the call and fills it with views into the request, which must outlive its use.
void Read(const v1::AcquireRequest& request, service::AcquireCall* call);
void Read(const v1::AcquireBatchRequest& request, service::AcquireCall* call);
void Read(const v1::QueryRequest& request, service::QueryCall* call);
void Read(const v1::RefundRequest& request, service::RefundCall* call);
service::WatchOptions Read(const v1::WatchRequest& request);

// REQUIRES: the call completed with an OK status, and for Acquire an OK result.
void Write(const service::AcquireCall& call, v1::AcquireResponse* response);
void Write(const service::AcquireCall& call, v1::AcquireBatchResponse* response);
void Write(const service::QueryCall& call, v1::QueryResponse* response);
void Write(const service::RefundCall& call, v1::RefundResponse* response);
void Write(absl::Span<const service::BucketStatus> buckets, int64_t wall_ns,
           v1::QueryResponse* response);

}  // namespace sluice::transport::wire

#endif  // SLUICE_SERVER_TRANSPORT_SERVICES_RATE_LIMITER_MESSAGES_H_
