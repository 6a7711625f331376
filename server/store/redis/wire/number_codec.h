// Numbers as scripts take and give them: many packed into one word (Lua's struct.unpack('<d') and
// struct.pack('<d')), or as an array of integers. A number in a word of its own costs Redis a
// quarter of an empty script (docs/adr/0090).
//
// TimePair is a moment or duration as scripts count it: whole microseconds, and parts of one. The
// parts are nanoseconds for logs and windows; for a token bucket its ticks, of which a microsecond
// has 1000 << shift. Lua's doubles hold neither of the two in one number.
//
// Pure; thread-safe.
#ifndef SLUICE_SERVER_STORE_REDIS_WIRE_NUMBER_CODEC_H_
#define SLUICE_SERVER_STORE_REDIS_WIRE_NUMBER_CODEC_H_

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <limits>
#include <optional>
#include <string>
#include <string_view>

#include "server/algorithm/parameters.h"
#include "server/algorithm/wide.h"
#include "server/store/redis/wire/resp.h"

namespace sluice::store::redis {

struct TimePair {
  int64_t us = 0;
  int64_t parts = 0;
};

inline int64_t PartsPerUs(const algorithm::TokenBucket& parameters) {
  return int64_t{1000} << parameters.shift;
}

inline TimePair PairOfTicks(const algorithm::TokenBucket& parameters, uint64_t ticks) {
  const auto parts = static_cast<uint64_t>(PartsPerUs(parameters));
  return {static_cast<int64_t>(ticks / parts), static_cast<int64_t>(ticks % parts)};
}

// Rounds towards the past.
inline TimePair PairOfNs(int64_t ns) {
  int64_t us = ns / 1000;
  int64_t rest = ns % 1000;
  if (rest < 0) {
    --us;
    rest += 1000;
  }
  return {us, rest};
}

// Saturates.
inline int64_t NsOf(int64_t us, int64_t ns) {
  const algorithm::Int128 sum = static_cast<algorithm::Int128>(us) * 1000 + ns;
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  return sum > kMost ? kMost : static_cast<int64_t>(sum);
}

inline constexpr size_t kPackedNumberBytes = 8;

// REQUIRES: each is between -2^53 and 2^53.
inline void PackNumbers(std::initializer_list<int64_t> numbers, std::string* out) {
  for (const int64_t number : numbers) {
    const auto exact = static_cast<double>(number);
    uint64_t bits;
    std::memcpy(&bits, &exact, sizeof(bits));
    char bytes[kPackedNumberBytes];
    for (size_t i = 0; i < kPackedNumberBytes; ++i) {
      bytes[i] = static_cast<char>(bits >> (8 * i) & 0xff);
    }
    out->append(bytes, kPackedNumberBytes);
  }
}

// The number at place `at`. nullopt: there is none, or it is not a whole number between -2^53 and
// 2^53.
inline std::optional<int64_t> UnpackNumber(std::string_view packed, size_t at) {
  if (packed.size() / kPackedNumberBytes <= at) return std::nullopt;
  uint64_t bits = 0;
  for (size_t i = 0; i < kPackedNumberBytes; ++i) {
    bits |= uint64_t{static_cast<unsigned char>(packed[at * kPackedNumberBytes + i])} << (8 * i);
  }
  double number;
  std::memcpy(&number, &bits, sizeof(number));
  constexpr double kMost = 9007199254740992;
  if (!(number >= -kMost && number <= kMost)) return std::nullopt;
  const auto whole = static_cast<int64_t>(number);
  if (static_cast<double>(whole) != number) return std::nullopt;
  return whole;
}

// Takes the numbers of a reply one after the other. Good() says at the end whether the reply held
// exactly the numbers that were taken. `reply` outlives it.
class ReplyNumbers {
 public:
  explicit ReplyNumbers(const Reply& reply) : reply_(reply) {}
  int64_t Next() {
    if (reply_.type == Reply::Type::kString) {
      const std::optional<int64_t> number = UnpackNumber(reply_.text, at_++);
      good_ &= number.has_value();
      return number.value_or(0);
    }
    if (at_ >= reply_.elements.size() || reply_.elements[at_].type != Reply::Type::kInteger) {
      good_ = false;
      return 0;
    }
    return reply_.elements[at_++].integer;
  }
  // Of a reply that is an array. Empty: there is none.
  std::string_view NextText() {
    if (at_ >= reply_.elements.size() || reply_.elements[at_].type != Reply::Type::kString) {
      good_ = false;
      return {};
    }
    return reply_.elements[at_++].text;
  }
  // Nanoseconds since 1970.
  int64_t NextTime() {
    const int64_t us = Next();
    return us * 1000 + Next();
  }
  bool Good() const {
    return good_ &&
           (reply_.type == Reply::Type::kString ? at_ * kPackedNumberBytes == reply_.text.size()
                                                : at_ == reply_.elements.size());
  }

 private:
  const Reply& reply_;
  size_t at_ = 0;
  bool good_ = true;
};

}  // namespace sluice::store::redis

#endif  // SLUICE_SERVER_STORE_REDIS_WIRE_NUMBER_CODEC_H_
