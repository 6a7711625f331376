// PromiseKeeper: raises the promises of the fence that an event loop goes by, and learns what other
// nodes raise (fence.h).
//
// Belongs to its loop.
#ifndef SLUICE_SERVER_STORE_REDIS_FENCING_PROMISE_KEEPER_H_
#define SLUICE_SERVER_STORE_REDIS_FENCING_PROMISE_KEEPER_H_

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "absl/functional/any_invocable.h"
#include "absl/types/span.h"
#include "server/store/redis/connection/endpoint.h"
#include "server/store/redis/fencing/fence.h"
#include "server/store/redis/fencing/known_fences.h"

namespace sluice::store::redis {

// Grant times up to so far ahead are promised for all limits at once, so that usual waits of many
// limits share their raises. All limits are closed for one and a half times as long after a loss.
inline constexpr int64_t kNearPromiseUs = 5'000'000;

class PromiseKeeper {
 public:
  class Owner {
   public:
    // The fence was replaced, or cannot be read.
    virtual void OnFenceMissed() = 0;
    // fence() was raised, or a floor lifted.
    virtual void OnRaised() = 0;

   protected:
    ~Owner() = default;
  };

  // All outlive it, and it outlives the endpoint's last callback.
  PromiseKeeper(Endpoint& endpoint, KnownFences& known, Owner& owner)
      : endpoint_(endpoint), known_(known), owner_(owner) {}

  // From now on the loop goes by this fence. `before`: the last one that this process went by.
  void Adopt(const std::string& key, const Fence& fence, const std::optional<Fence>& before);
  // The loop goes by no fence.
  void Drop();
  // REQUIRES: it goes by one.
  const std::string& key() const { return key_; }
  const Fence& fence() const { return fence_; }

  // Whether these grant times and ends of holds may be promised. If not, the raise that they need
  // is on its way. now_us: on the server's clock.
  bool MayPromise(absl::Span<const LimitPromise> promises, int64_t now_us);
  // Learns what other nodes have raised.
  void Read();
  // Lifts the limit's floors and promises up to until_us. `holds`: names of ends of its holds that
  // others have (HoldsEntry): slots bring them along. `done` gets whether it was lifted.
  void Lift(const std::string& limit, const std::set<std::string>& holds, int64_t until_us,
            absl::AnyInvocable<void(bool)> done);

 private:
  // Whether the fence has the entry, will have it, or has room for it; `hold`: of ends of holds.
  bool HasRoom(const std::string& name, bool hold) const;
  void Send(const PromiseRaise& raise, absl::AnyInvocable<void(bool)> done);
  // Sends what is wanted, one raise after the other.
  void SendWanted();

  Endpoint& endpoint_;
  KnownFences& known_;
  Owner& owner_;
  uint64_t adoption_ = 0;  // a number; replies about earlier fences are ignored
  bool adopted_ = false;
  std::string key_;
  Fence fence_;  // with all raises that are known
  int64_t passed_us_ = 0;
  PromiseRaise wanted_;
  bool raising_ = false;
  PromiseRaise sent_;  // while raising_
};

}  // namespace sluice::store::redis

#endif  // SLUICE_SERVER_STORE_REDIS_FENCING_PROMISE_KEEPER_H_
