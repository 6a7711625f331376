// Runs the same function on several threads that start together.
#ifndef SLUICE_TESTS_SUPPORT_THREADS_H_
#define SLUICE_TESTS_SUPPORT_THREADS_H_

#include <atomic>
#include <thread>
#include <vector>

namespace sluice::test_support {

// A reusable barrier for `threads` threads.
class Barrier {
 public:
  explicit Barrier(int threads) : threads_(threads) {}
  void Wait() {
    const int round = round_.load(std::memory_order_acquire);
    if (waiting_.fetch_add(1, std::memory_order_acq_rel) == threads_ - 1) {
      waiting_.store(0, std::memory_order_relaxed);
      round_.store(round + 1, std::memory_order_release);
      return;
    }
    while (round_.load(std::memory_order_acquire) == round) std::this_thread::yield();
  }

 private:
  const int threads_;
  std::atomic<int> waiting_{0};
  std::atomic<int> round_{0};
};

// Calls function(index) on each thread, and returns when all have returned.
template <typename Function>
void RunThreads(int threads, Function function) {
  Barrier start(threads);
  std::vector<std::thread> running;
  for (int i = 0; i < threads; ++i) {
    running.emplace_back([&, i] {
      start.Wait();
      function(i);
    });
  }
  for (std::thread& thread : running) thread.join();
}

}  // namespace sluice::test_support

#endif  // SLUICE_TESTS_SUPPORT_THREADS_H_
