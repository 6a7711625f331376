// EmbeddedState: the limits and the memory store of an Embedded.
#ifndef SLUICE_CLIENT_SRC_THROTTLER_EMBEDDED_STATE_H_
#define SLUICE_CLIENT_SRC_THROTTLER_EMBEDDED_STATE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "client/src/throttler/core.h"
#include "client/src/throttler/gate.h"
#include "common/clock.h"
#include "common/mutex.h"
#include "server/limits/limit_registry.h"
#include "server/store/memory/memory_store.h"
#include "sluice/embedded.h"

namespace sluice::throttler_internal {

// Adapts the throttlers' clock for the store.
class StoreClock final : public common::Clock {
 public:
  explicit StoreClock(const sluice::Clock& clock) : clock_(clock) {}
  int64_t NowNs() const override { return clock_.Now().count(); }
  int64_t WallNs() const override { return clock_.WallNow().count(); }

 private:
  const sluice::Clock& clock_;
};

// What decides by the same limits, beside throttlers.
class Attached {
 public:
  virtual ~Attached() = default;
  // Called after each change, under no lock.
  virtual void LimitsChanged() = 0;
};

// Thread-safe.
class EmbeddedState {
 public:
  static EmbeddedState& Of(Embedded& embedded) { return *embedded.state_; }

  explicit EmbeddedState(std::shared_ptr<sluice::Clock> clock)
      : clock_(std::move(clock)), store_clock_(*clock_), store_(store_clock_), registry_(&store_) {}

  const std::shared_ptr<sluice::Clock>& clock() const { return clock_; }
  const common::Clock& store_clock() const { return store_clock_; }
  store::MemoryStore& store() { return store_; }
  limits::LimitRegistry& registry() { return registry_; }

  Status SetLimits(const std::vector<LimitInfo>& limits);

  // Registers a throttler, to be rebooked when limits change.
  void Add(const std::shared_ptr<Core>& throttler);

  // What is attached; nothing: what `make` makes is, for as long as this lives.
  Attached& Attach(const std::function<std::unique_ptr<Attached>()>& make);

 private:
  const std::shared_ptr<sluice::Clock> clock_;
  const StoreClock store_clock_;
  store::MemoryStore store_;
  limits::LimitRegistry registry_;

  // Held during a whole change.
  common::Mutex change_mu_;
  uint64_t version_ ABSL_GUARDED_BY(change_mu_) = 0;

  common::Mutex mu_;
  std::vector<std::weak_ptr<Core>> throttlers_ ABSL_GUARDED_BY(mu_);
  // Destroyed before all that it uses.
  std::unique_ptr<Attached> attached_ ABSL_GUARDED_BY(mu_);
};

}  // namespace sluice::throttler_internal

#endif  // SLUICE_CLIENT_SRC_THROTTLER_EMBEDDED_STATE_H_
