// FencingToken: fence word and floor of a server's data, passed to each script. See fence.h.
#ifndef SLUICE_SERVER_STORE_REDIS_FENCING_FENCING_TOKEN_H_
#define SLUICE_SERVER_STORE_REDIS_FENCING_FENCING_TOKEN_H_

#include <cstdint>
#include <string>
#include <vector>

#include "server/store/redis/wire/rule_entry.h"

namespace sluice::store::redis {

struct FencingToken {
  // The last key of a script: the fence's word. In a Cluster the script's first key, once more; the
  // word follows as the last argument (AppendWord).
  const std::string& WordFor(const Bucket& first) const {
    return as_argument ? first.keys[0] : word_key;
  }
  void AppendWord(std::vector<std::string>* words) const {
    // No key named ? has the form of a fence's word, so the script refuses.
    if (as_argument) words->push_back(word_key.empty() ? "?" : word_key);
  }
  // Whether two decisions go by the same data.
  bool operator==(const FencingToken& other) const {
    return word_key == other.word_key && floor_us == other.floor_us;
  }

  // Exists as long as the fence stands. Empty: the fence is being read; scripts refuse.
  std::string word_key;
  // Microseconds since 1970 on the server's clock. 0: none, no data was lost.
  int64_t floor_us = 0;
  // The word is in another slot than the buckets.
  bool as_argument = false;
  // How long this server may go on granting when another has taken its place, with a margin, in
  // microseconds; 0: none can take it.
  int64_t lag_us = 0;
};

}  // namespace sluice::store::redis

#endif  // SLUICE_SERVER_STORE_REDIS_FENCING_FENCING_TOKEN_H_
