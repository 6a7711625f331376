// sluice.v1's messages of the fast path between bytes and the use cases, with no copy in between.
// `wire/` does the same by protobuf's message objects for what is asked seldom; a differential
// test holds the two together.
#ifndef SLUICE_SERVER_TRANSPORT_SERVICES_RATE_LIMITER_CODEC_H_
#define SLUICE_SERVER_TRANSPORT_SERVICES_RATE_LIMITER_CODEC_H_

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "server/service/acquire_call.h"
#include "server/service/bucket_watch.h"
#include "server/service/query_call.h"
#include "server/transport/http2/buffer.h"

namespace sluice::transport {

// Resets the call and fills it with views into `bytes`, which must outlive its use. Strings are
// not checked to be UTF-8: the use case does, and names the field. INVALID_ARGUMENT: the bytes
// are no such message; the text says which part is not.
absl::Status DecodeAcquire(absl::Span<const uint8_t> bytes, service::AcquireCall* call);
absl::Status DecodeAcquireBatch(absl::Span<const uint8_t> bytes, service::AcquireCall* call);
absl::Status DecodeQuery(absl::Span<const uint8_t> bytes, service::QueryCall* call);
// Copies.
absl::Status DecodeWatch(absl::Span<const uint8_t> bytes, service::WatchOptions* options);

// Appends the message. REQUIRES: the call completed with an OK status, and for the first its
// result(0) is OK.
void EncodeAcquire(const service::AcquireCall& call, Buffer* out);
void EncodeAcquireBatch(const service::AcquireCall& call, Buffer* out);

}  // namespace sluice::transport

#endif  // SLUICE_SERVER_TRANSPORT_SERVICES_RATE_LIMITER_CODEC_H_
