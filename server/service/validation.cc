#include "server/service/validation.h"

#include <algorithm>
#include <chrono>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "common/bounds.h"
#include "common/errors.h"
#include "common/utf8.h"
#include "server/limits/nearest_name.h"
#include "server/limits/notation.h"

namespace sluice::service {
namespace {

namespace bounds = common::bounds;
namespace errors = common::errors;
using common::ToAbsl;

// The setting because of which nodes decide on the rule's buckets by themselves, now or while the
// store is unavailable; empty: the store decides.
std::string SettingOfOwnDecisions(const store::Rule& rule) {
  if (rule.sharing != store::Sharing::kExact) {
    return absl::StrCat("sharing: ", ToAbsl(limits::SharingName(rule.sharing)));
  }
  return rule.split_when_store_unavailable ? "on_store_failure: split" : "";
}

// Whether the thread may search for the name that was meant. It takes up to 100 us, and a caller
// may name limits that do not exist in call after call.
bool MaySuggest() {
  constexpr std::chrono::milliseconds kPause{10};
  constexpr int kAtOnce = 8;
  static thread_local std::chrono::steady_clock::time_point next;
  const auto now = std::chrono::steady_clock::now();
  next = std::max(next, now - (kAtOnce - 1) * kPause);
  if (next > now) return false;
  next += kPause;
  return true;
}

}  // namespace

std::string FieldPath::Field(std::string_view name) const {
  std::string field;
  for (size_t i = 0; i < depth_; ++i) {
    absl::StrAppend(&field, ToAbsl(steps_[i].list), "[", steps_[i].index, "].");
  }
  absl::StrAppend(&field, ToAbsl(name));
  return field;
}

absl::StatusOr<const limits::Limit*> LimitFinder::FindOrError(const FieldPath& path,
                                                              std::string_view field,
                                                              std::string_view name) {
  if (const limits::Limit* const limit = Find(name); limit != nullptr) return limit;
  return errors::NoLimitNamed(path.Field(field), name,
                              !std::exchange(suggested_, true) && MaySuggest()
                                  ? limits::NearestLimit(*table_, name)
                                  : std::string_view());
}

absl::Status CheckAcquisitionCount(size_t acquisitions) {
  if (acquisitions > bounds::kMaxBatch) return errors::TooManyAcquisitions(acquisitions);
  return absl::OkStatus();
}

absl::Status CheckBucketCount(size_t buckets) {
  if (buckets == 0) return errors::NoBuckets();
  if (buckets > bounds::kMaxQueryBuckets) return errors::TooManyBuckets(buckets);
  return absl::OkStatus();
}

absl::StatusOr<int64_t> CheckOptions(const FieldPath& path, const AcquisitionOptions& options,
                                     bool in_batch) {
  if (options.max_wait.seconds == 0 && options.max_wait.nanos == 0 && !options.hold) return 0;
  if (options.force) {
    return errors::ForceDoesNotWait(path.Field("force"), options.hold ? "hold" : "max_wait");
  }
  const std::string field = path.Field("max_wait");
  auto max_wait_ns = ToNanoseconds(field, options.max_wait);
  if (!max_wait_ns.ok()) return max_wait_ns.status();
  if (*max_wait_ns < 0 || *max_wait_ns > bounds::kMaxWaitNs) {
    return errors::MaxWaitOutOfBounds(field, *max_wait_ns);
  }
  if (options.hold && in_batch) return errors::HoldInBatch(path.Field("hold"));
  if (options.hold && *max_wait_ns == 0) return errors::HoldWithoutMaxWait(path.Field("hold"));
  return max_wait_ns;
}

absl::StatusOr<int64_t> CheckSettleWithin(const FieldPath& path,
                                          const AcquisitionOptions& options) {
  if (!options.settle_within.has_value()) return 0;
  const std::string field = path.Field("settle_within");
  auto within_ns = ToNanoseconds(field, *options.settle_within);
  if (!within_ns.ok()) return within_ns.status();
  if (*within_ns <= 0 || *within_ns > bounds::kMaxSettleWithinNs) {
    return errors::SettleWithinOutOfBounds(field, *within_ns);
  }
  return within_ns;
}

absl::Status CheckChargeCount(const FieldPath& acquisition, size_t charges) {
  if (charges == 0) return errors::NoCharges(acquisition.Field("charges"));
  if (charges > bounds::kMaxCharges) {
    return errors::TooManyCharges(acquisition.Field("charges"), charges);
  }
  return absl::OkStatus();
}

absl::Status CheckKey(const FieldPath& path, std::string_view key) {
  if (key.size() > bounds::kMaxKeyBytes) return errors::KeyTooLong(path.Field("key"), key.size());
  return absl::OkStatus();
}

absl::StatusOr<const limits::Limit*> CheckBucket(const FieldPath& path, std::string_view limit,
                                                 std::string_view key, Utf8 utf8,
                                                 LimitFinder& limits) {
  if (absl::Status status = CheckKey(path, key); !status.ok()) return status;
  if (utf8 == Utf8::kUnchecked) {
    if (!common::IsUtf8(key)) return errors::NotUtf8(path.Field("key"));
    if (!common::IsUtf8(limit)) return errors::NotUtf8(path.Field("limit"));
  }
  return limits.FindOrError(path, "limit", limit);
}

absl::StatusOr<const limits::Limit*> CheckCharge(const FieldPath& path, std::string_view limit,
                                                 std::string_view key, uint64_t permits, bool force,
                                                 Utf8 utf8, LimitFinder& limits) {
  if (permits == 0) return errors::PermitsZero(path.Field("permits"));
  auto found = CheckBucket(path, limit, key, utf8, limits);
  if (!found.ok()) return found;
  if (!(*found)->direct()) return errors::LimitNotDirect(path.Field("limit"), limit);
  const store::Rule& rule = (*found)->RuleFor(key);
  absl::Status status =
      force ? CheckForced(path, permits, rule) : CheckPermits(path, permits, rule);
  if (!status.ok()) return status;
  return found;
}

absl::Status CheckForced(const FieldPath& path, uint64_t permits, const store::Rule& rule) {
  if (algorithm::IsConcurrency(rule.parameters)) {
    return errors::SlotsDoNotForce(path.Field("force"), rule.limit_name);
  }
  if (!rule.max_owed.has_value()) {
    return errors::ForceNotAllowed(path.Field("limit"), rule.limit_name);
  }
  if (permits <= bounds::kMaxPermits) return absl::OkStatus();
  return errors::Invalid(path.Field("permits"), permits, "; at most ", bounds::kMaxPermits);
}

absl::Status CheckForcedParent(const FieldPath& acquisition, const store::Rule& rule) {
  if (algorithm::IsConcurrency(rule.parameters)) {
    return errors::SlotsDoNotForce(acquisition.Field("force"), rule.limit_name);
  }
  if (rule.sharing == store::Sharing::kExact) return absl::OkStatus();
  return errors::SharingDoesNotForce(acquisition.Field("force"), rule.limit_name,
                                     limits::SharingName(rule.sharing));
}

absl::Status CheckPermits(const FieldPath& path, uint64_t permits, const store::Rule& rule) {
  if (permits <= algorithm::MaxGrant(rule.parameters)) return absl::OkStatus();
  return errors::PermitsNeverGranted(path.Field("permits"), permits, rule.limit_name,
                                     limits::FormatMaxGrant(rule.parameters));
}

absl::Status CheckMergedCharges(const FieldPath& acquisition, size_t added,
                                absl::Span<const store::Charge> merged) {
  if (absl::Status status = CheckChargeCount(acquisition, added); !status.ok()) return status;
  for (const store::Charge& charge : merged) {
    const store::Rule& rule = *charge.rule;
    if (charge.permits <= algorithm::MaxGrant(rule.parameters)) continue;
    return errors::PermitsSumNeverGranted(acquisition.Field("charges"), charge.permits,
                                          rule.limit_name, limits::FormatMaxGrant(rule.parameters));
  }
  return absl::OkStatus();
}

absl::Status CheckBooksAhead(const FieldPath& acquisition,
                             absl::Span<const store::Charge> charges) {
  for (const store::Charge& charge : charges) {
    const std::string setting = SettingOfOwnDecisions(*charge.rule);
    if (setting.empty()) continue;
    return errors::SharingDoesNotBook(acquisition.Field("max_wait"), charge.rule->limit_name,
                                      setting);
  }
  return absl::OkStatus();
}

absl::Status CheckRequestId(const FieldPath& acquisition, std::string_view request_id,
                            const AcquisitionOptions& options) {
  const std::string_view field = "request_id";
  if (request_id.size() != store::RequestId::kBytes) {
    return errors::BadRequestId(acquisition.Field(field), request_id.size());
  }
  if (options.hold) return errors::OnceDoesNotHold(acquisition.Field(field));
  return absl::OkStatus();
}

absl::Status CheckRemembers(const FieldPath& acquisition, absl::Span<const store::Charge> charges) {
  for (const store::Charge& charge : charges) {
    const std::string setting = SettingOfOwnDecisions(*charge.rule);
    if (setting.empty()) continue;
    return errors::SharingDoesNotRemember(acquisition.Field("request_id"), charge.rule->limit_name,
                                          setting);
  }
  return absl::OkStatus();
}

absl::Status CheckEstimates(const FieldPath& acquisition, absl::Span<const store::Charge> charges) {
  for (const store::Charge& charge : charges) {
    const std::string setting = SettingOfOwnDecisions(*charge.rule);
    if (setting.empty()) continue;
    return errors::SharingHasNoEstimates(acquisition.Field("settle_within"),
                                         charge.rule->limit_name, setting);
  }
  return absl::OkStatus();
}

absl::Status CheckRatesOfSlots(const FieldPath& acquisition, const store::Rule& slots,
                               absl::Span<const store::Charge> charges) {
  for (const store::Charge& charge : charges) {
    if (charge.rule->sharing != store::Sharing::kSplit) continue;
    return errors::SlotsDoNotSplit(acquisition.Field("charges"), charge.rule->limit_name,
                                   slots.limit_name);
  }
  return absl::OkStatus();
}

const store::Rule* SlotsOf(absl::Span<const store::Charge> charges) {
  for (const store::Charge& charge : charges) {
    if (algorithm::IsConcurrency(charge.rule->parameters)) return charge.rule;
  }
  return nullptr;
}

absl::StatusOr<uint32_t> CheckMaxHolds(uint32_t max_holds) {
  if (max_holds > bounds::kMaxListHolds) {
    return errors::Invalid("max_holds", max_holds, "; 1 to ", bounds::kMaxListHolds, ", or 0 for ",
                           bounds::kDefaultListHolds);
  }
  return max_holds == 0 ? bounds::kDefaultListHolds : max_holds;
}

absl::StatusOr<int64_t> CheckMinInterval(WireDuration min_interval) {
  auto interval_ns = ToNanoseconds("min_interval", min_interval);
  if (!interval_ns.ok()) return interval_ns.status();
  if (*interval_ns < bounds::kMinWatchIntervalNs || *interval_ns > bounds::kMaxWatchIntervalNs) {
    return errors::BadMinInterval(*interval_ns);
  }
  return interval_ns;
}

absl::Status CheckReason(std::string_view reason) {
  if (reason.size() > bounds::kMaxReasonBytes) {
    return errors::Invalid("reason", "\"", errors::Shown(reason, 40), "\" has ", reason.size(),
                           " bytes; at most ", bounds::kMaxReasonBytes);
  }
  if (common::IsUtf8(reason)) return absl::OkStatus();
  return errors::Invalid("reason", "\"", errors::Shown(reason), "\" is not valid UTF-8");
}

absl::StatusOr<int64_t> CheckExpiresAfter(WireDuration expires_after) {
  auto after_ns = ToNanoseconds("expires_after", expires_after);
  if (!after_ns.ok()) return after_ns.status();
  if (*after_ns >= bounds::kMinExpiresAfterNs && *after_ns <= bounds::kMaxExpiresAfterNs) {
    return after_ns;
  }
  return errors::Invalid("expires_after", absl::FormatDuration(absl::Nanoseconds(*after_ns)),
                         "; from 1s to 365 days (8760h), or absent for a change without end");
}

absl::StatusOr<uint32_t> CheckMaxKeys(uint32_t max_keys) {
  if (max_keys > bounds::kMaxListKeys) {
    return errors::Invalid("max_keys", max_keys, "; 1 to ", bounds::kMaxListKeys, ", or 0 for ",
                           bounds::kDefaultListKeys);
  }
  return max_keys == 0 ? bounds::kDefaultListKeys : max_keys;
}

absl::StatusOr<int64_t> ToNanoseconds(std::string_view field, WireDuration duration) {
  constexpr int32_t kSecond = 1'000'000'000;
  const auto [seconds, nanos] = duration;
  if (nanos <= -kSecond || nanos >= kSecond || (seconds > 0 && nanos < 0) ||
      (seconds < 0 && nanos > 0)) {
    return errors::BadDuration(field, seconds, nanos);
  }
  int64_t ns;
  if (__builtin_mul_overflow(seconds, int64_t{kSecond}, &ns) ||
      __builtin_add_overflow(ns, int64_t{nanos}, &ns)) {
    return seconds < 0 ? std::numeric_limits<int64_t>::min() : std::numeric_limits<int64_t>::max();
  }
  return ns;
}

}  // namespace sluice::service
