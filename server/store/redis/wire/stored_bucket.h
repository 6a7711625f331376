// StoredBucket: a bucket as scripts store it, read by a node (scripts/buckets.lua).
//
// Pure; thread-safe.
#ifndef SLUICE_SERVER_STORE_REDIS_WIRE_STORED_BUCKET_H_
#define SLUICE_SERVER_STORE_REDIS_WIRE_STORED_BUCKET_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/bounds.h"
#include "server/algorithm/bucket_image.h"
#include "server/algorithm/parameters.h"
#include "server/store/redis/wire/parameters_text.h"
#include "server/store/redis/wire/script_arguments.h"

namespace sluice::store::redis {

// Open receipts kept per bucket, as in scripts/buckets.lua.
inline constexpr size_t kMaxReceiptsInRedis = common::bounds::kMaxReceiptsPerBucketInRedis;

struct StoredBucket {
  algorithm::Parameters parameters;
  std::string writer;
  // Times count from 1970; those of a token bucket from the moment of the call: its TAT is what it
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

}  // namespace sluice::store::redis

#endif  // SLUICE_SERVER_STORE_REDIS_WIRE_STORED_BUCKET_H_
