// BearerToken: the admin port's token, as read from --admin_token_file.
#ifndef SLUICE_SERVER_TRANSPORT_GRPC_BEARER_TOKEN_H_
#define SLUICE_SERVER_TRANSPORT_GRPC_BEARER_TOKEN_H_

#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace sluice::transport {

// Thread-safe: immutable.
class BearerToken {
 public:
  // Asks for nothing: Check passes everything.
  BearerToken() = default;

  // The file's content without white space at its ends. INVALID_ARGUMENT: cannot be read, or
  // shorter than 16 bytes, which could be guessed.
  static absl::StatusOr<BearerToken> FromFile(const std::string& path);

  // `authorization`: the metadata's value, "Bearer TOKEN". UNAUTHENTICATED otherwise. Takes the
  // same time wherever a wrong token differs.
  absl::Status Check(std::string_view authorization) const;

  bool required() const { return !token_.empty(); }

 private:
  std::string token_;
};

}  // namespace sluice::transport

#endif  // SLUICE_SERVER_TRANSPORT_GRPC_BEARER_TOKEN_H_
