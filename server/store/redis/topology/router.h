// Router: which server has which buckets, as one event loop sees it. One implementation for each
// topology; each shard has a router of its own.
//
// Belongs to its loop; constructed before the loop runs, and destroyed after it has ended.
#ifndef SLUICE_SERVER_STORE_REDIS_TOPOLOGY_ROUTER_H_
#define SLUICE_SERVER_STORE_REDIS_TOPOLOGY_ROUTER_H_

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/types/span.h"
#include "common/net/event_loop.h"
#include "server/store/redis/connection/counters.h"
#include "server/store/redis/connection/endpoint.h"
#include "server/store/redis/fencing/fence_check.h"
#include "server/store/redis/wire/resp.h"

namespace sluice::store::redis {

// What becomes of a command that was answered with an error.
struct Course {
  enum class What : uint8_t {
    // It is answered as if its server were unavailable (a raw command: with the error).
    kGiveUp,
    // It is sent at once to `endpoint`; null: to what EndpointOf names now.
    kSendAgain,
    // It is sent after `after_ns` to what EndpointOf names then.
    kSendLater,
  };
  What what = What::kGiveUp;
  Endpoint* endpoint = nullptr;
  // The server is to answer for a slot that it is still importing.
  bool asking = false;
  int64_t after_ns = 0;
};

// A command that missed the fence is sent again after so long: by then the fence was read again,
// and replaced if necessary.
inline constexpr int64_t kFenceRereadNs = 2'000'000;

class Router {
 public:
  // The shard. Called on the loop.
  class Host {
   public:
    // The endpoint became unavailable: callers that wait to be sent to it are to be answered.
    virtual void OnUnavailable(Endpoint& endpoint) = 0;
    // A server became available, or an attempt to reach one failed.
    // RedisStore::AwaitFirstConnections waits for the first call on each loop.
    virtual void OnConnected(const absl::Status& status) = 0;
    virtual void LogError(std::string_view event, std::string_view what) = 0;

   protected:
    ~Host() = default;
  };
  // All of it outlives the router.
  struct Context {
    FenceCheck::Context fence;
    // As in the URL; a router changes the address.
    const EndpointOptions& endpoint;
    Host& host;
  };

  virtual ~Router() = default;

  // Starts to connect. Called once, on the loop.
  virtual void Start() = 0;

  // The server of `key` (a name in Redis: see KeysOf), even if it is unavailable; null: none is
  // known. Valid until the loop's next iteration. An endpoint lives as long as a request is in
  // flight there.
  virtual Endpoint* EndpointOf(std::string_view key) = 0;

  // A script cannot declare keys of different groups. Splits() false: all keys are of one group.
  virtual bool Splits() const { return false; }
  virtual uint16_t GroupOf(std::string_view key) const { return 0; }

  // Fencing token and floor for a script on `key` at `endpoint`, which EndpointOf named. Called for
  // each script that is sent; valid until the next call.
  virtual const FencingToken& TokenFor(Endpoint& endpoint, std::string_view key) = 0;

  // Whether these grant times may be promised for bookings at `endpoint`; see
  // FenceCheck::MayPromise.
  virtual bool MayPromise(Endpoint& endpoint, absl::Span<const LimitPromise> promises,
                          int64_t now_us) = 0;
  // Lifts the floor that the limit has of its own at any server, if it is later than now_us on the
  // servers' clock. `done` gets it; 0: there is none; -1: not all servers did it.
  using LiftDone = absl::AnyInvocable<void(int64_t floor_us)>;
  virtual void LiftFloor(const std::string& limit, int64_t now_us, LiftDone done) = 0;

  // No server is available, and none is being connected to for the first time. Needs no key.
  virtual bool AllUnavailable() const = 0;

  // A command for `key` got an error from `from`, and was not executed there. By default it is
  // given up, after from.OnErrorReply.
  virtual Course OnError(Endpoint& from, std::string_view key, const Reply& error);
};

// One server.
class SingleRouter : public Router, protected FenceCheck {
 public:
  explicit SingleRouter(const Router::Context& context)
      : FenceCheck(context.fence, context.endpoint), host_(context.host) {}

  void Start() override { endpoint().Start(); }
  Endpoint* EndpointOf(std::string_view) override { return &endpoint(); }
  const FencingToken& TokenFor(Endpoint&, std::string_view) override {
    BeforeSend();
    return token();
  }
  bool MayPromise(Endpoint&, absl::Span<const LimitPromise> promises, int64_t now_us) override {
    return FenceCheck::MayPromise(promises, now_us);
  }
  void LiftFloor(const std::string& limit, int64_t now_us, LiftDone done) override;
  bool AllUnavailable() const override {
    return endpoint().unavailable() && !endpoint().starting();
  }
  Course OnError(Endpoint& from, std::string_view key, const Reply& error) override;

 protected:
  void OnAvailable() override { host_.OnConnected(absl::OkStatus()); }
  void OnUnavailable() override { host_.OnUnavailable(endpoint()); }
  void OnFailed(const absl::Status& why) override { host_.OnConnected(why); }

 private:
  Host& host_;
};

// The router of the URL's topology.
std::unique_ptr<Router> MakeRouter(const Router::Context& context);

}  // namespace sluice::store::redis

#endif  // SLUICE_SERVER_STORE_REDIS_TOPOLOGY_ROUTER_H_
