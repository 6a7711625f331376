// SentinelRouter: one server at a time, the one that Sentinels say is the primary.
//
// When they name another the connection moves there, and what was in flight is lost, which counts
// as spent. The server itself must agree that it is a primary (its INFO), and its data is what the
// fence says (fence_check.h); so it does not matter for exactness what Sentinels say, or when.
#ifndef SLUICE_SERVER_STORE_REDIS_TOPOLOGY_SENTINEL_ROUTER_H_
#define SLUICE_SERVER_STORE_REDIS_TOPOLOGY_SENTINEL_ROUTER_H_

#include "server/store/redis/topology/router.h"
#include "server/store/redis/topology/sentinel_watch.h"

namespace sluice::store::redis {

class SentinelRouter final : public SingleRouter {
 public:
  explicit SentinelRouter(const Context& context);

  void Start() override { watch_.Start(); }
  Course OnError(Endpoint& from, std::string_view key, const Reply& error) override;

 private:
  void OnPrimary(const net::Address& address);
  void OnAvailable(Endpoint& endpoint) override;
  void OnUnavailable(Endpoint& endpoint) override;
  void OnFailed(Endpoint& endpoint, const absl::Status& why) override;

  bool started_ = false;
  SentinelWatch watch_;
};

}  // namespace sluice::store::redis

#endif  // SLUICE_SERVER_STORE_REDIS_TOPOLOGY_SENTINEL_ROUTER_H_
