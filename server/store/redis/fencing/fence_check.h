// FenceCheck: owns the endpoint of one server, and checks that the server's data is what the nodes
// know (fence.h), before and while anything is decided by it.
//
// When a connection is ready it reads the server's identity and the fence, replaces the fence if
// they differ, and only then lets the endpoint serve. From then on
//  - each script looks for the fence's word; a script that misses it decides nothing (error FENCE),
//    and identity and fence are read again;
//  - before a command is sent later than kTrustNs after the last check, INFO goes first on the same
//    connection. Its reply comes before the command's. If the server is in another term by then
//    (demoted and promoted in between), or has lost its replicas, the connection is broken, and
//    what was sent after the INFO counts as spent.
//
// In a Cluster each primary has its own; its slots, and the fences in them, come and go.
//
// Belongs to its loop.
#ifndef SLUICE_SERVER_STORE_REDIS_FENCING_FENCE_CHECK_H_
#define SLUICE_SERVER_STORE_REDIS_FENCING_FENCE_CHECK_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/types/span.h"
#include "common/log.h"
#include "common/net/event_loop.h"
#include "server/store/redis/connection/endpoint.h"
#include "server/store/redis/fencing/clock_watch.h"
#include "server/store/redis/fencing/fence.h"
#include "server/store/redis/fencing/known_fences.h"
#include "server/store/redis/fencing/promise_keeper.h"
#include "server/store/redis/fencing/server_info.h"

namespace sluice::store::redis {

struct FenceCheckOptions {
  std::string name_space;
  FencePolicy policy;
  // Used where CONFIG GET of min-replicas-max-lag is not allowed.
  int64_t assumed_lag_us = 10'000'000;
  // Serve on a server that has replicas and would go on without them.
  bool allow_unguarded = false;
  // Compare the server's clock with the loop's. Not in tests whose time is another.
  bool watch_clock = true;
  common::Log* log = nullptr;
};

// A router derives from it, and is told by OnAvailable, OnUnavailable and OnFailed.
class FenceCheck : public Endpoint::Owner, private PromiseKeeper::Owner {
 public:
  // How long after a check commands are sent without another.
  static constexpr int64_t kTrustNs = 100'000'000;

  // All of it outlives the checks.
  struct Context {
    net::EventLoop& loop;
    net::Resolver& resolver;
    ShardCounters& counters;
    const FenceCheckOptions& options;
    KnownFences& known;  // of all loops
  };

  FenceCheck(const Context& context, EndpointOptions endpoint);

  Endpoint& endpoint() { return endpoint_; }
  const Endpoint& endpoint() const { return endpoint_; }

  // A script missed the fence's word.
  void OnFenceMissed() final;
  // Whether `error` is of a script that decided nothing because of the fence or the clock. Both are
  // read again then; the script may be sent again.
  bool OnRefused(const Reply& error);
  // Its slots have changed.
  void OnSlots();
  // A command is about to be sent.
  void BeforeSend() {
    if (loop_.now_ns() - checked_ns_ > kTrustNs) {
      CheckIdentity();
      ReadClock();
    }
    token_.clock = clock_.ClockAt(loop_.now_ns() / 1000);
  }
  const FencingToken& token() const { return token_; }
  // Whether these grant times may be promised: the fence allows them. If not it will soon: ask
  // again. now_us: on the server's clock.
  bool MayPromise(absl::Span<const LimitPromise> promises, int64_t now_us) {
    return promises_.MayPromise(promises, now_us);
  }
  // Lifts the limit's own floor up to until_us. `holds`: as PromiseKeeper::Lift. `done` gets
  // whether the server did it.
  void Lift(const std::string& limit, const std::set<std::string>& holds, int64_t until_us,
            absl::AnyInvocable<void(bool)> done);
  // Empty: not known yet.
  const std::string& identity() const { return server_.identity; }

 protected:
  ~FenceCheck() = default;

  // What follows is overridden for a Cluster's primary.
  //
  // Keys where its fence may be; a new fence goes to the first. Empty: it has no slot yet.
  virtual std::vector<std::string> FenceKeys() const { return {FenceKey(options_.name_space)}; }
  // The Cluster knows of replicas of it, connected or not.
  virtual bool HasReplicas() const { return false; }
  // Another known primary has this identity.
  virtual bool IsOfAnother(const std::string& identity) const { return false; }
  // The keys of its slots' floors; with `unread` only of slots whose floor is not known yet.
  virtual std::vector<std::string> FloorKeys(bool unread) const { return {}; }
  // What is noted at these keys; an integer: the slot is not at this server.
  virtual void OnFloors(absl::Span<const std::string> keys, absl::Span<const Reply> floors) {}
  // A slot has left this server.
  virtual void OnSlotUnavailable() {}

 private:
  // A key where the fence may be.
  struct FencePlace {
    std::string key;
    std::string text;            // its value; empty: none
    std::optional<Fence> found;  // if that is a fence
    bool here = true;            // this server has its slot
  };

  // INFO alone may be enough to refuse the server.
  absl::Status OnInfo(const std::string& info) final;
  absl::Status OnFurtherInfo(const std::string& info) final;
  void OnReady() final;

  ServerInfo ServerInfoOf(const std::string& info, const Reply* config) const;
  // The identity is of another primary, whose fence moved here with a slot; not of the primary
  // whose place this server took.
  bool IsAnothers(const std::string& identity) const {
    return IsOfAnother(identity) && !server_.TookPlaceOf(identity);
  }
  // Which commands scripts may use, besides those that they need.
  void CheckRights();
  void CheckIdentity();
  // Compares the server's clock with what this node expects.
  void ReadClock();
  // The clock was set. `correction_us`: from now on.
  void OnClockSet(int64_t correction_us);
  // `done` gets the reading.
  void CallTime(absl::AnyInvocable<void(const ClockReading&)> done);
  void ReadFence();
  void OnFences();
  void OnFencesAndWord(const FencePlace* own, bool word_stands);
  void Adopt(const FencePlace& own, const Fence& fence, const std::optional<Fence>& known);
  // As FencingToken::lag_us, by the fence and by the server's settings now.
  int64_t LagUs(int64_t fence_lag_us) const;
  // The fence that this process adopted at this server, or at the one whose place it took.
  std::optional<Fence> Known() const;
  void OnRaised() final;
  void Watch();
  // `clock_set`: because, among others, the server's clock was set.
  void Write(const FenceStep& step, const FencePlace& at, bool clock_set);
  // The server has its fence at `key`: forgets known fences of its under other keys.
  void ForgetOthers(const std::string& key);
  // Reads from keys[from] on; if `from` is 0, all that are unread. Then the endpoint serves.
  void ReadFloors(std::vector<std::string> keys, size_t from);
  // The slot has left this server, or is leaving.
  static bool IsElsewhere(const Reply& reply);
  // Closes the connection: the endpoint cannot be used as it is.
  void Refuse(absl::Status why);
  absl::Status Check() const;
  void Failed(const Reply* reply, const char* what);

  net::EventLoop& loop_;
  KnownFences& known_;
  const FenceCheckOptions& options_;
  Endpoint endpoint_;
  PromiseKeeper promises_;
  ShardCounters& counters_;

  std::string info_server_;  // run_id, as INFO has it
  Reply config_;
  ServerInfo server_;
  FencingToken token_;
  uint64_t connection_ = 0;  // a number; replies on earlier connections are ignored
  int64_t checked_ns_ = 0;   // when INFO was last sent
  bool reading_ = false;     // the fence is being read, or replaced
  int tries_ = 0;
  std::vector<FencePlace> read_;  // as they were read
  ClockWatch clock_;
  ClockReading clock_read_;  // after read_
  int slow_readings_ = 0;    // in a row
  bool reading_clock_ = false;
  bool reading_floors_ = false;
  bool floors_wanted_ = false;  // slots came while floors were being read
  // Checks the server now and then though no command is sent: so the node knows what others
  // promise, and detects a loss in time to publish what it promised itself.
  net::Timer watch_{net::Timer::To<&FenceCheck::Watch>, this};
};

}  // namespace sluice::store::redis

#endif  // SLUICE_SERVER_STORE_REDIS_FENCING_FENCE_CHECK_H_
