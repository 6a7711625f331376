// EmbeddedUseCases: the use cases of the server's data plane, over the limits and the store of an
// Embedded.
#ifndef SLUICE_CLIENT_SRC_EMBEDDED_USE_CASES_H_
#define SLUICE_CLIENT_SRC_EMBEDDED_USE_CASES_H_

#include <chrono>
#include <cstdint>
#include <memory>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "client/src/throttler/embedded_state.h"
#include "common/metrics.h"
#include "common/mutex.h"
#include "server/service/key_usage.h"
#include "server/service/rate_limiter.h"
#include "server/service/receipt.h"
#include "server/service/registry_rules.h"
#include "server/waiting/held_callers.h"
#include "sluice/clock.h"
#include "sluice/embedded.h"

namespace sluice::embedded_internal {

// Calls HeldCallers::Advance by one timer of the clock. Thread-safe.
class ClockAlarm final : public waiting::Alarm {
 public:
  // `embedded` keeps all of this alive, while a timer runs.
  ClockAlarm(std::weak_ptr<Embedded> embedded, Clock& clock)
      : embedded_(std::move(embedded)), clock_(clock) {}
  ~ClockAlarm() override {
    common::MutexLock lock(&mu_);
    clock_.Cancel(timer_);
  }

  // REQUIRES: before the first SetAt.
  void Use(waiting::HeldCallers* callers) { callers_ = callers; }

  void SetAt(int64_t at_ns) override {
    common::MutexLock lock(&mu_);
    if (at_ns >= at_ns_) return;
    // If it is running already, it finds another serial.
    clock_.Cancel(timer_);
    at_ns_ = at_ns;
    timer_ = clock_.RunAt(std::chrono::nanoseconds(at_ns),
                          [embedded = embedded_, this, serial = ++serial_] {
                            // Null: this was destroyed.
                            const std::shared_ptr<Embedded> alive = embedded.lock();
                            if (alive != nullptr) OnTimer(serial);
                          });
  }

 private:
  static constexpr int64_t kNever = waiting::HeldCallers::kNever;

  void OnTimer(uint64_t serial) {
    {
      common::MutexLock lock(&mu_);
      if (serial != serial_) return;
      at_ns_ = kNever;
    }
    const int64_t next_ns = callers_->Advance();
    if (next_ns != kNever) SetAt(next_ns);
  }

  const std::weak_ptr<Embedded> embedded_;
  Clock& clock_;
  waiting::HeldCallers* callers_ = nullptr;

  common::Mutex mu_;
  int64_t at_ns_ ABSL_GUARDED_BY(mu_) = kNever;
  uint64_t timer_ ABSL_GUARDED_BY(mu_) = 0;   // 0, or the last one
  uint64_t serial_ ABSL_GUARDED_BY(mu_) = 0;  // of the last one
};

// One for all connections of an Embedded, so that their callers stand in the same lines. Part of
// the state. Thread-safe.
class EmbeddedUseCases final : public throttler_internal::Attached {
 public:
  // Those of the Embedded; makes them for the first caller.
  static EmbeddedUseCases& Of(const std::shared_ptr<Embedded>& embedded) {
    throttler_internal::EmbeddedState& state = throttler_internal::EmbeddedState::Of(*embedded);
    return static_cast<EmbeddedUseCases&>(
        state.Attach([&] { return std::make_unique<EmbeddedUseCases>(embedded, state); }));
  }

  EmbeddedUseCases(const std::shared_ptr<Embedded>& embedded,
                   throttler_internal::EmbeddedState& state)
      : limiter_(state.registry(), state.store(), state.store_clock(), metrics_, usage_, signer_),
        rules_(state.registry()),
        alarm_(embedded, *state.clock()),
        held_(state.store(), state.store_clock(), rules_, alarm_) {
    alarm_.Use(&held_);
    limiter_.UseHeldCallers(&held_);
  }

  void LimitsChanged() override { held_.LimitsChanged(); }

  service::RateLimiter& limiter() { return limiter_; }

 private:
  common::Metrics metrics_;
  service::KeyUsage usage_;
  service::ReceiptSigner signer_;
  service::RateLimiter limiter_;
  service::RegistryRules rules_;
  ClockAlarm alarm_;
  waiting::HeldCallers held_;
};

}  // namespace sluice::embedded_internal

#endif  // SLUICE_CLIENT_SRC_EMBEDDED_USE_CASES_H_
