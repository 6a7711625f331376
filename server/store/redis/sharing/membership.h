// Membership: what a node knows of the other nodes on its Redis, and which share of limits it may
// therefore decide by itself. Depends only on the replies to its heartbeats (heartbeat.lua).
//
// Each node that holds a share divides limits by a number of its own, its divisor. Invariant: at no
// moment do the shares 1/divisor of all nodes that may be granting sum up to more than 1.
//
//  - A share is good for 7/8 of a time to live (TTL) after an answered heartbeat was sent. Redis
//    counts a node for a whole TTL after it executed the heartbeat, which is later. So a node that
//    is no longer counted no longer grants.
//  - More nodes than before: the divisor rises at once.
//  - A new node (never heard of, or lapsed) takes a share one TTL after its first reply, not
//    before. By then each share that is still good was confirmed by a reply that contained the new
//    node.
//  - Fewer nodes: the divisor falls when there were fewer for a TTL without a gap, and after one
//    more heartbeat announced it. So a node that was cut off and returns learns from the announced
//    divisors whether another node has grown or is about to.
//
// Example: two nodes, each with divisor 2. A third sends its first heartbeat. Within a TTL the
// others' heartbeats return three nodes, and each takes divisor 3; then the third takes its share
// with divisor 3. When it stops, the others wait until it has lapsed, and a TTL more, announce
// divisor 2, and take it with the next reply.
//
// Another server may take Redis' place, which the old one does not detect for its *lag*. Meanwhile
// each answers some nodes, and does not know the others. So
//  - where that is possible, a node counts for the lag after it has lapsed: the other server may
//    confirm its share. After that time this server would not answer any more;
//  - a server that has taken over says how long the old one may go on; until then no node grows,
//    and no new node starts to wait.
//
// A share is used in two ways. *Strict*: a share that is not confirmed in time is lost, and the
// node is new. *Lenient*, for on_store_failure: split: while heartbeats are not answered the share
// stays, as long as this node runs (Tick); a node that was stopped loses it. When heartbeats are
// answered again, the node keeps its share if no other node has grown meanwhile. If only one node
// is cut off, the others take over its share while it goes on granting; no node can detect that by
// itself.
//
// Limits that Redis decides exactly, and nodes only while it is unavailable (on_store_failure:
// split):
//  - exact: until half a TTL after an answered heartbeat;
//  - local: from three quarters of a TTL after it, so that no other node is still exact by an older
//    reply;
//  - neither in between; nor, when Redis is available again, until all nodes have debited what they
//    granted; nor before Redis has known nodes for a TTL: if it lost its data it does not know of
//    nodes that have yet to return.
//
// docs/adr/0094 has the reasons. Not thread-safe; never blocks. Times on common::Clock::NowNs(),
// except those in replies.
#ifndef SLUICE_SERVER_STORE_REDIS_SHARING_MEMBERSHIP_H_
#define SLUICE_SERVER_STORE_REDIS_SHARING_MEMBERSHIP_H_

#include <cstdint>
#include <limits>
#include <vector>

#include "server/store/redis/commands/heartbeat.h"

namespace sluice::store::redis {

inline constexpr int64_t kNever = std::numeric_limits<int64_t>::max();

// The divisors of a share since the node has held it without a gap.
struct ShareHistory {
  struct Change {
    // The number of the change, from 1 on.
    uint64_t serial = 0;
    int64_t at_ns = 0;
    uint32_t divisor = 1;
  };
  // Oldest first; empty: no share. The first is its beginning, or the oldest change that is kept.
  std::vector<Change> changes;

  bool none() const { return changes.empty(); }
  uint32_t divisor() const { return changes.empty() ? 0 : changes.back().divisor; }
  // The greatest divisor in force at any time in (now_ns - window_ns, now_ns]; 0: the node has not
  // held a share for so long.
  uint32_t GreatestOf(int64_t now_ns, int64_t window_ns) const;
};

// Whether a node may grant by this share: before until_ns, unless it is renewed, whatever kept it
// from sending heartbeats. Other nodes take a node that is silent for longer for gone.
inline bool MayGrant(const ShareHistory& share, int64_t until_ns, int64_t now_ns) {
  return !share.none() && now_ns < until_ns;
}

class Membership {
 public:
  explicit Membership(int64_t ttl_ns) : ttl_ns_(ttl_ns) {}

  int64_t ttl_ns() const { return ttl_ns_; }

  // ---- The next heartbeat ----

  uint32_t announced() const;
  // Whether it may say that this node has nothing to debit; `undebited`: it has something. A node
  // that may be granting at this moment may not say so.
  bool Clear(bool undebited) const {
    return !undebited && (!settling_ || back_us_ != 0 || lenient_.none());
  }
  // Between heartbeats.
  int64_t IntervalNs() const { return settling_ && back_us_ != 0 ? ttl_ns_ / 100 : ttl_ns_ / 8; }

  // ---- Events ----

  // `clear`: as in the heartbeat.
  void OnReply(int64_t sent_ns, int64_t now_ns, bool clear, const HeartbeatReply& reply);
  // Called at least four times a TTL.
  void Tick(int64_t now_ns);

  // ---- Results ----

  const ShareHistory& strict() const { return strict_; }
  const ShareHistory& lenient() const { return lenient_; }
  // The share is good before it.
  int64_t strict_until_ns() const { return strict_until_ns_; }
  int64_t lenient_until_ns() const { return lenient_until_ns_; }
  // When a new node takes its share at the earliest; kNever: it is not waiting for one.
  int64_t joins_at_ns() const { return joined_ns_ == kNever ? kNever : joined_ns_ + ttl_ns_; }
  // Exact before exact_until_ns; local from local_from_ns on, with a good lenient share.
  int64_t exact_until_ns() const { return settling_ ? 0 : exact_until_ns_; }
  int64_t local_from_ns() const { return local_from_ns_; }
  // Heartbeats are answered, but nodes still have to debit what they granted while they were not.
  bool settling() const { return settling_; }

  const std::vector<HeartbeatReply::Node>& others() const { return others_; }
  bool Lapsed(const HeartbeatReply::Node& node) const { return node.age_us >= ttl_ns_ / 1000; }
  // Whether it may have a share: it has not lapsed, or another server may have answered it since.
  bool Counts(const HeartbeatReply::Node& node) const {
    return node.age_us < ttl_ns_ / 1000 + lag_us_;
  }

 private:
  // What a reply says of the nodes that count.
  struct Seen {
    uint32_t nodes = 1;  // with this one
    uint32_t least_announced = std::numeric_limits<uint32_t>::max();
  };

  // The divisor of a share that this node has follows the number of nodes.
  void FollowNodes(uint32_t nodes, bool held_back, int64_t now_ns);
  // A new node has waited for a TTL: takes a share, announces it, or goes on waiting.
  void Join(const Seen& seen, int64_t now_ns);
  void SetDivisor(uint32_t divisor, int64_t at_ns);
  void Begin(ShareHistory* history, uint32_t divisor, int64_t at_ns);
  void Settle(int64_t sent_ns, bool clear, const HeartbeatReply& reply);

  int64_t ttl_ns_;
  bool answered_ = false;    // ever
  int64_t answered_ns_ = 0;  // when the last heartbeat that was answered was sent
  std::vector<HeartbeatReply::Node> others_;
  int64_t lag_us_ = 0;  // as the last answer said

  uint64_t serial_ = 0;
  ShareHistory strict_;
  ShareHistory lenient_;
  int64_t strict_until_ns_ = 0;
  int64_t lenient_until_ns_ = 0;
  int64_t joined_ns_ = kNever;  // new since; kNever: it holds a strict share

  // Since when there are fewer nodes than the divisor, without a gap (0: there are not), and at
  // most how many.
  int64_t fewer_since_ns_ = 0;
  uint32_t fewest_ = 0;
  uint32_t planned_ = 0;  // divisor that is announced, and not yet in force; 0: none

  bool settling_ = true;
  int64_t back_us_ = 0;  // Redis' time since when heartbeats are answered again; 0: they are not
  int64_t exact_until_ns_ = 0;
  int64_t local_from_ns_ = kNever;
};

}  // namespace sluice::store::redis

#endif  // SLUICE_SERVER_STORE_REDIS_SHARING_MEMBERSHIP_H_
