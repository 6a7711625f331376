#include "server/transport/envoy/requested_windows.h"

#include <algorithm>
#include <charconv>
#include <cstring>
#include <string>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "common/bounds.h"

namespace sluice::transport {
namespace {

constexpr std::string_view kPrefix = "envoy-request/";
constexpr uint64_t kMaxOwed = common::bounds::kMaxEnvoyHits - 1;

// "envoy-request/60s", in place.
class WindowName {
 public:
  WindowName(envoy::Unit unit, uint32_t unit_multiplier) {
    constexpr int64_t kSecondNs = 1'000'000'000;
    const auto seconds = static_cast<uint64_t>(envoy::UnitNs(unit) / kSecondNs) * unit_multiplier;
    std::memcpy(bytes_, kPrefix.data(), kPrefix.size());
    char* end = std::to_chars(bytes_ + kPrefix.size(), bytes_ + sizeof(bytes_) - 1, seconds).ptr;
    *end++ = 's';
    size_ = static_cast<size_t>(end - bytes_);
  }
  std::string_view view() const { return {bytes_, size_}; }

 private:
  char bytes_[48];
  size_t size_;
};

limits::LimitSpec SpecOf(envoy::Unit unit, uint32_t unit_multiplier) {
  limits::LimitSpec spec;
  spec.name = std::string(WindowName(unit, unit_multiplier).view());
  spec.algorithm = algorithm::Kind::kFixedWindow;
  spec.rate = {1, envoy::UnitNs(unit) * unit_multiplier};
  spec.max_owed = kMaxOwed;
  spec.direct = false;
  return spec;
}

}  // namespace

const limits::Limit* RequestedWindows::Find(const limits::LimitTable& table, envoy::Unit unit,
                                            uint32_t unit_multiplier) {
  return table.Find(WindowName(unit, unit_multiplier).view());
}

bool RequestedWindows::IsAsMade(const limits::Limit& limit, int64_t window_ns) {
  const limits::LimitSpec& spec = limit.spec();
  return spec.algorithm == algorithm::Kind::kFixedWindow &&
         spec.rate == algorithm::Rate{1, window_ns} && spec.max_owed == kMaxOwed &&
         spec.mode == limits::Mode::kEnforce && spec.keys.empty() && spec.charges.empty();
}

absl::Status RequestedWindows::Add(envoy::Unit unit, uint32_t unit_multiplier) {
  common::MutexLock lock(&mu_);
  // Another thread may have added it.
  if (Find(*registry_.Current(), unit, unit_multiplier) != nullptr) return absl::OkStatus();
  if (added_ == common::bounds::kMaxRequestedWindows) {
    return absl::ResourceExhaustedError(
        absl::StrCat("limit.unit_multiplier: requests have asked for ", added_,
                     " windows of different length, and no more are possible; configure a limit"));
  }
  const auto put = registry_.Put(SpecOf(unit, unit_multiplier));
  if (!put.ok()) return put.status();
  ++added_;
  return absl::OkStatus();
}

}  // namespace sluice::transport
