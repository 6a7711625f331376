#include "server/store/memory/epoch.h"

#include <algorithm>
#include <limits>
#include <vector>

namespace sluice::store::memory {
namespace {

// Retirements between two attempts to free.
constexpr size_t kReclaimEvery = 128;

std::atomic<uint64_t> next_domain_id{1};

}  // namespace

thread_local uint64_t EpochDomain::cached_domain_ = 0;
thread_local EpochDomain::Slot* EpochDomain::cached_slot_ = nullptr;

// The slots that a thread holds, in all domains that it ever used; gives them back at its end.
struct EpochDomain::ThreadSlots {
  struct Held {
    uint64_t domain;
    std::shared_ptr<Slots> slots;
    Slot* slot;
  };
  ~ThreadSlots() {
    cached_domain_ = 0;
    for (const Held& h : held) h.slot->taken.store(false, std::memory_order_release);
  }
  std::vector<Held> held;
};

EpochDomain::Slots::~Slots() {
  for (Slot* slot = head.load(std::memory_order_acquire); slot != nullptr;) {
    Slot* next = slot->next;
    delete slot;
    slot = next;
  }
}

EpochDomain::Slot* EpochDomain::Slots::Take() {
  for (Slot* slot = head.load(std::memory_order_acquire); slot != nullptr; slot = slot->next) {
    bool free = false;
    if (slot->taken.compare_exchange_strong(free, true, std::memory_order_acq_rel)) return slot;
  }
  Slot* slot = new Slot;
  slot->taken.store(true, std::memory_order_relaxed);
  slot->next = head.load(std::memory_order_relaxed);
  while (!head.compare_exchange_weak(slot->next, slot, std::memory_order_seq_cst)) {
  }
  return slot;
}

EpochDomain::EpochDomain(FreeFunction free, void* context)
    : id_(next_domain_id.fetch_add(1, std::memory_order_relaxed)),
      free_(free),
      context_(context),
      slots_(std::make_shared<Slots>()) {}

EpochDomain::~EpochDomain() {
  slots_->closed.store(true, std::memory_order_release);
  while (Reclaim(std::numeric_limits<size_t>::max()) != 0) {
  }
}

EpochDomain::Slot* EpochDomain::FindSlot() {
  static thread_local ThreadSlots mine;
  auto found = std::find_if(mine.held.begin(), mine.held.end(),
                            [&](const auto& held) { return held.domain == id_; });
  if (found == mine.held.end()) {
    // Forget the domains that are gone.
    std::erase_if(mine.held, [](const auto& held) {
      return held.slots->closed.load(std::memory_order_acquire);
    });
    mine.held.push_back({id_, slots_, slots_->Take()});
    found = mine.held.end() - 1;
  }
  cached_domain_ = id_;
  cached_slot_ = found->slot;
  return cached_slot_;
}

void EpochDomain::Retire(uint8_t kind, uint64_t object) {
  bool reclaim;
  {
    common::MutexLock lock(&mu_);
    // Releases the unlinking to threads that read a later epoch.
    const uint64_t epoch = epoch_.fetch_add(1, std::memory_order_seq_cst);
    retired_.push_back({epoch, object, kind});
    pending_.store(retired_.size(), std::memory_order_relaxed);
    reclaim = retired_.size() % kReclaimEvery == 0;
  }
  if (reclaim) Reclaim(2 * kReclaimEvery);
}

size_t EpochDomain::Reclaim(size_t most) {
  size_t left = 0;
  while (most > 0) {
    Retired batch[kReclaimEvery];
    size_t count = 0;
    {
      common::MutexLock lock(&mu_);
      if (retired_.empty()) return 0;
      // Readers that enter from here on see all unlinked that is in the list.
      std::atomic_thread_fence(std::memory_order_seq_cst);
      uint64_t oldest = std::numeric_limits<uint64_t>::max();
      for (Slot* slot = slots_->head.load(std::memory_order_seq_cst); slot != nullptr;
           slot = slot->next) {
        const uint64_t epoch = slot->epoch.load(std::memory_order_seq_cst);
        if (epoch != kIdle) oldest = std::min(oldest, epoch);
      }
      while (count < std::min(most, kReclaimEvery) && !retired_.empty() &&
             retired_.front().epoch < oldest) {
        batch[count++] = retired_.front();
        retired_.pop_front();
      }
      left = retired_.size();
      pending_.store(left, std::memory_order_relaxed);
    }
    for (size_t i = 0; i < count; ++i) free_(context_, batch[i].kind, batch[i].object);
    if (count == 0) break;
    most -= count;
  }
  return left;
}

}  // namespace sluice::store::memory
