// Builds the parameters of each algorithm from configured parameters, or says what does not fit.
#ifndef SLUICE_SERVER_ALGORITHM_MAKE_PARAMETERS_H_
#define SLUICE_SERVER_ALGORITHM_MAKE_PARAMETERS_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "server/algorithm/parameters.h"

namespace sluice::algorithm {

// INVALID_ARGUMENT, with a message that starts with the field's name (`burst 9e18: ...; at most
// ...`): rate above bounds, period out of bounds, burst and debt together longer than the ticks
// can hold, burst 0 without debt, sub_windows out of bounds, utc_offset beyond a day.
absl::StatusOr<Parameters> MakeTokenBucket(Rate rate, uint64_t burst, uint64_t debt);
absl::StatusOr<Parameters> MakeSlidingLog(Rate rate);
absl::StatusOr<Parameters> MakeSlidingWindow(Rate rate, uint32_t sub_windows);
absl::StatusOr<Parameters> MakeFixedWindow(Rate rate, int64_t utc_offset_ns);

}  // namespace sluice::algorithm

#endif  // SLUICE_SERVER_ALGORITHM_MAKE_PARAMETERS_H_
