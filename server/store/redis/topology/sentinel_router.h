// SentinelRouter: one server at a time, the primary that Sentinels name.
//
// Asks all Sentinels of the URL, each on a connection of its own, once a second, and every 100 ms
// while the primary is unavailable. The Sentinel that has seen the latest failover (the greatest
// configuration epoch) is believed: one that is cut off from the others names an old primary.
//
// When they name another server the connection moves there; requests in flight are lost and count
// as spent. The server itself must confirm that it is a primary (INFO), and the fence tells whether
// its data is complete (fence_check.h). So exactness does not depend on what Sentinels say, or
// when.
#ifndef SLUICE_SERVER_STORE_REDIS_TOPOLOGY_SENTINEL_ROUTER_H_
#define SLUICE_SERVER_STORE_REDIS_TOPOLOGY_SENTINEL_ROUTER_H_

#include <memory>
#include <vector>

#include "server/store/redis/topology/router.h"

namespace sluice::store::redis {

class SentinelRouter final : public SingleRouter {
 public:
  explicit SentinelRouter(const Router::Context& context);
  // REQUIRES: the loop has ended, or it was never started.
  ~SentinelRouter() override;

  void Start() override { AskAll(); }
  Course OnError(Endpoint& from, std::string_view key, const Reply& error) override;

 private:
  // One Sentinel.
  class Peer;

  void AskAll();
  // A peer has answered, or failed.
  void OnAnswer();
  // All were asked and none knows a primary; called once until one does.
  void OnNoPrimary(absl::Status why);
  // True: asks often, since the primary is unavailable.
  void SetHurry(bool hurry);

  void OnAvailable() override;
  void OnUnavailable() override;
  void OnFailed(const absl::Status& why) override;

  net::EventLoop& loop_;
  net::Resolver& resolver_;
  const ConnectionOptions options_;  // as in the URL
  std::vector<std::unique_ptr<Peer>> peers_;
  bool started_ = false;  // a primary was named
  bool failed_ = false;
  bool hurry_ = true;
  net::Timer timer_{net::Timer::To<&SentinelRouter::AskAll>, this};
};

}  // namespace sluice::store::redis

#endif  // SLUICE_SERVER_STORE_REDIS_TOPOLOGY_SENTINEL_ROUTER_H_
