// The Lua scripts that Redis runs, compiled in from *.lua, with the names that Redis knows them by.
#ifndef SLUICE_SERVER_STORE_REDIS_SCRIPTS_SCRIPTS_H_
#define SLUICE_SERVER_STORE_REDIS_SCRIPTS_SCRIPTS_H_

#include <cstddef>
#include <cstdint>
#include <string>

namespace sluice::store::redis {

// All scripts: name, file, and what stands before the file's text (scripts.cc):
//   Plain      nothing
//   Guarded    prelude.lua: does nothing if the fence was replaced
//   Timed      the same, clock.lua: works by the time
//   OnBuckets  the same, buckets.lua, the algorithms, load_buckets.lua: works on any bucket
// To add a script, add its line here and its file. A missing or unused file does not compile.
#define SLUICE_REDIS_SCRIPTS(SCRIPT)                           \
  SCRIPT(kAcquireTokenBuckets, acquire_token_buckets, Guarded) \
  SCRIPT(kAcquire, acquire, OnBuckets)                         \
  SCRIPT(kQuery, query, OnBuckets)                             \
  SCRIPT(kRefund, refund, OnBuckets)                           \
  SCRIPT(kDebit, debit, OnBuckets)                             \
  SCRIPT(kReset, reset, Guarded)                               \
  SCRIPT(kExchange, exchange, Timed)                           \
  SCRIPT(kCloseReceipts, close_receipts, Plain)                \
  SCRIPT(kHeartbeat, heartbeat, Timed)                         \
  SCRIPT(kReplaceFence, replace_fence, Plain)                  \
  SCRIPT(kReadFloors, read_floors, Plain)                      \
  SCRIPT(kRaisePromise, raise_promise, Plain)

#define SLUICE_REDIS_SCRIPT_NAME(name, file, form) name,
enum class Script : uint8_t { SLUICE_REDIS_SCRIPTS(SLUICE_REDIS_SCRIPT_NAME) kCount };
#undef SLUICE_REDIS_SCRIPT_NAME
inline constexpr auto kScripts = static_cast<size_t>(Script::kCount);

// The error of a guarded script whose fence was replaced; nothing was executed.
inline constexpr char kFenceReplaced[] = "FENCE";
// The error of a script that found the server's clock at an impossible time; nothing was executed.
inline constexpr char kClockSet[] = "CLOCK";

struct ScriptText {
  std::string text;
  std::string sha;  // SHA-1 in hex, as EVALSHA takes it
};

// Made once; thread-safe.
const ScriptText& TextOf(Script script);

}  // namespace sluice::store::redis

#endif  // SLUICE_SERVER_STORE_REDIS_SCRIPTS_SCRIPTS_H_
