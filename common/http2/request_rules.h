// RequestRules: detects malformed requests (RFC 9113, 8.1 to 8.3), field by field.
//
// What a field means, and whether it is valid by itself, is found when it enters the HPACK table.
// Most fields of a call are in that table: each of them costs a few operations on bits.
#ifndef SLUICE_COMMON_HTTP2_REQUEST_RULES_H_
#define SLUICE_COMMON_HTTP2_REQUEST_RULES_H_

#include <cstdint>

#include "common/http2/header_rules.h"
#include "common/http2/hpack_decoder.h"

namespace sluice::http2 {

// Of all server sessions.
const HpackVocabulary& RequestVocabulary();

// Judges one header block at a time: a connection receives no more. Not thread-safe.
class RequestRules {
 public:
  void Begin(bool trailers) {
    seen_ = trailers ? kTrailers | kRegular : 0;
    content_length_ = kNoContentLength;
  }

  // Judges the block's next field. Returns false if the request is malformed.
  bool Judge(const HpackField& field) {
    const auto bits = static_cast<uint16_t>(field.meaning >> kSeenShift);
    const uint16_t before = bits & kRegular ? 0 : kRegular;
    if ((field.meaning & kMalformed) != 0 || (seen_ & ((bits & kOnce) | before)) != 0) return false;
    seen_ |= bits;
    return NameOf(field) != HeaderName::kContentLength || TakeContentLength(field);
  }

  // At the block's end: whether it has all fields that a request needs. `end`: the request ends
  // with this block.
  bool Complete(bool end) const;

  // Fields of requests are never skipped; see ResponseRules.
  static constexpr bool skips() { return false; }
  // The value of content-length, or kNoContentLength.
  int64_t content_length() const { return content_length_; }

 private:
  friend class RequestInterpreter;

  // The fields and values that the block had so far.
  enum : uint16_t {
    kMethod = 1 << 0,
    kScheme = 1 << 1,
    kPath = 1 << 2,
    kAuthority = 1 << 3,
    kHost = 1 << 4,
    kOnce = kMethod | kScheme | kPath | kAuthority | kHost,
    kRegular = 1 << 5,  // a field after which no pseudo-header may come
    kTrailers = 1 << 6,
    kConnect = 1 << 7,
    kOptions = 1 << 8,
    kHttp = 1 << 9,        // the scheme is http or https
    kSlashPath = 1 << 10,  // the path begins with a slash
    kStarPath = 1 << 11,
  };

  bool TakeContentLength(const HpackField& field);

  uint16_t seen_ = 0;
  int64_t content_length_ = kNoContentLength;
};

}  // namespace sluice::http2

#endif  // SLUICE_COMMON_HTTP2_REQUEST_RULES_H_
