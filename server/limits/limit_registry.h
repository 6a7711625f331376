// LimitRegistry: the limits in force. Merges the limits of the file, of Envoy's configuration and
// of the admin into an immutable LimitTable and swaps it in at once, so that no request sees half
// a change.
//
// Precedence:
//   - The file owns the limits that it names. A Put on such a limit (ORIGIN_ADMIN_OVER_FILE), or a
//     Delete of it, lasts until the file next changes: until ApplyFile gets another version.
//   - Limits that the file does not name (ORIGIN_ADMIN) survive reloads, until a Delete, or until
//     a file names them: then the file owns them.
//   - A Put with an end (LimitSpec::ends_at_ns) precedes all of these until EndTemporary, a Delete,
//     or a Put without end. It survives reloads. What is in force behind it is what the file,
//     Envoy's configuration and the changes without end then come to.
//   - Envoy's configuration owns its limits (ORIGIN_ENVOY) in the same way, apart from the file's.
//     The file and the configuration may not name the same limit.
//   - The limits of a file may charge only limits of that file; those of the admin may charge any.
//     A file that removes a limit which an admin's limit charges is refused.
//
// Kept over a change, so that no bucket is lost or converted without need:
//   - the limit_id of a name, even if the limit did not exist for a while;
//   - the Rule objects of limits and keys whose parameters did not change. If an override goes, its
//     limit's own rule gets a new id: the key's bucket has the override's rule, and to a store the
//     rule with the greater id is the newer.
#ifndef SLUICE_SERVER_LIMITS_LIMIT_REGISTRY_H_
#define SLUICE_SERVER_LIMITS_LIMIT_REGISTRY_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/btree_map.h"
#include "absl/container/btree_set.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/mutex.h"
#include "server/limits/limit_spec.h"
#include "server/limits/limit_table.h"
#include "server/limits/spec_check.h"
#include "server/store/store.h"

namespace sluice::limits {

// What became of the limits file. Times are nanoseconds since 1970 UTC; 0: never.
struct FileStatus {
  std::string path = {};     // empty: there is no file
  std::string version = {};  // SHA-256 of the active file's bytes, in hex; empty: none is active
  int64_t active_since_wall_ns = 0;
  std::string last_error = {};  // why the file as it is now is not active; empty: it is
  int64_t last_error_at_wall_ns = 0;
  uint64_t reloads = 0;  // changes of the file that took effect, the first load included
  uint64_t failed_reloads = 0;
};

// What a registry keeps over a restart: all but the limits that a file or Envoy's configuration
// defines.
struct SavedLimits {
  // Of all limits that ever existed, in the order of their ids.
  std::vector<std::string> names;
  uint32_t last_rule_id = 0;
  // The definitions that the admin's changes precede.
  std::string file_version;
  std::string envoy_version;
  std::vector<LimitSpec> admin;      // by Put; those with an end last
  std::vector<std::string> deleted;  // by Delete
};

// Thread-safe. Changes (ApplyFile, ApplyEnvoy, Put, Delete) wait for each other and take
// milliseconds for thousands of limits. Local() does not wait for them.
class LimitRegistry {
 public:
  // Starts with an empty table. `store` outlives this. Every rule is registered with it before any
  // thread can see a table with that rule.
  explicit LimitRegistry(store::Store* store);

  // Replaces the file's limits. `version` identifies the file's content (SHA-256, in hex): the
  // version in force changes nothing and returns false. On an error nothing changes.
  //   INVALID_ARGUMENT: a limit is bad; names the limit, the field, the value and the remedy.
  //   FAILED_PRECONDITION: the file contradicts limits of the admin.
  //   As the callback of BeforeChange: it refused the change.
  absl::StatusOr<bool> ApplyFile(std::vector<LimitSpec> specs, std::string version);

  // Replaces the limits of Envoy's configuration in the same way; theirs charge no others.
  // `companion` goes into the same table, for LimitTable::envoy_companion.
  absl::StatusOr<bool> ApplyEnvoy(std::vector<LimitSpec> specs, std::string version,
                                  std::shared_ptr<const void> companion);

  struct PutResult {
    // The limit in force, and the table that keeps it alive.
    const Limit* limit = nullptr;
    std::shared_ptr<const LimitTable> table;
    // A limit of that name existed before.
    bool replaced = false;
  };
  // Adds or replaces one limit; with `spec.ends_at_ns`, until EndTemporary. `spec.origin` and
  // `spec.defined_at` are filled in here.
  //   INVALID_ARGUMENT: as above; the path begins with "limit.".
  //   RESOURCE_EXHAUSTED: bounds::kMaxLimits, or bounds::kMaxLimitNames.
  //   As the callback of BeforeChange.
  absl::StatusOr<PutResult> Put(LimitSpec spec);

  // NOT_FOUND; FAILED_PRECONDITION: other limits charge it (says which).
  absl::Status Delete(std::string_view name);

  // Undoes a Put whose ends_at_ns is `now_ns` or earlier.
  //   NOT_FOUND: there is none. FAILED_PRECONDITION, or as of Put: other limits of the admin charge
  //   this one, or do not go with the limit that would be in force; nothing changes.
  absl::Status EndTemporary(std::string_view name, int64_t now_ns);

  // ---- What is kept over a restart.

  SavedLimits Save();
  // Goes on with the ids of an earlier process. REQUIRES: there was no change yet.
  void RestoreIds(const SavedLimits& saved);
  // Puts the admin's changes back, as if this were the same process and the file had been reloaded:
  // those over a definition only if its version is the same, others unless it has their names.
  // Returns the limits that do not go with the others any more, and why.
  std::vector<std::pair<std::string, absl::Status>> RestoreAdmin(const SavedLimits& saved);

  // The current table. Takes a lock, and all threads share one reference count: for the admin and
  // for tests.
  std::shared_ptr<const LimitTable> Current() const;

  // The current table, for request threads. Costs a thread-local look-up and one atomic load of a
  // number that changes only with the table. The reference is valid until this thread calls Local()
  // again (of any registry). To keep the table longer, or over calls that may call Local(), copy
  // the pointer: its reference count belongs to this thread, so that copies of different threads do
  // not contend. A thread never sees an older table after a newer one.
  const std::shared_ptr<const LimitTable>& Local() const;

  // Calls `changed` after each change, on the thread that made it, once the new table is current.
  // It must not block or change limits. Replaces the callback before it; null: none.
  void OnChange(std::function<void()> changed) {
    common::MutexLock change(&change_mu_);
    changed_ = std::move(changed);
  }

  // Calls `change` with the current table, and then with each new one before any thread sees it, on
  // the thread that makes the change. It may block on the disk. On an error the change is not made.
  // Replaces the callback before it; null: none. Returns the first call's error; then there is
  // none.
  absl::Status BeforeChange(std::function<absl::Status(const LimitTable&)> change) {
    common::MutexLock lock(&change_mu_);
    before_change_ = nullptr;
    const absl::Status status = change ? change(*Current()) : absl::OkStatus();
    if (status.ok()) before_change_ = std::move(change);
    return status;
  }

  // Frees tables that no thread holds any longer; each change does this too. A request thread never
  // frees a table: with thousands of limits it would stall.
  void ReleaseRetired();

 private:
  using SpecPtr = std::shared_ptr<const LimitSpec>;
  using SpecMap = absl::btree_map<std::string, SpecPtr, std::less<>>;

  // The limits that a table is made of.
  struct Sources {
    SpecMap file;
    SpecMap envoy;
    SpecMap temporary;                     // by Put, with an end; precede the others
    SpecMap admin;                         // by Put, without end; precede those below
    absl::btree_set<std::string> deleted;  // names of the file's and of Envoy's, by Delete
    std::string file_version;
    std::string envoy_version;
    std::shared_ptr<const void> envoy_companion;
    // The names of `envoy`, in the order given.
    std::shared_ptr<const std::vector<std::string>> envoy_order;

    // The limit as the file or Envoy's configuration defines it; null: neither does.
    const LimitSpec* Defined(std::string_view name) const;
    // The limits in force, in the order of names.
    SpecMap Merged() const;
    uint32_t AdminChanges() const;
  };

  // Replaces the limits of `next` that have this origin, and ends the admin's changes to them.
  absl::Status ReplaceDefined(Origin origin, std::vector<LimitSpec> specs, Sources* next)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(change_mu_);

  // FAILED_PRECONDITION: other limits charge the one of that name.
  absl::Status CheckNotCharged(std::string_view name) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(change_mu_);

  // Builds the table of `next`, registers its new rules, and makes it current. `put` names the
  // limit that the admin changes, for errors; empty: ApplyFile or ApplyEnvoy.
  absl::Status Publish(Sources next, std::string_view put)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(change_mu_);
  std::shared_ptr<const LimitRules> MakeRules(const LimitSpec& spec,
                                              const SpecParameters& parameters, uint32_t limit_id,
                                              const LimitRules* before,
                                              std::vector<std::shared_ptr<const store::Rule>>* made)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(change_mu_);
  void Swap(std::shared_ptr<const LimitTable> table) ABSL_EXCLUSIVE_LOCKS_REQUIRED(change_mu_);

  store::Store* const store_;
  // Distinguishes the registries of a process in the threads' caches.
  const uint64_t registry_serial_;

  // Held over a whole change. Readers never take it.
  common::Mutex change_mu_;
  Sources sources_ ABSL_GUARDED_BY(change_mu_);
  // Of all names that ever existed.
  absl::flat_hash_map<std::string, uint32_t> limit_ids_ ABSL_GUARDED_BY(change_mu_);
  uint32_t last_rule_id_ ABSL_GUARDED_BY(change_mu_) = 0;
  std::vector<std::shared_ptr<const LimitTable>> retired_ ABSL_GUARDED_BY(change_mu_);
  std::function<void()> changed_ ABSL_GUARDED_BY(change_mu_);
  std::function<absl::Status(const LimitTable&)> before_change_ ABSL_GUARDED_BY(change_mu_);

  // Held only to copy a pointer. Its members are written under change_mu_ too.
  mutable common::Mutex mu_ ABSL_ACQUIRED_AFTER(change_mu_);
  std::shared_ptr<const LimitTable> current_ ABSL_GUARDED_BY(mu_);
  // current_->serial(). Stored with release under mu_, after current_. A changed value only tells a
  // reader to read current_ under mu_, which orders that read.
  std::atomic<uint64_t> current_serial_{0};
};

}  // namespace sluice::limits

#endif  // SLUICE_SERVER_LIMITS_LIMIT_REGISTRY_H_
