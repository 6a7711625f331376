// StateFolder: the folder in which one server keeps its state (--state_dir).
//
//   lock       held by the server that uses the folder, with its process id
//   running    the run that used the folder last: its id, and the states that may be loaded if it
//              crashed
//   state      the last state that was written, with an id: that of its run, or of the copy
//   state.new  one that is being written; running.new likewise
//   state.unusable-TIME   one that was moved aside
//   probe.new  written to see whether that is possible, and removed
//   failed     how many copies failed in a row, also in the runs before
//   holds      for how long slots may have been promised (hold_terms.h); holds.new likewise
//
// A run has ended in order iff `state` is of that run and was written at its drain. So one rename
// decides: whatever is torn before it, the run counts as crashed. A run that trusts copies notes
// the id of each before it puts the copy in place. So after a crash only the last copy or the one
// before it is loaded. A state that was put back from a backup has another id, and is not taken for
// either.
#ifndef SLUICE_SERVER_STATE_STATE_FOLDER_H_
#define SLUICE_SERVER_STATE_STATE_FOLDER_H_

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/state/state_file.h"

namespace sluice::state {

// Not thread-safe. Blocks on the disk.
class StateFolder {
 public:
  struct Run {
    uint64_t id = 0;
    // The ids of the states that may be loaded if it crashed; 0: none.
    std::array<uint64_t, 2> trusted = {};

    bool Trusts(uint64_t state) const {
      return state != 0 && (state == trusted[0] || state == trusted[1]);
    }
  };

  // Makes the folder, for its owner alone, if there is none, and locks it. `before_step` may be
  // null. `lock`: a descriptor of the lock, as ShareLock gave it to this process or another one,
  // which is used if it is of this folder; else -1. Errors name what is wrong, but not the folder.
  //   FAILED_PRECONDITION: another server uses it; other codes of the system.
  static absl::StatusOr<std::unique_ptr<StateFolder>> Open(std::string path,
                                                           BeforeStep before_step = nullptr,
                                                           int lock = -1);
  // Whether the folder can be written to: makes it if there is none, and writes a file, which it
  // removes. Another process may use the folder meanwhile.
  static absl::Status Probe(const std::string& path);
  ~StateFolder();
  StateFolder(const StateFolder&) = delete;
  StateFolder& operator=(const StateFolder&) = delete;

  // Another descriptor of the lock, which the caller closes: the folder stays locked until all are
  // closed. -1: there are no more descriptors.
  int ShareLock() const;
  // Whether the lock was given, by the process that used the folder before.
  bool lock_was_given() const { return lock_was_given_; }

  // The run that used the folder last; absent: there was none. An id of 0: `running` is not
  // readable.
  const std::optional<Run>& last_run() const { return last_run_; }
  bool HasState() const;
  // From now on this run is the last one.
  absl::Status NoteRun(const Run& run);

  // The copies that failed in a row, as noted last. None: 0; a number that cannot be read: INT_MAX.
  int failed_copies() const { return failed_copies_; }
  // Writes in place: once the file exists, that needs no room on the disk. REQUIRES: less than 100.
  absl::Status NoteFailedCopies(int failed);

  std::string state_path() const { return path_ + "/state"; }
  std::string new_state_path() const { return path_ + "/state.new"; }
  // Puts the new state, which is on the disk, in place of the state.
  absl::Status ReplaceState() { return Replace("state.new", "state"); }
  std::string holds_path() const { return path_ + "/holds"; }
  std::string new_holds_path() const { return path_ + "/holds.new"; }
  absl::Status ReplaceHolds() { return Replace("holds.new", "holds"); }
  // Moves the state aside. Returns the new name.
  absl::StatusOr<std::string> MoveAside(int64_t wall_ns);

  const BeforeStep& before_step() const { return before_step_; }

 private:
  StateFolder(std::string path, BeforeStep before_step)
      : path_(std::move(path)), before_step_(std::move(before_step)) {}
  // Makes the folder if there is none, and opens it.
  absl::Status Make();
  absl::Status Lock(int lock);
  absl::Status ReadLastRun();
  absl::Status ReadFailedCopies();
  // Renames within the folder, and waits until that is on the disk.
  absl::Status Replace(const std::string& from, const std::string& to);
  void Step() const {
    if (before_step_) before_step_();
  }

  const std::string path_;
  const BeforeStep before_step_;
  int folder_fd_ = -1;
  int lock_fd_ = -1;
  bool lock_was_given_ = false;
  std::optional<Run> last_run_;
  int failed_copies_ = 0;
};

}  // namespace sluice::state

#endif  // SLUICE_SERVER_STATE_STATE_FOLDER_H_
