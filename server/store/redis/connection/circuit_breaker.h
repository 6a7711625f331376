// CircuitBreaker: whether the store is available, combined over all endpoints of all event loops.
// Logs each change once.
#ifndef SLUICE_SERVER_STORE_REDIS_CONNECTION_CIRCUIT_BREAKER_H_
#define SLUICE_SERVER_STORE_REDIS_CONNECTION_CIRCUIT_BREAKER_H_

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "common/clock.h"
#include "common/log.h"
#include "common/mutex.h"
#include "common/strings.h"
#include "server/store/store.h"

namespace sluice::store::redis {

// Thread-safe. Open while the breaker of at least one endpoint is open.
class CircuitBreaker {
 public:
  // Acquisitions that on_store_failure decided since the start.
  struct Decided {
    uint64_t allowed = 0;
    uint64_t denied = 0;
  };

  // Both outlive it; `log` may be null. `url`: for the log, without its password. `decided` is
  // called by any thread.
  CircuitBreaker(const common::Clock& clock, common::Log* log, std::string url,
                 std::function<Decided()> decided)
      : clock_(clock),
        log_(log),
        url_(std::move(url)),
        decided_(std::move(decided)),
        since_wall_ns_(clock.WallNs()) {}

  // An endpoint became unavailable. Its Close or Discard follows.
  void Open(std::string_view why) {
    common::MutexLock lock(&mu_);
    why_.assign(why);
    if (open_++ > 0) return;
    ++times_unavailable_;
    since_wall_ns_ = clock_.WallNs();
    decided_before_ = decided_();
    if (log_ == nullptr) return;
    log_->Warning("redis_unavailable", {{"error", common::ToAbsl(why)}, {"store", url_}});
  }

  // An unavailable endpoint is so for another reason now.
  void SetReason(std::string_view why) {
    common::MutexLock lock(&mu_);
    why_.assign(why);
  }

  // An unavailable endpoint is destroyed.
  void Discard() {
    common::MutexLock lock(&mu_);
    --open_;
  }

  // An unavailable endpoint is available again.
  void Close() {
    common::MutexLock lock(&mu_);
    if (--open_ > 0) return;
    const int64_t now_ns = clock_.WallNs();
    if (log_ != nullptr) {
      const Decided decided = decided_();
      log_->Info("redis_available",
                 {{"store", url_},
                  {"unavailable_ms", (now_ns - since_wall_ns_) / 1'000'000},
                  {"allowed_meanwhile", decided.allowed - decided_before_.allowed},
                  {"denied_meanwhile", decided.denied - decided_before_.denied}});
    }
    since_wall_ns_ = now_ns;
  }

  StoreHealth Health() const {
    common::MutexLock lock(&mu_);
    StoreHealth health;
    health.shared = true;
    health.unavailable = open_ > 0;
    health.since_wall_ns = since_wall_ns_;
    health.times_unavailable = times_unavailable_;
    health.why = why_;
    return health;
  }

 private:
  const common::Clock& clock_;
  common::Log* const log_;
  const std::string url_;
  const std::function<Decided()> decided_;

  mutable common::Mutex mu_;
  int open_ ABSL_GUARDED_BY(mu_) = 0;  // endpoints
  int64_t since_wall_ns_ ABSL_GUARDED_BY(mu_);
  uint64_t times_unavailable_ ABSL_GUARDED_BY(mu_) = 0;
  std::string why_ ABSL_GUARDED_BY(mu_);
  Decided decided_before_ ABSL_GUARDED_BY(mu_);
};

}  // namespace sluice::store::redis

#endif  // SLUICE_SERVER_STORE_REDIS_CONNECTION_CIRCUIT_BREAKER_H_
