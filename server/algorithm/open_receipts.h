// Open receipts: the acquisitions of one bucket that can still be refunded, and what each would
// give back.
//
// A refund must never give back more than what the bucket would hold in addition now if the
// acquisition had not happened. For a log or a window that is easy: the permits that it still
// counts. A token bucket forgets: if it was full at some time after the acquisition, it would be no
// fuller now without it. So each open receipt of a token bucket keeps the least shortfall from full
// since its grant: without the acquisition the bucket would then have been fuller by at most that
// much, since it never holds more than full. A refund gives min(cost, least shortfall). After it,
// the bucket counts as having lacked that much less since the grant: the least shortfall of each
// newer receipt falls by as much, and that of each older one is lowered to what is left of this
// receipt's, if that is less.
//
// Example: burst 10. A takes 10 (shortfall 10); idle until full (shortfall 0: A is worth nothing
// and is closed); B takes 10. Refund A: 0. Refund B at once: 10.
// Example: burst 10. A takes 6, B takes 4, no time passes. Refund A: min(6, 6) = 6, and B's least
// shortfall goes from 10 to 4. Refund B: min(4, 4) = 4. The bucket is full, and not more.
// Example: the same, B first. Refund B: min(4, 10) = 4; A's least stays 6. Refund A: 6.
//
// A part of an acquisition is refunded as if it had been an acquisition of its own, made behind the
// rest at the same moment; the rest can then no longer be refunded.
//
// The least shortfalls never fall from older to newer receipts: an older one has seen all that a
// newer one has, and a refund leaves it so. So each receipt keeps only by how much its least
// shortfall exceeds that of the one before it, its step. Then each event above takes something off
// the last steps up to some receipt, however many receipts there are:
//   a shortfall x is noted: the steps up to the newest receipt, down to a sum of x;
//   a receipt is refunded:  the steps up to this one, by what it gives.
// And a step that is gone stays gone, so the work of many events is bounded by the receipts that
// were opened. The example again: A's step is 6, B's 4. Refund A takes 6 off A's: B has 0 + 4 left.
//
// What forgiving takes off all receipts is kept as one number.
//
// Not thread-safe; never blocks. Bounded by bounds::kMaxReceiptsPerBucket; when one more comes the
// oldest is closed. Kept receipts are not counted, and never closed for that: their owner bounds
// them.
#ifndef SLUICE_SERVER_ALGORITHM_OPEN_RECEIPTS_H_
#define SLUICE_SERVER_ALGORITHM_OPEN_RECEIPTS_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"

namespace sluice::algorithm {

// The receipts that are worth anything, and what refunds of all of them would give back.
struct Refundable {
  uint64_t receipts = 0;
  uint64_t permits = 0;  // whole ones
  friend bool operator==(const Refundable&, const Refundable&) = default;
};

// Receipts in the order of their grants.
class OpenReceipts {
 public:
  struct Receipt {
    uint64_t id = 0;
    uint64_t cost_or_when = 0;          // ticks of a token bucket; else when it was counted
    uint64_t shortfall_or_permits = 0;  // least shortfall, in ticks; else permits
    friend bool operator==(const Receipt&, const Receipt&) = default;
  };
  enum class Kept : bool { kNo = false, kYes = true };

  OpenReceipts() = default;
  OpenReceipts(const OpenReceipts& other)
      : list_(other.list_ == nullptr ? nullptr : std::make_unique<List>(*other.list_)) {}
  OpenReceipts(OpenReceipts&&) noexcept = default;
  OpenReceipts& operator=(OpenReceipts&&) noexcept = default;

  bool empty() const { return size() == 0; }
  size_t size() const { return list_ == nullptr ? 0 : list_->open; }
  // That a walk over all of them passes: those that are closed and keep their places, too.
  size_t places() const { return list_ == nullptr ? 0 : list_->slots.size() - list_->head; }
  size_t kept() const { return size() - (list_ == nullptr ? 0 : list_->not_kept); }
  size_t MemoryBytes() const {
    return list_ == nullptr ? 0
                            : sizeof(List) + list_->slots.capacity() * sizeof(Slot) +
                                  list_->sums.capacity() * sizeof(uint64_t) +
                                  list_->late.capacity() * (sizeof(Late::value_type) + 1);
  }
  void Clear() {
    if (list_ != nullptr) list_->Clear();
  }
  // Closes the receipt. Returns whether it was open.
  bool Drop(uint64_t id);
  // A kept receipt is counted from now on. Closes the oldest that is not kept, which may be this
  // one, if they are too many.
  void KeepNoLonger(uint64_t id);
  // Closes all that are kept.
  void DropKept();

  // Of a token bucket, in ticks.

  // To be called just after the take. Returns whether the oldest receipt was closed to make room.
  // REQUIRES: id != 0, not open.
  bool OpenTicks(uint64_t id, uint64_t cost, uint64_t shortfall, Kept kept = Kept::kNo);
  // Must be called with the shortfall just before every take and every refund.
  void NoteShortfall(uint64_t shortfall_ticks);
  // Closes the receipt; `keep_ticks` of its cost are not refunded. Lower the TAT by what is
  // returned. nullopt: not open.
  std::optional<uint64_t> RefundTicks(uint64_t id, uint64_t keep_ticks = 0);
  // To be called when so much of a debit was not counted, because older acquisitions had left no
  // room for it. Without them it would have been counted, so they are worth that much less.
  void ForgiveTicks(uint64_t ticks);
  // Multiplies all by numerator/denominator, rounding down, and bounds shortfalls by
  // `shortfall_ticks` (carry-over).
  void Scale(uint64_t numerator, uint64_t denominator, uint64_t shortfall_ticks);
  // Calls visit(receipt), oldest first.
  template <typename Visit>
  void ForEachTicks(Visit visit) const {
    uint64_t least = 0;
    ForEachSlot([&](const Slot& slot) {
      least += slot.step_or_permits;
      if (slot.open) visit(Receipt{slot.id, list_->Worth(slot.cost_or_when), least});
    });
  }

  // Of a log or a window. `when`: a quantum, a sub-window, a window's serial.

  // As OpenTicks. REQUIRES: `when` is not less than that of any receipt.
  bool OpenPermits(uint64_t id, uint64_t when, uint64_t permits, Kept kept = Kept::kNo);
  // Closes the receipt and returns it. nullopt: not open.
  std::optional<Receipt> Close(uint64_t id);
  // As ForgiveTicks.
  void ForgivePermits(uint64_t permits);
  // Closes all whose `counts(when)` is false; they are the oldest.
  template <typename Counts>
  void CloseUncounted(Counts counts) {
    if (list_ == nullptr || list_->slots.empty()) return;
    // At once: there may be a hundred thousand.
    if (!counts(list_->slots.back().cost_or_when)) return list_->Clear();
    CloseOldestUntil([&](const Slot& slot) { return slot.open && counts(slot.cost_or_when); });
  }
  // Applies `convert` to each `when` (carry-over).
  template <typename ConvertWhen>
  void Convert(ConvertWhen convert) {
    if (list_ == nullptr) return;
    // Closed ones too: CloseUncounted looks at the last.
    for (Slot& slot : list_->slots) slot.cost_or_when = convert(slot.cost_or_when);
  }
  template <typename Visit>
  void ForEachPermits(Visit visit) const {
    ForEachSlot([&](const Slot& slot) {
      if (!slot.open) return;
      visit(Receipt{slot.id, slot.cost_or_when, list_->Worth(slot.step_or_permits)});
    });
  }

 private:
  // A closed receipt keeps its place, and its step, until the list is packed.
  struct Slot {
    uint64_t id = 0;
    uint64_t cost_or_when = 0;     // a cost: with what had been forgiven before
    uint64_t step_or_permits = 0;  // permits: with what had been forgiven before
    bool open = true;
    bool kept = false;
    // The place of the greatest id up to this slot.
    uint32_t greatest = 0;
  };
  using Late = absl::flat_hash_map<uint64_t, uint32_t>;
  // Steps are added up by blocks, so that sums up to a receipt, and steps that are left, are found
  // quickly.
  static constexpr size_t kBlock = 64;

  struct List {
    std::vector<Slot> slots;
    std::vector<uint64_t> sums;  // of the steps of each block
    uint64_t least = 0;          // of the steps of all slots
    uint64_t forgiven = 0;       // since it was applied to the slots, or the list was empty
    uint64_t most_permits = 0;   // no slot has more; with what had been forgiven
    uint32_t head = 0;           // slots before it are closed, and have no steps
    uint32_t not_kept_head = 0;  // no slot before it is open and not kept
    uint32_t open = 0;
    uint32_t not_kept = 0;  // of the open ones
    // The places, by id, of open receipts whose ids are not the greatest up to there. The receipt
    // of a booking is opened at its grant time, behind receipts with later ids.
    Late late;

    void Clear();
    uint64_t Worth(uint64_t with_forgiven) const {
      return with_forgiven - std::min(with_forgiven, forgiven);
    }
    bool Open(const Slot& slot);
    void Close(size_t place);
    // REQUIRES: there is one.
    void CloseOldestNotKept();
    // Appends it, or moves it to that place, which no slot behind it has left.
    void Place(Slot slot, size_t place);
    // The place of an open receipt, or slots.size(). Takes logarithmic time.
    size_t Find(uint64_t id) const;
    uint64_t LeastOf(size_t place) const;
    void TakeStepsBefore(size_t place, uint64_t ticks);
    void TakeFirstSteps(uint64_t ticks);
    // Removes closed slots if they are most. Ends all use of places.
    void PackIfSparse(bool has_steps);
    // Applies what is forgiven to `field` of all slots.
    void ApplyForgiven(uint64_t Slot::* field);
    void AddUpSteps();
  };

  List& list() {
    if (list_ == nullptr) list_ = std::make_unique<List>();
    return *list_;
  }
  template <typename Visit>
  void ForEachSlot(Visit visit) const {
    if (list_ == nullptr) return;
    for (size_t i = list_->head; i < list_->slots.size(); ++i) visit(list_->slots[i]);
  }
  template <typename Stays>
  void CloseOldestUntil(Stays stays) {
    if (list_ == nullptr) return;
    while (list_->head < list_->slots.size() && !stays(list_->slots[list_->head])) {
      if (list_->slots[list_->head].open) list_->Close(list_->head);
      if (list_->open == 0) return list_->Clear();
      ++list_->head;
    }
  }
  void CloseWorthless() {
    if (list_ != nullptr && list_->least == 0) return list_->Clear();
    CloseOldestUntil([](const Slot& slot) { return slot.step_or_permits != 0; });
  }
  void Forgive(uint64_t Slot::* field, uint64_t amount);

  std::unique_ptr<List> list_;  // null: none was ever opened
};

}  // namespace sluice::algorithm

#endif  // SLUICE_SERVER_ALGORITHM_OPEN_RECEIPTS_H_
