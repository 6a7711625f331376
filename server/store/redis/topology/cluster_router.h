// ClusterRouter: the primaries of a Redis Cluster, and which slots each serves.
//
// Any server of the Cluster can name them (CLUSTER SLOTS): at the start the seeds in the URL are
// asked, one after the other until one answers; later the primaries. They are asked again every few
// seconds, when Redis reports that a slot has moved, and ten times a second while a primary is
// unavailable or a slot has no owner. Each primary is an endpoint with a breaker of its own: if it
// is down, only the keys of its slots are unavailable.
//
// Each primary has a fence (fence_check.h), in its highest slot at the time. A slot that moves
// brings its floor along; until it is read, the highest floor that this process knows counts.
#ifndef SLUICE_SERVER_STORE_REDIS_TOPOLOGY_CLUSTER_ROUTER_H_
#define SLUICE_SERVER_STORE_REDIS_TOPOLOGY_CLUSTER_ROUTER_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "common/net/event_loop.h"
#include "server/store/redis/connection/endpoint.h"
#include "server/store/redis/topology/router.h"
#include "server/store/redis/wire/hash_slot.h"

namespace sluice::store::redis {

class ClusterRouter final : public Router {
 public:
  // REQUIRES: the URL names a Cluster. The host's OnConnected is called when each primary was
  // reached, or could not be.
  explicit ClusterRouter(const Context& context);
  // REQUIRES: the loop has ended.
  ~ClusterRouter() override;

  void Start() override;
  Endpoint* EndpointOf(std::string_view key) override;
  bool Splits() const override { return true; }
  uint16_t GroupOf(std::string_view key) const override { return SlotOf(key); }
  const FencingToken& TokenFor(Endpoint& endpoint, std::string_view key) override;
  bool MayPromise(Endpoint& endpoint, int64_t until_us, int64_t now_us) override;
  bool AllUnavailable() const override;
  Course OnError(Endpoint& from, std::string_view key, const Reply& error) override;

 private:
  // A connection to a seed, which is only asked for the map; it may be a replica.
  class Guide;
  struct Member;

  // The member at this address. Starts to connect if it is new.
  Member& MemberAt(const net::Address& address);
  static Member& MemberOf(Endpoint& endpoint);

  // As CommandSettings::retry_ns.
  int64_t RetryNs() const { return options_.budget_ns / 8; }

  // Asks for the map soon.
  void Refresh();
  void OnTimer();
  void AskForMap();
  // Notes that the server at `address` is asked; takes its reply.
  absl::AnyInvocable<void(const Reply*)> Asking(const net::Address& address);
  void OnAnswer(const net::Address& asked, const Reply* reply);
  void Adopt(SlotMap map);
  // A primary is unavailable or a slot has no owner: refreshes often.
  bool Restless() const;
  void DropUnused();

  // Reports to the host when all first attempts to connect have ended.
  void ReportFirst();

  EndpointOptions OptionsFor(const net::Address& address) const;

  const Context context_;
  net::EventLoop& loop_;
  const EndpointOptions& options_;
  const std::string& name_space_;
  bool first_reported_ = false;
  FencingToken token_;  // of the last TokenFor

  // The floor that each slot brought along; kUnread: not known yet.
  static constexpr int64_t kUnread = -1;
  std::vector<int64_t> floors_us_ = std::vector<int64_t>(kSlots, kUnread);

  SlotMap map_;
  bool have_map_ = false;
  bool incomplete_logged_ = false;
  std::vector<std::unique_ptr<Member>> members_;
  std::vector<Member*> by_place_;                 // of map_.primaries()
  std::vector<std::unique_ptr<Member>> dropped_;  // until their connections are closed
  std::vector<std::unique_ptr<Guide>> guides_;    // of the seeds
  size_t next_member_ = 0;                        // to be asked for the map

  uint64_t ask_ = 0;  // the last one's number; older ones' answers come too late
  bool asking_ = false;
  int64_t asked_ns_ = 0;
  int64_t next_refresh_ns_ = 0;  // timer_'s
  net::Timer timer_{net::Timer::To<&ClusterRouter::OnTimer>, this};
};

}  // namespace sluice::store::redis

#endif  // SLUICE_SERVER_STORE_REDIS_TOPOLOGY_CLUSTER_ROUTER_H_
