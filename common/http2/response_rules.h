// ResponseRules: detects malformed responses (RFC 9113, 8.1 to 8.3), field by field.
#ifndef SLUICE_COMMON_HTTP2_RESPONSE_RULES_H_
#define SLUICE_COMMON_HTTP2_RESPONSE_RULES_H_

#include <cstdint>

#include "common/http2/header_rules.h"
#include "common/http2/hpack_decoder.h"

namespace sluice::http2 {

// Of all client sessions.
const HpackVocabulary& ResponseVocabulary();

// Judges one header block at a time: a connection receives no more. Not thread-safe.
class ResponseRules {
 public:
  void Begin(bool trailers) {
    trailers_ = trailers;
    status_ = 0;
    content_length_ = kNoContentLength;
  }

  // Judges the block's next field. Returns false if the response is malformed.
  bool Judge(const HpackField& field) {
    if ((field.meaning & kMalformed) != 0) return false;
    // The status is the one pseudo-header, so all other fields follow it.
    if (NameOf(field) == HeaderName::kStatus) return TakeStatus(field);
    if (status_ == 0 && !trailers_) return false;
    return NameOf(field) != HeaderName::kContentLength || TakeContentLength(field);
  }

  // At the block's end: whether it is complete. `end`: the response ends with this block.
  bool Complete(bool end) const { return trailers_ ? end : status_ != 0 && !(end && skips()); }

  // Whether these are headers of a 1xx response: another one follows.
  bool skips() const { return status_ != 0 && status_ < 200; }
  // Of the body, which a response may not have; kNoContentLength: any.
  int64_t content_length() const { return status_ == 204 || status_ == 304 ? 0 : content_length_; }

 private:
  bool TakeStatus(const HpackField& field);
  bool TakeContentLength(const HpackField& field);

  bool trailers_ = false;
  uint32_t status_ = 0;
  int64_t content_length_ = kNoContentLength;
};

}  // namespace sluice::http2

#endif  // SLUICE_COMMON_HTTP2_RESPONSE_RULES_H_
