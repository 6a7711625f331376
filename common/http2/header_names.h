// The meaning of a header field, as sessions and their users read it from HpackField::meaning:
// which header it is, and for some their value.
#ifndef SLUICE_COMMON_HTTP2_HEADER_NAMES_H_
#define SLUICE_COMMON_HTTP2_HEADER_NAMES_H_

#include <cstdint>

#include "common/http2/hpack_decoder.h"

namespace sluice::http2 {

enum class HeaderName : uint8_t {
  kOther,
  kForbidden,  // no name, or of a header that HTTP/2 does not have: the message is malformed
  kMethod,
  kScheme,
  kPath,
  kAuthority,
  kStatus,  // ValueOf, in responses: 100 to 999
  kHost,
  kTe,
  kContentType,
  kContentLength,
  kUserAgent,
  kGrpcTimeout,
  kGrpcEncoding,
  kGrpcAcceptEncoding,
  kGrpcStatus,  // ValueOf, in responses: 0 to 99, or kNoNumber
  kGrpcMessage,
};

inline constexpr uint32_t kNoNumber = 0xFFFFFFFF;

inline HeaderName NameOf(const HpackField& field) {
  return static_cast<HeaderName>(field.meaning & 0xFF);
}
// Of the headers for which it is defined.
inline uint32_t ValueOf(const HpackField& field) {
  return static_cast<uint32_t>(field.meaning >> 32);
}

}  // namespace sluice::http2

#endif  // SLUICE_COMMON_HTTP2_HEADER_NAMES_H_
