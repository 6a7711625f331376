// UseCases: the use cases of sluiced over one store, wired together.
#ifndef SLUICE_SERVER_USE_CASES_H_
#define SLUICE_SERVER_USE_CASES_H_

#include <algorithm>
#include <cstddef>
#include <functional>
#include <utility>

#include "common/bounds.h"
#include "common/clock.h"
#include "common/log.h"
#include "common/memory_account.h"
#include "common/metrics.h"
#include "server/limits/limit_registry.h"
#include "server/service/bucket_watch.h"
#include "server/service/key_usage.h"
#include "server/service/limit_admin.h"
#include "server/service/rate_limiter.h"
#include "server/service/receipt.h"
#include "server/service/registry_rules.h"
#include "server/store/store.h"
#include "server/waiting/alarm_thread.h"
#include "server/waiting/held_callers.h"

namespace sluice {

// All arguments outlive it.
struct UseCases {
  UseCases(store::Store& store, limits::LimitRegistry& registry, const common::Clock& clock,
           common::Log& log, common::Metrics& metrics, common::MemoryBudget& memory,
           const service::ReceiptSigner& signer, std::function<limits::FileStatus()> file_status)
      : registry(registry),
        limiter(registry, store, clock, metrics, usage, signer, MostRemembered(store, memory)),
        rules(registry),
        alarm(clock),
        held(store, clock, rules, alarm, &memory),
        watches(limiter),
        admin({registry, store, clock, metrics, usage, signer, &held}, log, SLUICE_VERSION,
              std::move(file_status)) {
    alarm.Start(held);
    registry.OnChange([this] { held.LimitsChanged(); });
    limiter.UseHeldCallers(&held);
  }
  ~UseCases() {
    registry.OnChange(nullptr);
    alarm.Stop();
  }

  // Grants remembered in this process take at most an eighth of what peers may make it hold, and
  // what they forgave at most half as much.
  static size_t MostRemembered(const store::Store& store, const common::MemoryBudget& memory) {
    if (store.Shared()) return common::bounds::kMaxRememberedGrants;
    const auto room = static_cast<size_t>(memory.limit()) / 8;
    return std::min(common::bounds::kMaxRememberedGrants,
                    room / common::bounds::kRememberedGrantBytes);
  }

  limits::LimitRegistry& registry;
  service::KeyUsage usage;
  service::RateLimiter limiter;
  service::RegistryRules rules;
  waiting::AlarmThread alarm;
  waiting::HeldCallers held;
  service::WatchHub watches;
  service::LimitAdmin admin;
};

}  // namespace sluice

#endif  // SLUICE_SERVER_USE_CASES_H_
