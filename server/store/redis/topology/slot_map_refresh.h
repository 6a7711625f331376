// SlotMapRefresh: asks the servers of a Redis Cluster which of them serves which slot (CLUSTER
// SLOTS), again and again.
//
// Any server of the Cluster can answer: at the start the seeds in the URL are asked, one after the
// other until one answers; later the primaries. They are asked every few seconds, at once when
// Soon() is called, and ten times a second while the host is restless.
//
// Belongs to its loop.
#ifndef SLUICE_SERVER_STORE_REDIS_TOPOLOGY_SLOT_MAP_REFRESH_H_
#define SLUICE_SERVER_STORE_REDIS_TOPOLOGY_SLOT_MAP_REFRESH_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "common/net/address.h"
#include "common/net/event_loop.h"
#include "server/store/redis/connection/endpoint.h"
#include "server/store/redis/topology/router.h"
#include "server/store/redis/wire/hash_slot.h"

namespace sluice::store::redis {

class SlotMapRefresh {
 public:
  // Called on the loop.
  class Host {
   public:
    // A primary that is available, each in its turn; null: none is, and a seed is asked.
    virtual Endpoint* PrimaryToAsk() = 0;
    // A primary is unavailable or a slot has no owner.
    virtual bool Restless() const = 0;
    // It is time to ask again.
    virtual void OnRefresh() = 0;
    virtual void OnMap(SlotMap map) = 0;
    // An attempt to connect to a seed failed.
    virtual void OnSeedFailed() = 0;

   protected:
    ~Host() = default;
  };

  // All of it outlives the refresh.
  SlotMapRefresh(const Router::Context& context, Host& host);
  // REQUIRES: the loop has ended.
  ~SlotMapRefresh();

  void Start() { OnTimer(); }
  // Asks again as soon as the last time was 10 ms ago.
  void Soon();
  // A primary serves. Seeds are connected to again when none does.
  void CloseSeeds();
  // A server has answered with a map.
  bool answered() const { return answered_; }
  // If an attempt to reach each seed has failed: the failures. nullopt: one may still answer.
  std::optional<std::vector<absl::Status>> SeedFailures() const;

 private:
  // A connection to a seed, which is only asked for the map; it may be a replica.
  class Seed;

  void OnTimer();
  void Ask();
  // Notes that the server at `address` is asked; takes its reply.
  absl::AnyInvocable<void(const Reply*)> Asking(const net::Address& address);
  void OnAnswer(const net::Address& asked, const Reply* reply);

  const Router::Context context_;
  Host& host_;
  net::EventLoop& loop_;
  std::vector<std::unique_ptr<Seed>> seeds_;
  bool answered_ = false;

  uint64_t ask_ = 0;  // the last one's number; older ones' answers come too late
  bool asking_ = false;
  int64_t asked_ns_ = 0;
  int64_t next_ns_ = 0;  // timer_'s
  net::Timer timer_{net::Timer::To<&SlotMapRefresh::OnTimer>, this};
};

}  // namespace sluice::store::redis

#endif  // SLUICE_SERVER_STORE_REDIS_TOPOLOGY_SLOT_MAP_REFRESH_H_
