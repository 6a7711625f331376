// Translate: turns the environment of envoyproxy/ratelimit into flags of sluiced.
#ifndef SLUICE_SERVER_RATELIMIT_ENVIRONMENT_H_
#define SLUICE_SERVER_RATELIMIT_ENVIRONMENT_H_

#include <map>
#include <string>
#include <vector>

namespace sluice::ratelimit {

// Variables by name. An empty value counts as absent.
using Environment = std::map<std::string, std::string>;

// A variable that is set and has no effect.
struct IgnoredVariable {
  std::string name;
  std::string why;
};

struct Translation {
  std::vector<std::string> flags;  // "--listen=0.0.0.0:8081"
  // The URL of --store; empty: memory. The passwords belong into it, but not into the process list.
  std::string store;
  std::string password;
  std::string sentinel_password;
  std::vector<IgnoredVariable> ignored;
  // "REDIS_TYPE=one: write SINGLE, SENTINEL or CLUSTER". Not empty: there is nothing to start.
  std::vector<std::string> errors;
};

// Pure.
Translation Translate(const Environment& environment);

}  // namespace sluice::ratelimit

#endif  // SLUICE_SERVER_RATELIMIT_ENVIRONMENT_H_
