// EmbeddedState: the limits and the memory store of an Embedded.
#ifndef SLUICE_CLIENT_SRC_THROTTLER_EMBEDDED_STATE_H_
#define SLUICE_CLIENT_SRC_THROTTLER_EMBEDDED_STATE_H_

#include <cstdint>
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

// Thread-safe.
class EmbeddedState {
 public:
  explicit EmbeddedState(std::shared_ptr<sluice::Clock> clock)
      : clock_(std::move(clock)), store_clock_(*clock_), store_(store_clock_), registry_(&store_) {}

  const std::shared_ptr<sluice::Clock>& clock() const { return clock_; }
  store::MemoryStore& store() { return store_; }
  const limits::LimitRegistry& registry() const { return registry_; }

  Status SetLimits(const std::vector<LimitInfo>& limits);

  // Registers a throttler, to be rebooked when limits change.
  void Add(const std::shared_ptr<Core>& throttler);

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
};

}  // namespace sluice::throttler_internal

#endif  // SLUICE_CLIENT_SRC_THROTTLER_EMBEDDED_STATE_H_
