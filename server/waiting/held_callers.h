// HeldCallers: answers each held caller at its grant time, not before, or when it gets its slots.
//
// A held caller is a reservation whose grant time no client knows yet. The store's calendars hold
// its permits and its place, as for any reservation. HeldCallers holds the callers in the order of
// their grant times, and sets one alarm for the first. So waiting costs neither a thread nor work.
//
// Moving up. When a caller leaves (cancels, disconnects, drains), each caller behind it that shares
// a bucket with it is moved, in order, to the earliest grant time that then fits.
//
// Many callers may leave at once. Each is answered at once, but only the first few are refunded
// there, on a thread that has other work, and no more than a slice of the work of each is done.
// Advance does the rest, and then moves callers up, in steps that are bounded in operations and in
// time, so that they do not delay the answers.
//
// Changes of limits. Callers whose limits changed are booked again under the new parameters, in
// the order of their arrival, by Store::Rebook in one atomic step. A raised limit admits them
// sooner; a lowered limit never admits more than its parameters say. Callers that no longer fit
// within their max_wait are denied. No caller is answered by a grant time from before the change.
// If the store does not support Rebook, all of these reservations are refunded and then reserved
// again in order; other callers may take permits in between.
//
// Slots. It is not known when slots will be free, so callers that lack them wait in SlotLines and
// have nothing in the store. Advance tries the first caller of each queue again when slots were
// freed in this process, when a hold ends, and every kSharedRetryNs if other nodes may free them.
// Meanwhile all others are denied (Acquisition::behind_others). In a shared store the first caller
// of each line has a ticket (store::QueuePlace), so that callers of other nodes do not come first;
// a try that serves it hands the ticket on to the next caller. A caller that gets its slots is
// answered; if its rates are booked for later, it goes on to the queue of grant times.
//
// Slow stores. The store may answer later and from any thread (PendingOperation). A caller that
// leaves is answered at once, and its permits are refunded when the store answers. No operation is
// repeated when an answer of a shared store is lost: an unknown result counts as spent.
//
// Each caller is answered exactly once, and never early by the store's clock. If the store has its
// own clock, ClockOffset converts its grant times; the error makes answers late, never early.
// Answers are also late by the delay of the alarm.
#ifndef SLUICE_SERVER_WAITING_HELD_CALLERS_H_
#define SLUICE_SERVER_WAITING_HELD_CALLERS_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/types/span.h"
#include "common/clock.h"
#include "common/memory_account.h"
#include "common/mutex.h"
#include "common/wait_queue.h"
#include "server/store/store.h"
#include "server/waiting/clock_offset.h"
#include "server/waiting/held_caller.h"
#include "server/waiting/limit_change.h"
#include "server/waiting/pending_operation.h"
#include "server/waiting/slot_lines.h"

namespace sluice::waiting {

// Calls HeldCallers::Advance at a given time.
class Alarm {
 public:
  virtual ~Alarm() = default;
  // Sets the time of the next call, or brings it forward. Called under the lock of HeldCallers:
  // must not call back.
  virtual void SetAt(int64_t at_ns) = 0;
};

// Thread-safe. No method blocks, except the destructor. All collaborators outlive it, and the store
// answers every operation.
class HeldCallers final {
 public:
  static constexpr int64_t kNever = common::WaitQueue<HeldCaller*>::kNever;
  // Charges that Cancel refunds between two calls of Advance, or those of one caller; none while
  // Advance works, which may have locked the buckets. In memory each takes a few microseconds, up
  // to twenty in a bucket with thousands of bookings, and a slice if thousands are to be folded.
  static constexpr size_t kChargesByCancel = 8;
  // Refunds that are left to Advance. Each takes about 2 KB, which `memory` counts. Beyond that, or
  // while memory is short, Cancel starts them again, so that callers that come and leave pay for
  // it.
  static constexpr size_t kMaxRefundsLeft = 16384;
  // Refunds and moves of one step, which also ends after kStepNs. To pass over so many callers that
  // need not move counts as one, too: there may be 100,000, and all threads share the lock.
  static constexpr size_t kOperationsPerStep = 512;
  static constexpr size_t kPassedPerOperation = 64;
  static constexpr int64_t kStepNs = 1'000'000;
  // Operations under way in a store that answers later.
  static constexpr size_t kMaxPendingMoves = 32;
  static constexpr size_t kMaxPendingChanges = 256;
  static constexpr size_t kMaxPendingTries = 256;
  // The interval at which the first caller of a queue asks a shared store again, since other nodes
  // may have freed slots. Random by a quarter, so that nodes do not ask in step. With more queues
  // each asks less often, so that a node asks at most 2,000 times a second.
  static constexpr int64_t kSharedRetryNs = 50'000'000;
  static constexpr size_t kLinesPerSharedRetry = 100;
  // How long a ticket lives after a try: some tries may be late. More with more lines, up to
  // bounds::kMaxTicketNs.
  static constexpr int64_t kTicketNs = 20 * kSharedRetryNs;

  // `memory`: where the refunds that are left to Advance are counted; null: nowhere.
  HeldCallers(store::Store& store, const common::Clock& clock, RuleSource& rules, Alarm& alarm,
              common::MemoryBudget* memory = nullptr);
  // Drains, and waits for the store's answers.
  ~HeldCallers();
  HeldCallers(const HeldCallers&) = delete;
  HeldCallers& operator=(const HeldCallers&) = delete;

  // Holds a caller until its grant time. Call it where the store's answer arrives. Returns false
  // after Drain: the reservation is refunded, and OnAnswer is not called.
  bool Hold(HeldCaller* caller);

  // Lets a caller wait for slots, until its until_ns at most. REQUIRES: its acquisition LacksSlots.
  // Returns false after Drain: OnAnswer is not called.
  bool WaitForSlots(HeldCaller* caller);
  // Whether callers wait for slots of these charges: others are to be denied (behind_others).
  bool SlotsAwaited(absl::Span<const store::Charge> charges) const;
  // Callers that wait for slots of the charge's bucket.
  size_t InLine(const store::Charge& charge) const;
  // Call it when slots of these charges may have been freed: by a refund, the end of a hold, a
  // reset.
  void SlotsFreed(absl::Span<const store::Charge> charges);

  // Removes the caller and calls OnAnswer(kCancelled) before it returns. Refunds its permits, too,
  // unless many callers leave: then Advance does so soon. Returns how many charges it has asked the
  // store to refund; nullopt if the caller is not held: it is answered already, or on another
  // thread right now, or Hold was not called yet and will answer kCancelled at once.
  std::optional<size_t> Cancel(HeldCaller* caller);

  // Answers all callers whose grant time has come, and does one step of refunds and moving up.
  // Returns when to call it next.
  int64_t Advance();

  // Call it after RuleSource::Generation has changed.
  void LimitsChanged();

  // Answers all callers with kDrained. Later calls of Hold return false.
  void Drain();

  // The number of callers held.
  size_t size() const {
    common::MutexLock lock(&mu_);
    return queue_.size() + rebooking_ + lines_.size();
  }

 private:
  friend class PendingOperation;
  friend class LimitChange;

  // Ordered by grant time on the store's clock, then by receipt id, the order of booking.
  using Queue = common::WaitQueue<HeldCaller*>;

  // What to do after the lock is released.
  struct Outbox {
    std::vector<std::pair<HeldCaller*, HeldOutcome>> answers;
    std::vector<PendingOperation*> refunds;
    std::vector<std::unique_ptr<PendingOperation>> finished;
  };

  static Queue::Position PositionOf(const HeldCaller& caller) {
    return {caller.grant_time_ns(), caller.acquisition->receipt_id};
  }

  void Enqueue(HeldCaller* caller) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Dequeue(HeldCaller* caller) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void ObserveStoreClock(int64_t store_ns) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  PendingOperation* NewOperation(HeldCaller* caller, PendingOperation::Purpose purpose)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void RefundFor(HeldCaller* caller, Outbox* out) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Finish(PendingOperation* operation, Outbox* out) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // The end of an operation: refunds it if its caller left early.
  void RefundOrFinish(PendingOperation* operation, bool refund, Outbox* out)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Keeps the destructor waiting until the matching Release.
  void Retain() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { ++operations_; }
  void Release() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Removes a held caller before its grant time.
  void Remove(HeldCaller* caller, HeldOutcome outcome, Outbox* out)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void CancelReserved(HeldCaller* caller, Outbox* out) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Send(Outbox* out) ABSL_LOCKS_EXCLUDED(mu_);

  // Moving up. A gap at `grant_time_ns` opened in the buckets of these charges.
  void NoteGap(absl::Span<const store::Charge> charges, int64_t grant_time_ns)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  bool CanMove() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return !limits_stale_ && change_ == nullptr && pending_moves_ < kMaxPendingMoves;
  }
  bool SharesGap(const HeldCaller& caller) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Null: no caller can be moved now, or it has passed over kPassedPerOperation callers; then
  // MoreToMove(), and the next call goes on behind them.
  PendingOperation* NextMove() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  bool MoreToMove() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return CanMove() && queue_.has_gap();
  }
  void LeaveRefund(PendingOperation* refund) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // REQUIRES: one is left.
  PendingOperation* TakeRefund() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Null: nothing is left to refund, to try or to move now, unless MoreToMove().
  PendingOperation* NextOfStep(Outbox* out) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Start(PendingOperation* operation) ABSL_LOCKS_EXCLUDED(mu_);
  void RunStep() ABSL_LOCKS_EXCLUDED(mu_);

  // Slots. Takes the caller out of its lines, and lets those behind it be tried.
  void LeaveLines(HeldCaller* caller) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void AnswerInLine(HeldCaller* caller, HeldOutcome outcome, Outbox* out)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Slots of the bucket may be free, or another caller may be the first: lets it be tried.
  void TryFirst(uint64_t bucket) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void TryFirstOf(absl::Span<const store::Charge> charges) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Limits changed.
  void RefreshLines(Outbox* out) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Gives the caller the current rules. Returns false if one of its limits was deleted.
  bool RefreshRules(HeldCaller* caller) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Null: no caller is to be tried now. Answers those whose time is over.
  PendingOperation* NextTry(Outbox* out) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void OnTried(PendingOperation* operation) ABSL_LOCKS_EXCLUDED(mu_);
  void EndTry(PendingOperation* operation, Outbox* out) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // How often each line is tried in a shared store, in multiples of kSharedRetryNs.
  int64_t SharedRetries() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return static_cast<int64_t>(1 + lines_.lines() / kLinesPerSharedRetry);
  }
  // Gives an operation of the first caller of its lines the caller's place. `last`: it leaves.
  void SetPlace(HeldCaller* caller, bool last, PendingOperation* operation)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Whether a try has left tickets of its caller, or not removed those from before.
  static bool HasTickets(const PendingOperation& operation);
  // Refunds a try whose caller has left if it was granted, and removes its tickets.
  void UndoTry(PendingOperation* operation, bool granted, Outbox* out)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  // The store's answers.
  void OnRefunded(PendingOperation* operation) ABSL_LOCKS_EXCLUDED(mu_);
  void OnRefundUndecided(PendingOperation* operation) ABSL_LOCKS_EXCLUDED(mu_);
  void OnMoved(PendingOperation* operation) ABSL_LOCKS_EXCLUDED(mu_);
  void OnReserved(PendingOperation* operation) ABSL_LOCKS_EXCLUDED(mu_);
  void OnRebooked(LimitChange* change) ABSL_LOCKS_EXCLUDED(mu_);

  // Takes the callers whose limits changed out of the queue. Null: there are none.
  LimitChange* BeginChange(Outbox* out) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Starts operations of the change, for a store that does not support Rebook.
  void Pump() ABSL_LOCKS_EXCLUDED(mu_);
  void PumpAndRelease() ABSL_LOCKS_EXCLUDED(mu_);
  // The store changed nothing: puts the callers back, to be looked at again.
  void UndoChange(Outbox* out) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void EndChange(Outbox* out) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void EndRebooking(PendingOperation* operation, const store::Rebooking& rebooking, Outbox* out)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void DropChange() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // The caller's charges get the rules of the operation.
  void AdoptRules(const PendingOperation& operation) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  // Limits changed, but operations under way have to end before any caller may be answered.
  bool AnswersPaused() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return limits_stale_ && (change_ != nullptr || pending_moves_ > 0);
  }
  int64_t NextAdvanceNs() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void SetAlarm() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  store::Store& store_;
  const common::Clock& clock_;
  RuleSource& rules_;
  Alarm& alarm_;

  mutable common::Mutex mu_;
  Queue queue_ ABSL_GUARDED_BY(mu_);
  bool draining_ ABSL_GUARDED_BY(mu_) = false;
  bool advancing_ ABSL_GUARDED_BY(mu_) = false;
  ClockOffset clock_offset_ ABSL_GUARDED_BY(mu_);  // zero if the store uses the local clock
  int64_t alarm_ns_ ABSL_GUARDED_BY(mu_) = kNever;
  size_t operations_ ABSL_GUARDED_BY(mu_) = 0;  // allocated, plus threads in PumpAndRelease
  common::CondVar idle_;

  // Buckets with a gap; the queue knows the first gap's position.
  absl::flat_hash_set<uint64_t> gap_buckets_ ABSL_GUARDED_BY(mu_);
  int64_t next_step_ns_ ABSL_GUARDED_BY(mu_) = 0;  // no refunds and moves before
  size_t pending_moves_ ABSL_GUARDED_BY(mu_) = 0;
  // Of callers that have left; Advance starts them, or goes on with them.
  std::deque<PendingOperation*> refunds_ ABSL_GUARDED_BY(mu_);
  common::MemoryPart refund_memory_ ABSL_GUARDED_BY(mu_);
  size_t charges_by_cancel_ ABSL_GUARDED_BY(mu_) = 0;  // since the last Advance

  const uint64_t node_;  // store::QueuePlace::node
  SlotLines lines_ ABSL_GUARDED_BY(mu_);
  // Of lines_; read without the lock by callers that need slots or free them.
  std::atomic<size_t> in_line_{0};
  size_t pending_tries_ ABSL_GUARDED_BY(mu_) = 0;

  // The latest snapshot of limits that was applied to the queue.
  uint64_t generation_ ABSL_GUARDED_BY(mu_) = 0;
  // Some callers in the queue may have been decided by another snapshot.
  bool limits_stale_ ABSL_GUARDED_BY(mu_) = false;
  std::unique_ptr<LimitChange> change_ ABSL_GUARDED_BY(mu_);  // null: none under way
  size_t rebooking_ ABSL_GUARDED_BY(mu_) = 0;                 // callers in change_
};

}  // namespace sluice::waiting

#endif  // SLUICE_SERVER_WAITING_HELD_CALLERS_H_
