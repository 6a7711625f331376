#include "server/store/redis/scripts/scripts.h"

#include <openssl/evp.h>

#include <array>
#include <iterator>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "server/store/redis/scripts/embedded_scripts.h"

namespace sluice::store::redis {
namespace {

// What stands before each script that works on buckets, in this order.
constexpr const char* kBucketParts[] = {embedded::buckets,      embedded::token_bucket,
                                        embedded::sliding_log,  embedded::sliding_window,
                                        embedded::fixed_window, embedded::load_buckets};
// The scripts, these parts, the prelude and the clock.
static_assert(embedded::kFiles == kScripts + std::size(kBucketParts) + 2,
              "a .lua file in scripts/ is not used");

ScriptText Plain(std::string text) {
  unsigned char digest[EVP_MAX_MD_SIZE];
  unsigned int size = 0;
  EVP_Digest(text.data(), text.size(), digest, &size, EVP_sha1(), nullptr);
  std::string sha =
      absl::BytesToHexString(absl::string_view(reinterpret_cast<const char*>(digest), size));
  return {std::move(text), std::move(sha)};
}

ScriptText Guarded(const std::string& text) { return Plain(embedded::prelude + text); }

ScriptText Timed(const std::string& text) { return Guarded(embedded::clock + text); }

ScriptText OnBuckets(const char* text) {
  return Timed(absl::StrCat(absl::StrJoin(kBucketParts, ""), text));
}

}  // namespace

const ScriptText& TextOf(Script script) {
#define SLUICE_REDIS_SCRIPT_TEXT(name, file, form) form(embedded::file),
  static const std::array<ScriptText, kScripts>& texts =
      *new std::array<ScriptText, kScripts>{SLUICE_REDIS_SCRIPTS(SLUICE_REDIS_SCRIPT_TEXT)};
#undef SLUICE_REDIS_SCRIPT_TEXT
  return texts[static_cast<size_t>(script)];
}

}  // namespace sluice::store::redis
