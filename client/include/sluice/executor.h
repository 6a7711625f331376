// Executor: runs the functions that were submitted to a Throttler.
#ifndef SLUICE_EXECUTOR_H_
#define SLUICE_EXECUTOR_H_

#include <cstddef>
#include <functional>
#include <memory>

namespace sluice {

// Thread-safe.
class Executor {
 public:
  virtual ~Executor() = default;

  // Runs `fn` once, within the call or later, on any thread. A Throttler calls Execute in the order
  // in which its functions are to start; its calls do not overlap. `fn` does not throw. An executor
  // that shuts down may drop `fn`: the function's future is then CANCELLED.
  virtual void Execute(std::function<void()> fn) = 0;
};

// Runs functions within Execute: on the thread that submits, or on the clock's. For short functions
// and for tests. A function delays the functions behind it until it returns.
class InlineExecutor final : public Executor {
 public:
  void Execute(std::function<void()> fn) override { fn(); }
};

// Runs functions on its own threads, which start when they are needed. With one thread functions
// run one after the other; with several they start in order and may overlap.
class ThreadExecutor final : public Executor {
 public:
  // REQUIRES: threads >= 1.
  explicit ThreadExecutor(size_t threads = 1);
  // Returns when all functions have run. One of its own threads may destroy it: that thread then
  // runs the remaining functions after the destructor.
  ~ThreadExecutor() override;

  void Execute(std::function<void()> fn) override;

 private:
  class Pool;
  const std::shared_ptr<Pool> pool_;
};

}  // namespace sluice

#endif  // SLUICE_EXECUTOR_H_
