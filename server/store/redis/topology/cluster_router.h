// ClusterRouter: routes each key to the primary of a Redis Cluster that has its slot.
//
// SlotMapRefresh asks which primary serves which slot, sooner if Redis answers with a redirection.
// Each primary is an endpoint with a breaker of its own: if it is down, only the keys of its slots
// are unavailable.
//
// Each primary has a fence (cluster_primary.h). A slot that moves brings its floor along; until it
// is read, the highest floor that this process knows counts.
#ifndef SLUICE_SERVER_STORE_REDIS_TOPOLOGY_CLUSTER_ROUTER_H_
#define SLUICE_SERVER_STORE_REDIS_TOPOLOGY_CLUSTER_ROUTER_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "common/net/address.h"
#include "server/store/redis/connection/endpoint.h"
#include "server/store/redis/topology/cluster_primary.h"
#include "server/store/redis/topology/router.h"
#include "server/store/redis/topology/slot_map_refresh.h"
#include "server/store/redis/topology/slot_table.h"
#include "server/store/redis/wire/hash_slot.h"

namespace sluice::store::redis {

class ClusterRouter final : public Router,
                            private ClusterPrimary::Cluster,
                            private SlotMapRefresh::Host {
 public:
  // REQUIRES: the URL names a Cluster. The host's OnConnected is called when each primary was
  // reached, or could not be.
  explicit ClusterRouter(const Context& context);
  // REQUIRES: the loop has ended.
  ~ClusterRouter() override = default;

  void Start() override { refresh_.Start(); }
  Endpoint* EndpointOf(std::string_view key) override;
  bool Splits() const override { return true; }
  uint16_t GroupOf(std::string_view key) const override { return SlotOf(key); }
  const FencingToken& TokenFor(Endpoint& endpoint, std::string_view key) override;
  bool MayPromise(Endpoint& endpoint, absl::Span<const LimitPromise> promises,
                  int64_t now_us) override;
  void LiftFloor(const std::string& limit, int64_t now_us, LiftDone done) override;
  bool AllUnavailable() const override;
  Course OnError(Endpoint& from, std::string_view key, const Reply& error) override;

 private:
  // The primary at this address. Starts to connect if it is new.
  ClusterPrimary& PrimaryAt(const net::Address& address);
  static ClusterPrimary& PrimaryOf(Endpoint& endpoint);
  // Returns the primary that the command goes to.
  ClusterPrimary& Follow(const Redirect& redirect);

  // As CommandSettings::retry_ns.
  int64_t RetryNs() const { return context_.endpoint.budget_ns / 8; }

  // Reports to the host when all first attempts to connect have ended.
  void ReportFirst();

  void OnPrimaryAvailable() override;
  void OnPrimaryUnavailable(ClusterPrimary& primary) override;
  void OnPrimaryFailed() override;
  void OnSlotLeft() override { refresh_.Soon(); }
  bool IsOfAnother(const ClusterPrimary& primary, const std::string& identity) const override;

  Endpoint* PrimaryToAsk() override;
  bool Restless() const override;
  // Drops unused primaries.
  void OnRefresh() override;
  void OnMap(SlotMap map) override;
  void OnSeedFailed() override { ReportFirst(); }

  const Context context_;
  bool first_reported_ = false;
  bool incomplete_logged_ = false;
  FencingToken token_;  // of the last TokenFor

  SlotMapRefresh refresh_;
  SlotTable slots_;
  std::vector<std::unique_ptr<ClusterPrimary>> primaries_;
  std::vector<ClusterPrimary*> by_place_;                 // of slots_.map().primaries()
  std::vector<std::unique_ptr<ClusterPrimary>> dropped_;  // until their connections are closed
  size_t next_to_ask_ = 0;                                // of primaries_
};

}  // namespace sluice::store::redis

#endif  // SLUICE_SERVER_STORE_REDIS_TOPOLOGY_CLUSTER_ROUTER_H_
