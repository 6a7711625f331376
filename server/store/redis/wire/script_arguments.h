// What scripts on buckets take as arguments, and what they answer (scripts/buckets.lua). Products
// and quotients are computed here, in 128 bits; Lua's doubles only add and compare, so every
// decision equals the one of server/algorithm (docs/adr/0090).
//
// Units: the server's clock counts microseconds since 1970; see number_codec.h.
//
// Pure; thread-safe.
#ifndef SLUICE_SERVER_STORE_REDIS_WIRE_SCRIPT_ARGUMENTS_H_
#define SLUICE_SERVER_STORE_REDIS_WIRE_SCRIPT_ARGUMENTS_H_

#include <algorithm>
#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "server/algorithm/level.h"
#include "server/algorithm/parameters.h"
#include "server/store/redis/wire/number_codec.h"

namespace sluice::store::redis {

// Counts of logs and windows stay below 2^53, which a double holds exactly. Of a limit whose window
// has more permits than that, only this many can be used.
inline constexpr uint64_t kMaxCounted = (uint64_t{1} << 53) - 1;
inline uint64_t CappedCount(uint64_t permits) {
  return permits < kMaxCounted ? permits : kMaxCounted;
}

// How scripts read the server's clock (scripts/clock.lua). Microseconds.
struct ServerClock {
  int64_t correction_us = 0;  // by how much it is ahead
  // What it can show; a script that finds another time is refused. latest_us 0: anything.
  int64_t least_us = 0;
  int64_t latest_us = 0;
};

// The argument for the time: the server's, or a test's own.
std::string ServerTime(const ServerClock& clock);
std::string TestTime(int64_t now_ns);

// Appends kind, encoded_parameters, writer, shadow, six numbers, and the two of AppendFloor.
void AppendBucket(const algorithm::Parameters& parameters, std::string_view encoded_parameters,
                  std::string_view writer, bool shadow, int64_t floor_us,
                  std::vector<std::string>* arguments);

// Appends the moment before which the data cannot be trusted, since some may have been lost
// (fence.h; floor_us 0: none was lost, appends 0 0; negative: only if the bucket is missing).
// A token bucket is full at this moment at the earliest: it was empty, with all debt made, at the
// floor. All other algorithms count as used up until it, when nothing from before the floor counts.
void AppendFloor(const algorithm::Parameters& parameters, int64_t floor_us,
                 std::vector<std::string>* arguments);

// Appends four numbers: what `permits` cost.
void AppendCost(const algorithm::Parameters& parameters, uint64_t permits,
                std::vector<std::string>* arguments);

// Appends seven words more, of a forced charge or one that gives back (scripts/acquire.lua).
// `charged_by`: the charges before it that charge it, counted from 1, separated by commas. `own`:
// its Acquisition::own.
void AppendForced(const algorithm::Parameters& parameters, uint64_t permits, uint64_t max_owed,
                  std::string_view charged_by, uint64_t own, std::vector<std::string>* arguments);
// Permits are numbers of scripts there, so that products of them and their costs are exact.
inline constexpr uint64_t kMaxForcedTogether = (uint64_t{1} << 38) - 1;

// The most that a log or window may owe in Redis; see kMaxCounted.
inline uint64_t CountableOwed(const algorithm::Parameters& parameters, uint64_t max_owed) {
  if (parameters.kind == algorithm::Kind::kTokenBucket) return max_owed;
  return std::min(max_owed, kMaxCounted - CappedCount(algorithm::Capacity(parameters)));
}

// The numbers of acquire_token_buckets.lua, packed into one word (docs/adr/0090). All are whole and
// below 2^53. First the time; `test_now_ns` negative: it is the server's. Then how the buckets are
// read: together, by one command; one by one; or, negative, so many that are no keys of the script.
// Then whether parts of a value may be written.
inline constexpr int64_t kReadOneByOne = 0;
inline constexpr int64_t kReadTogether = 1;
std::string PackHeader(int64_t test_now_ns, const ServerClock& clock, int64_t reading,
                       bool may_set_range);
// Then for each bucket; `limit`: the place of its limit's words among the script's arguments,
// counted from 1. REQUIRES: a token bucket.
void PackTokenBucket(const algorithm::Parameters& parameters, size_t limit, int64_t floor_us,
                     size_t runs, std::string* numbers);
// Then, for each run of callers that want the same: what `permits` cost, and the number of callers.
// Negative: callers that would wait.
void PackRun(const algorithm::Parameters& parameters, uint64_t permits, int64_t callers,
             std::string* numbers);

// What a script answers of one bucket, after an acquisition or for a query.
using BucketNumbers = std::array<int64_t, 7>;

// Takes the next of them from an answer.
BucketNumbers NextBucket(ReplyNumbers* numbers);

// `floor_us` as it was passed to the script.
algorithm::Level LevelOf(const algorithm::Parameters& parameters, const BucketNumbers& numbers,
                         int64_t now_ns, int64_t floor_us = 0);
// Until `permits` fit if no other caller takes any; kNeverNs: never. 0: they fit now.
int64_t WaitNs(const algorithm::Parameters& parameters, uint64_t permits,
               const BucketNumbers& numbers, int64_t now_ns, int64_t floor_us = 0);

// Takes from an answer of query.lua the three numbers that follow those of each bucket.
algorithm::Refundable NextRefundable(const algorithm::Parameters& parameters,
                                     ReplyNumbers* numbers);

// Ticks of a token bucket from a pair. Saturates at algorithm::kMaxTat.
uint64_t TicksOf(const algorithm::TokenBucket& parameters, int64_t us, int64_t ticks);

// When nothing counts any more that a log or window granted before the floor; 0: there is no floor,
// or it is a token bucket.
int64_t UsedUpUntilNs(const algorithm::Parameters& parameters, int64_t floor_us);

// The floor of a bucket, by its limit's floor and the floor of missing buckets: the later one. Of a
// token bucket it is negative if it is that of missing buckets, and the other one does not matter
// any more. Others cannot write down that they are closed, so the floor is of all of them.
// `owed_us`: OwedBeyondDebtUs.
int64_t LaterFloorUs(const algorithm::Parameters& parameters, int64_t floor_us,
                     int64_t missing_floor_us, int64_t owed_us = 0);

// How much later than a floor a token bucket may have owed only its debt, since a forced debit may
// leave max_owed owed: floors are that much later. 0: it has no max_owed, or it is no token bucket.
int64_t OwedBeyondDebtUs(const algorithm::Parameters& parameters, uint64_t max_owed);

// Lowers the level of a bucket that grants nothing for closed_ns. Not positive: no effect.
void CloseLevel(int64_t closed_ns, algorithm::Level* level);

}  // namespace sluice::store::redis

#endif  // SLUICE_SERVER_STORE_REDIS_WIRE_SCRIPT_ARGUMENTS_H_
