// GatheredCallers: the callers of one queue that wait to be sent, first come, first served. Finds
// those whose deadline has passed without looking at the others.
//
// A heap holds the deadlines. A caller that leaves in its turn leaves its deadline in the heap: to
// search for it would cost more than to ignore it later. When most deadlines are of callers that
// have left, the heap is built again.
#ifndef SLUICE_SERVER_STORE_REDIS_SHARD_GATHERED_CALLERS_H_
#define SLUICE_SERVER_STORE_REDIS_SHARD_GATHERED_CALLERS_H_

#include <algorithm>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <utility>
#include <vector>

#include "server/store/redis/commands/pending_acquires.h"
#include "server/store/store.h"

namespace sluice::store::redis {

// Not thread-safe. All its callers wait for an answer (Caller::pending is not null).
class GatheredCallers {
 public:
  // Deadlines that one TakeLate looks at, at most: each answer may cost a few microseconds.
  static constexpr size_t kLateAtOnce = 64;

  bool empty() const { return waiting_.empty(); }
  // REQUIRES: not empty().
  const Caller& front() const { return waiting_.front().caller; }

  void PushBack(const Caller& caller) {
    waiting_.push_back({caller, caller.pending->deadline_ns});
    AddDeadline(caller, first_ + waiting_.size() - 1);
  }
  void PushFront(const Caller& caller) {
    waiting_.push_front({caller, caller.pending->deadline_ns});
    AddDeadline(caller, --first_);
  }
  // REQUIRES: not empty().
  void PopFront() {
    waiting_.pop_front();
    ++first_;
    Tidy();
  }

  // Takes callers whose deadlines are before now_ns. Some may be left: EarliestNs() is before
  // now_ns then.
  std::vector<Caller> TakeLate(int64_t now_ns) {
    std::vector<Caller> late;
    for (size_t i = 0; i < kLateAtOnce && EarliestNs() < now_ns; ++i) {
      const uint64_t place = deadlines_.front().number - first_;
      std::pop_heap(deadlines_.begin(), deadlines_.end(), std::greater<>());
      deadlines_.pop_back();
      if (place >= waiting_.size()) continue;  // it has left
      Waiting& found = waiting_[place];
      // After PushFront it may be another caller.
      if (found.taken() || found.deadline_ns >= now_ns) continue;
      late.push_back(std::exchange(found.caller, {}));
    }
    Tidy();
    return late;
  }
  // No caller has an earlier deadline. It may be of a caller that has left. kNoDeadline: no caller
  // has a deadline.
  int64_t EarliestNs() const { return deadlines_.empty() ? kNoDeadline : deadlines_.front().at_ns; }

  std::vector<Caller> TakeAll() {
    std::vector<Caller> all;
    for (const Waiting& one : waiting_) {
      if (!one.taken()) all.push_back(one.caller);
    }
    waiting_.clear();
    Tidy();
    return all;
  }

  // Whether `predicate` holds for the acquisitions of the callers in the first `places` places.
  template <typename Predicate>
  bool AllOfFirst(size_t places, Predicate predicate) const {
    const auto end =
        waiting_.begin() + static_cast<std::ptrdiff_t>(std::min(places, waiting_.size()));
    return std::all_of(waiting_.begin(), end, [&](const Waiting& one) {
      return one.taken() || predicate(*one.caller.acquisition);
    });
  }

 private:
  // The heap is built again when it has more deadlines than two for each place, and so many.
  static constexpr size_t kMoreDeadlines = 64;

  struct Waiting {
    // TakeLate took it. Its place stays, so that the others keep their numbers.
    bool taken() const { return caller.pending == nullptr; }

    Caller caller;
    int64_t deadline_ns;
  };
  struct Deadline {
    int64_t at_ns;
    uint64_t number;  // of the caller's place
    friend auto operator<=>(const Deadline&, const Deadline&) = default;
  };

  void AddDeadline(const Caller& caller, uint64_t number) {
    if (caller.pending->deadline_ns == kNoDeadline) return;
    deadlines_.push_back({caller.pending->deadline_ns, number});
    std::push_heap(deadlines_.begin(), deadlines_.end(), std::greater<>());
  }

  void Tidy() {
    while (!waiting_.empty() && waiting_.front().taken()) {
      waiting_.pop_front();
      ++first_;
    }
    if (waiting_.empty() || deadlines_.size() > 2 * waiting_.size() + kMoreDeadlines) BuildHeap();
  }

  void BuildHeap() {
    deadlines_.clear();
    for (size_t i = 0; i < waiting_.size(); ++i) {
      const Waiting& one = waiting_[i];
      if (one.taken() || one.deadline_ns == kNoDeadline) continue;
      deadlines_.push_back({one.deadline_ns, first_ + i});
    }
    std::make_heap(deadlines_.begin(), deadlines_.end(), std::greater<>());
  }

  std::deque<Waiting> waiting_;  // the first one is not taken
  uint64_t first_ = 0;           // number of the first place; numbers may wrap around
  std::vector<Deadline> deadlines_;
};

}  // namespace sluice::store::redis

#endif  // SLUICE_SERVER_STORE_REDIS_SHARD_GATHERED_CALLERS_H_
