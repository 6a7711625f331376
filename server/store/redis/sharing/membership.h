// Membership: what a node knows of the other nodes on its Redis, and which share of limits it may
// therefore decide by itself. Decided from the answers to its heartbeats alone (heartbeat.lua).
//
// Each node that holds a share divides by a number of its own, its divisor. What this is for: at no
// moment do the shares 1/divisor of all nodes that may be granting sum up to more than 1.
//
//  - A share is good for 7/8 of a time to live (TTL) from when a heartbeat was sent that was
//    answered. Redis counts a node for a whole TTL from when it executed it, which is later. So who
//    is not counted any more does not grant any more.
//  - More nodes than before: the divisor rises at once.
//  - Who is new (never heard of, or lapsed) takes a share a TTL after its first answer, not before.
//    By then each share that is still good was confirmed by an answer that told of the new one.
//  - Fewer nodes: the divisor falls when there were fewer for a TTL without a gap, and after it was
//    announced in one heartbeat more. So a node that was away and comes again is told, by what the
//    others announced, whether any of them has grown or is about to.
//
// Another server may take Redis' place, which the old one does not notice for its *lag*. Meanwhile
// each answers some nodes, and knows nothing of the others'. So
//  - where that can be, a node counts for the lag after it has lapsed: it may have a share by the
//    answers of another server. By the end of that time this one would not answer any more;
//  - a server that has taken over says for how long the old one may go on; until then nobody grows
//    and nobody who is new begins to wait.
//
// Two uses of it. *Strict*: a share that is not confirmed in time is lost, and the node is new.
// *Lenient*, for on_store_failure: split: while heartbeats are not answered the share goes on, as
// long as this node notices that time passes (Tick); a node that was stopped loses it. When it
// comes again, it keeps its share if nobody has grown meanwhile. A node that alone is cut off is on
// top of the others, who have taken over its share: that cannot be known from inside.
//
// For limits that Redis decides exactly and nodes only while it is away (on_store_failure: split):
//  - exact: until half a TTL after a heartbeat that was answered;
//  - local: from three quarters of a TTL after it, so that no other node is still exact by an older
//    answer;
//  - in between, and when it is back until all nodes have reported what they granted: neither. Nor
//    before Redis has known nodes for a TTL: one that lost its data does not tell of those that are
//    still about to come back.
//
// docs/adr/0094 has the reasons. Not thread-safe; never blocks. Times on common::Clock::NowNs(),
// but for those of the answers.
#ifndef SLUICE_SERVER_STORE_REDIS_SHARING_MEMBERSHIP_H_
#define SLUICE_SERVER_STORE_REDIS_SHARING_MEMBERSHIP_H_

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "server/store/redis/commands/heartbeat.h"

namespace sluice::store::redis {

inline constexpr int64_t kNever = std::numeric_limits<int64_t>::max();

// A share over time, since the node holds it without a gap: by what it divides, and since when.
struct ShareHistory {
  struct Change {
    // The number of the change, from 1 on.
    uint64_t serial = 0;
    int64_t at_ns = 0;
    uint32_t divisor = 1;
  };
  // Oldest first; empty: no share. The first one is when it began, or the oldest that is kept.
  std::vector<Change> changes;

  bool none() const { return changes.empty(); }
  uint32_t divisor() const { return changes.empty() ? 0 : changes.back().divisor; }
  // The greatest that was in force at any time in (now_ns - window_ns, now_ns]; 0: it did not hold
  // a share for so long.
  uint32_t GreatestOf(int64_t now_ns, int64_t window_ns) const;
};

// Whether a node may grant by this share: until then, unless it is renewed, whatever kept it from
// hearing of the others. Nodes count one that is silent for longer as gone.
inline bool MayGrant(const ShareHistory& share, int64_t until_ns, int64_t now_ns) {
  return !share.none() && now_ns < until_ns;
}

class Membership {
 public:
  explicit Membership(int64_t ttl_ns) : ttl_ns_(ttl_ns) {}

  int64_t ttl_ns() const { return ttl_ns_; }

  // ---- The next heartbeat ----

  uint32_t announced() const;
  // Whether it may say that this node has nothing to report; `unreported`: there is something.
  // Who may be granting at this very moment may not.
  bool Clear(bool unreported) const {
    return !unreported && (!settling_ || back_us_ != 0 || lenient_.none());
  }
  // When the next one is due, after the one before.
  int64_t IntervalNs() const { return settling_ && back_us_ != 0 ? ttl_ns_ / 100 : ttl_ns_ / 8; }

  // ---- What happens ----

  // `clear`: as the heartbeat said.
  void OnReply(int64_t sent_ns, int64_t now_ns, bool clear, const HeartbeatReply& reply);
  // Called at least four times a TTL.
  void Tick(int64_t now_ns);

  // ---- What follows ----

  const ShareHistory& strict() const { return strict_; }
  const ShareHistory& lenient() const { return lenient_; }
  // The share is good before it.
  int64_t strict_until_ns() const { return strict_until_ns_; }
  int64_t lenient_until_ns() const { return lenient_until_ns_; }
  // When a node that is new takes its share at the earliest; kNever: it is not under way.
  int64_t joins_at_ns() const { return joined_ns_ == kNever ? kNever : joined_ns_ + ttl_ns_; }
  // Exact before the one; local from the other on, with a lenient share that is good.
  int64_t exact_until_ns() const { return exact_until_ns_; }
  int64_t local_from_ns() const { return local_from_ns_; }
  // Heartbeats are answered, and what was granted while they were not is to be reported.
  bool settling() const { return settling_; }

  const std::vector<HeartbeatReply::Node>& others() const { return others_; }
  bool Lapsed(const HeartbeatReply::Node& node) const { return node.age_us >= ttl_ns_ / 1000; }
  // Whether it may have a share: it has not lapsed, or could have been answered elsewhere since.
  bool Counts(const HeartbeatReply::Node& node) const {
    return node.age_us < ttl_ns_ / 1000 + lag_us_;
  }

 private:
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

  // There are fewer nodes than the divisor since, without a gap, and at most so many; 0: not so.
  int64_t fewer_since_ns_ = 0;
  uint32_t fewest_ = 0;
  uint32_t planned_ = 0;  // announced, and not yet in force; 0: none

  bool settling_ = true;
  int64_t back_us_ = 0;  // Redis' time when heartbeats were answered again; 0: they are not
  int64_t exact_until_ns_ = 0;
  int64_t local_from_ns_ = kNever;
};

}  // namespace sluice::store::redis

#endif  // SLUICE_SERVER_STORE_REDIS_SHARING_MEMBERSHIP_H_
