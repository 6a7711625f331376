// Clients that send a token, for tests with a clients file.
#ifndef SLUICE_TESTS_INTEGRATION_SERVER_TOKENS_H_
#define SLUICE_TESTS_INTEGRATION_SERVER_TOKENS_H_

#include <string>

#include "absl/strings/escaping.h"
#include "absl/strings/string_view.h"
#include "server/access/client.h"

namespace sluice::testing {

// The SHA-256 of a token, as `token_sha256` has it.
inline std::string Sha256Of(const std::string& token) {
  const access::TokenDigest digest = access::DigestOf(token);
  return absl::BytesToHexString(
      absl::string_view(reinterpret_cast<const char*>(digest.data()), digest.size()));
}

// A client that may acquire and watch under all limits: a list entry with more lines.
inline std::string ClientWithToken(const std::string& name, const std::string& lines = "") {
  return "  - name: " + name + "\n    token_sha256: " + Sha256Of(name + "-token") +
         "\n    limits: \"*\"\n    domains: \"*\"\n    calls: [acquire, query, watch]\n" + lines;
}

}  // namespace sluice::testing

#endif  // SLUICE_TESTS_INTEGRATION_SERVER_TOKENS_H_
