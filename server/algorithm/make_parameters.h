// What the functions that make parameters share (MakeTokenBucket and so on, each declared with its
// algorithm). Their errors are INVALID_ARGUMENT, with a message that starts with the field's name
// (`burst 9e18: ...; at most ...`).
#ifndef SLUICE_SERVER_ALGORITHM_MAKE_PARAMETERS_H_
#define SLUICE_SERVER_ALGORITHM_MAKE_PARAMETERS_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/algorithm/parameters.h"

namespace sluice::algorithm {

// INVALID_ARGUMENT: the rate or its period is out of bounds. The Make functions call it.
absl::Status CheckRate(Rate rate);

// What the Make function makes of the same Given(). Its errors.
absl::StatusOr<Parameters> Remade(const Parameters& given);

// "rate 10/1m", "1m": for messages.
std::string RateText(Rate rate);
std::string DurationText(int64_t ns);

}  // namespace sluice::algorithm

#endif  // SLUICE_SERVER_ALGORITHM_MAKE_PARAMETERS_H_
