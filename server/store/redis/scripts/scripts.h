// The Lua scripts, compiled in (server/store/redis/scripts/*.lua), with the names that Redis knows
// them by.
#ifndef SLUICE_SERVER_STORE_REDIS_SCRIPTS_SCRIPTS_H_
#define SLUICE_SERVER_STORE_REDIS_SCRIPTS_SCRIPTS_H_

#include <cstddef>
#include <cstdint>
#include <string>

namespace sluice::store::redis {

// All but kClose, kMark, kFloors and kPromise look for the fence's word
// (scripts/prelude.lua).
enum class Script : uint8_t {
  kAcquireTokenBucket = 0,
  kAcquire,
  kQuery,
  kRefund,
  kReset,
  kConvert,
  kClose,
  kExchange,
  kMark,
  kFloors,
  kPromise,
  kHeartbeat,
  kReport,
};
inline constexpr size_t kScripts = 13;

struct ScriptText {
  std::string text;
  std::string sha;  // SHA-1 in hex, as EVALSHA takes it
};

// Made once; thread-safe.
const ScriptText& TextOf(Script script);

}  // namespace sluice::store::redis

#endif  // SLUICE_SERVER_STORE_REDIS_SCRIPTS_SCRIPTS_H_
