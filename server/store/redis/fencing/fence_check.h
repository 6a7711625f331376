// FenceCheck: makes sure, for one connection to one server, that the data there is what the
// nodes know (fence.h), before anything is decided by it and while it is.
//
// When a connection is ready it reads the server's identity and the fence, replaces the fence if
// they differ, and only then lets the endpoint serve. From then on
//  - each script looks for the fence's word; one that misses it decides nothing (MARKER), and it
//    is all read again;
//  - before a command is sent later than kTrustNs after the last look, INFO goes first on the same
//    connection. Its answer comes before the command's; if the server is in another term by then
//    (demoted and promoted in between), or has lost its replicas, the connection is broken and
//    what was sent after it counts as spent.
//
// In a Cluster each primary has one, and FencePlaces says where its fence may be.
//
// Belongs to its loop.
#ifndef SLUICE_SERVER_STORE_REDIS_FENCING_FENCE_CHECK_H_
#define SLUICE_SERVER_STORE_REDIS_FENCING_FENCE_CHECK_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/types/span.h"
#include "common/log.h"
#include "common/mutex.h"
#include "common/net/event_loop.h"
#include "server/store/redis/connection/endpoint.h"
#include "server/store/redis/fencing/fence.h"
#include "server/store/redis/fencing/fencing_token.h"
#include "server/store/redis/fencing/server_info.h"

namespace sluice::store::redis {

// The last fence of each key that any loop of this process goes by. Thread-safe.
class KnownFences {
 public:
  std::optional<Fence> Get(const std::string& key) const;
  // Keys and fences.
  std::vector<std::pair<std::string, Fence>> All() const;
  // False: another loop has seen a later one, by which all is to be looked at again.
  bool Adopt(const std::string& key, const Fence& fence);
  // Its promises reach up to then by now.
  void Promised(const std::string& key, const std::string& word, int64_t until_us);
  // The server that it tells of has another one elsewhere.
  void Forget(const std::string& key);
  // Of all fences that ever were known. Never sinks.
  int64_t MaxFloorUs() const { return max_floor_us_.load(std::memory_order_relaxed); }

 private:
  mutable common::Mutex mu_;
  absl::flat_hash_map<std::string, Fence> fences_ ABSL_GUARDED_BY(mu_);
  // Who adopts a fence sees its floor; other loops see it when they adopt it.
  std::atomic<int64_t> max_floor_us_{0};
};

// Of a primary of a Cluster, whose slots, and the fences in them, come and go. On the loop.
class FencePlaces {
 public:
  // Where its fence may be; a new one is put in the first. Empty: it has no slot yet.
  virtual std::vector<std::string> FenceKeys() = 0;
  // It has replicas, as far as the Cluster knows, whether they are connected or not.
  virtual bool HasReplicas() = 0;
  // Another primary that is known has this identity.
  virtual bool IsAnothers(const std::string& identity) = 0;
  // Where the floors of its slots are noted. Of those whose floor is not known yet: `unread`.
  virtual std::vector<std::string> FloorKeys(bool unread) = 0;
  // The floors that are noted there; -1: the slot is not here.
  virtual void OnFloors(absl::Span<const std::string> keys, absl::Span<const Reply> floors) = 0;
  // A slot is not here any more.
  virtual void OnSlotUnavailable() = 0;

 protected:
  ~FencePlaces() = default;
};

struct FenceCheckOptions {
  std::string name_space;
  FencePolicy policy;
  // Where the server does not tell its min-replicas-max-lag.
  int64_t assumed_lag_us = 10'000'000;
  // Serve on a server that has replicas and would go on without them.
  bool allow_unguarded = false;
  common::Log* log = nullptr;
};

class FenceCheck {
 public:
  // How long after a look commands are sent without another.
  static constexpr int64_t kTrustNs = 100'000'000;

  // All outlive it, and it the endpoint's last callback. `failed` is told why the endpoint cannot
  // serve. `places`: null outside of a Cluster.
  FenceCheck(net::EventLoop& loop, Endpoint& endpoint, KnownFences& known,
             FenceCheckOptions options, absl::AnyInvocable<void(const absl::Status&)> failed,
             FencePlaces* places = nullptr);

  // As Endpoint::Owner. What INFO says alone may be enough to refuse the server.
  absl::Status OnInfo(const std::string& info);
  absl::Status OnFurtherInfo(const std::string& info) const;
  void OnReady();

  // A script missed the fence's word.
  void OnFenceMissed();
  // Its slots have changed.
  void OnSlots();
  // A command is about to be sent.
  void BeforeSend() {
    if (loop_.now_ns() - looked_ns_ > kTrustNs) Look();
  }
  const FencingToken& token() const { return token_; }
  // Whether a moment may be promised: the fence tells of it. If not it will soon; ask again. Both
  // in microseconds on the server's clock.
  bool MayPromise(int64_t until_us, int64_t now_us);
  // Empty: not known yet.
  const std::string& identity() const { return server_.identity; }

 private:
  // A key at which a fence may be.
  struct Place {
    std::string key;
    std::string text;            // what is there; empty: nothing
    std::optional<Fence> found;  // if that is a fence
    bool here = true;            // its slot is this server's
  };

  ServerInfo ServerInfoOf(const std::string& info, const Reply* config) const;
  // Another primary's, which it has since a slot was moved; not that of the one whose place this
  // one took.
  bool IsAnothers(const std::string& identity) const {
    return places_->IsAnothers(identity) && !server_.TookPlaceOf(identity);
  }
  void Look();
  void ReadFence();
  void OnFences();
  void OnFencesAndWord(const Place* own, bool word_stands);
  // As FencingToken::lag_us, by the fence and by what the server says now.
  int64_t LagUs(int64_t fence_lag_us) const;
  // The one that this process has gone by at this server, or at the one whose place it took.
  std::optional<Fence> Known() const;
  void RaisePromise(int64_t until_us);
  void Write(const FenceStep& step, const Place& at);
  // That the server has this one at `key` is known; others are of no meaning.
  void ForgetOthers(const std::string& key);
  // From keys[from] on; all that are not read, if from is 0. Then the endpoint serves.
  void ReadFloors(std::vector<std::string> keys, size_t from);
  // The slot has left, or is leaving.
  bool IsElsewhere(const Reply& reply) const;
  // The endpoint cannot be used as it is.
  void Refuse(absl::Status why);
  absl::Status Check() const;
  void Failed(const Reply* reply, const char* what);

  net::EventLoop& loop_;
  Endpoint& endpoint_;
  KnownFences& known_;
  const FenceCheckOptions options_;
  absl::AnyInvocable<void(const absl::Status&)> failed_;
  FencePlaces* const places_;

  std::string info_server_;  // run_id, as INFO has it
  Reply config_;
  ServerInfo server_;
  FencingToken token_;
  uint64_t connection_ = 0;  // answers to what was asked on an earlier one do not count
  int64_t looked_ns_ = 0;    // when INFO was asked for last
  bool reading_ = false;     // the fence is being read, or replaced
  int tries_ = 0;
  std::vector<Place> read_;  // places, as they were read
  std::string fence_key_;    // of the term
  std::string word_;
  int64_t promised_us_ = 0;
  bool raising_ = false;
  bool reading_floors_ = false;
};

}  // namespace sluice::store::redis

#endif  // SLUICE_SERVER_STORE_REDIS_FENCING_FENCE_CHECK_H_
