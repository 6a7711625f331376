// HeldCallers::Change: those who wait while their limits change. At most one at a time.
#ifndef SLUICE_SERVER_WAITING_HELD_CALLERS_CHANGE_H_
#define SLUICE_SERVER_WAITING_HELD_CALLERS_CHANGE_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "server/waiting/held_callers.h"
#include "server/waiting/pending_operation.h"

namespace sluice::waiting {

// Guarded by the line's mutex, but for what an operation under way has.
class HeldCallers::Change final : public store::RebookOperation {
 public:
  explicit Change(HeldCallers& line) : line_(line) {}

  void Done() override { line_.Rebooked(this); }

  // Asks the store to do all in one step. REQUIRES: errands is complete.
  void Prepare();

  // ---- For a store that cannot: all are given back, then reserved again ----

  void GaveBack(PendingOperation* errand);
  void Reserved(PendingOperation* errand);

  // In the order in which they came.
  std::vector<PendingOperation*> errands;
  std::vector<store::Rebooking> rebookings;  // as many

  enum class Step : uint8_t { kRebook, kGiveBack, kReserve, kOver } step = Step::kRebook;
  size_t next = 0;       // of errands, to be given back
  size_t under_way = 0;  // operations
  size_t left = 0;       // errands that this step is not over with
  // Errands of a set of buckets are reserved one after the other, and sets beside each other.
  absl::flat_hash_map<uint64_t, std::deque<PendingOperation*>> sets;
  std::deque<uint64_t> ready;  // sets of which none is under way
  bool pumping = false;

 private:
  store::Rebooking& RebookingOf(const PendingOperation& errand) {
    return rebookings[errand.number];
  }
  HeldCallers& line_;
};

}  // namespace sluice::waiting

#endif  // SLUICE_SERVER_WAITING_HELD_CALLERS_CHANGE_H_
