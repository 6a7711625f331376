// HoldTerms: for how long slots may have been promised, by limit. Kept in the folder of the state,
// apart from it: after a crash the holds are lost, and a limit may have a lower hold_for by then.
#ifndef SLUICE_SERVER_STATE_HOLD_TERMS_H_
#define SLUICE_SERVER_STATE_HOLD_TERMS_H_

#include <cstdint>
#include <optional>
#include <string>

#include "absl/container/btree_map.h"
#include "absl/status/status.h"
#include "server/limits/limit_table.h"
#include "server/state/saved_state.h"
#include "server/state/state_file.h"
#include "server/store/memory/closed_slots.h"

namespace sluice::state {

// Not thread-safe. Moments are on the server's clock.
class HoldTerms {
 public:
  // What an earlier process wrote; nothing if there is no such file. `now`: the clocks of the
  // machine at now_ns. Errors as ReadStateFile; then this is empty.
  absl::Status Read(const std::string& path, const MachineTime& now, int64_t now_ns);
  // Writes a file, and waits until it is on the disk.
  absl::Status Write(const std::string& path, const BeforeStep& before_step, const MachineTime& now,
                     int64_t now_ns) const;

  // Raises what is greater in `table`, and lowers nothing: then these are right for the limits in
  // force, and for those of `table`. Returns a limit that was raised, or is new; nullopt: none was.
  std::optional<std::string> Raise(const limits::LimitTable& table);
  // Limits that are about to be in force. Returns whether there is anything new to write.
  bool Change(const limits::LimitTable& table, int64_t now_ns);
  // Whether the file that is in place has these terms.
  void SetRecorded(bool recorded) { recorded_ = recorded; }

  // Closes all limits whose slots may be held by grants up to now_ns: those that have terms, or any
  // limit if there was no file.
  void Close(int64_t now_ns, store::ClosedSlots* closed) const;

 private:
  struct Term {
    int64_t hold_for_ns = 0;  // in force; 0: the limit is gone
    int64_t until_ns = 0;     // the latest end by a greater one from before
  };
  // Returns whether it is another one.
  bool Set(Term* term, int64_t hold_for_ns, int64_t now_ns);

  absl::btree_map<std::string, Term> terms_;
  bool recorded_ = false;  // the file has these terms
};

}  // namespace sluice::state

#endif  // SLUICE_SERVER_STATE_HOLD_TERMS_H_
