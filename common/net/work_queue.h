// WorkQueue: shares the time of one loop between workers (connections) by what they cost: deficit
// round robin over work.
//
// Work is counted in units of about 100 ns, which is cheaper than reading a clock. A worker has a
// credit: each round adds the units of a turn, and its work spends them. A worker whose credit is
// spent stops, and waits in the queue behind those that have some. A piece of work may cost more
// than is left; the worker pays for it in later rounds.
//
// A round gives a turn to each worker that was queued at its start. It takes several iterations of
// the loop if many are queued, so that those that have credit need not wait for all of them.
#ifndef SLUICE_COMMON_NET_WORK_QUEUE_H_
#define SLUICE_COMMON_NET_WORK_QUEUE_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace sluice::net {

class WorkQueue;

// Used on its loop only. Leaves the queue when it is destroyed.
class Worker {
 public:
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  // Counts work that was done for it.
  void Spend(int64_t units) { credit_ -= units; }
  bool has_credit() const { return credit_ > 0; }
  int64_t credit() const { return credit_; }
  // Whether it waits for a turn.
  bool queued() const { return queue_ != nullptr; }

 protected:
  Worker() = default;
  ~Worker() { LeaveQueue(); }

  // Works until there is nothing to do or the credit is spent, and queues itself again in the
  // latter case. Called with credit.
  virtual void OnTurn() = 0;

  inline void LeaveQueue();

 private:
  friend class WorkQueue;
  WorkQueue* queue_ = nullptr;  // where it waits
  Worker* next_ = nullptr;
  Worker* previous_ = nullptr;
  int64_t credit_ = 0;
  uint64_t round_ = 0;  // in which it got credit last
};

// Not thread-safe. Never allocates.
class WorkQueue {
 public:
  // Units of a turn: about 200 us, as much as 85 small calls. Pieces of work that are not divided
  // must be smaller.
  static constexpr int64_t kTurnUnits = 2048;
  // Turns of an iteration: about a millisecond.
  static constexpr size_t kTurnsPerIteration = 5;

  bool empty() const { return first_ == nullptr; }
  // Workers that wait for a turn.
  size_t size() const { return size_; }

  // The loop begins an iteration.
  void BeginIteration() {
    if (left_ == 0) ++round_;
  }

  // Gives `worker` its credit up to this round. For work outside of OnTurn, as when input arrives.
  void Refill(Worker& worker) {
    const uint64_t rounds = std::min<uint64_t>(round_ - worker.round_, 1 << 20);
    worker.round_ = round_;
    worker.credit_ =
        std::min(worker.credit_ + static_cast<int64_t>(rounds) * kTurnUnits, kTurnUnits);
  }

  // Queues `worker` for a turn behind all others. No effect if it is queued.
  void Add(Worker& worker) {
    if (worker.queued()) return;
    worker.queue_ = this;
    worker.next_ = nullptr;
    worker.previous_ = last_;
    (last_ != nullptr ? last_->next_ : first_) = &worker;
    last_ = &worker;
    ++size_;
  }

  // Gives turns to workers that are queued and have credit. Calls after_turn() after each.
  template <typename AfterTurn>
  void RunTurns(AfterTurn after_turn) {
    if (left_ == 0) left_ = size_;
    for (size_t turns = 0; left_ > 0 && first_ != nullptr && turns < kTurnsPerIteration; --left_) {
      Worker& worker = *first_;
      Remove(worker);
      Refill(worker);
      if (!worker.has_credit()) {
        Add(worker);
        continue;
      }
      ++turns;
      worker.OnTurn();  // may destroy it and others
      after_turn();
    }
    if (first_ == nullptr) left_ = 0;
  }

 private:
  friend class Worker;

  void Remove(Worker& worker) {
    (worker.previous_ != nullptr ? worker.previous_->next_ : first_) = worker.next_;
    (worker.next_ != nullptr ? worker.next_->previous_ : last_) = worker.previous_;
    worker.queue_ = nullptr;
    --size_;
  }

  uint64_t round_ = 1;
  size_t left_ = 0;  // turns of the present round
  size_t size_ = 0;
  Worker* first_ = nullptr;
  Worker* last_ = nullptr;
};

inline void Worker::LeaveQueue() {
  if (queue_ != nullptr) queue_->Remove(*this);
}

}  // namespace sluice::net

#endif  // SLUICE_COMMON_NET_WORK_QUEUE_H_
