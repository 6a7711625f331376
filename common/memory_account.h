// MemoryBudget: the bytes that peers make the process hold, against one limit. MemoryPart: one
// thread's part of them.
#ifndef SLUICE_COMMON_MEMORY_ACCOUNT_H_
#define SLUICE_COMMON_MEMORY_ACCOUNT_H_

#include <atomic>
#include <cstdint>

namespace sluice::common {

// Thread-safe.
class MemoryBudget {
 public:
  explicit MemoryBudget(int64_t limit_bytes) : limit_(limit_bytes) {}
  MemoryBudget(const MemoryBudget&) = delete;
  MemoryBudget& operator=(const MemoryBudget&) = delete;

  int64_t limit() const { return limit_; }
  // What all threads have reported. Of each MemoryPart, less than a chunk is missing.
  int64_t held() const { return held_.load(std::memory_order_relaxed); }
  bool over() const { return held() > limit_; }
  // Whether less than an eighth is left: for the calls of connections that stay open.
  bool nearly_over() const { return excess() > 0; }
  // Bytes that are to be given back until an eighth is left.
  int64_t excess() const { return held() - (limit_ - limit_ / 8); }

 private:
  friend class MemoryPart;

  const int64_t limit_;
  // Relaxed: a count; it publishes no other data. On its own cache line: all loops read it, and
  // write it once for each chunk.
  alignas(64) std::atomic<int64_t> held_{0};
};

// Not thread-safe; one for each thread that counts. Reports to the budget in chunks, so that
// threads do not contend for it.
class MemoryPart {
 public:
  static constexpr int64_t kChunk = 64 << 10;

  // Null: the bytes are not counted. The budget outlives the part.
  explicit MemoryPart(MemoryBudget* budget) : budget_(budget) {}
  ~MemoryPart() { Report(); }
  MemoryPart(const MemoryPart&) = delete;
  MemoryPart& operator=(const MemoryPart&) = delete;

  // `bytes` is negative for memory that was given back.
  void Add(int64_t bytes) {
    unreported_ += bytes;
    if (unreported_ >= kChunk || unreported_ <= -kChunk) Report();
  }
  bool over() const { return budget_ != nullptr && budget_->over(); }

 private:
  void Report() {
    if (budget_ != nullptr) budget_->held_.fetch_add(unreported_, std::memory_order_relaxed);
    unreported_ = 0;
  }

  MemoryBudget* const budget_;
  int64_t unreported_ = 0;
};

}  // namespace sluice::common

#endif  // SLUICE_COMMON_MEMORY_ACCOUNT_H_
