// The parameters of a limit as text: as Redis stores them, and for people.
//
// Pure; thread-safe.
#ifndef SLUICE_SERVER_STORE_REDIS_WIRE_PARAMETERS_TEXT_H_
#define SLUICE_SERVER_STORE_REDIS_WIRE_PARAMETERS_TEXT_H_

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
#include "absl/strings/string_view.h"
#include "server/algorithm/parameters.h"

namespace sluice::store::redis {

// For people: "token_bucket 10 per 1h, burst 10".
std::string Describe(const algorithm::Parameters& parameters);

// The letter by which scripts know an algorithm.
char LetterOf(algorithm::Kind kind);

// As one word, and back. INVALID_ARGUMENT: the word is not one of ours.
std::string EncodeParameters(const algorithm::Parameters& parameters);
absl::StatusOr<algorithm::Parameters> ParseParameters(std::string_view encoded_parameters);

// The error for text in Redis that this program did not write; `what` names it.
absl::Status NotOurs(absl::string_view what, absl::string_view text);

// Reads numbers from words[first] on. False: one is missing, or is not a number.
template <typename Number>
bool ParseAll(const std::vector<absl::string_view>& words, size_t first,
              std::initializer_list<Number*> numbers) {
  for (Number* number : numbers) {
    if (first >= words.size() || !absl::SimpleAtoi(words[first], number)) return false;
    ++first;
  }
  return true;
}

}  // namespace sluice::store::redis

#endif  // SLUICE_SERVER_STORE_REDIS_WIRE_PARAMETERS_TEXT_H_
