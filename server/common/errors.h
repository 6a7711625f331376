// Every error that a caller can see is made here, so that all of them name the field, the value
// and what would be right, and nobody words one twice.
//
// Codes: INVALID_ARGUMENT for what can never be right, NOT_FOUND for a name that is not
// configured, FAILED_PRECONDITION and UNAVAILABLE for what may be right later.
#ifndef SLUICE_SERVER_COMMON_ERRORS_H_
#define SLUICE_SERVER_COMMON_ERRORS_H_

#include <cstdint>
#include <string_view>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "server/common/strings.h"

namespace sluice::common::errors {

// permits: 0 in a charge.
inline absl::Status PermitsZero(std::string_view limit) {
  return absl::InvalidArgumentError(absl::StrCat("permits: 0 asked of limit '", ToAbsl(limit),
                                                 "'; ask for at least 1, or leave it out for 1"));
}

// More permits than the limit could ever grant at once.
inline absl::Status PermitsAboveCapacity(std::string_view limit, uint64_t permits, uint64_t most) {
  return absl::InvalidArgumentError(
      absl::StrCat("permits: ", permits, " asked of limit '", ToAbsl(limit),
                   "', which can never grant more than ", most, " at once; ask for at most ", most,
                   ", or raise the limit's burst or debt"));
}

// Charges of one acquisition on the same bucket whose sum does not fit a number of permits.
inline absl::Status PermitsSumOverflow(std::string_view limit, uint64_t most) {
  return absl::InvalidArgumentError(absl::StrCat("permits: the charges on limit '", ToAbsl(limit),
                                                 "' add up to more than 2^64-1; ask for at most ",
                                                 most, " in all"));
}

inline absl::Status NoCharges() {
  return absl::InvalidArgumentError("charges: none given; name at least one limit");
}

// `charges` counts those that the limits' own `charges` add.
inline absl::Status TooManyCharges(size_t charges, size_t most) {
  return absl::InvalidArgumentError(absl::StrCat(
      "charges: ", charges, " in one acquisition, counting those that the limits' own ",
      "`charges` add; at most ", most));
}

}  // namespace sluice::common::errors

#endif  // SLUICE_SERVER_COMMON_ERRORS_H_
