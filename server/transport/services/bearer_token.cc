#include "server/transport/services/bearer_token.h"

#include <openssl/crypto.h>
#include <openssl/sha.h>
#include <sys/stat.h>

#include <fstream>
#include <sstream>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/errors.h"
#include "common/strings.h"

namespace sluice::transport {
namespace {

constexpr size_t kMinBytes = 16;
constexpr absl::string_view kScheme = "bearer ";

std::array<uint8_t, SHA256_DIGEST_LENGTH> Sha256(absl::string_view text) {
  std::array<uint8_t, SHA256_DIGEST_LENGTH> digest;
  SHA256(reinterpret_cast<const uint8_t*>(text.data()), text.size(), digest.data());
  return digest;
}

}  // namespace

absl::StatusOr<std::unique_ptr<BearerToken>> BearerToken::FromFile(std::string path) {
  std::unique_ptr<BearerToken> token(new BearerToken(std::move(path)));
  if (const auto read = token->Reload(); !read.ok()) return read.status();
  return token;
}

absl::StatusOr<bool> BearerToken::Reload() {
  std::ifstream file(path_);
  std::stringstream content;
  content << file.rdbuf();
  if (!file) {
    return absl::InvalidArgumentError(
        absl::StrCat(path_, ": cannot be read; name a file that holds the token"));
  }
  const std::string text = content.str();
  const absl::string_view token = absl::StripAsciiWhitespace(text);
  if (token.size() < kMinBytes) {
    return absl::InvalidArgumentError(absl::StrCat(path_, ": a token of ", token.size(),
                                                   " bytes; at least ", kMinBytes,
                                                   " (head -c 24 /dev/urandom | base64)"));
  }
  const Digest digest = Sha256(token);
  common::MutexLock lock(&mu_);
  const bool changed = digest != digest_;
  digest_ = digest;
  return changed;
}

void BearerToken::WarnIfOthersMayRead(common::Log& log) const {
  struct stat file{};
  if (stat(path_.c_str(), &file) != 0 || (file.st_mode & (S_IROTH | S_IWOTH)) == 0) return;
  log.Warning("admin_token_exposed", {{"path", path_},
                                      {"mode", absl::StrFormat("%04o", file.st_mode & 07777)},
                                      {"advice", "chmod 0600"}});
}

absl::Status BearerToken::Check(std::string_view authorization) const {
  absl::string_view token = common::ToAbsl(authorization);
  if (!absl::StartsWithIgnoreCase(token, kScheme)) return common::errors::NotAuthenticated();
  token.remove_prefix(kScheme.size());
  // Digests are compared, so that the time does not depend on the token's length either.
  const Digest digest = Sha256(token);
  common::MutexLock lock(&mu_);
  if (CRYPTO_memcmp(digest.data(), digest_.data(), digest.size()) != 0) {
    return common::errors::NotAuthenticated();
  }
  return absl::OkStatus();
}

}  // namespace sluice::transport
