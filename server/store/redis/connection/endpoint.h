// Endpoint: one Redis server (a primary) as one event loop sees it: its connections, the requests
// in flight there, and its circuit breaker.
//
// Usually one connection is enough. When it has max_in_flight requests in flight, further ones are
// opened, up to max_connections, and take what it cannot. The state of the first connection is the
// state of the endpoint: when it breaks, all are closed. ConcurrencyWindow bounds the requests in
// flight on all of them, so that replies arrive well within the budget.
//
// The breaker opens when a reply takes longer than the budget or the connection breaks. Requests in
// flight are abandoned then: they may have been executed, and are never sent again. While the
// breaker is open the endpoint is unavailable, and a PING every 50 ms probes the server; a reply
// within the budget closes the breaker. A new connection that its owner has not admitted yet is
// probed, too, but only Serve() makes the endpoint available. A connection without a reply to a
// PING for a second is opened again. The budget counts time that the loop spent polling
// (PollingClock): a busy or starved loop does not count against Redis.
//
// Belongs to its loop. Never blocks.
#ifndef SLUICE_SERVER_STORE_REDIS_CONNECTION_ENDPOINT_H_
#define SLUICE_SERVER_STORE_REDIS_CONNECTION_ENDPOINT_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "common/bounds.h"
#include "common/log.h"
#include "common/net/address.h"
#include "common/net/event_loop.h"
#include "common/net/resolver.h"
#include "server/store/redis/connection/circuit_breaker.h"
#include "server/store/redis/connection/concurrency_window.h"
#include "server/store/redis/connection/connection.h"
#include "server/store/redis/connection/counters.h"
#include "server/store/redis/connection/polling_clock.h"
#include "server/store/redis/connection/script_size.h"
#include "server/store/redis/wire/resp.h"

namespace sluice::store::redis {

struct EndpointOptions {
  ConnectionOptions connection;
  // How long a reply may take before the breaker opens; at least a millisecond.
  int64_t budget_ns = 20'000'000;
  // Most requests in flight on one connection; one or more.
  size_t max_in_flight = common::bounds::kMaxInFlightToRedis;
  // Most connections to one server.
  size_t max_connections = 4;
  // Most runs of callers that one script decides; one or more.
  size_t max_script_runs = ScriptSize::kMost;
  common::Log* log = nullptr;         // may be null
  CircuitBreaker* breaker = nullptr;  // of the store; may be null
};

// Redis' message, with what to do about it where the message does not say so. REQUIRES:
// reply.is_error().
std::string ErrorText(const Reply& reply);

class Endpoint final : private net::IterationHook {
  struct Pipeline;

 public:
  // Something sent to the server and replied to once. Stays alive until OnReply.
  class Request : private Connection::Waiter {
   public:
    // The breaker opened: its callers are to be answered without Redis. OnReply still follows.
    virtual void Abandon() = 0;
    bool abandoned() const { return abandoned_; }

   protected:
    virtual ~Request() = default;
    // null: the connection broke; whether it was executed is not known. The server has room again.
    virtual void OnAnswered(Reply* reply) = 0;
    bool abandoned_ = false;
    size_t units_ = 1;  // of the server's work, see script_units()
    // It was a script, which began at this time of the server's clock. Called from OnAnswered.
    void TookPlaceAt(int64_t server_ns);

   private:
    friend class Endpoint;
    void OnReply(Reply* reply) final;

    Pipeline* pipeline_ = nullptr;
    int64_t sent_polled_ns_ = 0;  // on the endpoint's PollingClock
    int64_t sent_ns_ = 0;         // on the loop's clock
    uint64_t place_ = 0;          // in its pipeline
  };

  // Called on the loop.
  class Owner {
   public:
    // A new connection has read the server's INFO and accepts it. Not OK: it is not the expected
    // server; the connection is closed and, after a pause, opened again (which calls OnFailed).
    virtual absl::Status OnInfo(const std::string& info) = 0;
    // The same for a further connection, while the endpoint serves. Not OK: it leads to another
    // server, and is closed.
    virtual absl::Status OnFurtherInfo(const std::string& info) = 0;
    // A new connection is ready. The endpoint stays unavailable until Serve() is called; Call works
    // meanwhile.
    virtual void OnReady() = 0;
    // The endpoint has become available.
    virtual void OnAvailable() = 0;
    // The endpoint has become unavailable; requests in flight were abandoned already.
    virtual void OnUnavailable() = 0;
    // An attempt to connect failed, or its connection broke before Serve() was called.
    virtual void OnFailed(const absl::Status& why) = 0;

   protected:
    ~Owner() = default;
  };

  // Has something to send, and waits until the endpoint has room for it.
  class RoomWaiter {
   public:
    // Its turn: there is room, or the endpoint became unavailable. Called once, on the loop.
    virtual void OnRoom(Endpoint& endpoint) = 0;

   protected:
    ~RoomWaiter() = default;
  };

  // All outlive it. REQUIRES: idle() when it is destroyed, or the loop has ended.
  Endpoint(net::EventLoop& loop, net::Resolver& resolver, EndpointOptions options,
           ShardCounters& counters, Owner& owner);
  ~Endpoint() override;

  // Begins to connect. REQUIRES: on the loop.
  void Start();
  // Closes it for good: it may be destroyed once stopped(). REQUIRES: nothing is in flight.
  void Stop();
  bool stopped() const;
  // It was never reached, but may be at any moment. True for at most the budget.
  bool starting() const { return starting_ && loop_.now_ns() - started_ns_ < options_.budget_ns; }

  // Nothing can be sent: not connected, not admitted by the owner, or the breaker is open.
  bool unavailable() const { return breaker_open_ || !admitted_ || !first().ready(); }
  const net::Address& address() const { return options_.connection.url.address; }
  Owner& owner() { return owner_; }
  const RedisUrl& url() const { return options_.connection.url; }
  // No request is in flight, and none waits for room.
  bool idle() const { return in_flight_ == 0 && room_waiters_.empty(); }
  // A new request has to wait: the window is full, or others wait already. Call, PING and scripts
  // take no room.
  bool full();
  // First come, first served. REQUIRES: full(); `waiter` lives until OnRoom, which is not called
  // after the loop has stopped.
  void AwaitRoom(RoomWaiter& waiter);
  size_t room_waiters() const { return room_waiters_.size(); }
  // The most runs of callers that one script may decide now (script_size.h).
  size_t script_units() const { return script_size_.units(); }
  // What scripts may use, besides what each needs. The owner tells when it knows.
  struct Rights {
    bool mget = true;
    bool setrange = true;
  };
  Rights& rights() { return rights_; }
  enum class Sent : uint8_t { kYes, kFull, kUnavailable };
  // May be called while others wait, by the waiter whose turn it is. `urgent`: sends it even if the
  // window is full. `asking`: the server is to answer although its slot is still being imported
  // (sends Cluster's ASKING first).
  Sent Send(Request& request, const std::vector<std::string>& words, bool urgent, bool asking);

  // A command to this very server, whatever its slot, also while the breaker is open or the owner
  // has not admitted it. `done` runs once, with null if it was not sent or not answered; an error
  // reply is an answer. The breaker does not watch it.
  void Call(const std::vector<std::string>& words, absl::AnyInvocable<void(const Reply*)> done) {
    first().Call(words, std::move(done));
  }

  // See Owner::OnReady. No effect if the connection was lost meanwhile.
  void Serve();

  // Breaks the connection, abandons requests in flight, connects again after a pause.
  void Restart(absl::Status why) { first().Restart(std::move(why)); }
  // The same, but connects to another server from now on.
  void MoveTo(const net::Address& address, const absl::Status& why);

  // Loads all scripts again. Called after NOSCRIPT, before the request is sent again.
  void LoadScripts();
  // Counts and logs an error that no retry cures. Restarts the connection if the error says that
  // the server became a replica or is loading its data.
  void OnErrorReply(const Reply& reply);
  void LogError(std::string_view event, std::string_view what);

 private:
  // One connection, and the requests in flight there.
  struct Pipeline final : Connection::Owner {
    explicit Pipeline(Endpoint& endpoint);
    bool HasRoom() const {
      return connection.ready() && in_flight.size() < endpoint.options_.max_in_flight &&
             !connection.full();
    }
    absl::Status OnInfo(const std::string& info) override;
    void OnReady() override;
    void OnLost(const absl::Status& why) override;
    void OnFailed(const absl::Status& why) override;

    Endpoint& endpoint;
    size_t scripts_loading = 0;  // SCRIPT LOADs in flight
    Connection connection;
    std::deque<Request*> in_flight;  // oldest first
    uint64_t sent = 0;               // requests
    // The last one that said when it took place.
    struct {
      uint64_t place = 0;
      int64_t sent_ns = 0;
      int64_t server_ns = 0;
      size_t units = 0;
    } last_script;
  };

  // Calls the waiters that there is room for, at the end of this iteration.
  void WakeWaiters();
  void OnIterationEnd() override;

  Connection& first() { return pipelines_[0]->connection; }
  const Connection& first() const { return pipelines_[0]->connection; }
  // One that can take a request now; null: none. Opens a further one if all are full.
  Pipeline* PipelineWithRoom();
  // `request`, the oldest in its pipeline, was replied to.
  void Answered(Request& request);

  // Events of the first connection.
  void OnLost(const absl::Status& why);
  void OnFailed(const absl::Status& why);
  void OnPong(const Reply* reply);

  // PINGs watch the first connection, not the budget.
  bool probing() const { return breaker_open_ || !admitted_; }
  int64_t StepNs() const { return options_.budget_ns / 4; }
  int64_t PolledNs() { return polling_.Read(loop_.now_ns()); }
  // How long the oldest request in flight is known to be unanswered. Negative: none is in flight.
  int64_t UnansweredNs();
  void OpenBreaker(std::string_view why);
  void CloseBreaker();
  void Watch();
  void OnWatch();
  void Probe();

  net::EventLoop& loop_;
  net::Resolver& resolver_;
  EndpointOptions options_;
  ShardCounters& counters_;
  Owner& owner_;
  std::vector<std::unique_ptr<Pipeline>> pipelines_;  // one or more
  size_t in_flight_ = 0;                              // in all pipelines
  ConcurrencyWindow window_;
  ScriptSize script_size_;
  Rights rights_;
  std::deque<RoomWaiter*> room_waiters_;
  bool starting_ = false;
  int64_t started_ns_ = 0;
  bool breaker_open_ = false;
  bool admitted_ = false;
  PollingClock polling_;
  std::string last_failure_;   // to connect, since it was last ready
  int64_t probe_sent_ns_ = 0;  // 0: no PING is in flight
  int64_t probe_polled_ns_ = 0;
  net::Timer watch_{net::Timer::To<&Endpoint::OnWatch>, this};
};

}  // namespace sluice::store::redis

#endif  // SLUICE_SERVER_STORE_REDIS_CONNECTION_ENDPOINT_H_
