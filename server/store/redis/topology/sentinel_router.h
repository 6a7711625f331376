// SentinelRouter: one server at a time, the primary that Sentinels name.
//
// When they name another server the connection moves there; requests in flight are lost and count
// as spent. The server itself must confirm that it is a primary (INFO), and the fence tells whether
// its data is complete (fence_check.h). So exactness does not depend on what Sentinels say, or
// when.
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
