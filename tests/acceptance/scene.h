// Scene: an embedded throttler on a virtual clock, with times counted from the start.
#ifndef SLUICE_TESTS_ACCEPTANCE_SCENE_H_
#define SLUICE_TESTS_ACCEPTANCE_SCENE_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "sluice/embedded.h"
#include "sluice/throttler.h"

namespace sluice::acceptance {

using std::chrono::hours;
using std::chrono::milliseconds;
using std::chrono::nanoseconds;
using std::chrono::seconds;

class Scene {
 public:
  explicit Scene(const std::vector<LimitInfo>& limits)
      : clock_(std::make_shared<VirtualClock>()),
        start_(clock_->Now()),
        embedded_(Embedded::Create(limits, {.clock = clock_}).value()) {}

  VirtualClock& clock() { return *clock_; }
  Embedded& embedded() { return *embedded_; }

  // Functions run within Advance, exactly at their grant times.
  Throttler MakeThrottler(const std::string& limit) {
    return Throttler::Create(embedded_, {.limit = limit,
                                         .executor = std::make_shared<InlineExecutor>(),
                                         .at_destruction = AtShutdown::kDrop})
        .value();
  }

  nanoseconds now() const { return clock_->Now() - start_; }
  void AdvanceTo(nanoseconds time) { clock_->Advance(time - now()); }

  // Runs `thread_main` on `threads` threads, which block only in `throttler`, and advances the
  // clock to the next timer whenever all of them wait.
  void RunThreads(const Throttler& throttler, size_t threads,
                  const std::function<void(size_t)>& thread_main) {
    std::atomic<size_t> ended{0};
    std::vector<std::thread> running;
    for (size_t i = 0; i < threads; ++i) {
      running.emplace_back([&, i] {
        thread_main(i);
        ended.fetch_add(1);
      });
    }
    while (ended.load() < threads) {
      const size_t alive = threads - ended.load();
      if (throttler.stats().waiting < alive || !clock_->AdvanceToNext()) std::this_thread::yield();
    }
    for (std::thread& thread : running) thread.join();
  }

 private:
  const std::shared_ptr<VirtualClock> clock_;
  const nanoseconds start_;
  const std::shared_ptr<Embedded> embedded_;
};

// A function that ran, and when.
struct Ran {
  int number = 0;
  nanoseconds at{0};
};

inline size_t RunBy(const std::vector<Ran>& ran, nanoseconds time) {
  return static_cast<size_t>(
      std::count_if(ran.begin(), ran.end(), [&](const Ran& one) { return one.at <= time; }));
}

inline std::vector<int> Numbers(const std::vector<Ran>& ran) {
  std::vector<int> numbers;
  for (const Ran& one : ran) numbers.push_back(one.number);
  return numbers;
}

}  // namespace sluice::acceptance

#endif  // SLUICE_TESTS_ACCEPTANCE_SCENE_H_
