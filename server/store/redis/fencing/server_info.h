// ServerInfo: identity, role, replicas and durability of a Redis server, from INFO, and from CONFIG
// GET where that is allowed.
#ifndef SLUICE_SERVER_STORE_REDIS_FENCING_SERVER_INFO_H_
#define SLUICE_SERVER_STORE_REDIS_FENCING_SERVER_INFO_H_

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "server/store/redis/wire/resp.h"

namespace sluice::store::redis {

// Copyable; not thread-safe.
struct ServerInfo {
  // Names a primary and one term of it. The run id alone stays the same when it is demoted and
  // promoted again; the replication id alone is its old primary's until it is promoted.
  std::string identity;  // RUN_ID.REPLICATION_ID
  std::string role;      // "master", "slave"
  std::string primary;   // of a replica: HOST:PORT
  // It has replicas, one of which may be promoted in its place.
  bool has_replicas = false;
  int replicas = 0;
  // It was a replica before it was a primary; `replicated`: the replication id of its primary then.
  bool was_promoted = false;
  std::string replicated;
  // It refuses writes when it has lost its replicas (min-replicas-to-write).
  bool guarded = false;
  // Replicas that it has heard of within its min-replicas-max-lag. Computed here from INFO, since
  // the server itself counts only once a second.
  int good_replicas = 0;
  // Its min-replicas-max-lag, or the assumed value where CONFIG GET is not allowed.
  int64_t max_lag_us = 0;
  // After any crash it still has every write that it has answered (appendonly, appendfsync always).
  bool durable = false;

  // From INFO's text (at least the sections server and replication) and the replies to CONFIG GET
  // of kConfigNames; null: not allowed. `assumed_lag_us`: used where they do not give a lag.
  static ServerInfo From(std::string_view info, const Reply* config, int64_t assumed_lag_us);

  // Whether it was a replica of the primary with this identity, in that term, when it was promoted.
  bool TookPlaceOf(std::string_view other_identity) const;

  // OK: it stops granting when another server takes its place. FAILED_PRECONDITION: it has replicas
  // (or `may_fail_over`: gets them, by Sentinel or in a Cluster), and would go on without them.
  // UNAVAILABLE: it has lost them now, although the server may not have detected it yet.
  absl::Status Guarded(bool may_fail_over) const;
};

// CONFIG GET's arguments.
inline constexpr const char* kConfigNames[] = {"min-replicas-max-lag", "appendfsync", "appendonly"};

}  // namespace sluice::store::redis

#endif  // SLUICE_SERVER_STORE_REDIS_FENCING_SERVER_INFO_H_
