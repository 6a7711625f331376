#include "server/transport/rpc/request_head.h"

#include "server/transport/rpc/grpc_text.h"

namespace sluice::transport {
namespace {

using Fault = RequestHead::Fault;

constexpr Fault kUnknownContent = {
    "200", absl::StatusCode::kUnimplemented,
    "content-type: of the kinds of application/grpc only +proto is served"};
constexpr Fault kUnknownEncoding = {"200", absl::StatusCode::kUnimplemented,
                                    "grpc-encoding: only identity and gzip are served"};
constexpr Fault kBadTimeout = {"200", absl::StatusCode::kInternal,
                               "grpc-timeout: must be 1 to 8 digits and a unit of H M S m u n"};
constexpr Fault kNotPost = {"405", absl::StatusCode::kUnknown,
                            "this is a gRPC server: the method must be POST\n"};
constexpr Fault kNotGrpc = {"415", absl::StatusCode::kUnknown,
                            "this is a gRPC server: the content-type must be application/grpc\n"};
constexpr Fault kNoTrailers = {
    "400", absl::StatusCode::kInternal,
    "te: trailers is missing: a proxy in between may not pass trailers\n"};

}  // namespace

bool RequestHead::Take(http2::HeaderName name, std::string_view value) {
  switch (name) {
    case http2::HeaderName::kScheme:
      return true;
    case http2::HeaderName::kMethod:
      return Set(kPost, value == "POST");
    case http2::HeaderName::kTe:
      return Set(kTeTrailers, value == "trailers");
    case http2::HeaderName::kContentType:
      return TakeContentType(value);
    case http2::HeaderName::kGrpcTimeout:
      return TakeTimeout(value);
    case http2::HeaderName::kGrpcEncoding:
      return TakeEncoding(value);
    default:
      return false;
  }
}

bool RequestHead::TakeContentType(std::string_view value) {
  constexpr std::string_view kGrpc = "application/grpc";
  bool grpc = value.substr(0, kGrpc.size()) == kGrpc;
  if (grpc && value.size() > kGrpc.size()) {
    const std::string_view rest = value.substr(kGrpc.size());
    if (rest[0] == '+') {
      if (rest.substr(1, rest.find(';') - 1) != "proto") SetFault(kUnknownContent);
    } else {
      grpc = rest[0] == ';';  // else application/grpc-web or another type
    }
  }
  return Set(kGrpcContent, grpc);
}

bool RequestHead::TakeEncoding(std::string_view value) {
  if (value == "identity") {
    encoding_ = MessageReader::Encoding::kIdentity;
  } else if (value == "gzip") {
    encoding_ = MessageReader::Encoding::kGzip;
  } else {
    encoding_ = MessageReader::Encoding::kUnsupported;
    SetFault(kUnknownEncoding);
  }
  return true;
}

bool RequestHead::TakeTimeout(std::string_view value) {
  const std::optional<int64_t> timeout_ns = ParseTimeout(value);
  if (timeout_ns.has_value()) {
    timeout_ns_ = *timeout_ns;
  } else {
    SetFault(kBadTimeout);
  }
  return true;
}

const Fault* RequestHead::CheckComplete() {
  // Errors of HTTP come first: the sender does not speak gRPC.
  if ((seen_ & kPost) == 0) {
    fault_ = &kNotPost;
  } else if ((seen_ & kGrpcContent) == 0) {
    fault_ = &kNotGrpc;
  } else if ((seen_ & kTeTrailers) == 0) {
    fault_ = &kNoTrailers;
  }
  return fault_;
}

}  // namespace sluice::transport
