// SavedState: all that a server with a memory store keeps over a restart, as the records of a state
// file.
#ifndef SLUICE_SERVER_STATE_SAVED_STATE_H_
#define SLUICE_SERVER_STATE_SAVED_STATE_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/algorithm/moment.h"
#include "server/limits/limit_registry.h"
#include "server/state/fields.h"
#include "server/state/state_file.h"
#include "server/store/memory/closed_slots.h"
#include "server/store/memory/memory_store.h"

namespace sluice::state {

// The clocks of a machine, and which boot they are of.
struct MachineTime {
  std::string boot_id;  // empty: not known
  int64_t boottime_ns = 0;
  int64_t wall_ns = 0;

  static MachineTime Now();
  // How much later this is: by BOOTTIME in the same boot, else by the wall clock; not negative.
  int64_t NsSince(const MachineTime& then) const;
};

void WriteMachineTime(const MachineTime& time, FieldWriter* to);
MachineTime ReadMachineTime(FieldReader* from);

// What a state file holds beside the buckets.
struct SavedState {
  uint64_t id = 0;        // of a drain: that of the run; of a copy: its own
  bool at_drain = false;  // else a copy
  int64_t now_ns = 0;     // the server's clock
  MachineTime machine;    // at the same moment
  uint64_t seed = 0;
  std::optional<algorithm::Moment> empty_since;
  store::ClosedSlots closed_slots;
  limits::SavedLimits limits;
  uint64_t next_receipt = 1;
  std::string receipt_key;
  uint64_t buckets = 0;
};

// Reads a whole file, so that nothing of it is used unless all of it is right. Errors as
// ReadStateFile; DATA_LOSS also if its records do not agree.
absl::Status CheckState(const std::string& path, SavedState* state);

struct LoadedState {
  std::vector<uint64_t> refunded;  // receipts, oldest first
  uint64_t without_room = 0;       // buckets that were left out
};
// Puts the buckets and the grants by request id of a file into a store. REQUIRES: CheckState found
// it right; the registry has the ids of `state`, and its limits are loaded. An error means that the
// file has changed since.
absl::StatusOr<LoadedState> LoadState(const std::string& path, const SavedState& state,
                                      store::MemoryStore* store, limits::LimitRegistry* registry);

// Writes the whole file. `state` has the run, the times and the key of receipts; the rest is that
// of the store and the registry. Calls between_parts() now and then, while nothing is locked, and
// ends with its error. Returns the number of buckets.
absl::StatusOr<uint64_t> WriteState(SavedState state, store::MemoryStore& store,
                                    limits::LimitRegistry& registry, StateFileWriter* file,
                                    absl::FunctionRef<absl::Status()> between_parts);

}  // namespace sluice::state

#endif  // SLUICE_SERVER_STATE_SAVED_STATE_H_
