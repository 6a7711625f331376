// Answer: a whole HTTP response, made at once. Problem: an error as a problem document (RFC 9457).
#ifndef SLUICE_SERVER_TRANSPORT_HTTP1_ANSWER_H_
#define SLUICE_SERVER_TRANSPORT_HTTP1_ANSWER_H_

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"

namespace sluice::http1 {

// Bytes of a body that are shared, not copied: of a constant, or of an object that the body keeps
// alive.
class SharedBytes {
 public:
  SharedBytes() = default;
  // `bytes` live as long as the process.
  static SharedBytes Constant(std::string_view bytes) { return SharedBytes(bytes); }
  static SharedBytes Of(std::string bytes) {
    return Of(std::make_shared<const std::string>(std::move(bytes)));
  }
  static SharedBytes Of(std::shared_ptr<const std::string> bytes) {
    SharedBytes shared(*bytes);
    shared.owned_bytes_ = bytes->capacity();
    shared.owner_ = std::move(bytes);
    return shared;
  }

  std::string_view view() const { return bytes_; }
  size_t size() const { return bytes_.size(); }
  // Bytes of the object that it keeps alive; Consume frees none of them.
  size_t memory() const { return owned_bytes_; }
  // Drops `count` bytes from the front.
  void Consume(size_t count) { bytes_.remove_prefix(count); }

 private:
  explicit SharedBytes(std::string_view bytes) : bytes_(bytes) {}

  std::string_view bytes_;
  size_t owned_bytes_ = 0;
  std::shared_ptr<const std::string> owner_;
};

struct Answer {
  int status = 200;
  std::string content_type = {};  // empty: none
  // Beside Content-Type, Content-Length, Date and Connection. Names in lower case.
  std::vector<std::pair<std::string, std::string>> headers = {};
  SharedBytes body = {};
};

// The HTTP status of a gRPC code: INVALID_ARGUMENT is 400. RESOURCE_EXHAUSTED is 503, not 429: 429
// means a denial by a limit.
int HttpStatusOf(absl::StatusCode code);
// The gRPC code under which a response is counted.
absl::StatusCode CodeOf(int http_status);
// "Not Found".
std::string_view ReasonOf(int http_status);
// "NOT_FOUND".
std::string_view NameOf(absl::StatusCode code);

// An error. Written as application/problem+json with the members type, title, status, detail, code
// ("NOT_FOUND"), grpc_status (5), and nothing_taken: true if errors::WasNotExecuted.
struct Problem {
  int status = 500;
  absl::StatusCode code = absl::StatusCode::kInternal;
  std::string detail;
  bool nothing_taken = false;
  // The request had a wrong token: it is answered late (access::TokenGuesses).
  bool wrong_token = false;
  std::vector<std::pair<std::string, std::string>> headers = {};

  // `http_status` 0: HttpStatusOf(status.code()). 429 if errors::IsOverClientBound.
  static Problem Of(const absl::Status& status, int http_status = 0);
  // An error of HTTP itself; its code is CodeOf(http_status).
  static Problem Http(int http_status, std::string detail);

  // The document.
  std::string ToJson() const;
  Answer ToAnswer() const;
};

}  // namespace sluice::http1

#endif  // SLUICE_SERVER_TRANSPORT_HTTP1_ANSWER_H_
