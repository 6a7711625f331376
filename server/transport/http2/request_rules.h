// RequestRules: detects malformed requests (RFC 9113, 8.1 to 8.3), header by header.
//
// nghttp2 can do this, byte by byte for each header. Most headers of a gRPC call are the same few,
// and here each of them costs one comparison.
#ifndef SLUICE_SERVER_TRANSPORT_HTTP2_REQUEST_RULES_H_
#define SLUICE_SERVER_TRANSPORT_HTTP2_REQUEST_RULES_H_

#include <cstdint>
#include <string_view>

namespace sluice::transport {

// Judges one header block at a time: a connection receives no more. Not thread-safe.
class RequestRules {
 public:
  void Begin(bool trailers) {
    seen_ = trailers ? kTrailers | kRegular : 0;
    content_length_ = kNotAnnounced;
  }

  // Judges the block's next header. Returns false if the stream must be reset with PROTOCOL_ERROR.
  bool Judge(std::string_view name, std::string_view value);

  // At the block's end: whether it has all headers that a request needs. `end`: the request ends
  // with this block.
  bool Complete(bool end) const;

  // The value of content-length; kNotAnnounced without it.
  int64_t content_length() const { return content_length_; }
  static constexpr int64_t kNotAnnounced = -1;

 private:
  // The headers and values that the block had so far.
  enum : uint16_t {
    kMethod = 1 << 0,
    kScheme = 1 << 1,
    kPath = 1 << 2,
    kAuthority = 1 << 3,
    kHost = 1 << 4,
    kRegular = 1 << 5,  // a header after which no pseudo-header may come
    kTrailers = 1 << 6,
    kConnect = 1 << 7,
    kOptions = 1 << 8,
    kHttp = 1 << 9,        // the scheme is http or https
    kSlashPath = 1 << 10,  // the path begins with a slash
    kStarPath = 1 << 11,
  };

  bool JudgePseudo(std::string_view name, std::string_view value);
  bool JudgeRegular(std::string_view name, std::string_view value);
  bool TakeContentLength(std::string_view value);
  bool Once(uint16_t which, bool fine);

  uint16_t seen_ = 0;
  int64_t content_length_ = kNotAnnounced;
};

}  // namespace sluice::transport

#endif  // SLUICE_SERVER_TRANSPORT_HTTP2_REQUEST_RULES_H_
