// CheckRequest: the parameters of a request to /v1/check.
#ifndef SLUICE_SERVER_TRANSPORT_WEB_CHECK_REQUEST_H_
#define SLUICE_SERVER_TRANSPORT_WEB_CHECK_REQUEST_H_

#include <cstdint>
#include <string_view>

#include "absl/status/status.h"
#include "common/buffer.h"
#include "server/transport/http1/request.h"

namespace sluice::web {

// Reusable. Views are into the request that was read, or into this.
class CheckRequest {
 public:
  // INVALID_ARGUMENT names the parameter or the header. A parameter of the query excludes the
  // header of the same meaning.
  absl::Status Read(const http1::Request& request);

  std::string_view limit() const { return limit_; }
  // The only part of the key, or its parts joined: each with %25 for % and %2C for the comma,
  // with commas between them.
  std::string_view key() const { return key_; }
  uint64_t permits() const { return permits_; }
  int deny_status() const { return deny_status_; }
  // Whether the answer has the older X-RateLimit headers, and a body.
  bool x_ratelimit() const { return x_ratelimit_; }
  bool body() const { return body_; }

  size_t memory() const { return joined_.capacity(); }

 private:
  absl::Status ReadParameter(const http1::Request& request, http1::Field parameter);
  absl::Status ReadHeaders(const http1::Request& request);
  absl::Status AddHeaderAsKey(const http1::Request& request, std::string_view header);
  absl::Status AddKey(std::string_view part);

  std::string_view limit_;
  std::string_view key_;
  uint64_t permits_ = 1;
  int deny_status_ = 429;
  bool x_ratelimit_ = false;
  bool body_ = false;
  unsigned seen_ = 0;  // a bit for each parameter that was read
  size_t key_parts_ = 0;
  common::Buffer joined_;  // of several parts
};

}  // namespace sluice::web

#endif  // SLUICE_SERVER_TRANSPORT_WEB_CHECK_REQUEST_H_
