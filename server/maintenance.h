// Maintenance: a thread that does the store's housekeeping, also while no requests arrive, returns
// memory to the system, and begins the periods in which top keys are counted.
#ifndef SLUICE_SERVER_MAINTENANCE_H_
#define SLUICE_SERVER_MAINTENANCE_H_

#include <malloc.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "common/clock.h"
#include "common/memory_account.h"
#include "common/memory_limit.h"
#include "common/mutex.h"
#include "server/limits/limit_registry.h"
#include "server/service/key_usage.h"
#include "server/store/store.h"

namespace sluice {

// Runs from its construction to its destruction. The arguments outlive it.
class Maintenance {
 public:
  // `relieve` is called while `memory` is nearly over its limit.
  Maintenance(store::Store& store, limits::LimitRegistry& registry,
              const common::MemoryBudget& memory, service::KeyUsage& usage,
              const common::Clock& clock, std::function<void()> relieve)
      : store_(store),
        registry_(registry),
        memory_(memory),
        usage_(usage),
        clock_(clock),
        relieve_(std::move(relieve)),
        thread_([this] { Loop(); }) {}
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
      usage_.Advance(clock_.NowNs(), clock_.WallNs());
      if (memory_.nearly_over()) relieve_();
      Trim();
      common::MutexLock lock(&mu_);
      if (!stop_) wake_.WaitFor(&mu_, std::chrono::milliseconds(more ? 1 : 100));
      if (stop_) return;
    }
  }

  // malloc keeps what was freed, in an area for each thread. After a burst, for instance of hostile
  // peers, the process would stay as large as it was then. Worthwhile: the accounts fell; or the
  // process has grown, be it for a burst that was too short to be seen in the accounts. At once if
  // it has grown much: what is free is scattered, and is hardly used again. Each trim is followed
  // by another: refunds of callers that left are not counted, and end a little later.
  void Trim() {
    constexpr int64_t kWorthwhileBytes = 4 << 20;
    constexpr int64_t kMuchBytes = 32 << 20;
    constexpr std::chrono::milliseconds kLookPause{100};
    constexpr std::chrono::seconds kPause{2};
    const auto now = std::chrono::steady_clock::now();
    const int64_t held = memory_.held();
    most_held_ = std::max(most_held_, held);
    if (now < looked_ + kLookPause) return;
    looked_ = now;
    const int64_t grown = common::ResidentBytes() - resident_;
    if (now < considered_ + kPause && grown < kMuchBytes) return;
    considered_ = now;
    const bool worthwhile = most_held_ - held >= kWorthwhileBytes || grown >= kWorthwhileBytes;
    if (!worthwhile && !trim_again_) return;
    malloc_trim(0);
    trim_again_ = worthwhile;
    most_held_ = held;
    resident_ = common::ResidentBytes();
  }

  store::Store& store_;
  limits::LimitRegistry& registry_;
  const common::MemoryBudget& memory_;
  service::KeyUsage& usage_;
  const common::Clock& clock_;
  const std::function<void()> relieve_;
  int64_t most_held_ = 0;                             // since the last trim
  int64_t resident_ = 0;                              // behind the last trim
  std::chrono::steady_clock::time_point looked_;      // how much the process has grown
  std::chrono::steady_clock::time_point considered_;  // whether to trim
  bool trim_again_ = false;
  common::Mutex mu_;
  common::CondVar wake_;
  bool stop_ ABSL_GUARDED_BY(mu_) = false;
  std::thread thread_;  // last: it uses the members above
};

}  // namespace sluice

#endif  // SLUICE_SERVER_MAINTENANCE_H_
