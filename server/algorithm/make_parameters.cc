#include "server/algorithm/make_parameters.h"

#include <tuple>

#include "absl/strings/str_cat.h"
#include "common/bounds.h"
#include "server/algorithm/wide.h"

namespace sluice::algorithm {

namespace bounds = common::bounds;

std::string DurationText(int64_t ns) {
  struct Unit {
    int64_t ns;
    const char* name;
  };
  for (const Unit& unit : {Unit{int64_t{3600} * 1'000'000'000, "h"}, Unit{60'000'000'000, "m"},
                           Unit{1'000'000'000, "s"}, Unit{1'000'000, "ms"}, Unit{1'000, "us"}}) {
    if (ns != 0 && ns % unit.ns == 0) return absl::StrCat(ns / unit.ns, unit.name);
  }
  return absl::StrCat(ns, "ns");
}

std::string RateText(Rate rate) {
  return absl::StrCat("rate ", rate.permits, "/", DurationText(rate.period_ns));
}

absl::Status CheckRate(Rate rate) {
  if (rate.permits == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(RateText(rate), ": must be at least one permit a period"));
  }
  if (rate.permits > bounds::kMaxPermits) {
    return absl::InvalidArgumentError(
        absl::StrCat(RateText(rate), ": at most ", bounds::kMaxPermits, " permits a period"));
  }
  if (rate.period_ns < bounds::kMinPeriodNs || rate.period_ns > bounds::kMaxPeriodNs) {
    return absl::InvalidArgumentError(absl::StrCat(RateText(rate), ": the period must be from ",
                                                   DurationText(bounds::kMinPeriodNs), " to ",
                                                   DurationText(bounds::kMaxPeriodNs)));
  }
  if (static_cast<Uint128>(rate.permits) * 1'000'000'000 >
      static_cast<Uint128>(rate.period_ns) * bounds::kMaxPermitsPerSecond) {
    return absl::InvalidArgumentError(absl::StrCat(
        RateText(rate), ": at most ", bounds::kMaxPermitsPerSecond, " permits a second"));
  }
  return absl::OkStatus();
}

absl::StatusOr<Parameters> Remade(const Parameters& given) {
  if (IsConcurrency(given))
    return std::apply(MakeConcurrency, Concurrency::Given(given.concurrency));
  return VisitMember(given.kind, [&](auto member) {
    const auto& own = given.*member;
    return WithRate(own, own.rate);
  });
}

}  // namespace sluice::algorithm
