// The messages of Envoy's and Kuadrant's rate-limit services, read and written without message
// objects. A test compares both directions with protobuf's own parser.
#ifndef SLUICE_SERVER_TRANSPORT_ENVOY_CODEC_H_
#define SLUICE_SERVER_TRANSPORT_ENVOY_CODEC_H_

#include <cstdint>
#include <string_view>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "common/buffer.h"
#include "server/transport/envoy/answer.h"
#include "server/transport/envoy/request.h"

namespace sluice::transport {

// Replaces `request` by views into `bytes`. INVALID_ARGUMENT: the bytes are not such a message, a
// text is not UTF-8, or a bound is exceeded; the text names the part.
absl::Status DecodeRateLimitRequest(absl::Span<const uint8_t> bytes, RateLimitRequest* request);

// The same for Kuadrant's ReserveRequest and CommitRequest.
absl::Status DecodeReserveRequest(absl::Span<const uint8_t> bytes, RateLimitRequest* request);
absl::Status DecodeCommitRequest(absl::Span<const uint8_t> bytes, RateLimitRequest* request);

// Appends Kuadrant's ReserveResponse.
void EncodeReserveResponse(Code code, std::string_view reservation_id, common::Buffer* out);

// Appends the answer. `statuses`: one for each descriptor of the request.
void EncodeRateLimitResponse(const RateLimitRequest& request, Code overall,
                             absl::Span<const DescriptorStatus> statuses,
                             const AnswerOptions& options, common::Buffer* out);

}  // namespace sluice::transport

#endif  // SLUICE_SERVER_TRANSPORT_ENVOY_CODEC_H_
