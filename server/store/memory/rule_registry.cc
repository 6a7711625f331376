#include "server/store/memory/rule_registry.h"

#include <utility>

#include "server/store/memory/pages.h"

namespace sluice::store::memory {

// Mapped memory is zero, so all pointers are null.
RuleRegistry::RuleRegistry(EpochDomain& epochs, uint8_t kind, TableRoom& room)
    : epochs_(epochs),
      kind_(kind),
      room_(room),
      pages_(
          reinterpret_cast<std::atomic<Page*>*>(MapChunks(kPages * sizeof(std::atomic<Page*>)))) {}

RuleRegistry::~RuleRegistry() {
  common::MutexLock lock(&mu_);
  for (uint32_t id : ids_) delete Find(id);
  for (size_t i = 0; i < kPages && memory_bytes_.load(std::memory_order_relaxed) > 0; ++i) {
    Page* page = pages_[i].load(std::memory_order_relaxed);
    if (page == nullptr) continue;
    memory_bytes_.fetch_sub(sizeof(Page), std::memory_order_relaxed);
    delete page;
  }
  UnmapChunks(reinterpret_cast<char*>(pages_), kPages * sizeof(std::atomic<Page*>));
}

void RuleRegistry::Add(std::shared_ptr<const Rule> rule) {
  const uint32_t id = rule->id;
  common::MutexLock lock(&mu_);
  if (Entry* const known = Find(id); known != nullptr) {
    NoteHeld(*known);
    return;
  }
  std::atomic<Page*>& page = pages_[id >> kPageBits];
  if (page.load(std::memory_order_relaxed) == nullptr) {
    Page* const made = new Page;
    page.store(made, std::memory_order_release);
    memory_bytes_.fetch_add(sizeof(Page), std::memory_order_relaxed);
  }
  Entry* entry = new Entry;
  entry->part = room_.Join(*rule);
  entry->rule = std::move(rule);
  ids_.push_back(id);
  page.load(std::memory_order_relaxed)
      ->entries[id & (kPageEntries - 1)]
      .store(entry, std::memory_order_release);
}

void RuleRegistry::NoteHeld(Entry& entry) {
  // Operations hold the rules that they name, through their snapshot of the limits. So a rule that
  // only the registry holds is not needed again.
  const bool held = entry.rule.use_count() > 1;
  if (held != entry.held) room_.SetHeld(*entry.part, *entry.rule, held);
  entry.held = held;
}

void RuleRegistry::Collect(size_t most) {
  common::MutexLock lock(&mu_);
  for (; most > 0 && !ids_.empty(); --most) {
    if (collect_next_ >= ids_.size()) collect_next_ = 0;
    const uint32_t id = ids_[collect_next_];
    Entry* entry = Find(id);
    NoteHeld(*entry);
    if (entry->held || entry->buckets.load(std::memory_order_acquire) > 0) {
      ++collect_next_;
      continue;
    }
    pages_[id >> kPageBits]
        .load(std::memory_order_relaxed)
        ->entries[id & (kPageEntries - 1)]
        .store(nullptr, std::memory_order_release);
    room_.Leave(*entry->part);
    ids_[collect_next_] = ids_.back();
    ids_.pop_back();
    epochs_.Retire(kind_, reinterpret_cast<uintptr_t>(entry));
  }
}

}  // namespace sluice::store::memory
