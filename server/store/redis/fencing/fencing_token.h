// FencingToken: what scripts are told of the data that they decide by. See fence.h.
#ifndef SLUICE_SERVER_STORE_REDIS_FENCING_FENCING_TOKEN_H_
#define SLUICE_SERVER_STORE_REDIS_FENCING_FENCING_TOKEN_H_

#include <cstdint>
#include <string>

#include "server/store/redis/wire/rule_entry.h"

namespace sluice::store::redis {

struct FencingToken {
  // A script's last key. In a Cluster its first, once more: the word follows as the last argument.
  const std::string& WordFor(const Bucket& first) const {
    return as_argument ? first.keys[0] : word_key;
  }
  // By which two decisions go by the same data.
  bool operator==(const FencingToken& other) const {
    return word_key == other.word_key && floor_us == other.floor_us;
  }

  // There as long as the fence stands. Empty: it is being looked for; no script finds it.
  std::string word_key;
  // Microseconds since 1970 on the server's clock; 0: none.
  int64_t floor_us = 0;
  // The word is in another slot than the buckets.
  bool as_argument = false;
  // Microseconds that this server may go on when another has taken its place, with a margin; 0:
  // there is nobody to take it.
  int64_t lag_us = 0;
};

}  // namespace sluice::store::redis

#endif  // SLUICE_SERVER_STORE_REDIS_FENCING_FENCING_TOKEN_H_
