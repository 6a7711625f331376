// Executor: where a Throttler runs what was submitted to it.
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

  // Runs `fn` once, within the call or later, on any thread. A Throttler calls it in the order in
  // which its functions are to start, never twice at a time. `fn` does not throw. An executor that
  // is shutting down may drop it: the function's future then answers CANCELLED.
  virtual void Execute(std::function<void()> fn) = 0;
};

// Runs within the call: on the thread that submits, or on the clock's. For functions that are
// short, and for tests. What waits behind a function waits until it has ended.
class InlineExecutor final : public Executor {
 public:
  void Execute(std::function<void()> fn) override { fn(); }
};

// Threads of its own, started with the first function. With one thread functions run one after the
// other; with several they start in order and may overlap.
class ThreadExecutor final : public Executor {
 public:
  // REQUIRES: threads >= 1.
  explicit ThreadExecutor(size_t threads = 1);
  // Runs what was given to it, then returns. A thread of its own may destroy it: that one goes on
  // by itself until all is run.
  ~ThreadExecutor() override;

  void Execute(std::function<void()> fn) override;

 private:
  class Pool;
  const std::shared_ptr<Pool> pool_;
};

}  // namespace sluice

#endif  // SLUICE_EXECUTOR_H_
