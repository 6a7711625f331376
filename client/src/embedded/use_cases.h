// EmbeddedUseCases: the use cases of the server's data plane, over the limits and the store of an
// Embedded.
#ifndef SLUICE_CLIENT_SRC_EMBEDDED_USE_CASES_H_
#define SLUICE_CLIENT_SRC_EMBEDDED_USE_CASES_H_

#include <chrono>
#include <cstdint>
#include <memory>
#include <utility>

#include "client/src/throttler/embedded_state.h"
#include "common/metrics.h"
#include "server/service/key_usage.h"
#include "server/service/rate_limiter.h"
#include "server/service/receipt.h"
#include "server/service/registry_rules.h"
#include "server/waiting/held_callers.h"
#include "sluice/clock.h"
#include "sluice/embedded.h"

namespace sluice::embedded_internal {

// Calls HeldCallers::Advance by timers of the clock. Thread-safe.
class ClockAlarm final : public waiting::Alarm {
 public:
  // `embedded` keeps all of this alive, while a timer runs.
  ClockAlarm(std::weak_ptr<Embedded> embedded, Clock& clock)
      : embedded_(std::move(embedded)), clock_(clock) {}

  // REQUIRES: before the first SetAt.
  void Use(waiting::HeldCallers* callers) { callers_ = callers; }

  void SetAt(int64_t at_ns) override {
    clock_.RunAt(std::chrono::nanoseconds(at_ns), [embedded = embedded_, this] {
      // Null: this was destroyed.
      const std::shared_ptr<Embedded> alive = embedded.lock();
      if (alive == nullptr) return;
      const int64_t next_ns = callers_->Advance();
      if (next_ns != waiting::HeldCallers::kNever) SetAt(next_ns);
    });
  }

 private:
  const std::weak_ptr<Embedded> embedded_;
  Clock& clock_;
  waiting::HeldCallers* callers_ = nullptr;
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
