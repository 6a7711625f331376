// ConnectionBudget: bounds the open connections of a port, and shares them between peers.
//
// A peer is what one caller can be expected to hold (PeerOf): an IPv4 address, the /64 of an IPv6
// address, or a user behind a Unix socket. The port is full when it has as many connections as the
// bound says, or when the process is nearly over its memory limit. Until then every connection is
// admitted. In a full port the share of a peer is the open connections divided by the peers that
// are present. A newcomer whose peer has not used its share displaces a connection of the peer that
// has most. Any other newcomer is refused. So a peer with few connections is served whatever the
// others do.
//
// Of the peer that has most, the connection that has been idle for longest makes room. Only
// kMostLooks of its connections are looked at, and busy ones go to the end. If all of these are
// busy, the first one makes room: each in its turn, the oldest first.
#ifndef SLUICE_COMMON_NET_CONNECTION_BUDGET_H_
#define SLUICE_COMMON_NET_CONNECTION_BUDGET_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <set>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/container/node_hash_map.h"
#include "common/intrusive_list.h"
#include "common/log.h"
#include "common/memory_account.h"
#include "common/mutex.h"
#include "common/net/address.h"
#include "common/net/event_loop.h"

namespace sluice::net {

class ConnectionBudget;
class Stream;
struct AdmittedConnections;   // of a peer
struct DisplacedConnections;  // that are about to be closed

// A connection's part of a ConnectionBudget, until it is destroyed. Used on the connection's loop.
class Admission : public common::ListLink<Admission, AdmittedConnections>,
                  public common::ListLink<Admission, DisplacedConnections> {
 public:
  ~Admission();
  Admission(const Admission&) = delete;
  Admission& operator=(const Admission&) = delete;

  // The stream that is aborted to make room. Call before the loop's next task.
  void SetStream(Stream& stream) { stream_ = &stream; }
  // The peer waits for nothing since `now_ns`. A new connection is idle.
  void SetIdle(int64_t now_ns) { idle_since_ns_.store(now_ns, std::memory_order_relaxed); }
  void SetBusy() { idle_since_ns_.store(kBusy, std::memory_order_relaxed); }

 private:
  friend class ConnectionBudget;
  static constexpr int64_t kBusy = -1;

  Admission(ConnectionBudget& budget, EventLoop& loop, uint64_t peer)
      : budget_(budget), loop_(loop), peer_(peer), idle_since_ns_(loop.now_ns()) {}

  ConnectionBudget& budget_;
  EventLoop& loop_;
  const uint64_t peer_;
  Stream* stream_ = nullptr;
  bool displaced_ = false;  // guarded by the budget's mutex
  // Relaxed: other threads choose by it, and publish nothing.
  std::atomic<int64_t> idle_since_ns_;
};

// Thread-safe. Outlives its admissions and the threads of their loops.
class ConnectionBudget {
 public:
  struct Options {
    // A newcomer whose peer has used its share displaces an idle connection: of its peer, or if
    // that has none at all, of the peer that has most. For a port whose peers lose nothing with an
    // idle connection.
    bool displaces_idle = false;
    // While it is nearly over, the port is full. Null: only the bound counts.
    const common::MemoryBudget* memory = nullptr;
    // Where displaced connections are reported, at most once a second; null: nowhere.
    common::Log* log = nullptr;
  };

  ConnectionBudget(int64_t max, const Options& options) : max_(max), options_(options) {}
  explicit ConnectionBudget(int64_t max) : ConnectionBudget(max, Options()) {}

  // Null: the connection is refused. `*displaced`: whether another one is about to be closed for
  // it. `loop`: of the connection, and of this thread.
  std::unique_ptr<Admission> Admit(EventLoop& loop, uint64_t peer, bool* displaced);
  // Connections that are open, without those that were displaced.
  int64_t open() const;

  // Displaced connections that are not closed yet, at most. More newcomers are refused, so that the
  // bound is exceeded by no more.
  static constexpr int kMostLeaving = 1024;
  static constexpr int kMostLooks = 64;
  // Open connections up to which memory does not count: they hold little, and a port that has no
  // more is reached while the connections of another port fill the memory.
  static constexpr int64_t kFew = 64;

 private:
  friend class Admission;
  using Displaced = common::IntrusiveList<Admission, DisplacedConnections>;
  struct Peer {
    using List = common::IntrusiveList<Admission, AdmittedConnections>;
    size_t connections = 0;
    List list;  // the longest first
  };
  using Peers = absl::node_hash_map<uint64_t, Peer>;

  bool full() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Returns the connection that makes room for one of `peer`; null: none does.
  Admission* FindVictim(uint64_t peer) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  static Admission* FindVictimOf(Peer& peer, bool idle_only);
  void Add(Admission& admission) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Remove(Admission& admission) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Count(uint64_t peer, size_t before, size_t after) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void GiveBack(Admission& admission);
  // Closes the displaced connections of a loop, on its thread.
  void CloseDisplaced(EventLoop& loop);

  const int64_t max_;
  const Options options_;
  mutable common::Mutex mu_;
  Peers peers_ ABSL_GUARDED_BY(mu_);
  std::set<std::pair<size_t, uint64_t>> by_connections_ ABSL_GUARDED_BY(mu_);
  Displaced displaced_ ABSL_GUARDED_BY(mu_);
  int64_t open_ ABSL_GUARDED_BY(mu_) = 0;
  int leaving_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t unlogged_ ABSL_GUARDED_BY(mu_) = 0;    // displaced, since the last line of the log
  int64_t log_next_ns_ ABSL_GUARDED_BY(mu_) = 0;  // the next line may follow then
};

// The peer of a connected socket, as ConnectionBudget and HandshakeSlots know it.
uint64_t PeerOf(int fd, const SocketAddress& address);

}  // namespace sluice::net

#endif  // SLUICE_COMMON_NET_CONNECTION_BUDGET_H_
