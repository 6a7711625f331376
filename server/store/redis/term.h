// Term: what scripts are told of the data that they decide by. See marker.h.
#ifndef SLUICE_SERVER_STORE_REDIS_TERM_H_
#define SLUICE_SERVER_STORE_REDIS_TERM_H_

#include <cstdint>
#include <string>

#include "server/store/redis/rule_entry.h"

namespace sluice::store::redis {

struct Term {
  // A script's last key. Unguarded: its first, once more, which says that no marker is looked for.
  const std::string& WordFor(const Bucket& first) const {
    return unguarded ? first.keys[0] : word_key;
  }

  // There as long as the marker stands. Empty: it is being looked for; no script finds it.
  std::string word_key;
  // Microseconds since 1970 on the server's clock; 0: none.
  int64_t floor_us = 0;
  // No marker says what became of the data.
  bool unguarded = false;
};

}  // namespace sluice::store::redis

#endif  // SLUICE_SERVER_STORE_REDIS_TERM_H_
