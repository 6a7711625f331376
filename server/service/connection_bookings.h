// ConnectionBookings: bounds and counts the bookings of one connection whose grant time is to come.
//
// A call takes a place before its decision, and gives it back when it is answered; what it booked
// then counts until its grant time, or until it is refunded over the same connection. A held call
// keeps its place. Bookings are counted by slots of their grant time, rounded up, which needs
// neither receipts nor a timer.
#ifndef SLUICE_SERVER_SERVICE_CONNECTION_BOOKINGS_H_
#define SLUICE_SERVER_SERVICE_CONNECTION_BOOKINGS_H_

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/container/btree_map.h"
#include "common/bounds.h"
#include "common/clock.h"
#include "common/mutex.h"
#include "server/service/remembered_room.h"

namespace sluice::service {

// Thread-safe: a held call may be answered by another thread. The connection owns it, and so do the
// calls that took a place. `store_ahead_ns`: how far the store's clock is ahead of the local one.
class ConnectionBookings : public std::enable_shared_from_this<ConnectionBookings> {
 public:
  explicit ConnectionBookings(size_t most = common::bounds::kMaxBookingsPerConnection)
      : most_(most) {}

  // Returns false if all places are taken. `left`: bookings that the store still takes, of which a
  // connection gets a third. Reads the clock, and forgets bookings whose grant time has passed,
  // only when the places seem to be taken.
  bool TakePlace(const common::Clock& clock, size_t left) {
    common::MutexLock lock(&mu_);
    const size_t most = std::min(most_, common::bounds::ThirdOf(left));
    if (places_ + booked_ >= most) ForgetPassed(clock.NowNs(), kForgottenAtOnce);
    if (places_ + booked_ >= most) return false;
    ++places_;
    return true;
  }
  void GiveBack(size_t places) {
    common::MutexLock lock(&mu_);
    places_ -= places;
  }

  // A booking of a call that still has its place. `grant_time_ns` is on the store's clock.
  void Add(int64_t grant_time_ns, int64_t store_ahead_ns) {
    common::MutexLock lock(&mu_);
    store_ahead_ns_ = store_ahead_ns;
    ++by_slot_[SlotOf(grant_time_ns)];
    ++booked_;
    slots_.store(by_slot_.size(), std::memory_order_relaxed);
  }
  // It was refunded.
  void Remove(int64_t grant_time_ns) {
    common::MutexLock lock(&mu_);
    const auto it = by_slot_.find(SlotOf(grant_time_ns));
    if (it == by_slot_.end()) return;  // its grant time has passed
    --booked_;
    if (--it->second > 0) return;
    by_slot_.erase(it);
    slots_.store(by_slot_.size(), std::memory_order_relaxed);
  }

  // Its grants that are remembered under request ids.
  ConnectionGrants& grants() {
    common::MutexLock lock(&mu_);
    if (grants_ == nullptr) grants_ = std::make_unique<ConnectionGrants>();
    return *grants_;
  }

  // Bookings whose grant time is to come, and places taken.
  size_t Count(const common::Clock& clock) {
    common::MutexLock lock(&mu_);
    ForgetPassed(clock.NowNs(), by_slot_.size());
    return places_ + booked_;
  }

  // Bytes of memory.
  size_t memory() const {
    return sizeof(*this) + slots_.load(std::memory_order_relaxed) * kSlotBytes;
  }
  // Forgets some of the bookings whose grant time has passed. Returns whether there are more. Costs
  // nothing if there are no bookings.
  bool ForgetSome(int64_t now_ns) {
    if (slots_.load(std::memory_order_relaxed) == 0) return false;
    common::MutexLock lock(&mu_);
    return ForgetPassed(now_ns, kForgottenAtOnce);
  }

 private:
  // 67 ms.
  static int64_t SlotOf(int64_t grant_time_ns) { return (grant_time_ns >> 26) + 1; }

  // Slots: a few microseconds of work.
  static constexpr size_t kForgottenAtOnce = 256;

  // A slot and its part of the tree's nodes, which are at least half full.
  static constexpr size_t kSlotBytes = 2 * sizeof(std::pair<int64_t, size_t>);

  // Returns whether more have passed than so many slots.
  bool ForgetPassed(int64_t now_ns, size_t slots) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    const int64_t now_slot = (now_ns + store_ahead_ns_) >> 26;
    auto end = by_slot_.begin();
    for (; slots > 0 && end != by_slot_.end() && end->first <= now_slot; ++end, --slots) {
      booked_ -= end->second;
    }
    by_slot_.erase(by_slot_.begin(), end);
    slots_.store(by_slot_.size(), std::memory_order_relaxed);
    return !by_slot_.empty() && by_slot_.begin()->first <= now_slot;
  }

  const size_t most_;
  common::Mutex mu_;
  size_t places_ ABSL_GUARDED_BY(mu_) = 0;
  size_t booked_ ABSL_GUARDED_BY(mu_) = 0;  // the sum of by_slot_
  int64_t store_ahead_ns_ ABSL_GUARDED_BY(mu_) = 0;
  absl::btree_map<int64_t, size_t> by_slot_ ABSL_GUARDED_BY(mu_);
  std::atomic<size_t> slots_{0};  // in by_slot_, written under mu_; relaxed: a count
  std::unique_ptr<ConnectionGrants> grants_ ABSL_GUARDED_BY(mu_);  // most connections need none
};

// The places that one call took at its connection. Not thread-safe.
class BookingPlaces {
 public:
  // Null: without a bound. The connection stays alive until the next Use; it is kept alive longer
  // if a place was taken.
  void Use(ConnectionBookings* connection) { connection_ = connection; }
  // Returns false if the connection has too many bookings.
  bool Take(const common::Clock& clock, size_t left) {
    if (bookings_ == nullptr) {
      if (connection_ == nullptr) return true;
      bookings_ = connection_->shared_from_this();
    }
    if (!bookings_->TakePlace(clock, left)) return false;
    ++taken_;
    return true;
  }
  // Null: without a bound.
  std::shared_ptr<ConnectionBookings> connection() const {
    return connection_ == nullptr ? nullptr : connection_->shared_from_this();
  }
  // Whether Take was called for a connection since GiveBack.
  bool in_use() const { return bookings_ != nullptr; }

  // As ConnectionBookings::Add. REQUIRES: in_use().
  void Book(int64_t grant_time_ns, int64_t store_ahead_ns) {
    bookings_->Add(grant_time_ns, store_ahead_ns);
  }
  void GiveBack() {
    bookings_->GiveBack(std::exchange(taken_, 0));
    bookings_.reset();
  }

 private:
  ConnectionBookings* connection_ = nullptr;
  std::shared_ptr<ConnectionBookings> bookings_;  // null: no place was asked for
  size_t taken_ = 0;
};

}  // namespace sluice::service

#endif  // SLUICE_SERVER_SERVICE_CONNECTION_BOOKINGS_H_
