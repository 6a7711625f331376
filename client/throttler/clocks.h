// The machine's clock, for throttlers.
#ifndef SLUICE_CLIENT_THROTTLER_CLOCKS_H_
#define SLUICE_CLIENT_THROTTLER_CLOCKS_H_

#include <cstdint>
#include <functional>
#include <limits>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "server/common/clock.h"
#include "server/common/mutex.h"
#include "sluice/throttler.h"

namespace sluice {

// Of one owner; its thread sleeps until the next moment.
class SystemThrottleClock final : public ThrottleClock {
 public:
  SystemThrottleClock() : thread_([this] { Loop(); }) {}
  ~SystemThrottleClock() override;
  int64_t NowNs() const override { return clock_.NowNs(); }
  void WakeAt(const void* owner, int64_t at_ns, std::function<void()> wake) override;

 private:
  void Loop();

  common::SystemClock clock_;
  common::Mutex mu_;
  common::CondVar changed_;
  bool stop_ ABSL_GUARDED_BY(mu_) = false;
  bool running_ ABSL_GUARDED_BY(mu_) = false;
  int64_t at_ns_ ABSL_GUARDED_BY(mu_) = std::numeric_limits<int64_t>::max();
  std::function<void()> wake_ ABSL_GUARDED_BY(mu_);
  std::thread thread_;  // last: it uses all the others
};

}  // namespace sluice

#endif  // SLUICE_CLIENT_THROTTLER_CLOCKS_H_
