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
// The least shortfalls never fall from older to newer receipts: an older one has seen all that a
// newer one has, and a refund leaves it so. So noting a shortfall changes only the newest ones,
// and what is worth nothing is at the front.
//
// Not thread-safe; never blocks. Bounded by bounds::kMaxReceiptsPerBucket; when one more comes the
// oldest is closed.
#ifndef SLUICE_SERVER_ALGORITHM_OPEN_RECEIPTS_H_
#define SLUICE_SERVER_ALGORITHM_OPEN_RECEIPTS_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

namespace sluice::algorithm {

// The receipts that are worth anything, and what refunds of all of them would give back.
struct Refundable {
  uint64_t receipts = 0;
  uint64_t permits = 0;  // whole ones
  friend bool operator==(const Refundable&, const Refundable&) = default;
};

// Receipts in the order of their grants. Dropping the oldest costs little: the room is taken back
// once half of it is unused.
class OpenReceipts {
 public:
  struct Receipt {
    uint64_t id = 0;
    uint64_t cost_or_when = 0;          // ticks of a token bucket; else when it was counted
    uint64_t shortfall_or_permits = 0;  // least shortfall, in ticks; else permits
    friend bool operator==(const Receipt&, const Receipt&) = default;
  };

  OpenReceipts() = default;
  explicit OpenReceipts(std::vector<Receipt> oldest_first) : receipts_(std::move(oldest_first)) {}

  bool empty() const { return head_ == receipts_.size(); }
  size_t size() const { return receipts_.size() - head_; }
  auto begin() const { return receipts_.begin() + static_cast<std::ptrdiff_t>(head_); }
  auto end() const { return receipts_.end(); }

  // To be called just after the take. Returns whether the oldest receipt was closed to make room.
  // REQUIRES: id != 0, not open; a log's or window's `when` is not less than that of any receipt.
  bool Open(uint64_t id, uint64_t cost_or_when, uint64_t shortfall_or_permits);

  void Clear();
  size_t MemoryBytes() const { return receipts_.capacity() * sizeof(Receipt); }

  // Of a token bucket, in ticks.

  // Must be called with the shortfall just before every take and every refund.
  void NoteShortfall(uint64_t shortfall_ticks);
  // Closes the receipt. Lower the TAT by what is returned. nullopt: not open.
  std::optional<uint64_t> RefundTicks(uint64_t id);
  // To be called when so much of a debit was not counted, because older acquisitions had left no
  // room for it. Without them it would have been counted, so they are worth that much less.
  void ForgiveTicks(uint64_t ticks);
  // Multiplies all by numerator/denominator, rounding down, and bounds shortfalls by
  // `shortfall_ticks` (carry-over).
  void Scale(uint64_t numerator, uint64_t denominator, uint64_t shortfall_ticks);

  // Of a log or a window. `when`: a quantum, a sub-window, a window's serial.

  // Closes the receipt and returns it. nullopt: not open.
  std::optional<Receipt> Close(uint64_t id);
  // As ForgiveTicks.
  void ForgivePermits(uint64_t permits);
  // Closes all whose `counts(when)` is false; they are the oldest.
  template <typename Counts>
  void CloseUncounted(Counts counts) {
    DropOldestUntil([&](const Receipt& receipt) { return counts(receipt.cost_or_when); });
  }
  // Applies `convert` to each `when` (carry-over).
  template <typename ConvertWhen>
  void Convert(ConvertWhen convert) {
    for (auto it = first(); it != receipts_.end(); ++it) {
      it->cost_or_when = convert(it->cost_or_when);
    }
  }

 private:
  using Iterator = std::vector<Receipt>::iterator;

  Iterator first() { return receipts_.begin() + static_cast<std::ptrdiff_t>(head_); }
  Iterator Find(uint64_t id) {
    return std::find_if(first(), receipts_.end(),
                        [id](const Receipt& receipt) { return receipt.id == id; });
  }
  template <typename Stays>
  void DropOldestUntil(Stays stays) {
    if (!empty()) DropBefore(std::find_if(first(), receipts_.end(), stays));
  }
  void DropBefore(Iterator kept);
  void CloseWorthless() {
    DropOldestUntil([](const Receipt& receipt) { return receipt.shortfall_or_permits != 0; });
  }

  std::vector<Receipt> receipts_;
  size_t head_ = 0;
};

}  // namespace sluice::algorithm

#endif  // SLUICE_SERVER_ALGORITHM_OPEN_RECEIPTS_H_
