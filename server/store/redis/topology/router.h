// Router: which server decides which buckets, as one event loop sees it. One implementation for
// each topology; each shard has a router of its own.
//
// Belongs to its loop (construction and destruction: as RedisStore's). What several loops are to
// know together, say, the slots of a Cluster, an implementation shares by itself.
#ifndef SLUICE_SERVER_STORE_REDIS_TOPOLOGY_ROUTER_H_
#define SLUICE_SERVER_STORE_REDIS_TOPOLOGY_ROUTER_H_

#include <cstdint>
#include <memory>
#include <string_view>

#include "absl/status/status.h"
#include "common/net/event_loop.h"
#include "common/net/resolver.h"
#include "server/store/redis/connection/counters.h"
#include "server/store/redis/connection/endpoint.h"
#include "server/store/redis/fencing/fence_check.h"
#include "server/store/redis/fencing/fencing_token.h"
#include "server/store/redis/wire/resp.h"

namespace sluice::store::redis {

// What becomes of a command that was answered with an error.
struct Course {
  enum class What : uint8_t {
    // It is answered as if its server were away (or, of a Call, with the error).
    kGiveUp,
    // It is sent at once to `endpoint`; null: to whoever EndpointOf says now.
    kSendAgain,
    // It is sent after `after_ns` to whoever EndpointOf says then.
    kSendLater,
  };
  What what = What::kGiveUp;
  Endpoint* endpoint = nullptr;
  // The server is to answer for a slot that it is importing.
  bool asking = false;
  int64_t after_ns = 0;
};

class Router {
 public:
  // The shard. Told on the loop.
  class Host {
   public:
    // It was serving and does no more: callers that wait for it, and were not sent, are answered.
    virtual void OnUnavailable(Endpoint& endpoint) = 0;
    // There is a server that serves, or an attempt to reach one failed. What each loop says first
    // is what RedisStore::AwaitFirstConnections waits for.
    virtual void OnConnected(const absl::Status& status) = 0;

   protected:
    ~Host() = default;
  };
  // What the shard gives to its router; all of it outlives the router.
  struct Context {
    net::EventLoop& loop;
    net::Resolver& resolver;
    // As the URL says; a router changes the address.
    const EndpointOptions& endpoint;
    ShardCounters& counters;
    Host& host;
    const FenceCheckOptions& fence_options;
    // Of all loops.
    KnownFences& known_fences;
  };

  virtual ~Router() = default;

  // Begins to connect. Called once, on the loop.
  virtual void Start() = 0;

  // Who decides for `key` (a name in Redis: see KeysOf), also if it is away; null: nobody, as far
  // as is known, which is as good as away. Valid until the loop's next iteration. An endpoint
  // lives for as long as a command is in flight there.
  virtual Endpoint* EndpointOf(std::string_view key) = 0;

  // Keys of different groups cannot go into one script. Splits() false: all are of one.
  virtual bool Splits() const { return false; }
  virtual uint16_t GroupOf(std::string_view key) const { return 0; }

  // What scripts on `key` are told of the data at `endpoint`, which EndpointOf named. Called for
  // each one that is sent; of no effect after the next.
  virtual const FencingToken& TokenFor(Endpoint& endpoint, std::string_view key) = 0;

  // Whether moments up to `until_us` may be promised of what is booked at `endpoint`; see
  // FenceCheck::MayPromise.
  virtual bool MayPromise(Endpoint& endpoint, int64_t until_us, int64_t now_us) = 0;

  // Nothing can be sent to anybody, nor is anybody's first connection awaited: the quick way to
  // say so, before a key's name is made.
  virtual bool AllUnavailable() const = 0;

  // A command for `key` was answered with an error by `from`; it was not executed there. The
  // default: from.OnErrorReply, and the command is given up.
  virtual Course OnError(Endpoint& from, std::string_view key, const Reply& error);
};

// One server.
class SingleRouter : public Router, protected Endpoint::Owner {
 public:
  explicit SingleRouter(const Context& context);

  void Start() override { endpoint_.Start(); }
  Endpoint* EndpointOf(std::string_view) override { return &endpoint_; }
  const FencingToken& TokenFor(Endpoint&, std::string_view) override {
    fence_check_.BeforeSend();
    return fence_check_.token();
  }
  bool MayPromise(Endpoint&, int64_t until_us, int64_t now_us) override {
    return fence_check_.MayPromise(until_us, now_us);
  }
  bool AllUnavailable() const override { return endpoint_.unavailable() && !endpoint_.starting(); }
  Course OnError(Endpoint& from, std::string_view key, const Reply& error) override;

 protected:
  absl::Status OnInfo(Endpoint&, const std::string& info) override {
    return fence_check_.OnInfo(info);
  }
  absl::Status OnFurtherInfo(Endpoint&, const std::string& info) override {
    return fence_check_.OnFurtherInfo(info);
  }
  void OnReady(Endpoint&) override { fence_check_.OnReady(); }
  void OnAvailable(Endpoint&) override { host_.OnConnected(absl::OkStatus()); }
  void OnUnavailable(Endpoint& endpoint) override { host_.OnUnavailable(endpoint); }
  void OnFailed(Endpoint&, const absl::Status& why) override { host_.OnConnected(why); }

  Host& host_;
  Endpoint endpoint_;
  FenceCheck fence_check_;
};

// The one of the topology that the URL names.
std::unique_ptr<Router> MakeRouter(const Router::Context& context);

}  // namespace sluice::store::redis

#endif  // SLUICE_SERVER_STORE_REDIS_TOPOLOGY_ROUTER_H_
