// EpochDomain: frees memory that readers without locks may still use, once none of them can.
//
// A reader enters an EpochGuard before it reads shared pointers and leaves it after its last use
// of them. A writer first unlinks an object, then retires it. Each retirement takes the next
// number of a global counter; a reader's slot holds the counter as it was when the reader entered.
// An object retired as number e is freed once every slot is idle or holds more than e: a reader
// with a greater number entered after the object was unlinked and cannot have found it.
//
// Cost of a guard: one exchange on a cache line of the thread's own, and a store. A thread
// registers itself at its first guard and leaves its slot to others when it ends. Any number of
// threads may come and go.
#ifndef SLUICE_SERVER_STORE_MEMORY_EPOCH_H_
#define SLUICE_SERVER_STORE_MEMORY_EPOCH_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>

#include "common/mutex.h"

namespace sluice::store::memory {

// Thread-safe. REQUIRES: no thread is inside a guard when it is destroyed.
class EpochDomain {
 public:
  // What is retired: a word that says which object, and a kind for the free function.
  using FreeFunction = void (*)(void* context, uint8_t kind, uint64_t object);

  EpochDomain(FreeFunction free, void* context);
  // Frees all that is retired.
  ~EpochDomain();
  EpochDomain(const EpochDomain&) = delete;
  EpochDomain& operator=(const EpochDomain&) = delete;

  // Frees `object` some time after every guard that is held now has ended. Takes a mutex; may free
  // other objects. REQUIRES: a thread that enters a guard now can no longer find the object.
  void Retire(uint8_t kind, uint64_t object);

  // Frees at most `most` of what may be freed. Returns how many are left.
  size_t Reclaim(size_t most);

  size_t pending() const { return pending_.load(std::memory_order_relaxed); }

 private:
  friend class EpochGuard;

  static constexpr uint64_t kIdle = 0;

  // Written by its thread only; read by Reclaim.
  struct alignas(128) Slot {
    std::atomic<uint64_t> epoch{kIdle};
    std::atomic<bool> taken{false};
    Slot* next = nullptr;  // constant once the slot can be found
  };

  // Outlives the domain while a thread that registered lives.
  struct Slots {
    ~Slots();
    Slot* Take();
    std::atomic<Slot*> head{nullptr};
    std::atomic<bool> closed{false};
  };

  struct ThreadSlots;

  struct Retired {
    uint64_t epoch;
    uint64_t object;
    uint8_t kind;
  };

  Slot* MySlot() { return cached_domain_ == id_ ? cached_slot_ : FindSlot(); }
  Slot* FindSlot();

  // The slot of this thread in the domain that it used last. Ids are never reused.
  static thread_local uint64_t cached_domain_;
  static thread_local Slot* cached_slot_;

  const uint64_t id_;
  const FreeFunction free_;
  void* const context_;
  const std::shared_ptr<Slots> slots_;
  // Number of the next retirement; starts above kIdle.
  alignas(64) std::atomic<uint64_t> epoch_{1};
  std::atomic<size_t> pending_{0};
  common::Mutex mu_;
  std::deque<Retired> retired_ ABSL_GUARDED_BY(mu_);  // in the order of epochs
};

// While it lives nothing is freed that its thread may have found in it. Not to be nested.
class EpochGuard {
 public:
  explicit EpochGuard(EpochDomain& domain) : slot_(domain.MySlot()) {
    // The exchange is sequentially consistent: all later reads of this thread come after its slot
    // can be seen. So Reclaim either sees the slot, or the object was unlinked before these reads.
    slot_->epoch.exchange(domain.epoch_.load(std::memory_order_acquire), std::memory_order_seq_cst);
  }
  ~EpochGuard() { slot_->epoch.store(EpochDomain::kIdle, std::memory_order_release); }
  EpochGuard(const EpochGuard&) = delete;
  EpochGuard& operator=(const EpochGuard&) = delete;

 private:
  EpochDomain::Slot* const slot_;
};

}  // namespace sluice::store::memory

#endif  // SLUICE_SERVER_STORE_MEMORY_EPOCH_H_
