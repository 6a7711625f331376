// Bounds that a caller or an operator can meet: sizes and counts of requests, limits, buckets,
// connections and files, each with its reason. A bound is enforced before any work is done for the
// request that breaks it, and the error names the bound.
//
// Not here: sizes that no caller sees (buffers, caches, retries, steps of background work), which
// stay with the component that they belong to.
#ifndef SLUICE_COMMON_BOUNDS_H_
#define SLUICE_COMMON_BOUNDS_H_

#include <cstddef>
#include <cstdint>

namespace sluice::common::bounds {

// ---- Requests ----

// Bytes of a key. Room for a URL path or a hashed composite; a bucket's memory is mostly its key.
inline constexpr size_t kMaxKeyBytes = 512;

// Charges of an acquisition, those added by each limit's `charges` included. The decision holds all
// their buckets at once.
inline constexpr size_t kMaxCharges = 16;

// Acquisitions of a batch. An event loop decides a large batch in slices, between which it serves
// other connections; its answer waits for the last.
inline constexpr size_t kMaxBatch = 4096;

// Bytes of an acquisition, or of a settlement: 16 charges with the longest names and keys have 11
// KiB, and a receipt has at most 16. A batch is decoded in steps of whole ones.
inline constexpr size_t kMaxAcquisitionBytes = size_t{64} << 10;

// Buckets of a Query or a Watch.
inline constexpr size_t kMaxQueryBuckets = 256;

// How long a grant of a slot limit holds its permits unless it is renewed: at least a round trip of
// a client near by, and at most as long as bookings wait. The default is several times as long as
// most calls take, and short enough to wait for the slots of a caller that crashed.
inline constexpr int64_t kMinHoldForNs = 1'000'000;
inline constexpr int64_t kMaxHoldForNs = int64_t{24} * 3600 * 1'000'000'000;
inline constexpr int64_t kDefaultHoldForNs = int64_t{30} * 1'000'000'000;

// Holds of one answer of ListHolds: some 300 KB.
inline constexpr uint32_t kMaxListHolds = 10'000;
inline constexpr uint32_t kDefaultListHolds = 1000;

// Receipts of a Renew: as the acquisitions of a batch. Both are decoded in steps.
inline constexpr size_t kMaxRenewedReceipts = 4096;

// How far ahead a reservation may lie: at most, and if its limit has no max_wait. A reservation
// keeps all callers behind it waiting that long, so a limit that wants more than an hour says so.
inline constexpr int64_t kMaxWaitNs = int64_t{24} * 3600 * 1'000'000'000;
inline constexpr int64_t kDefaultMaxWaitNs = int64_t{3600} * 1'000'000'000;

// Bytes of a request message. The largest honest one, a batch of 4096 acquisitions, is smaller.
inline constexpr size_t kMaxRequestBytes = size_t{4} << 20;
// Of a Query or a Watch, which is decoded in one step: 256 buckets have 170 KiB. Further ones are
// counted, and not read.
inline constexpr size_t kMaxQueryBytes = size_t{256} << 10;

// Bytes of a receipt: 16 charges with the longest names and keys (service/receipt.cc).
inline constexpr size_t kMaxReceiptBytes = size_t{16} << 10;

// Bytes of a request of server reflection or of a health check, which all may call: a name.
inline constexpr size_t kMaxNameRequestBytes = 4096;

// Watch: time between two answers, and watches open at once, each of which costs a query per
// interval.
inline constexpr int64_t kMinWatchIntervalNs = 10'000'000;
inline constexpr int64_t kMaxWatchIntervalNs = int64_t{3600} * 1'000'000'000;
inline constexpr int64_t kDefaultWatchIntervalNs = 1'000'000'000;
inline constexpr size_t kMaxWatches = 10'000;

// Keys of a ListKeys answer.
inline constexpr uint32_t kMaxListKeys = 1000;
inline constexpr uint32_t kDefaultListKeys = 20;

// ---- Connections ----

// Connections of the data port unless --max_connections says otherwise, over all event loops: an
// idle one costs 5 KiB (20 KiB with TLS), so all of them take at most 0.5 GB (2 GB), and a flood of
// connections cannot take all memory or all descriptors. Callers need far fewer: calls share
// connections.
inline constexpr int kDefaultMaxConnections = 100'000;

// TLS handshakes at once on an event loop; fewer if all of them, 64 KiB each, would hold more than
// an eighth of what peers may make the process hold. Above, a new handshake displaces one of the
// peer that holds most. A count too, since each takes up to a millisecond of its loop: the last of
// so many waits for a second.
inline constexpr size_t kMaxHandshakesPerLoop = 1024;

// Connections of the admin port, and bytes of its requests that are not complete yet. People and
// scripts use it: more than these are a flood, which may not cost the data port its memory.
inline constexpr int kMaxAdminConnections = 1000;
inline constexpr size_t kMaxAdminRequestBytes = size_t{32} << 20;

// Calls open at once on one connection, announced in its SETTINGS. An open call costs 2 to 4 KiB,
// and callers that are held until their grant time keep theirs for hours: a connection takes 4 MiB
// for them at most. A count beside the account of bytes, since HTTP/2 lets a server announce no
// other bound: without it, clients would send calls only to have them refused.
inline constexpr uint32_t kMaxStreamsPerConnection = 1024;

// A connection's share of memory. Above either bound its next calls wait, and the window for its
// requests stays closed; the call that exceeds it was begun, and is completed.
// Bytes of answers that the peer has not taken: small, since hundreds of peers may take none, and
// large enough for several of the largest usual batches (4096 acquisitions, 100 KB).
inline constexpr size_t kMaxConnectionUnsentBytes = size_t{1} << 20;
// The same of all connections of a port, divided between its event loops. Above, a connection waits
// that has more than the minimum: it goes on when its own peer takes answers, so one that reads is
// served.
inline constexpr size_t kMaxPortUnsentBytes = size_t{32} << 20;
inline constexpr size_t kMinConnectionUnsentBytes = size_t{64} << 10;
// Bytes of decoded calls that a shared store has not decided: several of the largest usual batches,
// 1.2 MB each, so that they are decided together.
inline constexpr size_t kMaxConnectionPendingBytes = size_t{8} << 20;

// Bytes of a connection's requests that are not complete: two of the largest messages. They cannot
// wait, since only reading completes them: above, calls are refused.
inline constexpr size_t kMaxConnectionRequestBytes = size_t{8} << 20;
// The same of all connections of the data port, divided between its event loops.
inline constexpr size_t kMaxPortRequestBytes = size_t{64} << 20;
// What a connection may have while those of the port are at kMaxPortRequestBytes: enough for small
// calls.
inline constexpr size_t kMinConnectionRequestBytes = size_t{64} << 10;

// Bytes of the watches of one connection: two of the largest, or hundreds of small ones.
inline constexpr size_t kMaxConnectionWatchBytes = size_t{512} << 10;
// The same of all connections of the data port, divided between its event loops.
inline constexpr size_t kMaxPortWatchBytes = size_t{32} << 20;
// What a connection may have while those of the port are at kMaxPortWatchBytes: some dozens of
// buckets.
inline constexpr size_t kMinConnectionWatchBytes = size_t{16} << 10;

// How long a peer may take none of its answers, unless --stall_timeout says otherwise.
inline constexpr int64_t kDefaultStallTimeoutNs = int64_t{30} * 1'000'000'000;

// The least --memory_limit: half of it holds buckets, half what peers make the process hold.
inline constexpr int64_t kMinMemoryLimit = int64_t{64} << 20;

// Bytes of one request's headers: names, values and 32 bytes for each.
inline constexpr uint32_t kMaxHeaderListBytes = 16 << 10;

// Frames that continue a header block: eight of 16 KiB are more than a list may have, encoded.
inline constexpr int kMaxContinuations = 8;
// Entries of a SETTINGS frame: peers send six, and some that are not defined on purpose.
inline constexpr size_t kMaxSettings = 32;
// Bytes of control frames that wait to be sent: a thousand answers to the peer's. A peer that
// causes more does not read.
inline constexpr size_t kMaxControlBytes = 32 << 10;

// Of a connection of the data port or the admin port: how long its greeting may take, up to the end
// of the first SETTINGS; a frame or a header block, from its start to its end; the request of a
// unary call, from its headers to its end; and a message of a stream, from its first byte to its
// end. On a slow line 16 KiB take a second, 4 MiB 30 s.
inline constexpr int64_t kGreetingTimeoutNs = int64_t{10} * 1'000'000'000;
inline constexpr int64_t kFrameTimeoutNs = int64_t{20} * 1'000'000'000;
inline constexpr int64_t kRequestTimeoutNs = int64_t{30} * 1'000'000'000;
// After so long without a byte the peer is sent a PING, and must send something within the
// time-out. Shorter than the few minutes after which NAT forgets a connection.
inline constexpr int64_t kKeepaliveNs = int64_t{60} * 1'000'000'000;
inline constexpr int64_t kKeepaliveTimeoutNs = int64_t{20} * 1'000'000'000;
// How long a connection may have no calls: clients open a new one for their next.
inline constexpr int64_t kMaxIdleNs = int64_t{30} * 60 * 1'000'000'000;

// Lines of one log event in a second. A flood shows in as many, and the next line counts the
// others.
inline constexpr uint32_t kMaxLogLinesPerSecond = 20;

// ---- HTTP ----

// Connections of the HTTP port: browsers, scripts, and gateways, which keep a pool each. An idle
// one costs 3 KiB (18 KiB with TLS).
inline constexpr size_t kMaxHttpConnections = 10'000;

// Bytes of a request's first line and headers, and their number: a browser sends 1 KiB in 20. Also
// bytes of a chunked body's trailers, and of one chunk's extensions.
inline constexpr size_t kMaxHttpHeaderBytes = size_t{16} << 10;
inline constexpr size_t kMaxHttpHeaders = 100;

// Bytes of a request in JSON. The largest usual batch, 4096 acquisitions, has 300 KB. protobuf's
// parser takes 18 bytes of memory for a byte of the worst document.
inline constexpr size_t kMaxJsonBytes = size_t{1} << 20;
// Of a call with one acquisition or receipt: as kMaxAcquisitionBytes.
inline constexpr size_t kMaxSmallJsonBytes = size_t{64} << 10;

// Parts of the key of a /v1/check: more would not fit a key of 512 bytes with any sense.
inline constexpr size_t kMaxKeyParts = 16;

// Bytes of requests that a connection has sent ahead, while an earlier one is being answered.
// Above, it is not read. Requests are handled one by one, so this is all that pipelining costs.
inline constexpr size_t kMaxPipelinedBytes = size_t{16} << 10;

// How long a request's headers may take, and then its body: on a slow line, 1 MiB takes 10 s.
inline constexpr int64_t kHttpHeaderTimeoutNs = int64_t{10} * 1'000'000'000;
inline constexpr int64_t kHttpBodyTimeoutNs = int64_t{30} * 1'000'000'000;
// How long a connection may wait for its next request. Longer than the 60 s for which gateways keep
// theirs, since a connection that we close under a request costs that request.
inline constexpr int64_t kHttpIdleTimeoutNs = int64_t{120} * 1'000'000'000;

// Unsent bytes of an event stream above which its events are skipped: a page that reads takes
// kilobytes a second.
inline constexpr size_t kMaxStreamUnsentBytes = size_t{256} << 10;

// Limits with an hour of history of their own, 62 KiB each at most. People look at the limits that
// are in use; the others are summed.
inline constexpr size_t kMaxLimitHistories = 1000;

// ---- Envoy's rate-limit service ----

// Descriptors of a request, and the entries of all of them: they are decoded and matched in one
// step, of less than half a millisecond. Envoy sends a few.
inline constexpr size_t kMaxEnvoyDescriptors = 1024;
inline constexpr size_t kMaxEnvoyEntries = 4096;
// Bytes of a request: room for some values of 64 KiB.
inline constexpr size_t kMaxEnvoyRequestBytes = size_t{512} << 10;

// Hits that a window counts; more are forgiven. Redis' numbers are exact up to 2^53.
inline constexpr uint64_t kMaxEnvoyHits = uint64_t{1} << 52;

// Windows that limits in requests may ask for, in the life of a process: each makes a limit.
inline constexpr size_t kMaxRequestedWindows = 64;

// Descriptors whose values are part of the name of their counters (detailed_metric,
// value_to_metric) and that have counters of their own, in each thread. The others are summed.
inline constexpr size_t kMaxDetailedCounters = 10'000;

// ---- Limits ----

// Characters of a limit's name: it is a metric label.
inline constexpr size_t kMaxLimitNameBytes = 128;

// Period of a rate.
inline constexpr int64_t kMinPeriodNs = 1'000'000;
inline constexpr int64_t kMaxPeriodNs = int64_t{366} * 24 * 3600 * 1'000'000'000;

// Sustained permits per second of any limit: one in each nanosecond, the
// resolution of the clock.
inline constexpr uint64_t kMaxPermitsPerSecond = 1'000'000'000;

// Permits in any one number: remaining permits are signed.
inline constexpr uint64_t kMaxPermits = (uint64_t{1} << 63) - 1;

// Sub-windows of a sliding_window, each of which is a counter of every bucket.
inline constexpr uint32_t kMaxSubWindows = 100;
inline constexpr uint32_t kDefaultSubWindows = 10;

// Offset of a fixed_window from UTC, either way.
inline constexpr int64_t kMaxUtcOffsetNs = int64_t{24} * 3600 * 1'000'000'000;

// Keys for which a limit reserves room (min_keys): more than any table has.
inline constexpr uint64_t kMaxMinKeys = uint64_t{1} << 32;

// Limits that have time series of their own in /metrics; the others are summed. Each has four or
// more, so that one server has 40,000 at most: about 40 ms of CPU for a scrape, and 100 MB of a
// Prometheus.
inline constexpr uint32_t kMaxMetricLimits = 10'000;

// Limits of a table, all of which each reload and each PutLimit looks at.
inline constexpr size_t kMaxLimits = 100'000;

// Bytes of the reason of a PutLimit, which stays with the limit: a sentence and a link to a ticket.
inline constexpr size_t kMaxReasonBytes = 256;

// expires_after of a PutLimit. Shorter is over before it is seen; longer belongs in the file.
inline constexpr int64_t kMinExpiresAfterNs = 1'000'000'000;
inline constexpr int64_t kMaxExpiresAfterNs = int64_t{365} * 24 * 3600 * 1'000'000'000;

// Names of limits that a process has ever had. A deleted limit keeps its counters and its id, so
// that its buckets are found again when it comes back.
inline constexpr size_t kMaxLimitNames = 1'000'000;

// Bytes of a limits file: 10 MB of YAML take seconds and hundreds of megabytes to parse.
inline constexpr size_t kMaxLimitsFileBytes = size_t{8} << 20;

// Clients of a clients file, and the entries of each list of a client: names of limits, tokens, and
// so on. A reload looks at all of them.
inline constexpr size_t kMaxClients = 10'000;
inline constexpr size_t kMaxClientEntries = 1000;
// The greatest bound of a client (max_calls_per_second and so on): more than any server serves, and
// few enough for the arithmetic (algorithm::SharedRate).
inline constexpr uint64_t kMaxClientBound = 10'000'000;
// Clients with series of their own in the metrics; the others are summed.
inline constexpr size_t kMaxMetricClients = 1000;
// Bytes of a header `authorization` that can be a client's: each connection keeps its last one.
inline constexpr size_t kMaxAuthorizationBytes = 1024;

// Refusals of wrong tokens from one address that wait to be sent, a tenth of a second apart; and
// addresses that are known to guess. Each waiting refusal is an open call, of some kilobytes in the
// account of its connection. Further ones close their connection.
inline constexpr size_t kMaxLateRefusals = 16;
inline constexpr size_t kMaxGuessingNetworks = 512;

// Envoy's rate-limit configuration. Levels of descriptors: each takes two levels of YAML
// (kMaxYamlDepth), and an entry of a request costs a look-up for each.
inline constexpr size_t kMaxDescriptorDepth = 12;

// Bytes of a descriptor's key and value together. Entries of requests are put together in a buffer
// of this size on the stack; longer ones match only wildcards and bare keys.
inline constexpr size_t kMaxDescriptorBytes = 1024;

// Descriptors of a configuration, those without a limit included; of limits: kMaxLimits.
inline constexpr size_t kMaxDescriptors = 500'000;

// Files of a configuration's folder, and their bytes together; one: kMaxLimitsFileBytes.
inline constexpr size_t kMaxConfigFiles = 1000;
inline constexpr size_t kMaxConfigBytes = size_t{32} << 20;

// Of a configuration over xDS: bytes of the message, unless --ratelimit_xds_max_bytes says
// otherwise, and at most (100,000 limits have 10 MB); and its resources, each of which is a domain.
inline constexpr int64_t kDefaultXdsMessageBytes = int64_t{16} << 20;
inline constexpr int64_t kMaxXdsMessageBytes = int64_t{256} << 20;
inline constexpr size_t kMaxXdsResources = 10'000;

// Levels of nesting in a YAML file. A limits file needs five.
inline constexpr size_t kMaxYamlDepth = 32;

// Nodes that the aliases of a YAML file add: a few lines of nested aliases would come to billions.
inline constexpr size_t kMaxYamlAliasNodes = 1'000'000;

// ---- Buckets ----

// Buckets of the memory store unless --max_buckets says otherwise.
inline constexpr uint64_t kDefaultMaxBuckets = uint64_t{1} << 24;

// Open receipts of a bucket, each of which every decision on that bucket looks at. One more closes
// the oldest, which is worth least.
inline constexpr size_t kMaxReceiptsPerBucket = 1024;

// Estimates (settle_within) of a bucket: those that may still give permits back, each of which has
// an open receipt in one list, which is copied when it grows; and the bytes of all, with those that
// are settled and are kept until ten minutes after their end, 48 bytes each.
inline constexpr size_t kMaxOpenEstimatesPerBucket = size_t{1} << 16;
inline constexpr size_t kMaxEstimateBytesPerBucket = size_t{64} << 20;
// settle_within: as long as a booking may lie ahead.
inline constexpr int64_t kMaxSettleWithinNs = kMaxWaitNs;

// Bookings of a bucket: held callers and reservations. Searching that many takes a few
// microseconds, and 100,000 callers may wait for one shared bucket.
inline constexpr uint64_t kMaxBookingsPerBucket = uint64_t{1} << 17;
// Of all limits: about 100 bytes each, so 100 MB. A limit may have as many as are left for all: one
// that is flooded leaves half for the others, two a third, and so on.
inline constexpr uint64_t kMaxBookings = uint64_t{1} << 20;

// Steps of the searches for grant times of one batch: each looks at one booking, or at the summary
// of many, under the locks of the buckets. Half a millisecond at most. A search among bookings
// without gaps takes a few steps, whatever their number; the first one after a cancellation a step
// for each booking.
inline constexpr int64_t kMaxSearchSteps = int64_t{1} << 17;

// Of the reservations of one connection, held callers included: a quarter of kMaxBookings, and at
// most a third of those that are left, so that connections together do not take them all. A count,
// as kMaxBookings is: bookings are in no account of bytes, since they outlive the connection. Each
// batch of 4096 may make as many reservations.
inline constexpr size_t kMaxBookingsPerConnection = size_t{1} << 18;
// A connection's part of what is left for all. Alone it gets a quarter. Not 0 unless nothing is
// left.
inline constexpr size_t ThirdOf(size_t left) { return left / 3 + (left % 3 == 0 ? 0 : 1); }

// Grants that are remembered under request ids for a minute. In memory 64 bytes each, and of one in
// eight up to 256 more for what it forgave: 96 MB in all. In Redis about 200 bytes each, and up to
// 336 more for what it forgave. Enough for 17,000 acquisitions a second that are executed once. A
// limit or a client may have as many as are left for all, a connection a third of that
// (service/remembered_room.h). With less memory (--memory_limit) there are fewer.
inline constexpr size_t kMaxRememberedGrants = size_t{1} << 20;
inline constexpr size_t kRememberedGrantBytes = 64;

// Callers of an event loop that wait for Redis, and commands that wait for room: a second's worth
// of what a loop and a Redis can do. Further ones are answered as if Redis were unavailable.
inline constexpr size_t kMaxWaitingForRedis = size_t{1} << 17;
// Commands in flight on one connection to Redis, whose replies take a few milliseconds together.
inline constexpr size_t kMaxInFlightToRedis = 1024;

// A node that does not know a bucket in Redis reads all its bookings, some 10 bytes each, and
// scripts/buckets.lua walks all receipts of a bucket.
inline constexpr size_t kMaxBookingsPerBucketInRedis = size_t{1} << 14;
inline constexpr size_t kMaxReceiptsPerBucketInRedis = 128;
// Holds of a slot bucket in memory, 88 MB: a decision passes over those that have ended in up to
// 0.1 ms, until later calls have removed them.
inline constexpr size_t kMaxHoldsPerBucket = size_t{1} << 20;
// Holds of a slot bucket in Redis, which a node reads as it reads bookings.
inline constexpr size_t kMaxHoldsPerBucketInRedis = size_t{1} << 14;
// Tickets of a slot bucket in Redis: one of each node with waiting callers, two for a moment. Each
// takes some 25 bytes and at most 40, 2.5 KB together, which every change of the bucket writes.
inline constexpr size_t kMaxTicketsPerBucketInRedis = 64;
// How long a ticket may live: so long slots may stay free after a node with waiting callers died.
inline constexpr int64_t kMaxTicketNs = int64_t{5} * 1'000'000'000;
// Estimates of a bucket in Redis, with those that are settled and are kept: each change of the
// bucket writes the receipts of all, some 10 bytes each, and a node that does not know the bucket
// reads them and 20 bytes more of each.
inline constexpr size_t kMaxEstimatesPerBucketInRedis = size_t{1} << 14;
// Limits of which the fence in Redis holds promised grant times. Each raise writes them, and every
// node reads them. Promises of further limits are made for all limits. Ends of holds take half of
// them; those of further limits are promised for all limits of slots.
inline constexpr size_t kMaxLimitsPromised = 256;

// A message of a takeover, its descriptors (the kernel passes 253), and the listening sockets of a
// server: of 8 ports, one for each of 1024 event loops.
inline constexpr size_t kMaxTakeoverMessageBytes = size_t{16} << 10;
inline constexpr size_t kMaxTakeoverDescriptors = 64;
inline constexpr size_t kMaxTakeoverSockets = 8192;

}  // namespace sluice::common::bounds

#endif  // SLUICE_COMMON_BOUNDS_H_
