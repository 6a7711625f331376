// AdminClient: manages a server through its admin port.
#ifndef SLUICE_ADMIN_CLIENT_H_
#define SLUICE_ADMIN_CLIENT_H_

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "sluice/limit.h"
#include "sluice/options.h"
#include "sluice/status.h"

namespace sluice {

struct AdminOptions {
  std::string server = "127.0.0.1:7201";  // HOST:PORT or unix:PATH
  TlsOptions tls = {};
  std::string token = {};  // sent as `authorization: Bearer ...`; empty: none
  std::chrono::nanoseconds deadline = std::chrono::seconds(5);
};

enum class KeyOrder { kUse, kDenials };

// One of the most used, or most denied, keys.
struct KeyUse {
  std::string limit = {};
  std::string key = {};
  uint64_t estimate = 0;  // the true count is in [estimate - error, estimate]
  uint64_t error = 0;
  int64_t remaining = 0;
  uint64_t capacity = 0;
  std::chrono::nanoseconds reset_after{0};
  uint64_t waiting = 0;                          // reservations to come; callers in slot queues
  std::chrono::nanoseconds next_grant_after{0};  // until the first of these grant times
  // Why the bucket could not be read (the shared store is unavailable); empty: it was read.
  std::string bucket_error = {};
};

struct KeyList {
  std::vector<KeyUse> keys = {};
  std::string sketch = {};                           // the counting algorithm
  uint64_t total = 0;                                // over all keys
  uint32_t counters = 0;                             // size of the sketch
  std::chrono::system_clock::time_point since = {};  // since when the numbers count
};

// Decisions by a limit's on_store_failure since the server started.
struct UnavailableDecisions {
  std::string limit = {};
  uint64_t allowed = 0;
  uint64_t denied = 0;
};

// A limit that has other parameters on another node of the same Redis.
struct DifferingLimit {
  std::string limit = {};
  std::string ours = {};
  std::string theirs = {};
  uint64_t times = 0;
  std::chrono::system_clock::time_point last_at = {};
};

// A server that shares the store.
struct StoreNode {
  std::string id = {};
  bool self = false;
  bool lapsed = false;   // its heartbeats have stopped
  uint32_t divisor = 0;  // its share of split limits is 1 / divisor; 0: none yet
};

// The store of the server's buckets, and whether it is available.
struct StoreStatus {
  std::string kind = {};  // "memory", "redis"
  bool unavailable = false;
  // Of the last change of `unavailable`; zero: always available.
  std::chrono::system_clock::time_point since = {};
  uint64_t times_unavailable = 0;
  std::string last_error = {};  // why it was last unavailable
  std::vector<UnavailableDecisions> decided_while_unavailable = {};
  std::vector<DifferingLimit> differing = {};
  std::vector<StoreNode> nodes = {};  // only if a limit needs them; see admin.proto
};

struct ConfigStatus {
  std::string version = {};  // SHA-256 of the active file, in hex; empty: no file
  std::chrono::system_clock::time_point active_since = {};
  std::string path = {};
  std::string last_error = {};  // why the file as it is now was refused; empty: it is active
  std::chrono::system_clock::time_point last_error_at = {};
  uint64_t reloads = 0;
  uint64_t failed_reloads = 0;
  uint32_t limits = 0;
  uint32_t admin_changes = 0;
  StoreStatus store = {};
};

struct LimitUse {
  std::string limit = {};
  uint64_t granted = 0;
  uint64_t denied = 0;
  uint64_t shadow_denied = 0;
  uint64_t permits_granted = 0;
  uint64_t refunded_permits = 0;
  uint64_t overflow_allowed = 0;
  uint64_t overflow_denied = 0;
  uint64_t allowed_while_unavailable = 0;  // by on_store_failure
  uint64_t denied_while_unavailable = 0;
  uint64_t overshoot_permits = 0;  // sharing: relaxed; granted beyond the bucket's permits
  uint64_t bookings_denied = 0;    // over a bound on bookings
};

// counts[i] samples were in (upper_ns[i - 1], upper_ns[i]].
struct LatencyHistogram {
  std::vector<uint64_t> upper_ns = {};
  std::vector<uint64_t> counts = {};
  uint64_t count = 0;
  uint64_t sum_ns = 0;

  // An upper bound of the `share` quantile; share is in (0, 1]. Zero without samples.
  std::chrono::nanoseconds Quantile(double share) const;
};

struct MethodStats {
  std::string method = {};
  std::map<int, uint64_t> codes = {};  // by gRPC status code
  LatencyHistogram latency = {};
  uint64_t bytes_received = 0;
  uint64_t bytes_sent = 0;
  uint64_t messages_received = 0;
  uint64_t messages_sent = 0;
};

struct TransportStats {
  std::string transport = {};
  uint64_t connections = 0;
  uint64_t connections_accepted = 0;
  uint64_t streams = 0;
  uint64_t streams_accepted = 0;
  uint64_t sheds = 0;
  uint64_t connections_refused = 0;
  uint64_t connections_displaced = 0;
  uint64_t handshakes_displaced = 0;
  uint64_t calls_refused_over_memory = 0;
  uint64_t connections_closed_over_memory = 0;
  uint64_t stalls = 0;
};

// Steps of one kind that the data port's event loops took; see StepStats in admin.proto.
struct StepStats {
  std::string kind = {};
  LatencyHistogram time = {};  // CPU time
};

// An acquisition that holds slots of a key.
struct SlotHold {
  uint64_t id = 0;  // for EndHold
  uint64_t permits = 0;
  std::chrono::nanoseconds ends_in{0};  // unless it is renewed
};

struct HoldList {
  std::vector<SlotHold> holds = {};  // the first to end come first
  uint64_t total = 0;                // of all holds
  uint64_t held = 0;                 // permits
  uint64_t capacity = 0;
};

struct PutOptions {
  std::string reason = {};  // UTF-8, at most 256 bytes; for the server's logs and ListLimits
  // 1 s to 365 days: the server undoes the change then. Absent: the change has no end.
  std::optional<std::chrono::nanoseconds> expires_after = {};
};

struct ServerStats {
  std::chrono::system_clock::time_point started_at = {};
  std::string version = {};
  uint64_t decisions = 0;
  uint64_t granted = 0;
  uint64_t denied = 0;
  std::vector<LimitUse> limits = {};
  std::vector<MethodStats> methods = {};
  std::vector<TransportStats> transports = {};
  std::string store = {};
  uint64_t buckets = 0;
  uint64_t max_buckets = 0;
  uint64_t memory_bytes = 0;
  uint64_t buckets_created = 0;
  uint64_t buckets_dropped = 0;
  uint64_t overflow_allowed = 0;
  uint64_t overflow_denied = 0;
  uint64_t open_receipts = 0;
  uint64_t receipts_evicted = 0;
  uint64_t bookings = 0;  // store in memory; each once per bucket
  uint64_t lock_yields = 0;
  // Of a shared store; see Stats in admin.proto.
  uint64_t store_commands = 0;
  uint64_t store_decisions = 0;
  uint64_t store_unanswered = 0;
  uint64_t store_errors = 0;
  uint64_t store_conversions = 0;
  uint64_t store_nodes = 0;
  uint64_t store_clock_jumps = 0;
  uint64_t resident_bytes = 0;
  uint64_t log_lines_suppressed = 0;
  std::vector<StepStats> steps = {};
};

// Thread-safe. Movable. All methods block until the answer or AdminOptions::deadline. Errors are
// the server's (NOT_FOUND, INVALID_ARGUMENT, FAILED_PRECONDITION, UNAUTHENTICATED), or UNAVAILABLE
// and DEADLINE_EXCEEDED. Calls that only read are retried while the server is unavailable; others
// only if they were not sent.
class AdminClient {
 public:
  // INVALID_ARGUMENT: the address is invalid, or a TLS file cannot be read.
  static Result<AdminClient> Create(AdminOptions options = {});

  AdminClient(AdminClient&&) noexcept;
  AdminClient& operator=(AdminClient&&) noexcept;
  ~AdminClient();

  Result<std::vector<LimitInfo>> ListLimits();
  Result<LimitInfo> GetLimit(std::string_view name);
  struct Put {
    LimitInfo limit;
    bool replaced = false;
  };
  Result<Put> PutLimit(const LimitInfo& limit, const PutOptions& options = {});
  Status DeleteLimit(std::string_view name);
  // Makes a bucket full. Returns whether it had state.
  Result<bool> ResetKey(std::string_view limit, std::string_view key);
  // The holds of a key of a limit with algorithm concurrency. max_holds 0: 1000.
  Result<HoldList> ListHolds(std::string_view limit, std::string_view key, uint32_t max_holds = 0);
  // Takes the slots of a hold back. Returns whether there was such a hold.
  Result<bool> EndHold(std::string_view limit, std::string_view key, uint64_t id);
  // Opens a limit that waits for grant times, or for ends of holds, that were promised before Redis
  // lost its data. Returns until when it would have stayed closed; nullopt: it had no floor of its
  // own.
  Result<std::optional<std::chrono::system_clock::time_point>> LiftFloor(std::string_view limit);
  // `limit` empty: all limits. max_keys 0: 20.
  Result<KeyList> ListKeys(std::string_view limit, KeyOrder order, uint32_t max_keys);
  Result<ConfigStatus> GetConfigStatus();
  Result<ServerStats> GetStats();

 private:
  class Impl;
  explicit AdminClient(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace sluice

#endif  // SLUICE_ADMIN_CLIENT_H_
