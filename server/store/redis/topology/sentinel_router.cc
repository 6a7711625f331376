#include "server/store/redis/topology/sentinel_router.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace sluice::store::redis {

SentinelRouter::SentinelRouter(const Context& context)
    : SingleRouter(context),
      watch_(
          context.loop, context.resolver, context.endpoint.connection.url,
          context.endpoint.connection.url.sentinel_tls ? context.endpoint.connection.tls : nullptr,
          {[this](const net::Address& address) { OnPrimary(address); },
           [this](const absl::Status& why) { SingleRouter::OnFailed(endpoint_, why); }}) {}

void SentinelRouter::OnPrimary(const net::Address& address) {
  endpoint_.MoveTo(address, absl::UnavailableError(absl::StrCat("Sentinels name another primary, ",
                                                                address.ToString())));
  if (!std::exchange(started_, true)) endpoint_.Start();
}

Course SentinelRouter::OnError(Endpoint& from, std::string_view key, const Reply& error) {
  // It has lost its replicas, or became one: there may be another primary by now.
  if (error.HasCode("NOREPLICAS") || error.HasCode("READONLY")) watch_.SetHurry(true);
  return SingleRouter::OnError(from, key, error);
}

void SentinelRouter::OnAvailable(Endpoint& endpoint) {
  watch_.SetHurry(false);
  SingleRouter::OnAvailable(endpoint);
}

void SentinelRouter::OnUnavailable(Endpoint& endpoint) {
  watch_.SetHurry(true);
  SingleRouter::OnUnavailable(endpoint);
}

void SentinelRouter::OnFailed(Endpoint& endpoint, const absl::Status& why) {
  watch_.SetHurry(true);
  SingleRouter::OnFailed(endpoint, why);
}

}  // namespace sluice::store::redis
