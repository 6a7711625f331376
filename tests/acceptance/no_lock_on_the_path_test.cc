// Non-locking throttle: no caller waits for a lock. The test counts every lock of a mutex and every
// allocation of each thread.
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <pthread.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <new>
#include <thread>
#include <vector>

#include "sluice/embedded.h"
#include "sluice/throttler.h"

// gcc 12 at -O1 does not see that the operators new and delete below match.
#pragma GCC diagnostic ignored "-Wmismatched-new-delete"

namespace {
thread_local uint64_t locks = 0;
thread_local uint64_t allocations = 0;
}  // namespace

extern "C" int pthread_mutex_lock(pthread_mutex_t* mutex) noexcept {
  using Lock = int (*)(pthread_mutex_t*);
  static std::atomic<Lock> real{nullptr};
  Lock lock = real.load(std::memory_order_relaxed);
  if (lock == nullptr) {
    lock = reinterpret_cast<Lock>(dlsym(RTLD_NEXT, "pthread_mutex_lock"));
    real.store(lock, std::memory_order_relaxed);
  }
  ++locks;
  return lock(mutex);
}

void* operator new(std::size_t size) {
  ++allocations;
  if (void* memory = std::malloc(size); memory != nullptr) return memory;
  throw std::bad_alloc();
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }

namespace sluice::acceptance {
namespace {

using std::chrono::nanoseconds;
using std::chrono::seconds;

struct Counts {
  uint64_t locks = 0;
  uint64_t allocations = 0;
};

template <typename Fn>
Counts CountsOf(const Fn& fn) {
  const Counts before{locks, allocations};
  fn();
  return {locks - before.locks, allocations - before.allocations};
}

TEST(NonLockingThrottle, CountsLocksAndAllocations) {
  pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
  const Counts counts = CountsOf([&] {
    pthread_mutex_lock(&mutex);
    pthread_mutex_unlock(&mutex);
    ::operator delete(::operator new(1));
  });
  EXPECT_EQ(counts.locks, 1u);
  EXPECT_EQ(counts.allocations, 1u);
}

// Eight threads run functions, try and are denied on one bucket.
TEST(NonLockingThrottle, TakesNoLockAndAllocatesNothingOnThePath) {
  const auto embedded =
      Embedded::Create({{.name = "calls", .rate = {1'000'000, seconds(1)}, .burst = 1'000'000},
                        {.name = "scarce", .rate = {1, seconds(3600)}}})
          .value();
  const Throttler throttler = Throttler::Create(embedded, {.limit = "calls"}).value();
  const ThrottlerChannel scarce = throttler.Channel("scarce").value();
  ASSERT_TRUE(throttler.Start().ok());
  ASSERT_TRUE(scarce.Start().ok());
  std::atomic<uint64_t> all_locks{0};
  std::atomic<uint64_t> all_allocations{0};
  std::atomic<int> ran{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back([&] {
      // A thread's first call registers it with the store and the limit table.
      static_cast<void>(throttler.TryStart());
      const Counts counts = CountsOf([&] {
        for (int k = 0; k < 20'000; ++k) {
          static_cast<void>(throttler.Run([&] { ran.fetch_add(1, std::memory_order_relaxed); }));
          static_cast<void>(throttler.TryRun([&] { ran.fetch_add(1, std::memory_order_relaxed); }));
          static_cast<void>(scarce.TryStart());
        }
      });
      all_locks.fetch_add(counts.locks);
      all_allocations.fetch_add(counts.allocations);
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(ran.load(), 2 * 8 * 20'000);
  EXPECT_EQ(all_locks.load(), 0u);
  EXPECT_EQ(all_allocations.load(), 0u);
}

}  // namespace
}  // namespace sluice::acceptance
