// PerThread<T>: one T for each thread that asks, so that counting needs no lock and no shared
// cache line; a reader visits all of them.
//
// A thread has its T to itself while it lives; at its end the T, with what it holds, waits for the
// next new thread. So there are at most as many as threads that ever ran at one time, and sums
// over all of them never fall.
//
// T's members must bear being read (ForEach) while the owner writes: atomics written with plain
// relaxed loads and stores, or a lock of T's own.
#ifndef SLUICE_COMMON_PER_THREAD_H_
#define SLUICE_COMMON_PER_THREAD_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "common/mutex.h"

namespace sluice::common {

// Thread-safe.
template <typename T>
class PerThread {
 public:
  // `make` builds a new T; called with no lock held by the caller's thread.
  explicit PerThread(std::function<std::unique_ptr<T>()> make =
                         [] { return std::make_unique<T>(); })
      : pool_(std::make_shared<Pool>()), make_(std::move(make)) {}
  PerThread(const PerThread&) = delete;
  PerThread& operator=(const PerThread&) = delete;

  // The calling thread's own. Two loads and a compare after the first time.
  T& Local() {
    Last& last = ThreadLast();
    if (last.serial == pool_->serial) return *last.value;
    return Slow(last);
  }

  // Visits each, those without a thread too. A lock keeps new threads out meanwhile.
  template <typename Visit>
  void ForEach(Visit visit) const {
    MutexLock lock(&pool_->mu);
    for (const std::unique_ptr<T>& value : pool_->all) visit(*value);
  }

 private:
  struct Pool {
    // Never 0, never used again: a thread's memory of a PerThread that is gone matches none.
    const uint64_t serial = NextSerial();
    Mutex mu;
    std::vector<std::unique_ptr<T>> all ABSL_GUARDED_BY(mu);
    std::vector<T*> without_thread ABSL_GUARDED_BY(mu);
  };

  // What the thread used last.
  struct Last {
    uint64_t serial;
    T* value;
  };

  // All that a thread has, given back at its end.
  struct Held {
    struct One {
      uint64_t serial;
      std::weak_ptr<Pool> pool;
      T* value;
    };
    std::vector<One> ones;
    ~Held() {
      for (One& one : ones) {
        if (const std::shared_ptr<Pool> pool = one.pool.lock()) {
          MutexLock lock(&pool->mu);
          pool->without_thread.push_back(one.value);
        }
      }
      ThreadLast() = Last{};
    }
  };

  static uint64_t NextSerial() {
    static std::atomic<uint64_t> next{1};  // relaxed: only uniqueness matters
    return next.fetch_add(1, std::memory_order_relaxed);
  }

  static Last& ThreadLast() {
    static constinit thread_local Last last{};
    return last;
  }

  T& Slow(Last& last) {
    static thread_local Held held;
    for (const auto& one : held.ones) {
      if (one.serial == pool_->serial) {
        last = {one.serial, one.value};
        return *one.value;
      }
    }
    std::erase_if(held.ones, [](const auto& one) { return one.pool.expired(); });
    T* value = nullptr;
    {
      MutexLock lock(&pool_->mu);
      if (!pool_->without_thread.empty()) {
        value = pool_->without_thread.back();
        pool_->without_thread.pop_back();
      }
    }
    if (value == nullptr) {
      std::unique_ptr<T> made = make_();
      value = made.get();
      MutexLock lock(&pool_->mu);
      pool_->all.push_back(std::move(made));
    }
    held.ones.push_back({pool_->serial, pool_, value});
    last = {pool_->serial, value};
    return *value;
  }

  const std::shared_ptr<Pool> pool_;
  const std::function<std::unique_ptr<T>()> make_;
};

}  // namespace sluice::common

#endif  // SLUICE_COMMON_PER_THREAD_H_
