// PerThread<T>: one T per thread, so that counting needs no lock and no shared cache line. A reader
// visits all of them.
//
// A thread owns its T while it lives. When it ends, the T keeps its content and goes to the next
// new thread. So there are at most as many as threads that ever ran at one time, and sums over all
// of them never fall.
//
// Readers (ForEach) read T's members while the owner writes them: make them atomics with relaxed
// loads and stores, or guard them by a lock in T.
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
  // `make` builds a new T, on the thread that needs it and under no lock.
  explicit PerThread(std::function<std::unique_ptr<T>()> make =
                         [] { return std::make_unique<T>(); })
      : pool_(std::make_shared<Pool>()), make_(std::move(make)) {}
  PerThread(const PerThread&) = delete;
  PerThread& operator=(const PerThread&) = delete;

  // The calling thread's T. After the first time it costs two loads and a compare.
  T& Local() {
    Last& last = ThreadLast();
    if (last.serial == pool_->serial) return *last.value;
    return Slow(last);
  }

  // Visits every T, also those without a thread. New threads wait meanwhile.
  template <typename Visit>
  void ForEach(Visit visit) const {
    MutexLock lock(&pool_->mu);
    for (const std::unique_ptr<T>& value : pool_->all) visit(*value);
  }

 private:
  struct Pool {
    // Never 0 and never reused, so a thread's record of a destroyed PerThread matches no other.
    const uint64_t serial = NextSerial();
    Mutex mu;
    std::vector<std::unique_ptr<T>> all ABSL_GUARDED_BY(mu);
    std::vector<T*> without_thread ABSL_GUARDED_BY(mu);
  };

  // The T that the thread used last.
  struct Last {
    uint64_t serial;
    T* value;
  };

  // All T of a thread; returned to their pools when it ends.
  struct Owned {
    struct One {
      uint64_t serial;
      std::weak_ptr<Pool> pool;
      T* value;
    };
    std::vector<One> ones;
    ~Owned() {
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
    static thread_local Owned owned;
    for (const auto& one : owned.ones) {
      if (one.serial == pool_->serial) {
        last = {one.serial, one.value};
        return *one.value;
      }
    }
    std::erase_if(owned.ones, [](const auto& one) { return one.pool.expired(); });
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
    owned.ones.push_back({pool_->serial, pool_, value});
    last = {pool_->serial, value};
    return *value;
  }

  const std::shared_ptr<Pool> pool_;
  const std::function<std::unique_ptr<T>()> make_;
};

}  // namespace sluice::common

#endif  // SLUICE_COMMON_PER_THREAD_H_
