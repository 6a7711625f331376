// LimitRegistry: the running limits. Puts together what the file says and what the admin put,
// builds an immutable LimitTable of it, and swaps that for the one before. No request sees half a
// change.
//
// Who wins:
//   - The file owns what it names. Put on such a limit (ORIGIN_ADMIN_OVER_FILE), and Delete of it,
//     last until the file next changes, that is: until ApplyFile comes with another version.
//   - Limits that the file does not name (ORIGIN_ADMIN) stay over reloads, until Delete, or until
//     a file names them: then they are the file's.
//   - The file stands by itself: its limits charge limits that it names. Those of the admin may
//     charge any. A file that takes away what an admin's limit charges is refused.
//
// What stays the same over a change, so that nobody's bucket is lost or converted without need:
//   - limit_id, by name, also when the limit was away meanwhile;
//   - the Rule objects of limits and keys whose parameters did not change. An override that goes
//     away gives its limit's own rule a new id, since the key's bucket has the override's, and a
//     store takes the rule with the greater id as the newer.
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

namespace sluice::store {
class Store;
}

namespace sluice::limits {

// Thread-safe. Changes (ApplyFile, Put, Delete) wait for each other, and take milliseconds for
// thousands of limits; Local() does not wait for them.
class LimitRegistry {
 public:
  // Starts with an empty table. `store` outlives this; every rule is registered with it before a
  // table that has it can be seen.
  explicit LimitRegistry(store::Store* store);
  ~LimitRegistry();
  LimitRegistry(const LimitRegistry&) = delete;
  LimitRegistry& operator=(const LimitRegistry&) = delete;

  // The file's limits are now these. `version` stands for the file's content (SHA-256, in hex):
  // the same as the running one changes nothing and answers false. On an error nothing changed.
  //   INVALID_ARGUMENT: a limit is bad; names it, the field, the value and what would be right.
  //   FAILED_PRECONDITION: does not go together with limits that the admin put.
  absl::StatusOr<bool> ApplyFile(std::vector<LimitSpec> specs, std::string version);

  struct PutResult {
    // The limit as it runs now, and the table that keeps it alive.
    const Limit* limit = nullptr;
    std::shared_ptr<const LimitTable> table;
    // There was a limit of that name before.
    bool replaced = false;
  };
  // Adds or replaces one limit. `spec.origin` and `spec.defined_at` are filled in here.
  //   INVALID_ARGUMENT: as above; the path begins with "limit.".
  //   RESOURCE_EXHAUSTED: bounds::kMaxLimits, or bounds::kMaxLimitNames.
  absl::StatusOr<PutResult> Put(LimitSpec spec);

  // NOT_FOUND; FAILED_PRECONDITION: other limits charge it (says which).
  absl::Status Delete(std::string_view name);

  // The current table. Takes a lock and shares one reference count among all threads: for the
  // admin and for tests.
  std::shared_ptr<const LimitTable> Current() const;

  // The current table, for request threads. Costs a thread-local look-up and one atomic load of
  // a number that changes only when the table does. The reference is good until this thread calls
  // Local() again (of any registry). To keep the table longer, or where what you call may call
  // Local(), copy the pointer: its count is this thread's own, so that copies of different
  // threads do not contend. A thread that has seen a table never sees an older one.
  const std::shared_ptr<const LimitTable>& Local() const;

  // `changed` is called after each change, once the new table can be seen, by who changes; it must
  // not block or change limits. REQUIRES: before the first change that is to be told of; lives
  // until the last.
  void OnChange(std::function<void()> changed) {
    common::MutexLock change(&change_mu_);
    changed_ = std::move(changed);
  }

  // Frees tables that no thread holds any longer. Tables are never freed by a request thread,
  // which would stall for as long as thousands of limits take; each change does this too.
  void ReleaseRetired();

 private:
  using SpecPtr = std::shared_ptr<const LimitSpec>;
  using SpecMap = absl::btree_map<std::string, SpecPtr, std::less<>>;

  // What the table is made of.
  struct Sources {
    SpecMap file;                          // the file's
    SpecMap admin;                         // Put's; wins over the file's
    absl::btree_set<std::string> deleted;  // of the file's, by Delete
    std::string file_version;
  };

  // Builds the table that `next` makes, registers its new rules, and makes it the current one.
  // `put` names the limit that Put is about, for errors; empty: a file.
  absl::Status Publish(Sources next, std::string_view put)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(change_mu_);
  std::shared_ptr<const LimitRules> MakeRules(const LimitSpec& spec,
                                              const SpecParameters& parameters, uint32_t limit_id,
                                              const LimitRules* before,
                                              std::vector<std::shared_ptr<const store::Rule>>* made)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(change_mu_);
  void Swap(std::shared_ptr<const LimitTable> table) ABSL_EXCLUSIVE_LOCKS_REQUIRED(change_mu_);
  void FreeRetired() ABSL_EXCLUSIVE_LOCKS_REQUIRED(change_mu_);

  store::Store* const store_;
  // Tells the registries of a process apart, for the threads' caches.
  const uint64_t registry_serial_;

  // Held over a whole change. Readers never take it.
  common::Mutex change_mu_;
  Sources sources_ ABSL_GUARDED_BY(change_mu_);
  // Of all names there ever were.
  absl::flat_hash_map<std::string, uint32_t> limit_ids_ ABSL_GUARDED_BY(change_mu_);
  uint32_t last_rule_id_ ABSL_GUARDED_BY(change_mu_) = 0;
  std::vector<std::shared_ptr<const LimitTable>> retired_ ABSL_GUARDED_BY(change_mu_);
  std::function<void()> changed_ ABSL_GUARDED_BY(change_mu_);

  // Held for no longer than it takes to copy a pointer. Written under change_mu_ too.
  mutable common::Mutex mu_ ABSL_ACQUIRED_AFTER(change_mu_);
  std::shared_ptr<const LimitTable> current_ ABSL_GUARDED_BY(mu_);
  // current_->serial(). Stored with release under mu_, after current_. A reader's acquire load
  // tells it no more than that it has to look under mu_; what it then reads is ordered by mu_.
  std::atomic<uint64_t> current_serial_{0};
};

}  // namespace sluice::limits

#endif  // SLUICE_SERVER_LIMITS_LIMIT_REGISTRY_H_
