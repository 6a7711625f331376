// ReplyNumbers: takes the numbers of a script's answer one after the other, be it an array of
// integers or a word of packed numbers (packed_numbers.h).
#ifndef SLUICE_SERVER_STORE_REDIS_WIRE_REPLY_NUMBERS_H_
#define SLUICE_SERVER_STORE_REDIS_WIRE_REPLY_NUMBERS_H_

#include <cstddef>
#include <cstdint>
#include <optional>

#include "server/store/redis/wire/packed_numbers.h"
#include "server/store/redis/wire/resp.h"
#include "server/store/redis/wire/stored_bucket.h"
#include "server/store/store.h"

namespace sluice::store::redis {

// Says at the end whether there were as many as asked for. `reply` outlives it.
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
  Report NextReport() {
    Report report;
    for (int64_t& number : report) number = Next();
    return report;
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

#endif  // SLUICE_SERVER_STORE_REDIS_WIRE_REPLY_NUMBERS_H_
