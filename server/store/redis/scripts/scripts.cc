#include "server/store/redis/scripts/scripts.h"

#include <openssl/evp.h>

#include <array>
#include <iterator>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "server/store/redis/scripts/embedded_scripts.h"

namespace sluice::store::redis {
namespace {

struct Algorithm {
  char kind;
  const char* text;
};
constexpr Algorithm kAlgorithms[] = {{'t', embedded::token_bucket},
                                     {'l', embedded::sliding_log},
                                     {'w', embedded::sliding_window},
                                     {'f', embedded::fixed_window}};
// The scripts, the algorithms, buckets.lua, load_buckets.lua, the prelude and the clock.
static_assert(embedded::kFiles == kScripts + std::size(kAlgorithms) + 4,
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
  std::string whole = embedded::buckets;
  for (const Algorithm& algorithm : kAlgorithms) {
    absl::StrAppend(&whole, "function definitions.", std::string(1, algorithm.kind), "()\n",
                    algorithm.text, "end\n");
  }
  return Timed(absl::StrCat(whole, embedded::load_buckets, text));
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
