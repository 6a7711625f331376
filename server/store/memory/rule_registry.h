// RuleRegistry: finds the rules of a store's buckets by id, without a lock.
//
// A rule is kept while a bucket of it exists or another owner holds it. Collect frees the others,
// so that a service whose limits change every minute does not grow.
#ifndef SLUICE_SERVER_STORE_MEMORY_RULE_REGISTRY_H_
#define SLUICE_SERVER_STORE_MEMORY_RULE_REGISTRY_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "common/mutex.h"
#include "server/store/memory/epoch.h"
#include "server/store/memory/table_room.h"
#include "server/store/rule.h"

namespace sluice::store::memory {

// Thread-safe. Find never blocks.
class RuleRegistry {
 public:
  struct Entry {
    std::shared_ptr<const Rule> rule;
    std::atomic<uint64_t> buckets{0};
    // Of the rule's limit.
    std::shared_ptr<TableRoom::Part> part;
    bool held =
        true;  // whether another owner held the rule lately; guarded by the registry's mutex
  };

  // Entries that Collect unlinks are retired in `epochs` as `kind`; pass them to Free then.
  RuleRegistry(EpochDomain& epochs, uint8_t kind, TableRoom& room);
  ~RuleRegistry();
  RuleRegistry(const RuleRegistry&) = delete;
  RuleRegistry& operator=(const RuleRegistry&) = delete;

  // Does nothing if the id is registered.
  void Add(std::shared_ptr<const Rule> rule);

  // Null if the rule is not registered (any more). Valid while the caller is in a guard of
  // `epochs`, or a bucket of the rule is counted, or the caller holds the rule.
  Entry* Find(uint32_t id) const {
    const Page* page = pages_[id >> kPageBits].load(std::memory_order_acquire);
    return page == nullptr ? nullptr
                           : page->entries[id & (kPageEntries - 1)].load(std::memory_order_acquire);
  }

  // Looks at up to `most` rules, in turn: tells the room which limits are held, and forgets the
  // rules that are not needed.
  void Collect(size_t most);

  static void Free(uint64_t retired) { delete reinterpret_cast<Entry*>(retired); }

  uint64_t memory_bytes() const { return memory_bytes_.load(std::memory_order_relaxed); }

 private:
  static constexpr int kPageBits = 12;
  static constexpr size_t kPageEntries = size_t{1} << kPageBits;
  static constexpr size_t kPages = size_t{1} << (32 - kPageBits);

  struct Page {
    std::atomic<Entry*> entries[kPageEntries] = {};
  };

  void NoteHeld(Entry& entry) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  EpochDomain& epochs_;
  const uint8_t kind_;
  TableRoom& room_;
  // 8 MiB of address space; only what is used takes memory.
  std::atomic<Page*>* const pages_;
  std::atomic<uint64_t> memory_bytes_{0};
  common::Mutex mu_;
  std::vector<uint32_t> ids_ ABSL_GUARDED_BY(mu_);
  size_t collect_next_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace sluice::store::memory

#endif  // SLUICE_SERVER_STORE_MEMORY_RULE_REGISTRY_H_
