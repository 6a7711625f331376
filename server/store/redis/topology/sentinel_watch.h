// SentinelWatch: asks Sentinels which server is the primary.
//
// Asks all Sentinels of the URL, each on a connection of its own, once a second, and every 100 ms
// while the primary is unavailable. The Sentinel that has seen the latest failover (the greatest
// configuration epoch) is believed: one that is cut off from the others names an old primary. The
// connection to the named server checks whether it agrees.
//
// Belongs to its loop.
#ifndef SLUICE_SERVER_STORE_REDIS_TOPOLOGY_SENTINEL_WATCH_H_
#define SLUICE_SERVER_STORE_REDIS_TOPOLOGY_SENTINEL_WATCH_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "common/net/address.h"
#include "common/net/event_loop.h"
#include "common/net/resolver.h"
#include "common/net/tls_context.h"
#include "server/store/redis/connection/redis_url.h"

namespace sluice::store::redis {

class SentinelWatch {
 public:
  struct Callbacks {
    // There is a new primary.
    absl::AnyInvocable<void(const net::Address&)> primary;
    // All were asked and none knows a primary; called once until one does. UNAVAILABLE: none was
    // reached. FAILED_PRECONDITION, UNAUTHENTICATED, PERMISSION_DENIED: what is wrong with the name
    // or the password.
    absl::AnyInvocable<void(const absl::Status&)> failed;
  };

  // `tls` null: plaintext. All outlive it.
  SentinelWatch(net::EventLoop& loop, net::Resolver& resolver, const RedisUrl& url,
                std::shared_ptr<const net::TlsContext> tls, Callbacks callbacks);
  // REQUIRES: the loop has ended, or it was never started.
  ~SentinelWatch();

  void Start();
  // True: asks often, since the primary is unavailable.
  void SetHurry(bool hurry);

 private:
  class Peer;
  struct Answer {
    uint64_t epoch = 0;
    net::Address primary;
  };

  void OnTimer();
  // A peer has answered, or failed.
  void OnAnswer();

  net::EventLoop& loop_;
  net::Resolver& resolver_;
  const RedisUrl url_;
  const std::shared_ptr<const net::TlsContext> tls_;
  Callbacks callbacks_;
  std::vector<std::unique_ptr<Peer>> peers_;
  std::optional<net::Address> current_;
  bool failed_ = false;
  bool hurry_ = true;
  net::Timer timer_{net::Timer::To<&SentinelWatch::OnTimer>, this};
};

}  // namespace sluice::store::redis

#endif  // SLUICE_SERVER_STORE_REDIS_TOPOLOGY_SENTINEL_WATCH_H_
