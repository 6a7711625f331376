// What a bucket looks like in Redis, and what the scripts are told and answer
// (scripts/buckets.lua). Products and quotients are computed here, in 128 bits; Lua's doubles add
// and compare.
//
// Units. The server's clock counts microseconds since 1970. A token bucket's moment is a pair:
// whole microseconds, and ticks of the limit, of which a microsecond has 1000 << shift. So every
// decision is the one that server/algorithm/token_bucket.h makes (docs/adr/0090).
//
// Pure; thread-safe.
#ifndef SLUICE_SERVER_STORE_REDIS_WIRE_STORED_BUCKET_H_
#define SLUICE_SERVER_STORE_REDIS_WIRE_STORED_BUCKET_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "server/algorithm/bucket_image.h"
#include "server/algorithm/level.h"
#include "server/algorithm/parameters.h"

namespace sluice::store::redis {

// Counts of logs and windows stay below 2^53, which a double holds exactly: of a limit whose
// window has more permits than that, so many can be used.
inline constexpr uint64_t kMaxCounted = (uint64_t{1} << 53) - 1;

// Open receipts kept per bucket, as in scripts/buckets.lua.
inline constexpr size_t kMaxReceiptsInRedis = 128;

// The names of a bucket's keys: state, runs, receipts. One hash tag, so that a Cluster keeps them
// in one slot. It is the key's own (hash_slot.h) if there is one: all buckets of keys with "{42}"
// in them are in the slot of 42, whatever their limits. Two buckets never share a name: the limit's
// length stands before it, and the last character says which form it is.
// REQUIRES: no braces in the name space, as in the limit's name.
std::array<std::string, 3> KeysOf(std::string_view name_space, std::string_view limit,
                                  std::string_view key, std::string_view limit_tag = {});

// A limit's parameters for people: "token_bucket 10 per 1h, burst 10".
std::string Describe(const algorithm::Parameters& parameters);

// A limit's parameters as one word, and back. INVALID_ARGUMENT: not one of ours.
std::string EncodeParameters(const algorithm::Parameters& parameters);
absl::StatusOr<algorithm::Parameters> ParseParameters(std::string_view encoded_parameters);

// The scripts' argument for the time: empty, or a test's own time.
std::string TestTime(int64_t now_ns);

// kind, encoded_parameters, writer, shadow, six numbers, and the two of AppendFloor.
void AppendBucket(const algorithm::Parameters& parameters, std::string_view encoded_parameters,
                  std::string_view writer, bool shadow, int64_t floor_us,
                  std::vector<std::string>* arguments);

// What is granted since data may have been lost (fence.h; floor_us 0: it was not, 0 0): a token
// bucket is full again at this moment at the earliest, so that it was empty, and all debt made, at
// the floor; all others count as used up until it, when nothing of before the floor counts.
void AppendFloor(const algorithm::Parameters& parameters, int64_t floor_us,
                 std::vector<std::string>* arguments);

// Four numbers: what so many permits cost.
void AppendCost(const algorithm::Parameters& parameters, uint64_t permits,
                std::vector<std::string>* arguments);

// What acquire_token_bucket.lua takes as its one word of numbers (docs/adr/0108): each is a double
// of 8 bytes, least first. All are whole and below 2^53. `test_now_ns` negative: the time is the
// server's. REQUIRES: a token bucket.
std::string PackTokenBucket(const algorithm::Parameters& parameters, int64_t floor_us,
                            int64_t test_now_ns);
// Then for each run of callers: what so many permits cost, and how many callers. Negative: of such
// as would wait.
void PackRun(const algorithm::Parameters& parameters, uint64_t permits, int64_t callers,
             std::string* numbers);

// What a script reports of a bucket after an acquisition or for a query.
using Report = std::array<int64_t, 7>;

// `floor_us` as the script was told.
algorithm::Level LevelOf(const algorithm::Parameters& parameters, const Report& report,
                         int64_t now_ns, int64_t floor_us = 0);
// Until so many permits fit if nobody else takes; kNeverNs: never. 0: they fit now.
int64_t WaitNs(const algorithm::Parameters& parameters, uint64_t permits, const Report& report,
               int64_t now_ns, int64_t floor_us = 0);

// Ticks of a token bucket from a pair. Saturates at algorithm::kMaxTat.
uint64_t TicksOf(const algorithm::TokenBucket& parameters, int64_t us, int64_t ticks);
// The report of a token bucket that lacks so much of full.
inline Report ReportOfToken(int64_t lacking_us, int64_t lacking_ticks) {
  return {lacking_us, lacking_ticks};
}

// ---- Buckets as scripts store them ----

struct StoredBucket {
  algorithm::Parameters parameters;
  std::string writer;
  // Times count from 1970. A token bucket's count from the moment of the call: its TAT is what it
  // lacks then.
  algorithm::BucketImage image;
};

// INVALID_ARGUMENT: not a bucket of ours.
absl::StatusOr<StoredBucket> ParseBucket(std::string_view state, absl::Span<const std::string> runs,
                                         std::string_view receipts, int64_t now_ns);

// What scripts are to write: time to live in milliseconds, state, receipts, runs.
std::vector<std::string> FormatBucket(const StoredBucket& bucket, int64_t now_ns);
// The same for a full bucket, which is the same as none.
std::vector<std::string> FormatFullBucket();

// When nothing counts any more that a log or window granted before the floor; 0: no floor, or a
// token bucket.
int64_t UsedUpUntilNs(const algorithm::Parameters& parameters, int64_t floor_us);

// Of a bucket that grants nothing for so long. Not positive: of no effect.
void CloseLevel(int64_t closed_ns, algorithm::Level* level);

}  // namespace sluice::store::redis

#endif  // SLUICE_SERVER_STORE_REDIS_WIRE_STORED_BUCKET_H_
