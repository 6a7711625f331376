// BearerToken: the token that admin calls must send, as read from --admin_token_file.
#ifndef SLUICE_SERVER_TRANSPORT_SERVICES_BEARER_TOKEN_H_
#define SLUICE_SERVER_TRANSPORT_SERVICES_BEARER_TOKEN_H_

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/log.h"
#include "common/mutex.h"

namespace sluice::transport {

// Thread-safe.
class BearerToken {
 public:
  // The token is the file's content without white space at both ends. INVALID_ARGUMENT: the file
  // cannot be read, or the token has fewer than 16 bytes and could be guessed.
  static absl::StatusOr<std::unique_ptr<BearerToken>> FromFile(std::string path);

  // Reads the file again (blocking). Returns whether the token changed. On an error, as for
  // FromFile, the old token stays in use.
  absl::StatusOr<bool> Reload();

  // Logs a warning if users other than the owner and the group of the file may read or change it.
  // That is no error, since volumes with secrets in containers are often readable by all.
  void WarnIfOthersMayRead(common::Log& log) const;

  // SHA-256 of the token.
  std::array<uint8_t, 32> digest() const {
    common::MutexLock lock(&mu_);
    return digest_;
  }

  // `authorization`: the value of that metadata, "Bearer TOKEN". UNAUTHENTICATED if it is not. The
  // time taken does not depend on the token.
  absl::Status Check(std::string_view authorization) const;

 private:
  using Digest = std::array<uint8_t, 32>;

  explicit BearerToken(std::string path) : path_(std::move(path)) {}

  const std::string path_;
  mutable common::Mutex mu_;
  Digest digest_ ABSL_GUARDED_BY(mu_) = {};  // SHA-256 of the token
};

}  // namespace sluice::transport

#endif  // SLUICE_SERVER_TRANSPORT_SERVICES_BEARER_TOKEN_H_
