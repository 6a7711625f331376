#include "server/store/memory/rule_registry.h"

#include <sys/mman.h>

#include <new>
#include <utility>

#include "server/store/memory/leak_check.h"

namespace sluice::store::memory {

RuleRegistry::Pages::Pages() {
  void* mapped = mmap(nullptr, kPages * sizeof(std::atomic<Page*>), PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapped == MAP_FAILED) throw std::bad_alloc();
  // Fresh pages are zero, which is what a null atomic pointer is.
  pages = static_cast<std::atomic<Page*>*>(mapped);
}

RuleRegistry::Pages::~Pages() { munmap(pages, kPages * sizeof(std::atomic<Page*>)); }

RuleRegistry::~RuleRegistry() {
  common::MutexLock lock(&mu_);
  for (uint32_t id : ids_) delete Find(id);
  for (size_t i = 0; i < kPages && memory_bytes_.load(std::memory_order_relaxed) > 0; ++i) {
    Page* page = pages_[i].load(std::memory_order_relaxed);
    if (page == nullptr) continue;
    memory_bytes_.fetch_sub(sizeof(Page), std::memory_order_relaxed);
    delete page;
  }
}

void RuleRegistry::Add(std::shared_ptr<const Rule> rule) {
  const uint32_t id = rule->id;
  common::MutexLock lock(&mu_);
  if (Find(id) != nullptr) return;
  std::atomic<Page*>& page = pages_[id >> kPageBits];
  if (page.load(std::memory_order_relaxed) == nullptr) {
    Page* const made = new Page;
    IsReferredTo(made);
    page.store(made, std::memory_order_release);
    memory_bytes_.fetch_add(sizeof(Page), std::memory_order_relaxed);
  }
  Entry* entry = new Entry;
  entry->rule = std::move(rule);
  ids_.push_back(id);
  page.load(std::memory_order_relaxed)
      ->entries[id & (kPageEntries - 1)]
      .store(entry, std::memory_order_release);
}

void RuleRegistry::Collect(size_t most) {
  common::MutexLock lock(&mu_);
  for (; most > 0 && !ids_.empty(); --most) {
    if (collect_next_ >= ids_.size()) collect_next_ = 0;
    const uint32_t id = ids_[collect_next_];
    Entry* entry = Find(id);
    // An operation that names the rule holds it, through its snapshot of the limits, so nobody can
    // come to need it again.
    if (entry->rule.use_count() > 1 || entry->buckets.load(std::memory_order_acquire) > 0) {
      ++collect_next_;
      continue;
    }
    pages_[id >> kPageBits]
        .load(std::memory_order_relaxed)
        ->entries[id & (kPageEntries - 1)]
        .store(nullptr, std::memory_order_release);
    ids_[collect_next_] = ids_.back();
    ids_.pop_back();
    epochs_.Retire(kind_, reinterpret_cast<uintptr_t>(entry));
  }
}

}  // namespace sluice::store::memory
