#include "server/store/redis/topology/router.h"

#include "server/store/redis/topology/cluster_router.h"
#include "server/store/redis/topology/sentinel_router.h"

namespace sluice::store::redis {
namespace {

// By then the fence was read again, and replaced if necessary.
constexpr int64_t kFenceNs = 2'000'000;

}  // namespace

Course Router::OnError(Endpoint& from, std::string_view, const Reply& error) {
  from.OnErrorReply(error);
  return {};
}

SingleRouter::SingleRouter(const Context& context)
    : host_(context.host),
      endpoint_(context.loop, context.resolver, context.endpoint, context.counters, *this),
      fence_check_(context.loop, endpoint_, context.known_fences, context.fence_options,
                   [this](const absl::Status& why) { OnFailed(endpoint_, why); }) {}

Course SingleRouter::OnError(Endpoint& from, std::string_view key, const Reply& error) {
  if (!error.HasCode(kFenceReplaced)) return Router::OnError(from, key, error);
  fence_check_.OnFenceMissed();
  Course later;
  later.what = Course::What::kSendLater;
  later.after_ns = kFenceNs;
  return later;
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
