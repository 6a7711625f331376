// The messages of sluice.v1.RateLimiter, from bytes to the use cases' calls and back. Requests and
// the answers to Acquire are read and written without message objects in between; the other answers
// use protobuf's. A test compares both directions with protobuf's own parser.
#ifndef SLUICE_SERVER_TRANSPORT_SERVICES_RATE_LIMITER_CODEC_H_
#define SLUICE_SERVER_TRANSPORT_SERVICES_RATE_LIMITER_CODEC_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "common/buffer.h"
#include "common/protobuf_wire.h"
#include "server/service/acquire_call.h"
#include "server/service/bucket_watch.h"
#include "server/service/query_call.h"
#include "server/service/refund_call.h"
#include "server/service/renew_call.h"
#include "server/service/settle_call.h"

namespace sluice::transport {

using common::Buffer;

// Reset the call and fill it. INVALID_ARGUMENT: the bytes are not such a message; the text names
// the part that is not. Acquire and Query get views into `bytes`, which must outlive the call's
// use; their strings are not checked to be UTF-8, since the use case does so and names the field.
// Refund and Watch copy.
absl::Status DecodeAcquire(absl::Span<const uint8_t> bytes, service::AcquireCall* call);
absl::Status DecodeAcquireBatch(absl::Span<const uint8_t> bytes, service::AcquireCall* call);
// DecodeAcquireBatch in steps.
class BatchDecoder {
 public:
  // Resets the call.
  BatchDecoder(absl::Span<const uint8_t> bytes, service::AcquireCall* call);
  // Decodes `step_bytes` more, and up to kMaxAcquisitionBytes beyond.
  absl::Status Step(size_t step_bytes);
  bool done() const { return done_; }
  // The work of the last step (ServerCall::Spend).
  int64_t units() const { return units_; }

 private:
  service::AcquireCall* call_;
  common::WireReader reader_;
  int64_t units_ = 0;
  bool done_ = false;
};
// DecodeRenew or DecodeSettleBatch in steps.
template <typename Call>
class ItemDecoder {
 public:
  // Resets the call.
  ItemDecoder(absl::Span<const uint8_t> bytes, Call* call);
  // As BatchDecoder's.
  absl::Status Step(size_t step_bytes);
  bool done() const { return done_; }
  int64_t units() const { return units_; }

 private:
  Call* call_;
  common::WireReader reader_;
  int64_t units_ = 0;
  bool done_ = false;
};
using RenewDecoder = ItemDecoder<service::RenewCall>;
using SettleBatchDecoder = ItemDecoder<service::SettleCall>;
absl::Status DecodeQuery(absl::Span<const uint8_t> bytes, service::QueryCall* call);
absl::Status DecodeRefund(absl::Span<const uint8_t> bytes, service::RefundCall* call);
absl::Status DecodeRenew(absl::Span<const uint8_t> bytes, service::RenewCall* call);
// These get views into `bytes`, too.
absl::Status DecodeSettle(absl::Span<const uint8_t> bytes, service::SettleCall* call);
absl::Status DecodeSettleBatch(absl::Span<const uint8_t> bytes, service::SettleCall* call);
absl::Status DecodeWatch(absl::Span<const uint8_t> bytes, service::WatchOptions* options);

// Append the response; for a batch of either kind, the part of the slice that was decided.
// REQUIRES: the call completed with an OK status; for EncodeAcquire and EncodeSettle, result(0) is
// OK too.
void EncodeAcquire(const service::AcquireCall& call, Buffer* out);
void EncodeAcquireBatch(const service::AcquireCall& call, Buffer* out);
void EncodeQuery(const service::QueryCall& call, Buffer* out);
void EncodeRefund(const service::RefundCall& call, Buffer* out);
void EncodeRenew(const service::RenewCall& call, Buffer* out);
void EncodeSettle(const service::SettleCall& call, Buffer* out);
void EncodeSettleBatch(const service::SettleCall& call, Buffer* out);
// One answer of a Watch.
std::string EncodeWatch(absl::Span<const service::BucketStatus> buckets, int64_t wall_ns);

}  // namespace sluice::transport

#endif  // SLUICE_SERVER_TRANSPORT_SERVICES_RATE_LIMITER_CODEC_H_
