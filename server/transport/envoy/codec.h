// The messages of Envoy's rate-limit service, read and written without message objects. A test
// compares both directions with protobuf's own parser.
#ifndef SLUICE_SERVER_TRANSPORT_ENVOY_CODEC_H_
#define SLUICE_SERVER_TRANSPORT_ENVOY_CODEC_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "common/buffer.h"
#include "server/transport/envoy/answer.h"
#include "server/transport/envoy/request.h"

namespace sluice::transport {

// Replaces `request` by views into `bytes`. INVALID_ARGUMENT: the bytes are not such a message, a
// text is not UTF-8, or a bound is exceeded; the text names the part.
absl::Status DecodeRateLimitRequest(absl::Span<const uint8_t> bytes, RateLimitRequest* request);

// Appends the answer. `statuses`: one for each descriptor of the request.
void EncodeRateLimitResponse(const RateLimitRequest& request, Code overall,
                             absl::Span<const DescriptorStatus> statuses,
                             const AnswerOptions& options, common::Buffer* out);

}  // namespace sluice::transport

#endif  // SLUICE_SERVER_TRANSPORT_ENVOY_CODEC_H_
