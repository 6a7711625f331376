// Loops: the event loops of sluiced: those of its ports, of long work, and of Redis.
#ifndef SLUICE_SERVER_LOOPS_H_
#define SLUICE_SERVER_LOOPS_H_

#include <memory>

#include "absl/status/status.h"
#include "common/clock.h"
#include "common/metrics.h"
#include "common/net/event_loop.h"
#include "common/net/loop_group.h"
#include "common/net/resolver.h"
#include "server/flags.h"

namespace sluice {

// Outlives the store and the ports. Used by the main thread.
class Loops {
 public:
  // Call first. `metrics` outlives the Loops.
  absl::Status Make(const Flags& flags, const common::Clock& clock, common::Metrics& metrics);

  // The HTTP ports use those of the data port.
  net::LoopGroup& data() { return *data_; }
  // A loop of its own: an admin call may take long, and must not delay a decision.
  net::LoopGroup& admin() { return *admin_; }
  // Long work for HTTP.
  net::EventLoop& background() { return background_->loop(0); }
  // REQUIRES for these two: the store is Redis.
  net::LoopGroup& redis() { return redis_ != nullptr ? *redis_ : *data_; }
  net::Resolver& resolver() { return *resolver_; }

  // The loops of Redis last: operations in progress are answered while their callers exist.
  // Idempotent.
  void Stop();

 private:
  std::unique_ptr<net::LoopGroup> data_;
  std::unique_ptr<net::LoopGroup> admin_;
  std::unique_ptr<net::LoopGroup> background_;
  std::unique_ptr<net::LoopGroup> redis_;    // null: there is no Redis, or it uses data_
  std::unique_ptr<net::Resolver> resolver_;  // null: there is no Redis; destroyed before the loops
};

}  // namespace sluice

#endif  // SLUICE_SERVER_LOOPS_H_
