// WaitingLine: callers who are answered when their moment has come, not before.
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
// When limits change, those whose limits changed give up their places and take new ones, in order,
// under the new figures: a raised limit lets them through sooner, a lowered one never lets through
// more than it says. Who no longer fits within its max_wait is denied then. (What other callers
// take in the microseconds between is theirs.)
//
// Each caller is answered exactly once, and never early by the store's clock.
//
// Lateness is the alarm's and the queue's: see Alarm.
#ifndef SLUICE_SERVER_ENGINE_WAITING_LINE_H_
#define SLUICE_SERVER_ENGINE_WAITING_LINE_H_

#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <vector>

#include "absl/container/btree_set.h"
#include "absl/container/flat_hash_set.h"
#include "absl/types/span.h"
#include "server/common/clock.h"
#include "server/common/mutex.h"
#include "server/store/store.h"

namespace sluice::engine {

enum class HeldOutcome : uint8_t {
  kMoment,     // its moment has come
  kDenied,     // limits changed, and it no longer fits; the acquisition says until when
  kCancelled,  // by Cancel; its permits were given back
  kDrained,    // by Drain; its permits were given back
};

// One that waits; part of its owner, who keeps it from Hold until OnAnswer.
class HeldCaller {
 public:
  // Decided by the store: granted, with wait_ns > 0. The line changes its now_ns, wait_ns,
  // receipt_id, retry_after_ns and charges while it waits.
  store::Acquisition* acquisition = nullptr;
  // Until when its moment may lie: its arrival plus its max_wait.
  int64_t until_ns = 0;

  // Exactly once for each Hold that returned true. Not under a lock; the caller may be destroyed
  // within.
  virtual void OnAnswer(HeldOutcome outcome) = 0;

  int64_t moment_ns() const { return acquisition->now_ns + acquisition->wait_ns; }

 protected:
  ~HeldCaller() = default;

 private:
  friend class WaitingLine;
  bool waiting_ = false;
  // When its limits changed: the charges by the new rules, and what keeps those alive.
  std::vector<store::Charge> charges_;
  std::shared_ptr<const void> rules_;
};

// Calls WaitingLine::Advance when it is time.
class Alarm {
 public:
  virtual ~Alarm() = default;
  // At that moment, or as soon after it as can be; replaces what was set before. Called under the
  // line's lock: must not call back.
  virtual void SetAt(int64_t at_ns) = 0;
};

// Knows the limits as they are now.
class RuleSource {
 public:
  virtual ~RuleSource() = default;
  // Changes whenever limits do.
  virtual uint64_t Generation() = 0;
  // Replaces the charges' rules by those of now. `*keep` keeps them alive. `*changed`: they are not
  // the same. False: a limit is gone.
  virtual bool Refresh(absl::Span<store::Charge> charges, std::shared_ptr<const void>* keep,
                       bool* changed) = 0;
};

// Thread-safe. The store answers inline (in memory). All collaborators outlive it.
class WaitingLine {
 public:
  static constexpr int64_t kNever = std::numeric_limits<int64_t>::max();
  // Each a few microseconds.
  static constexpr size_t kMovesPerStep = 512;

  WaitingLine(store::Store& store, const common::Clock& clock, RuleSource& rules, Alarm& alarm)
      : store_(store), clock_(clock), rules_(rules), alarm_(alarm) {}
  ~WaitingLine();
  WaitingLine(const WaitingLine&) = delete;
  WaitingLine& operator=(const WaitingLine&) = delete;

  // Takes the caller in. False: the line drains; its reservation was cancelled, and OnAnswer is not
  // called.
  bool Hold(HeldCaller* caller);

  // Takes the caller out, and gives its permits back. OnAnswer(kCancelled) was called when it
  // returns. False: it is not in the line; it was answered, or is being answered.
  bool Cancel(HeldCaller* caller);

  // Answers all whose moment has come, and does a step of what there is to move. Returns when to
  // call again.
  int64_t Advance();

  // Answers all with kDrained, and takes nobody in any more.
  void Drain();

  size_t size() const {
    common::MutexLock lock(&mu_);
    return line_.size();
  }

 private:
  // In the order of moments; of the same moment, in the order of booking.
  struct Place {
    int64_t moment_ns;
    uint64_t receipt_id;
    HeldCaller* caller;
    friend bool operator<(const Place& a, const Place& b) {
      return a.moment_ns != b.moment_ns ? a.moment_ns < b.moment_ns : a.receipt_id < b.receipt_id;
    }
  };
  static constexpr Place kNobody{kNever, std::numeric_limits<uint64_t>::max(), nullptr};
  struct Answer {
    HeldCaller* caller;
    HeldOutcome outcome;
  };

  static Place PlaceOf(HeldCaller* caller) {
    return {caller->moment_ns(), caller->acquisition->receipt_id, caller};
  }
  // A bucket, as far as it need be told from others.
  static uint64_t BucketOf(const store::Charge& charge);
  // Gives the reservation's permits back.
  void GiveBack(HeldCaller* caller);
  void Remove(HeldCaller* caller) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Those behind `moment_ns` may move up in these buckets.
  void NoteFree(absl::Span<const store::Charge> charges, int64_t moment_ns)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void MoveUp() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void ChangeRules(std::vector<Answer>* answers) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Once more, for an earlier one that was given back. False: denied.
  bool Reserve(HeldCaller* caller) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  int64_t NextNs() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void SetAlarm() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  static void Tell(const std::vector<Answer>& answers);

  store::Store& store_;
  const common::Clock& clock_;
  RuleSource& rules_;
  Alarm& alarm_;

  mutable common::Mutex mu_;
  absl::btree_set<Place> line_ ABSL_GUARDED_BY(mu_);
  bool draining_ ABSL_GUARDED_BY(mu_) = false;
  uint64_t generation_ ABSL_GUARDED_BY(mu_) = 0;
  // Buckets in which a place became free, and the first of those who are still to be looked at.
  absl::flat_hash_set<uint64_t> free_buckets_ ABSL_GUARDED_BY(mu_);
  Place move_next_ ABSL_GUARDED_BY(mu_) = kNobody;
  int64_t alarm_ns_ ABSL_GUARDED_BY(mu_) = kNever;
};

}  // namespace sluice::engine

#endif  // SLUICE_SERVER_ENGINE_WAITING_LINE_H_
