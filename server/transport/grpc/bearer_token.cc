#include "server/transport/grpc/bearer_token.h"

#include <openssl/crypto.h>
#include <openssl/sha.h>

#include <fstream>
#include <sstream>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/errors.h"
#include "common/strings.h"

namespace sluice::transport {
namespace {

constexpr size_t kLeastBytes = 16;
constexpr absl::string_view kScheme = "bearer ";

}  // namespace

absl::StatusOr<BearerToken> BearerToken::FromFile(const std::string& path) {
  std::ifstream file(path);
  std::stringstream content;
  content << file.rdbuf();
  if (!file) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": cannot be read; name a file that holds the token"));
  }
  BearerToken token;
  token.token_ = std::string(absl::StripAsciiWhitespace(content.str()));
  if (token.token_.size() < kLeastBytes) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": a token of ", token.token_.size(),
                                                   " bytes; at least ", kLeastBytes,
                                                   " (head -c 24 /dev/urandom | base64)"));
  }
  return token;
}

absl::Status BearerToken::Check(std::string_view authorization) const {
  if (!required()) return absl::OkStatus();
  absl::string_view given = common::ToAbsl(authorization);
  if (!absl::StartsWithIgnoreCase(given, kScheme)) return common::errors::NotAuthenticated();
  given.remove_prefix(kScheme.size());
  // Of hashes, so that the time does not tell the length either.
  unsigned char want[SHA256_DIGEST_LENGTH];
  unsigned char got[SHA256_DIGEST_LENGTH];
  SHA256(reinterpret_cast<const unsigned char*>(token_.data()), token_.size(), want);
  SHA256(reinterpret_cast<const unsigned char*>(given.data()), given.size(), got);
  if (CRYPTO_memcmp(want, got, sizeof(want)) != 0) return common::errors::NotAuthenticated();
  return absl::OkStatus();
}

}  // namespace sluice::transport
