// Endpoint: one Redis server (a primary) as one event loop sees it: its connections, what is in
// flight there, and its breaker.
//
// One connection does, as a rule. When as many commands are in flight on it as may be, further ones
// are opened beside, up to a bound, and used for what it cannot take; the first one stays the one
// by which the server is judged, and when it breaks all do. How many may be in flight on all of
// them follows from how long answers take (ConcurrencyWindow): more is not sent than is answered
// well within the budget.
//
// The breaker opens when an answer takes longer than the budget or the connection breaks. All that
// is in flight is abandoned then: it may have been executed and is never sent again. While it is
// open the endpoint is away, and a PING every 50 ms tries the server; an answer within the budget
// closes it. The budget is of time in which this loop looked out for the answer (PollingClock):
// that the loop was busy or starved is not Redis' fault, nor that it has not read on yet.
//
// Knows nothing of lines or buckets. Belongs to its loop.
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
#include "common/log.h"
#include "common/net/address.h"
#include "common/net/event_loop.h"
#include "common/net/resolver.h"
#include "server/store/redis/connection/circuit_breaker.h"
#include "server/store/redis/connection/concurrency_window.h"
#include "server/store/redis/connection/connection.h"
#include "server/store/redis/connection/counters.h"
#include "server/store/redis/connection/polling_clock.h"
#include "server/store/redis/wire/resp.h"

namespace sluice::store::redis {

class Command;

struct EndpointOptions {
  ConnectionOptions connection;
  // How long an answer may take before the breaker opens; at least a millisecond.
  int64_t budget_ns = 20'000'000;
  // Commands on one connection without an answer, at most; one or more.
  size_t max_in_flight = 1024;
  // To one server, at most.
  size_t max_connections = 4;
  common::Log* log = nullptr;              // may be null
  CircuitBreaker* availability = nullptr;  // of the store; may be null
};

// Redis' words, and what to do where they do not say it. REQUIRES: reply.is_error().
std::string ErrorText(const Reply& reply);

class Endpoint final : private Connection::Waiter, private net::IterationHook {
 public:
  // The router that has it. Told on the loop.
  class Owner {
   public:
    // A new connection's server told about itself (INFO), and will do as far as the connection
    // sees. Not OK: it is not the one that is meant; the connection is closed and, after a pause,
    // made anew (which calls OnFailed).
    virtual absl::Status OnInfo(Endpoint&, const std::string& info) { return absl::OkStatus(); }
    // The same of a further connection, while the endpoint serves. Not OK: it leads to another
    // server by now, and is closed.
    virtual absl::Status OnFurtherInfo(Endpoint&, const std::string& info) {
      return absl::OkStatus();
    }
    // A new connection is ready. True: it serves at once. False: the endpoint stays away until
    // Serve() is called; Call works meanwhile.
    virtual bool OnReady(Endpoint&) { return true; }
    // It serves, and did not before.
    virtual void OnBack(Endpoint&) {}
    // It was serving and does no more; what was in flight was abandoned already.
    virtual void OnUnavailable(Endpoint&) = 0;
    // An attempt to connect failed.
    virtual void OnFailed(Endpoint&, const absl::Status& why) = 0;

   protected:
    ~Owner() = default;
  };

  // Who has something to send, and waits until there is room.
  class RoomWaiter {
   public:
    // It is his turn: there is room, or the endpoint went away. Told once, on the loop.
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
  // For good: it may be destroyed once stopped(). REQUIRES: nothing is in flight.
  void Stop();
  bool stopped() const;
  // It was never reached yet, and may be any moment: not for longer than the budget.
  bool starting() const { return starting_ && loop_.now_ns() - started_ns_ < options_.budget_ns; }

  // Nothing can be sent: not connected, not admitted by the owner, or the breaker is open.
  bool away() const { return breaker_open_ || !admitted_ || !first().ready(); }
  const net::Address& address() const { return options_.connection.url.address; }
  const RedisUrl& url() const { return options_.connection.url; }
  // No command is without an answer, and nobody waits for room.
  bool idle() const { return in_flight_ == 0 && room_waiters_.empty(); }
  // Whoever comes now has to wait: as many commands are in flight as may be, or others wait.
  // What else was sent (Call, PING, scripts) takes no room: nobody waits for its answer to go on.
  bool full();
  // First come, first served. REQUIRES: full(); `waiter` stays until it was told, or until the loop
  // stops: nobody is told then.
  void AwaitRoom(RoomWaiter& waiter);
  size_t room_waiters() const { return room_waiters_.size(); }
  enum class Sent : uint8_t { kYes, kFull, kAway };
  // Also while others wait: it may be his turn. `asking`: the server is to answer though its slot
  // is being imported (Cluster's ASKING goes before it).
  Sent Send(Command& command, const std::vector<std::string>& words, bool asking);

  // A command of its own to just this server, whatever its slot, also while the breaker is open
  // or the owner has not admitted it. `done` runs once, with null if it was not sent or not
  // answered; an error reply is an answer. The breaker does not look at it.
  void Call(const std::vector<std::string>& words, absl::AnyInvocable<void(const Reply*)> done);

  // See Owner::OnReady. Of no effect when the connection was lost meanwhile.
  void Serve();

  // Breaks the connection, abandons what is in flight, connects again after a pause.
  void Restart(absl::Status why) { first().Restart(std::move(why)); }
  // The same, but to another server from now on.
  void MoveTo(const net::Address& address, const absl::Status& why);

  // Commands that were told NOSCRIPT call it before they are sent again.
  void LoadScripts();
  // An error that nobody knows how to cure is counted and logged; a server that says that it
  // became a replica or loads its data is left (Restart).
  void OnErrorReply(const Reply& reply);
  void LogError(std::string_view event, std::string_view what);

 private:
  friend class Command;

  // One of its connections, and what is in flight there.
  class Lane final : public Connection::Owner {
   public:
    // Scripts that are loaded again.
    struct Loads final : Connection::Waiter {
      void OnReply(Reply*) override { --under_way; }
      size_t under_way = 0;
    };

    explicit Lane(Endpoint& endpoint);
    bool HasRoom() const {
      return connection.ready() && in_flight.size() < endpoint.options_.max_in_flight &&
             !connection.full();
    }
    absl::Status OnInfo(const std::string& info) override;
    void OnReady() override;
    void OnLost(const absl::Status& why) override;
    void OnFailed(const absl::Status& why) override;

    Endpoint& endpoint;
    Loads loads;  // until after the connection's end
    Connection connection;
    std::deque<Command*> in_flight;  // oldest first
  };

  // Lets those who wait look whether there is room, at the end of an iteration.
  void TellWaiters();
  void OnIterationEnd() override;

  Connection& first() { return lanes_[0]->connection; }
  const Connection& first() const { return lanes_[0]->connection; }
  // One that can take a command; null: none, now.
  Lane* LaneWithRoom();
  // The oldest of those in flight where `command` was sent was told its answer: it.
  static void Answered(Command& command);

  // Of the first connection.
  void OnReady();
  void OnLost(const absl::Status& why);
  void OnFailed(const absl::Status& why);
  // The answer to a PING.
  void OnReply(Reply* reply) override;

  int64_t StepNs() const { return options_.budget_ns / 4; }
  int64_t Attention() { return attention_.Read(loop_.now_ns()); }
  // Of the oldest that is in flight: for how long it is known not to be answered. Negative: none.
  int64_t UnansweredNs();
  void OpenBreaker(std::string_view why);
  void TellAway(std::string_view why);
  void CloseBreaker();
  void Watch();
  void OnWatch();
  void Probe();

  net::EventLoop& loop_;
  net::Resolver& resolver_;
  EndpointOptions options_;
  ShardCounters& counters_;
  Owner& owner_;
  std::vector<std::unique_ptr<Lane>> lanes_;  // one or more
  size_t in_flight_ = 0;                      // on all lanes
  ConcurrencyWindow window_;
  std::deque<RoomWaiter*> room_waiters_;
  bool starting_ = false;
  int64_t started_ns_ = 0;
  bool breaker_open_ = false;
  bool admitted_ = false;
  PollingClock attention_;
  std::string last_failure_;   // to connect, since it was ready last
  int64_t probe_sent_ns_ = 0;  // 0: none is under way
  int64_t probe_attention_ns_ = 0;
  net::Timer watch_{net::Timer::To<&Endpoint::OnWatch>, this};
};

}  // namespace sluice::store::redis

#endif  // SLUICE_SERVER_STORE_REDIS_CONNECTION_ENDPOINT_H_
