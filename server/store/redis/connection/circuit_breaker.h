// CircuitBreaker: whether the store answers, over all of its event loops; said once in the log when
// it goes away, and once when it is back.
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

// Thread-safe. It is away while one of its parts (a server as an event loop sees it) says so.
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

  // A part does not reach the store any more. Followed by its Back or Leave.
  void Away(std::string_view why) {
    common::MutexLock lock(&mu_);
    why_.assign(why);
    if (away_++ > 0) return;
    ++times_away_;
    since_wall_ns_ = clock_.WallNs();
    decided_before_ = decided_();
    if (log_ == nullptr) return;
    log_->Warning("redis_away", {{"error", common::ToAbsl(why)}, {"store", url_}});
  }

  // A part that is away is so for another reason now.
  void StillAway(std::string_view why) {
    common::MutexLock lock(&mu_);
    why_.assign(why);
  }

  // A part that was away is gone for good.
  void Leave() {
    common::MutexLock lock(&mu_);
    --away_;
  }

  // That part reaches it again.
  void Back() {
    common::MutexLock lock(&mu_);
    if (--away_ > 0) return;
    const int64_t now_ns = clock_.WallNs();
    if (log_ != nullptr) {
      const Decided decided = decided_();
      log_->Info("redis_back", {{"store", url_},
                                {"away_ms", (now_ns - since_wall_ns_) / 1'000'000},
                                {"allowed_meanwhile", decided.allowed - decided_before_.allowed},
                                {"denied_meanwhile", decided.denied - decided_before_.denied}});
    }
    since_wall_ns_ = now_ns;
  }

  StoreHealth Health() const {
    common::MutexLock lock(&mu_);
    StoreHealth health;
    health.shared = true;
    health.away = away_ > 0;
    health.since_wall_ns = since_wall_ns_;
    health.times_unavailable = times_away_;
    health.why = why_;
    return health;
  }

 private:
  const common::Clock& clock_;
  common::Log* const log_;
  const std::string url_;
  const std::function<Decided()> decided_;

  mutable common::Mutex mu_;
  int away_ ABSL_GUARDED_BY(mu_) = 0;  // parts
  int64_t since_wall_ns_ ABSL_GUARDED_BY(mu_);
  uint64_t times_away_ ABSL_GUARDED_BY(mu_) = 0;
  std::string why_ ABSL_GUARDED_BY(mu_);
  Decided decided_before_ ABSL_GUARDED_BY(mu_);
};

}  // namespace sluice::store::redis

#endif  // SLUICE_SERVER_STORE_REDIS_CONNECTION_CIRCUIT_BREAKER_H_
