// LimitAdmin: the use cases of the control plane, for any transport.
#ifndef SLUICE_SERVER_SERVICE_LIMIT_ADMIN_H_
#define SLUICE_SERVER_SERVICE_LIMIT_ADMIN_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/log.h"
#include "common/metrics.h"
#include "server/limits/limit_registry.h"
#include "server/service/collaborators.h"
#include "server/service/key_usage.h"
#include "server/service/validation.h"
#include "server/store/store.h"

namespace sluice::service {

struct NamedLimitTotals {
  std::string limit;
  common::LimitTotals totals;
  uint64_t overshoot_permits = 0;
};

struct StoreStatus {
  std::string kind = {};
  store::StoreHealth health = {};
  // The limits whose on_store_failure made any decision, by name.
  std::vector<NamedLimitTotals> decided_while_unavailable = {};
};

// The state of the configuration and of the store.
struct ConfigStatus {
  limits::FileStatus file = {};
  uint32_t limits = 0;
  uint32_t admin_changes = 0;  // by PutLimit and DeleteLimit, still in force
  StoreStatus store = {};
};

// What a PutLimit says beside the limit.
struct PutOptions {
  std::string reason = {};
  std::optional<WireDuration> expires_after = {};  // absent: without end
};

// A limit and the table that keeps it alive.
struct FoundLimit {
  const limits::Limit* limit = nullptr;
  std::shared_ptr<const limits::LimitTable> table;
};

struct ListedKey : KeyUsage::Key {
  std::string limit;
  // Not OK: the shared store is unavailable, and only the capacity of `level` is known.
  absl::Status bucket = {};
  store::BucketLevel level;
  uint64_t waiting = 0;
  int64_t next_grant_after_ns = 0;
};

struct ListedKeys {
  std::vector<ListedKey> keys;
  uint64_t total = 0;
  uint32_t counters = 0;
  int64_t since_wall_ns = 0;
};

struct ListedHolds {
  std::vector<store::HoldsOperation::Held> holds;  // those that end first
  uint64_t total = 0;
  store::BucketLevel level;
};

struct ServerStats {
  int64_t started_at_wall_ns = 0;
  std::string version;
  common::MetricsSnapshot totals;
  std::vector<NamedLimitTotals> limits;  // those of the running table, by name
  std::string store_kind;
  store::StoreStats store;
  uint64_t resident_bytes = 0;
  uint64_t log_lines_suppressed = 0;
};

// Thread-safe. Never waits for decisions; Put and Delete wait for each other and take as long as
// building a table does. Collaborators outlive it; every callback runs before they are destroyed.
class LimitAdmin {
 public:
  // `file_status` reports on the limits file; without a file it returns an empty status.
  LimitAdmin(const Collaborators& with, common::Log& log, std::string version,
             std::function<limits::FileStatus()> file_status)
      : with_(with),
        log_(log),
        version_(std::move(version)),
        file_status_(std::move(file_status)),
        started_at_wall_ns_(with.clock.WallNs()) {}

  std::shared_ptr<const limits::LimitTable> List() const { return with_.registry.Current(); }
  // NOT_FOUND.
  absl::StatusOr<FoundLimit> Get(std::string_view name) const;
  // As LimitRegistry::Put and Delete; logged. INVALID_ARGUMENT also for bad options.
  absl::StatusOr<limits::LimitRegistry::PutResult> Put(limits::LimitSpec spec,
                                                       const PutOptions& options = {});
  absl::Status Delete(std::string_view name);

  // The limits whose change by Put has ended and is not undone yet, by name.
  std::vector<std::string> Ended() const;
  // As LimitRegistry::EndTemporary; success is logged.
  absl::Status Undo(std::string_view name);

  // Of the limits' ends.
  int64_t now_ns() const { return with_.clock.NowNs(); }

  // Makes a bucket full. Calls done(existed), as the store calls back. NOT_FOUND; INVALID_ARGUMENT:
  // the key is too long; UNAVAILABLE: the shared store is unavailable (nothing was done), or its
  // answer is lost.
  void ResetKey(std::string_view limit, std::string_view key,
                std::function<void(absl::StatusOr<bool>)> done);

  // The holds of a slot bucket. NOT_FOUND; INVALID_ARGUMENT: the limit has no slots, the key is too
  // long, or `max_holds` (0: the default) is out of bounds; UNAVAILABLE.
  void ListHolds(std::string_view limit, std::string_view key, uint32_t max_holds,
                 std::function<void(absl::StatusOr<ListedHolds>)> done);
  // Ends a hold. Calls done(whether there was one); logged. Errors as ListHolds.
  void EndHold(std::string_view limit, std::string_view key, uint64_t id,
               std::function<void(absl::StatusOr<bool>)> done);

  // Lifts the floor of its own that a limit has since the shared store lost data (docs/redis.md).
  // Calls done(its end in nanoseconds since 1970; 0: it had none). NOT_FOUND; FAILED_PRECONDITION:
  // the store is not shared; UNAVAILABLE.
  void LiftFloor(std::string_view limit, std::function<void(absl::StatusOr<int64_t>)> done);

  // `limit` empty: all limits. `max_keys` 0: the default. NOT_FOUND; INVALID_ARGUMENT: `max_keys`
  // is out of bounds.
  void ListKeys(std::string_view limit, KeyOrder order, uint32_t max_keys,
                std::function<void(absl::StatusOr<ListedKeys>)> done);

  ConfigStatus GetConfigStatus() const;
  ServerStats GetStats() const;

  // The same in parts, each of which takes microseconds, for readers that must not keep a core:
  // GetConfigStatus without decided_while_unavailable; GetStats without limits; and the totals of
  // limits that exist or existed, with ids from `first_id` to below `end_id`.
  ConfigStatus GetConfigStatusWithoutDecisions() const;
  ServerStats GetStatsWithoutLimits() const;
  std::vector<common::LimitTotals> GetLimitTotals(uint32_t first_id, uint32_t end_id) const {
    return with_.metrics.LimitSums(first_id, end_id);
  }
  uint64_t OvershootPermits(uint32_t limit_id) const {
    return with_.store.OvershootPermits(limit_id);
  }

 private:
  const Collaborators with_;
  common::Log& log_;
  const std::string version_;
  const std::function<limits::FileStatus()> file_status_;
  const int64_t started_at_wall_ns_;
};

}  // namespace sluice::service

#endif  // SLUICE_SERVER_SERVICE_LIMIT_ADMIN_H_
