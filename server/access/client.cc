#include "server/access/client.h"

#include <openssl/sha.h>

#include <algorithm>

#include "absl/strings/str_join.h"

namespace sluice::access {
namespace {

constexpr std::string_view kCallNames[kCalls] = {"acquire", "query", "refund",     "settle",
                                                 "force",   "watch", "admin_view", "admin_change"};

bool BeginsWith(std::string_view name, std::string_view prefix) {
  return name.substr(0, prefix.size()) == prefix;
}

}  // namespace

std::string_view CallName(Call call) { return kCallNames[static_cast<size_t>(call)]; }

std::optional<Call> FindCall(std::string_view name) {
  const auto* const found = std::find(std::begin(kCallNames), std::end(kCallNames), name);
  if (found == std::end(kCallNames)) return std::nullopt;
  return static_cast<Call>(found - std::begin(kCallNames));
}

std::string CallSet::ToString() const {
  std::vector<std::string> names;
  for (size_t i = 0; i < kCalls; ++i) {
    if (Has(static_cast<Call>(i))) names.emplace_back(kCallNames[i]);
  }
  return absl::StrJoin(names, ", ");
}

NamePatterns::NamePatterns(const std::vector<std::string>& patterns) {
  std::vector<std::string> prefixes;
  for (const std::string& pattern : patterns) {
    if (!pattern.empty() && pattern.back() == '*') {
      prefixes.push_back(pattern.substr(0, pattern.size() - 1));
    } else {
      names_.push_back(pattern);
    }
  }
  std::sort(prefixes.begin(), prefixes.end());
  for (std::string& prefix : prefixes) {
    // A prefix sorts before all that begins with it.
    if (prefixes_.empty() || !BeginsWith(prefix, prefixes_.back())) {
      prefixes_.push_back(std::move(prefix));
    }
  }
  std::sort(names_.begin(), names_.end());
  names_.erase(std::unique(names_.begin(), names_.end()), names_.end());
  few_ = names_.size() <= kFew && prefixes_.empty();
}

bool NamePatterns::Search(std::string_view name) const {
  const auto after = std::upper_bound(prefixes_.begin(), prefixes_.end(), name);
  if (after != prefixes_.begin() && BeginsWith(name, *std::prev(after))) return true;
  return std::binary_search(names_.begin(), names_.end(), name);
}

std::string NamePatterns::ToString() const {
  std::vector<std::string> all = names_;
  for (const std::string& prefix : prefixes_) all.push_back(prefix + "*");
  return absl::StrJoin(all, ", ");
}

TokenDigest DigestOf(std::string_view token) {
  static_assert(sizeof(TokenDigest) == SHA256_DIGEST_LENGTH);
  TokenDigest digest;
  SHA256(reinterpret_cast<const uint8_t*>(token.data()), token.size(), digest.data());
  return digest;
}

}  // namespace sluice::access
