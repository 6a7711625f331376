// Maintenance: a thread that does the store's housekeeping, also while no requests arrive.
#ifndef SLUICE_SERVER_MAINTENANCE_H_
#define SLUICE_SERVER_MAINTENANCE_H_

#include <chrono>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "common/mutex.h"
#include "server/limits/limit_registry.h"
#include "server/store/store.h"

namespace sluice {

// Runs from its construction to its destruction. Both arguments outlive it.
class Maintenance {
 public:
  Maintenance(store::Store& store, limits::LimitRegistry& registry)
      : store_(store), registry_(registry), thread_([this] { Loop(); }) {}
  ~Maintenance() {
    {
      common::MutexLock lock(&mu_);
      stop_ = true;
      wake_.SignalAll();
    }
    thread_.join();
  }
  Maintenance(const Maintenance&) = delete;
  Maintenance& operator=(const Maintenance&) = delete;

 private:
  void Loop() {
    while (true) {
      const bool more = store_.Maintain();
      registry_.ReleaseRetired();
      common::MutexLock lock(&mu_);
      if (!stop_) wake_.WaitFor(&mu_, std::chrono::milliseconds(more ? 1 : 100));
      if (stop_) return;
    }
  }

  store::Store& store_;
  limits::LimitRegistry& registry_;
  common::Mutex mu_;
  common::CondVar wake_;
  bool stop_ ABSL_GUARDED_BY(mu_) = false;
  std::thread thread_;  // last: it uses the members above
};

}  // namespace sluice

#endif  // SLUICE_SERVER_MAINTENANCE_H_
