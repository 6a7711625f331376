// SentinelWatch: who is the primary now, by what Sentinels say.
//
// Asks all Sentinels of the URL, each on a connection of its own, once a second, and every 100 ms
// while the primary is away. Of those that answer, the one that has seen the latest failover (the
// greatest configuration epoch) is believed: one that is cut off from the others knows an old
// primary. Whether that server agrees is for its own connection to find out.
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
  struct Told {
    // It is another than the one told before.
    absl::AnyInvocable<void(const net::Address&)> primary;
    // All were asked and none knows a primary; once for each row of such rounds. UNAVAILABLE: none
    // was reached. FAILED_PRECONDITION, UNAUTHENTICATED, PERMISSION_DENIED: what is wrong with the
    // name or the password.
    absl::AnyInvocable<void(const absl::Status&)> failed;
  };

  // `tls` null: plaintext. All outlive it.
  SentinelWatch(net::EventLoop& loop, net::Resolver& resolver, const RedisUrl& url,
                std::shared_ptr<const net::TlsContext> tls, Told told);
  // REQUIRES: the loop has ended, or it was never started.
  ~SentinelWatch();

  void Start();
  // The primary is away, or is back: look for another soon, or no longer.
  void SetHurry(bool hurry);

 private:
  class Peer;
  struct Answer {
    uint64_t epoch = 0;
    net::Address primary;
  };

  void OnTimer();
  // A peer was told something, or cannot be.
  void OnAnswer();

  net::EventLoop& loop_;
  net::Resolver& resolver_;
  const RedisUrl url_;
  const std::shared_ptr<const net::TlsContext> tls_;
  Told told_;
  std::vector<std::unique_ptr<Peer>> peers_;
  std::optional<net::Address> current_;
  bool failed_ = false;
  bool hurry_ = true;
  net::Timer timer_{net::Timer::To<&SentinelWatch::OnTimer>, this};
};

}  // namespace sluice::store::redis

#endif  // SLUICE_SERVER_STORE_REDIS_TOPOLOGY_SENTINEL_WATCH_H_
