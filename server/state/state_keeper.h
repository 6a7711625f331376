// StateKeeper: keeps the state of a server with a memory store over restarts: buckets with their
// bookings, receipts, estimates and slots; request ids; limits that admins made; the key of
// receipts.
//
// At a drain all is written (Save), and the next start loads it. Times are not converted: the clock
// of the new process continues that of the old one (clock_ahead_ns). The time between them is
// measured by BOOTTIME in the same boot, else by the wall clock, and is never negative.
//
// After a crash there is no such state. Then the store starts with empty buckets, or
// (AfterCrash::kTrust) with the last copy, of which one is written every minute. If ten in a row
// fail, the one before them is too old and is moved aside. They are counted on over crashes, each
// of which counts as one: else the same copy would be granted again after each. A file that is
// damaged, of a newer version, or of something else is moved aside, and the start is one after a
// crash without copies.
//
// In a takeover the next process gets the state from the process that hands over
// (WriteHandedState), not from the folder.
//
// Order of calls: Open, SetOptions, RestoreIds, Load, Begin, StartCopies, Save.
#ifndef SLUICE_SERVER_STATE_STATE_KEEPER_H_
#define SLUICE_SERVER_STATE_STATE_KEEPER_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/clock.h"
#include "common/log.h"
#include "common/mutex.h"
#include "server/limits/limit_registry.h"
#include "server/limits/limit_table.h"
#include "server/state/hold_terms.h"
#include "server/state/saved_state.h"
#include "server/state/state_file.h"
#include "server/state/state_folder.h"
#include "server/store/memory/closed_slots.h"
#include "server/store/memory/memory_store.h"

namespace sluice::state {

enum class AfterCrash : uint8_t {
  kEmpty = 0,  // buckets start empty
  kTrust,      // they start as in the last copy
};

// Not thread-safe. Blocks on the disk.
class StateKeeper {
 public:
  struct Options {
    std::string folder;  // empty: there is only `handed_over`, and nothing is saved
    AfterCrash after_crash = AfterCrash::kEmpty;
    // Between copies.
    int64_t copy_every_ns = int64_t{60} * 1'000'000'000;
    // Of tests.
    std::function<MachineTime()> machine = &MachineTime::Now;
    BeforeStep before_step = nullptr;
    // The state that another process handed over, which is loaded instead of the folder's. Empty:
    // none.
    std::string handed_over = {};
    // It is of this process, which goes on with it. Then Begin succeeds also if it can write
    // nothing to the folder: the last run that is noted there has written no state at a drain.
    bool taken_back = false;
    int lock = -1;  // as StateFolder::Open takes it
  };

  // Locks the folder, and decides how to start; logs what it found. `log` outlives this. Errors as
  // StateFolder::Open, or of the state that was handed over, as CheckState.
  static absl::StatusOr<std::unique_ptr<StateKeeper>> Open(Options options, common::Log* log);
  // Ends the copies.
  ~StateKeeper();
  StateKeeper(const StateKeeper&) = delete;
  StateKeeper& operator=(const StateKeeper&) = delete;

  // By how much the server's clock must be ahead of BOOTTIME.
  int64_t clock_ahead_ns() const { return clock_ahead_ns_; }
  // What the store is to be made with, beside other options.
  void SetOptions(store::MemoryStoreOptions* options) const;
  // In hex; empty: a new one.
  std::string receipt_key() const { return loads() ? saved_.receipt_key : ""; }

  // Before the first limits are loaded.
  void RestoreIds(limits::LimitRegistry* registry) const {
    if (loads()) registry->RestoreIds(saved_.limits);
  }
  // After they are loaded: puts the admin's limits and the buckets back. An error means that the
  // file has changed since Open.
  absl::Status Load(store::MemoryStore* store, limits::LimitRegistry* registry);

  // All that is saved. They outlive this.
  struct Sources {
    const common::Clock& clock;
    store::MemoryStore& store;
    limits::LimitRegistry& registry;
    std::function<std::string()> receipt_key;
  };
  // From now on decisions may be made: a process that ends without Save has crashed. A change of
  // limits that raises a hold_for, or adds slots, is refused (FAILED_PRECONDITION) while that
  // cannot be recorded in the folder.
  absl::Status Begin(Sources sources);
  // Starts the copies, if there are to be any. REQUIRES: Begin was called, and no other process
  // writes to the folder any more.
  void StartCopies();
  // Writes the state of a drain. REQUIRES: Begin was called, and nothing is decided any more.
  absl::Status Save();
  // As StateFolder::ShareLock; -1 too if there is no folder.
  int ShareLock() const { return folder_ != nullptr ? folder_->ShareLock() : -1; }

 private:
  // How the store starts.
  enum class Start : uint8_t { kFull, kLoad, kEmpty };

  StateKeeper(Options options, common::Log* log) : options_(std::move(options)), log_(*log) {}
  void Decide();
  absl::Status TakeHandedOver();
  // Reads what is to be loaded.
  absl::Status Check();
  std::string loaded_path() const {
    return options_.handed_over.empty() ? folder_->state_path() : options_.handed_over;
  }
  bool ReadFile();
  bool loads() const { return start_ == Start::kLoad; }
  int64_t ElapsedNs(const MachineTime& now) const { return now.NsSince(saved_.machine); }
  void ReadHoldTerms();
  absl::Status NoteHoldTerms(const limits::LimitTable& table);
  absl::Status WriteHoldTerms(const HoldTerms& terms, int64_t now_ns);
  // The copies that failed since the one that the folder has.
  int FailedCopiesBefore() const;
  void NoteCopy(const absl::Status& status);
  // Of this run.
  absl::Status NoteStart();
  absl::Status NoteRun() { return folder_->NoteRun({run_id_, trusted_}); }
  std::array<uint64_t, 2> LoadedIds() const;
  absl::Status Write(bool at_drain);
  void Copy();
  void CopyLoop();
  bool Stopping();
  void StopCopies();

  const Options options_;
  common::Log& log_;
  std::unique_ptr<StateFolder> folder_;  // null: there is none
  Start start_ = Start::kFull;
  bool clean_ = false;  // the last run ended in order
  SavedState saved_;    // if it is loaded
  int64_t clock_ahead_ns_ = 0;
  std::optional<algorithm::Moment> empty_since_;  // kEmpty
  store::ClosedSlots closed_slots_;
  HoldTerms hold_terms_;  // of one change of limits at a time
  uint64_t run_id_ = 0;
  std::array<uint64_t, 2> trusted_ = {};    // as StateFolder::Run
  int failed_copies_ = 0;                   // in a row
  std::unique_ptr<const Sources> sources_;  // null: not begun

  common::Mutex mu_;
  common::CondVar wake_;
  bool stop_ ABSL_GUARDED_BY(mu_) = false;
  std::thread copies_;  // last: it uses the members above
};

// Writes the state for the process that takes over, into a sealed file in memory. Returns its
// descriptor, which the caller closes. REQUIRES: nothing is decided any more.
absl::StatusOr<int> WriteHandedState(const StateKeeper::Sources& sources);

}  // namespace sluice::state

#endif  // SLUICE_SERVER_STATE_STATE_KEEPER_H_
