#include "server/store/redis/topology/router.h"

#include <utility>

#include "server/store/redis/scripts/scripts.h"
#include "server/store/redis/topology/cluster_router.h"
#include "server/store/redis/topology/sentinel_router.h"

namespace sluice::store::redis {

Course Router::OnError(Endpoint& from, std::string_view, const Reply& error) {
  from.OnErrorReply(error);
  return {};
}

Course SingleRouter::OnError(Endpoint& from, std::string_view key, const Reply& error) {
  if (!OnRefused(error)) return Router::OnError(from, key, error);
  return {Course::What::kSendLater, nullptr, false, kFenceRereadNs};
}

void SingleRouter::LiftFloor(const std::string& limit, int64_t now_us, LiftDone done) {
  if (token().word_key.empty()) return done(-1);
  const int64_t floor_us = token().LatestOwnOf(limit);
  if (floor_us <= now_us) return done(0);
  Lift(limit, /*holds=*/{}, floor_us,
       [floor_us, done = std::move(done)](bool lifted) mutable { done(lifted ? floor_us : -1); });
}

std::unique_ptr<Router> MakeRouter(const Router::Context& context) {
  switch (context.endpoint.connection.url.topology) {
    case Topology::kCluster:
      return std::make_unique<ClusterRouter>(context);
    case Topology::kSentinel:
      return std::make_unique<SentinelRouter>(context);
    case Topology::kServer:
      break;
  }
  return std::make_unique<SingleRouter>(context);
}

}  // namespace sluice::store::redis
