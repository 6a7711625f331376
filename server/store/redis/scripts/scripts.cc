#include "server/store/redis/scripts/scripts.h"

#include <openssl/evp.h>

#include <array>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "server/store/redis/scripts/embedded_scripts.h"

namespace sluice::store::redis {
namespace {

ScriptText Make(std::string text) {
  unsigned char digest[EVP_MAX_MD_SIZE];
  unsigned int size = 0;
  EVP_Digest(text.data(), text.size(), digest, &size, EVP_sha1(), nullptr);
  std::string sha =
      absl::BytesToHexString(absl::string_view(reinterpret_cast<const char*>(digest), size));
  return {std::move(text), std::move(sha)};
}

// Decides nothing on other data than the caller takes it for.
ScriptText Guarded(const std::string& text) { return Make(embedded::kPrelude + text); }

// One that works on buckets of all algorithms.
ScriptText OnBuckets(const char* text) {
  return Guarded(absl::StrCat(embedded::kBuckets, embedded::kTokenBucket, embedded::kSlidingLog,
                              embedded::kSlidingWindow, embedded::kFixedWindow,
                              embedded::kLoadBuckets, text));
}

}  // namespace

const ScriptText& TextOf(Script script) {
  static const std::array<ScriptText, kScripts>& texts = *new std::array<ScriptText, kScripts>{
      Guarded(embedded::kAcquireTokenBucket),
      OnBuckets(embedded::kAcquire),
      OnBuckets(embedded::kQuery),
      OnBuckets(embedded::kRefund),
      Guarded(embedded::kReset),
      Guarded(embedded::kConvert),
      Make(embedded::kClose),
      Guarded(embedded::kExchange),
      Make(embedded::kMark),
      Make(embedded::kFloors),
      Make(embedded::kPromise),
      Guarded(embedded::kHeartbeat),
      OnBuckets(embedded::kReport),
  };
  return texts[static_cast<size_t>(script)];
}

}  // namespace sluice::store::redis
