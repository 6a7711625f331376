#include "server/envoy/limit_specs.h"

#include <openssl/evp.h>

#include <algorithm>
#include <cstdint>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "common/bounds.h"
#include "common/strings.h"

namespace sluice::envoy {
namespace {

namespace bounds = common::bounds;

constexpr size_t kHashDigits = 16;

void AppendEscaped(std::string_view text, bool colons, bool at_end, std::string* out) {
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    const bool plain =
        absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '-' || c == '_' || c == '.' ||
        (c == ':' && colons) ||
        (c == '/' && !out->empty() && out->back() != '/' && !(at_end && i + 1 == text.size()));
    if (plain) {
      out->push_back(c);
    } else {
      absl::StrAppend(out, "@",
                      absl::AsciiStrToUpper(absl::BytesToHexString(absl::string_view(&c, 1))));
    }
  }
}

limits::LimitSpec SpecOf(const MatchedLimit& limit) {
  limits::LimitSpec spec;
  spec.name = limit.limit_name;
  spec.defined_at = limit.defined_at;
  spec.mode = limit.shadow_mode ? limits::Mode::kShadow : limits::Mode::kEnforce;
  spec.on_store_failure = limit.counting.on_store_failure;
  spec.rate.period_ns = UnitNs(limit.unit) * limit.unit_multiplier;
  // A limit has at least 1 permit, and at most one a nanosecond: at most a billion a second.
  spec.rate.permits =
      std::clamp<uint64_t>(limit.requests_per_unit, 1, static_cast<uint64_t>(spec.rate.period_ns));
  switch (limit.counting.mode) {
    case CountMode::kCompatible:
      spec.algorithm = algorithm::Kind::kFixedWindow;
      spec.max_owed = bounds::kMaxEnvoyHits - spec.rate.permits;
      break;
    case CountMode::kExact:
      spec.algorithm = limit.counting.algorithm == ExactAlgorithm::kTokenBucket
                           ? algorithm::Kind::kTokenBucket
                           : algorithm::Kind::kSlidingWindow;
      break;
  }
  return spec;
}

}  // namespace

LimitPath::LimitPath(std::string_view domain) { Append(domain, ""); }

LimitPath LimitPath::Child(std::string_view key, std::string_view value) const {
  LimitPath child;
  child.full_ = absl::StrCat(full_, "//");
  child.Append(key, value);
  return child;
}

void LimitPath::Append(std::string_view key, std::string_view value) {
  AppendEscaped(key, false, value.empty(), &full_);
  if (value.empty()) return;
  full_.push_back(':');
  AppendEscaped(value, true, true, &full_);
}

std::string LimitPath::Name() const {
  if (full_.size() <= bounds::kMaxLimitNameBytes) return full_;
  unsigned char digest[EVP_MAX_MD_SIZE];
  unsigned int size = 0;
  EVP_Digest(full_.data(), full_.size(), digest, &size, EVP_sha256(), nullptr);
  const std::string hash = absl::BytesToHexString(
      absl::string_view(reinterpret_cast<const char*>(digest), kHashDigits / 2));
  return absl::StrCat(full_.substr(0, bounds::kMaxLimitNameBytes - 2 - hash.size()), "@@", hash);
}

std::vector<limits::LimitSpec> MakeSpecs(const Matcher& matcher) {
  std::vector<limits::LimitSpec> specs;
  for (const auto& limit : matcher.limits()) {
    if (!limit->unlimited) specs.push_back(SpecOf(*limit));
  }
  return specs;
}

}  // namespace sluice::envoy
