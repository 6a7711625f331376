// HeldCaller: one caller that is answered at its grant time, or when it gets its slots.
#ifndef SLUICE_SERVER_WAITING_HELD_CALLER_H_
#define SLUICE_SERVER_WAITING_HELD_CALLER_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "server/store/store.h"

namespace sluice::waiting {

class PendingOperation;

enum class HeldOutcome : uint8_t {
  kGrantTime,  // granted: the grant time has come
  // No grant time fits, since limits changed or it got its slots too late, or it got none in time;
  // the acquisition has retry_after_ns.
  kDenied,
  kCancelled,  // by Cancel; its permits are refunded
  kDrained,    // by Drain; its permits are refunded
  // The shared store failed while it changed the reservation. The permits count as spent. If it
  // waited for slots, the acquisition's outcome says what happened.
  kUnavailable,
};

// Part of its owner, which keeps it alive from Hold until OnAnswer. HeldCallers guards it
// meanwhile.
class HeldCaller {
 public:
  // The granted reservation, with wait_ns > 0, or the acquisition that lacks slots. While the
  // caller is held, HeldCallers changes its outcome, source, receipt_id, now_ns, wait_ns,
  // retry_after_ns, results and charges.
  store::Acquisition* acquisition = nullptr;
  // On the local clock: the arrival, and the latest acceptable grant time, arrival plus max_wait.
  // HeldCallers lowers the latter when the max_wait of a limit is lowered.
  int64_t since_ns = 0;
  int64_t until_ns = 0;
  // The snapshot of limits that decided the acquisition (RuleSource::Generation), and the owner of
  // its rules. HeldCallers updates both when limits change.
  uint64_t generation = 0;
  std::shared_ptr<const void> rules;

  // Called exactly once for each Hold and WaitForSlots that returned true, under no lock. May
  // destroy the caller.
  virtual void OnAnswer(HeldOutcome outcome) = 0;

  // For whom buckets are made, as the bounds are now. Without a rate: the first decision has
  // counted its new keys. Called while the caller is held, under the lock of HeldCallers.
  virtual store::BucketMaker Maker() const { return {}; }

  // On the store's clock.
  int64_t grant_time_ns() const { return acquisition->now_ns + acquisition->wait_ns; }

  // Prepares for the next Hold. REQUIRES: the caller is not held.
  void Reset() {
    state_ = State::kIdle;
    rules.reset();
  }

 protected:
  ~HeldCaller() = default;

 private:
  friend class HeldCallers;
  friend class SlotLines;
  enum class State : uint8_t {
    kIdle = 0,
    kCancelledEarly,  // by Cancel before Hold
    kQueued,          // in the wait queue
    kInLine,          // in SlotLines
    kRebooking,       // taken out of the queue by a change of limits
  };
  State state_ = State::kIdle;
  bool ticketed_ = false;  // in SlotLines: a ticket of it (store::QueuePlace) may be in the store
  // The operation on its reservation that the store has not answered yet; null: none.
  PendingOperation* operation_ = nullptr;
  // After a change of limits: the charges with the new rules.
  std::vector<store::Charge> charges_;
  // Of a caller that is in SlotLines, which sets them.
  uint64_t place_ = 0;
  int64_t number_ = 0;  // store::QueuePlace::number
  int64_t look_at_ns_ = 0;
  std::vector<uint64_t> slot_buckets_;
};

}  // namespace sluice::waiting

#endif  // SLUICE_SERVER_WAITING_HELD_CALLER_H_
