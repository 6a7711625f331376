// WaitQueue: entries that wait for their grant times, in the order in which they are granted.
#ifndef SLUICE_COMMON_WAIT_QUEUE_H_
#define SLUICE_COMMON_WAIT_QUEUE_H_

#include <algorithm>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include "absl/container/btree_map.h"

namespace sluice::common {

// Entries are ordered by grant time, and by sequence number where grant times are equal. The owner
// chooses the clock, and sequence numbers that make each position unique.
//
// When an entry leaves, entries behind it may fit at an earlier grant time. NoteGap records the
// position that became free. NextBehindGap then returns the entries behind it one by one, so that
// the owner can try to move each of them up.
//
// Not thread-safe.
template <typename T>
class WaitQueue {
 public:
  static constexpr int64_t kNever = std::numeric_limits<int64_t>::max();

  struct Position {
    int64_t grant_time_ns = 0;
    uint64_t sequence = 0;
    friend auto operator<=>(const Position&, const Position&) = default;
  };
  using Entries = absl::btree_map<Position, T>;

  bool empty() const { return entries_.empty(); }
  size_t size() const { return entries_.size(); }
  const Entries& entries() const { return entries_; }

  void Insert(Position position, T value) { entries_.emplace(position, std::move(value)); }
  void Erase(Position position) { entries_.erase(position); }
  // REQUIRES: an entry at `from`.
  void Move(Position from, Position to) {
    const auto entry = entries_.find(from);
    T value = std::move(entry->second);
    entries_.erase(entry);
    Insert(to, std::move(value));
  }

  // Removes and returns the first entry if its grant time is at or before now_ns.
  std::optional<T> PopDue(int64_t now_ns) {
    if (entries_.empty() || entries_.begin()->first.grant_time_ns > now_ns) return std::nullopt;
    std::optional<T> value(std::move(entries_.begin()->second));
    entries_.erase(entries_.begin());
    return value;
  }

  // Removes and returns the entries whose grant times are after now_ns, in order.
  std::vector<T> TakeLaterThan(int64_t now_ns) {
    const auto first = entries_.upper_bound({now_ns, std::numeric_limits<uint64_t>::max()});
    std::vector<T> values;
    for (auto entry = first; entry != entries_.end(); ++entry) {
      values.push_back(std::move(entry->second));
    }
    entries_.erase(first, entries_.end());
    return values;
  }

  // Entries at or behind `gap` may move up. Only the first of several gaps is kept: it covers the
  // others.
  void NoteGap(Position gap) { gap_ = std::min(gap_, gap); }
  void ForgetGap() { gap_ = kNoGap; }
  bool has_gap() const { return gap_ != kNoGap; }

  // The next entry behind the gap, which then starts after that entry; null, and no gap, when none
  // is left. The pointers are valid until the queue changes.
  const typename Entries::value_type* NextBehindGap() {
    if (!has_gap()) return nullptr;
    const auto next = entries_.lower_bound(gap_);
    if (next == entries_.end()) {
      ForgetGap();
      return nullptr;
    }
    gap_ = {next->first.grant_time_ns, next->first.sequence + 1};
    return &*next;
  }

  // When the owner has to look at the queue next: at the first grant time, or at move_up_ns if that
  // is earlier and there is a gap. kNever if the queue is empty.
  int64_t NextWakeNs(int64_t move_up_ns) const {
    if (entries_.empty()) return kNever;
    const int64_t first_ns = entries_.begin()->first.grant_time_ns;
    return has_gap() ? std::min(first_ns, move_up_ns) : first_ns;
  }

 private:
  static constexpr Position kNoGap{kNever, std::numeric_limits<uint64_t>::max()};

  Entries entries_;
  Position gap_ = kNoGap;
};

}  // namespace sluice::common

#endif  // SLUICE_COMMON_WAIT_QUEUE_H_
