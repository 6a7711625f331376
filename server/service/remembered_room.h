// RememberedRoom: bounds how many grants are remembered under request ids (store/once.h), in all,
// for each limit, client and connection, whatever the store.
//
// A limit or a client may have as many as are left for all, a connection a third of that. So one
// limit alone gets half, one connection alone a quarter; and however many of them take all that
// they may, some is left for the next one.
//
// Grants are counted for a minute in slots of their time. So a count needs no list of them and no
// timer, and the store need not say when it forgets one.
#ifndef SLUICE_SERVER_SERVICE_REMEMBERED_ROOM_H_
#define SLUICE_SERVER_SERVICE_REMEMBERED_ROOM_H_

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "common/bounds.h"
#include "common/mutex.h"
#include "server/store/once.h"

namespace sluice::service {

// Grants of the last minute. Not thread-safe. Times may step back by less than a slot.
class RecentGrants {
 public:
  // Returns false if there are `most` already.
  bool Add(int64_t now_ns, size_t most) {
    Forget(now_ns);
    if (count_ >= most) return false;
    ++count_;
    ++slots_[Place(now_ns)];
    return true;
  }
  // One that was added at `added_ns`.
  void Remove(int64_t added_ns) {
    if (newest_ - (added_ns >> kSlotBits) >= static_cast<int64_t>(kSlots)) return;  // forgotten
    --slots_[Place(added_ns)];
    --count_;
  }
  size_t Count(int64_t now_ns) {
    Forget(now_ns);
    return count_;
  }

 private:
  // 4.3 s. A grant counts for as long as the store remembers it, and for up to 9 s more.
  static constexpr int kSlotBits = 32;
  static constexpr size_t kSlots = 16;
  static_assert(static_cast<int64_t>(kSlots - 1) << kSlotBits >= store::kRememberNs);

  static size_t Place(int64_t ns) { return static_cast<size_t>(ns >> kSlotBits) % kSlots; }

  void Forget(int64_t now_ns) {
    const int64_t now = now_ns >> kSlotBits;
    newest_ = std::max(newest_, now - static_cast<int64_t>(kSlots));
    while (newest_ < now) {
      uint32_t& passed = slots_[static_cast<size_t>(++newest_) % kSlots];
      count_ -= passed;
      passed = 0;
    }
  }

  std::array<uint32_t, kSlots> slots_ = {};
  size_t count_ = 0;  // the sum of slots_
  int64_t newest_ = 0;
};

// Of one connection. Thread-safe: a call may be answered by another thread.
class ConnectionGrants {
 public:
  bool Take(int64_t now_ns, size_t most) {
    common::MutexLock lock(&mu_);
    return grants_.Add(now_ns, most);
  }
  void GiveBack(int64_t taken_ns) {
    common::MutexLock lock(&mu_);
    grants_.Remove(taken_ns);
  }

 private:
  common::Mutex mu_;
  RecentGrants grants_ ABSL_GUARDED_BY(mu_);
};

// Of the process. Thread-safe.
class RememberedRoom {
 public:
  explicit RememberedRoom(size_t most = common::bounds::kMaxRememberedGrants) : most_(most) {}

  // Whose grant it is. `client` is only compared; null: there are no clients.
  struct Owner {
    uint32_t limit_id = 0;
    const void* client = nullptr;
  };

  // Takes the place of one grant, in all, of its owner and in its connection (null: without a
  // bound). Returns false if one of them is full.
  bool Take(const Owner& owner, ConnectionGrants* connection, int64_t now_ns) {
    common::MutexLock lock(&mu_);
    const size_t left = most_ - all_.Count(now_ns);
    if (connection != nullptr && !connection->Take(now_ns, common::bounds::ThirdOf(left))) {
      return false;
    }
    if (TakeForOwner(owner, left, now_ns)) return true;
    if (connection != nullptr) connection->GiveBack(now_ns);
    return false;
  }
  // `taken_ns`: of Take.
  void GiveBack(const Owner& owner, ConnectionGrants* connection, int64_t taken_ns) {
    if (connection != nullptr) connection->GiveBack(taken_ns);
    common::MutexLock lock(&mu_);
    all_.Remove(taken_ns);
    limits_.Remove(owner.limit_id, taken_ns);
    clients_.Remove(owner.client, taken_ns);
  }

 private:
  // Of all limits, or of all clients.
  template <typename Key>
  class GrantsBy {
   public:
    bool Add(Key key, int64_t now_ns, size_t most) {
      if (of_.size() >= prune_at_) {
        absl::erase_if(of_, [&](auto& one) { return one.second.Count(now_ns) == 0; });
        prune_at_ = std::max(kPruneAt, 2 * of_.size());
      }
      return of_[key].Add(now_ns, most);
    }
    void Remove(Key key, int64_t taken_ns) {
      if (const auto one = of_.find(key); one != of_.end()) one->second.Remove(taken_ns);
    }

   private:
    static constexpr size_t kPruneAt = 1024;
    absl::flat_hash_map<Key, RecentGrants> of_;
    size_t prune_at_ = kPruneAt;
  };

  bool TakeForOwner(const Owner& owner, size_t left, int64_t now_ns)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    if (!all_.Add(now_ns, most_)) return false;
    if (limits_.Add(owner.limit_id, now_ns, left)) {
      if (owner.client == nullptr || clients_.Add(owner.client, now_ns, left)) {
        return true;
      }
      limits_.Remove(owner.limit_id, now_ns);
    }
    all_.Remove(now_ns);
    return false;
  }

  const size_t most_;
  common::Mutex mu_;
  RecentGrants all_ ABSL_GUARDED_BY(mu_);
  GrantsBy<uint32_t> limits_ ABSL_GUARDED_BY(mu_);
  GrantsBy<const void*> clients_ ABSL_GUARDED_BY(mu_);
};

}  // namespace sluice::service

#endif  // SLUICE_SERVER_SERVICE_REMEMBERED_ROOM_H_
