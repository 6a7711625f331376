#include "server/transport/web/rate_limit_headers.h"

#include <algorithm>
#include <charconv>
#include <string_view>

#include "absl/numeric/int128.h"
#include "server/algorithm/parameters.h"

namespace sluice::web {
namespace {

constexpr int64_t kSecondNs = 1'000'000'000;
// The greatest integer of a structured field (RFC 9651).
constexpr uint64_t kMaxInteger = 999'999'999'999'999;

void Append(std::string_view text, common::Buffer* out) { out->Append(text); }
void Append(uint64_t number, common::Buffer* out) {
  char digits[24];
  const auto end =
      std::to_chars(digits, digits + sizeof(digits), std::min(number, kMaxInteger)).ptr;
  out->Append(digits, static_cast<size_t>(end - digits));
}

// Rounded up: who comes a second too early is denied again.
uint64_t WholeSeconds(int64_t ns) {
  return ns <= 0 ? 0 : (static_cast<uint64_t>(ns) + kSecondNs - 1) / kSecondNs;
}

uint64_t Left(int64_t remaining) { return remaining > 0 ? static_cast<uint64_t>(remaining) : 0; }

// A limit's name has no character that a quoted string must escape.
void AppendName(std::string_view limit, bool first, common::Buffer* out) {
  Append(first ? "\"" : ", \"", out);
  Append(limit, out);
  Append("\"", out);
}

}  // namespace

Quota QuotaOf(const algorithm::Rate& rate, uint64_t capacity) {
  const auto period_ns = static_cast<uint64_t>(rate.period_ns);
  const absl::uint128 window_ns = absl::uint128(capacity) * period_ns / rate.permits;
  if (window_ns >= kSecondNs) {
    const absl::uint128 window_s = (window_ns + (kSecondNs - 1)) / kSecondNs;
    return {capacity, window_s > kMaxInteger ? kMaxInteger : static_cast<uint64_t>(window_s)};
  }
  const absl::uint128 permits = absl::uint128(rate.permits) * kSecondNs / period_ns;
  return {std::max<uint64_t>(1, absl::Uint128Low64(permits)), 1};
}

void AppendRateLimitHeaders(const service::AcquireCall& call, bool x_ratelimit,
                            common::Buffer* out) {
  const service::AcquisitionResult result = call.result(0);
  Append("ratelimit-policy: ", out);
  for (size_t i = 0; i < result.charges; ++i) {
    const store::Rule& rule = call.rule(0, i);
    AppendName(rule.limit_name, i == 0, out);
    Append(";q=", out);
    if (algorithm::IsConcurrency(rule.parameters)) {
      Append(algorithm::Capacity(rule.parameters), out);
      Append(";qu=\"concurrent-requests\"", out);
      continue;
    }
    const Quota quota =
        QuotaOf(algorithm::RateOf(rule.parameters), algorithm::Capacity(rule.parameters));
    Append(quota.permits, out);
    Append(";w=", out);
    Append(quota.window_s, out);
  }
  Append("\r\nratelimit: ", out);
  service::ChargeStatus least;
  for (size_t i = 0; i < result.charges; ++i) {
    const service::ChargeStatus charge = call.charge(0, i);
    if (i == 0 || charge.level.remaining < least.level.remaining) least = charge;
    AppendName(call.rule(0, i).limit_name, i == 0, out);
    Append(";r=", out);
    Append(Left(charge.level.remaining), out);
    Append(";t=", out);
    Append(WholeSeconds(charge.level.reset_after_ns), out);
  }
  Append("\r\n", out);
  if (!result.granted) {
    Append("retry-after: ", out);
    Append(std::max<uint64_t>(1, WholeSeconds(result.retry_after_ns)), out);
    Append("\r\n", out);
  }
  if (!x_ratelimit) return;
  Append("x-ratelimit-limit: ", out);
  Append(least.level.capacity, out);
  Append("\r\nx-ratelimit-remaining: ", out);
  Append(Left(least.level.remaining), out);
  Append("\r\nx-ratelimit-reset: ", out);
  Append(WholeSeconds(least.level.reset_after_ns), out);
  Append("\r\n", out);
}

}  // namespace sluice::web
