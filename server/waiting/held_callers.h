// HeldCallers: callers who are answered when their moment has come, not before.
//
// A held caller is a reservation that nobody was told of. Its place in the order, and its permits,
// are in the store's calendars, as those of any reservation; the line keeps who is to be answered
// when, in the order of the moments, and one alarm for the first of them. So waiting costs no
// thread and no work.
//
// Nobody having been told, a held caller can still move up: when one before it gives its place up
// (cancels, disconnects, the line drains it), all those behind who share a bucket with it are
// moved, in order, to the earliest moment that then fits. They are moved in steps of kMovesPerStep,
// those who come first at first, so that a crowd that leaves at once holds nobody up.
//
// When limits change, those whose limits changed are booked anew under the new parameters, in the
// order in which they came (Store::Rebook: one step, which nobody else sees half of): a raised
// limit lets them through sooner, a lowered one never lets through more than it says. Who no longer
// fits within its max_wait is denied then. Nobody is answered by a moment of before. A store that
// cannot do that in one step is asked to give all back and then to reserve again, in order; then
// others may take permits in between.
//
// The store may answer at once, or later and from any thread (PendingOperation). A caller does not
// wait for that: who leaves is answered at once, and what it had is given back when the store can.
// Where a shared store does not answer, nothing is done twice: what is not known counts as spent.
//
// Each caller is answered exactly once, and never early by the store's clock. If that is not ours,
// the distance of the two is taken from its answers, and is what the quickest of the last seconds
// tells: that errs on the side of late.
//
// Lateness is the alarm's and the queue's: see Alarm.
#ifndef SLUICE_SERVER_WAITING_HELD_CALLERS_H_
#define SLUICE_SERVER_WAITING_HELD_CALLERS_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <utility>
#include <vector>

#include "absl/container/btree_set.h"
#include "absl/container/flat_hash_set.h"
#include "absl/types/span.h"
#include "common/clock.h"
#include "common/mutex.h"
#include "server/store/store.h"

namespace sluice::waiting {

class PendingOperation;

enum class HeldOutcome : uint8_t {
  kGrantTime,  // its moment has come
  kDenied,     // limits changed, and it no longer fits; the acquisition says until when
  kCancelled,  // by Cancel; its permits were given back
  kDrained,    // by Drain; its permits were given back
  // It was to move up, or limits changed, and the shared store did not say what became of it.
  kUnavailable,
};

// One that waits; part of its owner, who keeps it from Hold until OnAnswer.
class HeldCaller {
 public:
  // Decided by the store: granted, with wait_ns > 0. The line changes its now_ns, wait_ns,
  // retry_after_ns, results and charges while it waits.
  store::Acquisition* acquisition = nullptr;
  // Until when its moment may lie, on the line's clock: its arrival plus its max_wait.
  int64_t until_ns = 0;
  // Of the limits by which it was decided (RuleSource::Generation), and what keeps its charges'
  // rules alive. The line changes them when the limits change.
  uint64_t generation = 0;
  std::shared_ptr<const void> rules;

  // Exactly once for each Hold that returned true. Not under a lock; the caller may be destroyed
  // within.
  virtual void OnAnswer(HeldOutcome outcome) = 0;

  // On the store's clock.
  int64_t grant_time_ns() const { return acquisition->now_ns + acquisition->wait_ns; }

  // For the next call. REQUIRES: it does not wait.
  void Reset() {
    left_ = false;
    rules.reset();
  }

 protected:
  ~HeldCaller() = default;

 private:
  friend class HeldCallers;
  enum class State : uint8_t {
    kOutside = 0,
    kInLine,    // in line_
    kChanging,  // in change_
  };
  State state_ = State::kOutside;
  bool left_ = false;  // cancelled before it was held
  // Under way for it, at most one.
  PendingOperation* errand_ = nullptr;
  // When its limits changed: the charges by the new rules.
  std::vector<store::Charge> charges_;
};

// Calls HeldCallers::Advance when it is time.
class Alarm {
 public:
  virtual ~Alarm() = default;
  // At that moment, or as soon after it as can be; replaces what was set before. Called under the
  // line's lock: must not call back.
  virtual void SetAt(int64_t at_ns) = 0;
};

// What became of charges' rules.
enum class Refreshed : uint8_t {
  kSame = 0,
  kChanged,
  // A limit is gone: its charges keep their rules, the others have those of now.
  kGone,
};

// Knows the limits as they are now. Thread-safe.
class RuleSource {
 public:
  virtual ~RuleSource() = default;
  // Greater whenever limits have changed. HeldCallers::LimitsChanged is to be called then.
  virtual uint64_t Generation() = 0;
  // Replaces the charges' rules by those of now. `*keep` kept the old ones alive; unless the answer
  // is kSame, it is set to what keeps those that the charges have then.
  virtual Refreshed Refresh(absl::Span<store::Charge> charges,
                            std::shared_ptr<const void>* keep) = 0;
};

// Ours less the store's clock, at most. Not thread-safe.
class ClockDistance {
 public:
  // An answer was made at store_ns, and is here at local_ns.
  void Observe(int64_t local_ns, int64_t store_ns) {
    const int64_t distance_ns = local_ns - store_ns;
    if (!known_ || local_ns - since_ns_ >= 2 * kWindowNs) {
      this_ns_ = last_ns_ = distance_ns;
    } else if (local_ns - since_ns_ < kWindowNs) {
      this_ns_ = std::min(this_ns_, distance_ns);
      return;
    } else {
      last_ns_ = std::exchange(this_ns_, distance_ns);
    }
    known_ = true;
    since_ns_ = local_ns;
  }
  int64_t ns() const { return std::min(this_ns_, last_ns_); }

 private:
  // Long enough for a quick answer, short against how far clocks that are corrected drift.
  static constexpr int64_t kWindowNs = 1'000'000'000;
  bool known_ = false;
  int64_t since_ns_ = 0;
  int64_t this_ns_ = 0;  // least of this window, and of the one before
  int64_t last_ns_ = 0;
};

// Thread-safe. All collaborators outlive it, and the store answers until it is destroyed.
class HeldCallers {
 public:
  static constexpr int64_t kNever = std::numeric_limits<int64_t>::max();
  // Each a few microseconds in memory.
  static constexpr size_t kMovesPerStep = 512;
  // Operations of one kind under way in a store that answers later.
  static constexpr size_t kMovesUnderWay = 32;
  static constexpr size_t kChangesUnderWay = 256;

  HeldCallers(store::Store& store, const common::Clock& clock, RuleSource& rules, Alarm& alarm);
  // Drains, and waits for the store's answers.
  ~HeldCallers();
  HeldCallers(const HeldCallers&) = delete;
  HeldCallers& operator=(const HeldCallers&) = delete;

  // Takes the caller in; to be called where the store's answer came. False: the line drains; its
  // reservation is given back, and OnAnswer is not called.
  bool Hold(HeldCaller* caller);

  // Takes the caller out, and gives its permits back. OnAnswer(kCancelled) was called when it
  // returns. False: it is not in the line; it was answered, or is being answered, or is not held
  // yet, and will then be answered at once.
  bool Cancel(HeldCaller* caller);

  // Answers all whose moment has come, and does a step of what there is to move. Returns when to
  // call again.
  int64_t Advance();

  // To be called when Generation has changed. Never blocks.
  void LimitsChanged();

  // Answers all with kDrained, and takes nobody in any more.
  void Drain();

  // Those that wait.
  size_t size() const {
    common::MutexLock lock(&mu_);
    return line_.size() + changing_;
  }

 private:
  class Change;
  friend class PendingOperation;

  // In the order of moments; of the same moment, in the order of booking.
  struct Place {
    int64_t grant_time_ns;
    uint64_t receipt_id;
    HeldCaller* caller;
    friend bool operator<(const Place& a, const Place& b) {
      return a.grant_time_ns != b.grant_time_ns ? a.grant_time_ns < b.grant_time_ns
                                                : a.receipt_id < b.receipt_id;
    }
  };
  static constexpr Place kNobody{kNever, std::numeric_limits<uint64_t>::max(), nullptr};

  // What is to be done once the lock is let go.
  struct Outbox {
    struct Answer {
      HeldCaller* caller;
      HeldOutcome outcome;
    };
    std::vector<Answer> answers;
    std::vector<PendingOperation*> give_back;
    std::vector<std::unique_ptr<PendingOperation>> over;
  };

  static Place PlaceOf(HeldCaller* caller) {
    return {caller->grant_time_ns(), caller->acquisition->receipt_id, caller};
  }
  // A bucket, as far as it need be told from others.
  static uint64_t BucketOf(const store::Charge& charge);
  static uint64_t SetOf(absl::Span<const store::Charge> charges);
  void Observe(int64_t store_ns) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  PendingOperation* NewPendingOperation(HeldCaller* caller) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void End(PendingOperation* errand, Outbox* out) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Takes it out without its moment having come.
  void Leave(HeldCaller* caller, HeldOutcome outcome, Outbox* out)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Those behind `grant_time_ns` may move up in these buckets.
  void NoteFree(absl::Span<const store::Charge> charges, int64_t grant_time_ns)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // The next to move; null: none now.
  PendingOperation* NextToMove() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Send(Outbox* out) ABSL_LOCKS_EXCLUDED(mu_);

  // The store's answers.
  void GaveBack(PendingOperation* errand) ABSL_LOCKS_EXCLUDED(mu_);
  void Moved(PendingOperation* errand) ABSL_LOCKS_EXCLUDED(mu_);
  void Reserved(PendingOperation* errand) ABSL_LOCKS_EXCLUDED(mu_);
  void Rebooked(Change* change) ABSL_LOCKS_EXCLUDED(mu_);

  // Takes those out whose limits changed. Null: nobody.
  Change* BeginChange(Outbox* out) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // For a store that cannot rebook: starts what may be started.
  void Pump() ABSL_LOCKS_EXCLUDED(mu_);
  PendingOperation* NextOfChange() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void EndChange(Outbox* out) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void UndoChange(Outbox* out) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Adopt(PendingOperation* errand) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  // Nobody may be answered until what is under way is done.
  bool Blocked() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return look_ && (change_ != nullptr || moves_ > 0);
  }
  int64_t NextNs() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void SetAlarm() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  store::Store& store_;
  const common::Clock& clock_;
  RuleSource& rules_;
  Alarm& alarm_;

  mutable common::Mutex mu_;
  absl::btree_set<Place> line_ ABSL_GUARDED_BY(mu_);
  bool draining_ ABSL_GUARDED_BY(mu_) = false;
  bool advancing_ ABSL_GUARDED_BY(mu_) = false;
  ClockDistance distance_ ABSL_GUARDED_BY(mu_);  // zero if the store's clock is ours
  int64_t alarm_ns_ ABSL_GUARDED_BY(mu_) = kNever;
  size_t errands_ ABSL_GUARDED_BY(mu_) = 0;
  common::CondVar no_errands_;

  // Buckets in which a place became free, and the first of those who are still to be looked at.
  absl::flat_hash_set<uint64_t> free_buckets_ ABSL_GUARDED_BY(mu_);
  Place move_next_ ABSL_GUARDED_BY(mu_) = kNobody;
  int64_t move_from_ns_ ABSL_GUARDED_BY(mu_) = 0;  // not before
  size_t moves_ ABSL_GUARDED_BY(mu_) = 0;          // under way

  // The latest that was looked at. look_: some in the line may be of other limits than those.
  uint64_t generation_ ABSL_GUARDED_BY(mu_) = 0;
  bool look_ ABSL_GUARDED_BY(mu_) = false;
  std::unique_ptr<Change> change_ ABSL_GUARDED_BY(mu_);
  size_t changing_ ABSL_GUARDED_BY(mu_) = 0;  // callers in change_
};

}  // namespace sluice::waiting

#endif  // SLUICE_SERVER_WAITING_HELD_CALLERS_H_
