// RequestHead: what the headers of a gRPC request say to the transport, and the first error in
// them.
#ifndef SLUICE_SERVER_TRANSPORT_RPC_REQUEST_HEAD_H_
#define SLUICE_SERVER_TRANSPORT_RPC_REQUEST_HEAD_H_

#include <cstdint>
#include <limits>
#include <string_view>

#include "absl/status/status.h"
#include "common/http2/header_names.h"
#include "server/transport/rpc/message_reader.h"

namespace sluice::transport {

// Not thread-safe; one per call.
class RequestHead {
 public:
  static constexpr int64_t kNoTimeout = std::numeric_limits<int64_t>::max();

  // How a request with an error in its headers is answered.
  struct Fault {
    // "200": in gRPC's way. Others: a plain HTTP response, as the client does not speak gRPC.
    std::string_view http_status;
    absl::StatusCode code;
    std::string_view text;

    bool is_grpc() const { return http_status == "200"; }
  };

  // Reads a header that the transport uses. Returns false for all others.
  bool Take(http2::HeaderName name, std::string_view value);

  // Call after the last header. Null: the headers are right.
  const Fault* CheckComplete();

  // The first error. REQUIRES: CheckComplete was called.
  const Fault* fault() const { return fault_; }
  MessageReader::Encoding encoding() const { return encoding_; }
  int64_t timeout_ns() const { return timeout_ns_; }

 private:
  // What a gRPC request must have.
  enum Seen : uint8_t { kPost = 1 << 0, kTeTrailers = 1 << 1, kGrpcContent = 1 << 2 };

  // The functions that follow return true: they took the header.
  bool Set(Seen which, bool seen) {
    seen_ = static_cast<uint8_t>(seen ? seen_ | which : seen_ & ~which);
    return true;
  }
  bool TakeContentType(std::string_view value);
  bool TakeEncoding(std::string_view value);
  bool TakeTimeout(std::string_view value);
  void SetFault(const Fault& fault) {
    if (fault_ == nullptr) fault_ = &fault;
  }

  int64_t timeout_ns_ = kNoTimeout;
  const Fault* fault_ = nullptr;  // the first one; a constant
  MessageReader::Encoding encoding_ = MessageReader::Encoding::kIdentity;
  uint8_t seen_ = 0;
};

}  // namespace sluice::transport

#endif  // SLUICE_SERVER_TRANSPORT_RPC_REQUEST_HEAD_H_
