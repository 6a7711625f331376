#include "sluice/executor.h"

#include <deque>
#include <thread>
#include <utility>
#include <vector>

#include "client/src/throttler/join_or_detach.h"
#include "common/mutex.h"

namespace sluice {

using common::MutexLock;

// Shared by the executor and its threads.
class ThreadExecutor::Pool : public std::enable_shared_from_this<Pool> {
 public:
  explicit Pool(size_t threads) : most_(threads) {}

  void Add(std::function<void()> fn) {
    MutexLock lock(&mu_);
    queue_.push_back(std::move(fn));
    // Threads start when they are needed.
    if (idle_ < queue_.size() && threads_.size() < most_) {
      threads_.emplace_back([self = shared_from_this()] { self->Loop(); });
    }
    changed_.Signal();
  }

  void Stop() {
    std::vector<std::thread> threads;
    {
      MutexLock lock(&mu_);
      stopped_ = true;
      changed_.SignalAll();
      threads.swap(threads_);
    }
    for (std::thread& thread : threads) JoinOrDetach(thread);
  }

 private:
  void Loop() {
    mu_.Lock();
    for (;;) {
      if (!queue_.empty()) {
        std::function<void()> fn = std::move(queue_.front());
        queue_.pop_front();
        mu_.Unlock();
        fn();
        fn = nullptr;
        mu_.Lock();
      } else if (stopped_) {
        break;
      } else {
        ++idle_;
        changed_.Wait(&mu_);
        --idle_;
      }
    }
    mu_.Unlock();
  }

  const size_t most_;
  common::Mutex mu_;
  common::CondVar changed_;
  std::deque<std::function<void()>> queue_ ABSL_GUARDED_BY(mu_);
  size_t idle_ ABSL_GUARDED_BY(mu_) = 0;
  bool stopped_ ABSL_GUARDED_BY(mu_) = false;
  std::vector<std::thread> threads_ ABSL_GUARDED_BY(mu_);
};

ThreadExecutor::ThreadExecutor(size_t threads) : pool_(std::make_shared<Pool>(threads)) {}
ThreadExecutor::~ThreadExecutor() { pool_->Stop(); }

void ThreadExecutor::Execute(std::function<void()> fn) { pool_->Add(std::move(fn)); }

}  // namespace sluice
