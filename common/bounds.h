// Every bound of the server, each with its reason. A bound is enforced before any work is done
// for what breaks it, and the error names the bound.
#ifndef SLUICE_COMMON_BOUNDS_H_
#define SLUICE_COMMON_BOUNDS_H_

#include <cstddef>
#include <cstdint>

namespace sluice::common::bounds {

// Bytes of a key. Room for a URL path or a hashed composite; a bucket's memory is mostly its key.
inline constexpr size_t kMaxKeyBytes = 512;

// Characters of a limit's name: it is a metric label.
inline constexpr size_t kMaxLimitNameBytes = 128;

// Charges of an acquisition after each limit's `charges` were added. All their buckets are held
// together for the decision.
inline constexpr size_t kMaxCharges = 16;

// Acquisitions of a batch: 4096 decisions take under a millisecond, so a batch does not hold up
// an event loop.
inline constexpr size_t kMaxBatch = 4096;

// Buckets of a Query or a Watch.
inline constexpr size_t kMaxQueryBuckets = 256;

// How far ahead a reservation may lie.
inline constexpr int64_t kMaxWaitNs = int64_t{24} * 3600 * 1'000'000'000;

// Open receipts of a bucket: each is looked at by every decision on that bucket. When one more
// comes, the oldest is closed (it is worth least).
inline constexpr size_t kMaxReceiptsPerBucket = 1024;

// Bookings of a bucket: callers that wait in line, or were told a moment to come. A line of that
// many is searched in a few microseconds, and 100,000 callers may wait for one shared bucket.
inline constexpr uint64_t kMaxBookingsPerBucket = uint64_t{1} << 17;
// Of all buckets of a limit, and in all: about 100 bytes each, so 100 MB; a limit that is flooded
// leaves half for the others.
inline constexpr uint64_t kMaxBookingsPerLimit = uint64_t{1} << 19;
inline constexpr uint64_t kMaxBookings = uint64_t{1} << 20;

// Periods of a rate.
inline constexpr int64_t kMinPeriodNs = 1'000'000;
inline constexpr int64_t kMaxPeriodNs = int64_t{366} * 24 * 3600 * 1'000'000'000;

// Sustained permits per second of any limit.
inline constexpr uint64_t kMaxPermitsPerSecond = 1'000'000'000;

// Permits in any one number.
inline constexpr uint64_t kMaxPermits = (uint64_t{1} << 63) - 1;

// Sub-windows of a sliding_window.
inline constexpr uint32_t kMaxSubWindows = 100;
inline constexpr uint32_t kDefaultSubWindows = 10;

// Limits of a table, and bytes of a limits file: 10 MB of YAML take seconds and hundreds of
// megabytes to parse.
inline constexpr size_t kMaxLimits = 100'000;
// Names of limits that a process has ever had: each keeps its counters and its id, also when the
// limit was deleted, so that its buckets are found again when it comes back.
inline constexpr size_t kMaxLimitNames = 1'000'000;
inline constexpr size_t kMaxLimitsFileBytes = size_t{8} << 20;

// Connections of the data port unless --max_connections says otherwise, over all event loops: an
// idle one costs 15 KiB (48 KiB with TLS), so that many take 1.5 GB (5 GB) at most, and peers that
// connect without end cannot take all memory or all descriptors. Far more than callers need: calls
// share connections.
inline constexpr int kDefaultMaxConnections = 100'000;

// Calls open at once on one connection.
inline constexpr uint32_t kMaxStreamsPerConnection = 1024;

// Bytes of a request message. The largest honest one, a batch of 4096 acquisitions, stays below.
inline constexpr size_t kMaxRequestBytes = size_t{4} << 20;

// Bytes of a receipt: 16 charges of the longest names and keys.
inline constexpr size_t kMaxReceiptBytes = size_t{16} << 10;

// Watch: least and greatest time between answers.
inline constexpr int64_t kMinWatchIntervalNs = 10'000'000;
inline constexpr int64_t kMaxWatchIntervalNs = int64_t{3600} * 1'000'000'000;
// Watches open at once, each of which is looked at every min_interval.
inline constexpr size_t kMaxWatches = 10'000;

// Keys of a ListKeys answer.
inline constexpr uint32_t kMaxListKeys = 1000;

// Buckets of the memory store unless --max_buckets says otherwise.
inline constexpr uint64_t kDefaultMaxBuckets = uint64_t{1} << 24;

}  // namespace sluice::common::bounds

#endif  // SLUICE_COMMON_BOUNDS_H_
