#include "server/store/redis/sharing/membership.h"

#include <algorithm>

namespace sluice::store::redis {
namespace {

// Changes that are kept. A bucket that was last used before them counts as empty.
constexpr size_t kMaxChanges = 32;

}  // namespace

uint32_t ShareHistory::GreatestOf(int64_t now_ns, int64_t window_ns) const {
  if (changes.empty() || changes.front().at_ns > now_ns - window_ns) return 0;
  uint32_t greatest = 0;
  for (size_t i = 0; i < changes.size(); ++i) {
    const bool ended = i + 1 < changes.size() && changes[i + 1].at_ns <= now_ns - window_ns;
    if (!ended) greatest = std::max(greatest, changes[i].divisor);
  }
  return greatest;
}

uint32_t Membership::announced() const {
  const uint32_t held = std::max(strict_.divisor(), lenient_.divisor());
  if (held == 0) return planned_;
  return planned_ == 0 ? held : std::min(held, planned_);
}

void Membership::Begin(ShareHistory* history, uint32_t divisor, int64_t at_ns) {
  history->changes.assign(1, {++serial_, at_ns, divisor});
}

void Membership::SetDivisor(uint32_t divisor, int64_t at_ns) {
  ++serial_;
  for (ShareHistory* history : {&strict_, &lenient_}) {
    if (history->none() || history->divisor() == divisor) continue;
    history->changes.push_back({serial_, at_ns, divisor});
    if (history->changes.size() > kMaxChanges) history->changes.erase(history->changes.begin());
  }
}

void Membership::OnReply(int64_t sent_ns, int64_t now_ns, bool clear, const HeartbeatReply& reply) {
  const bool gap = !answered_ || sent_ns - answered_ns_ > ttl_ns_ / 2;
  // Another server may answer nodes that this one does not know.
  const int64_t held_ns = reply.held_us * 1000;
  const bool held_back = gap || held_ns > 0;
  lag_us_ = reply.lag_us;
  Seen seen;
  for (const HeartbeatReply::Node& other : reply.others) {
    if (!Counts(other)) continue;
    ++seen.nodes;
    if (other.divisor != 0) seen.least_announced = std::min(seen.least_announced, other.divisor);
  }
  // Tick may be late to end a lenient share.
  if (now_ns >= lenient_until_ns_) lenient_.changes.clear();
  if (reply.is_new) {
    strict_.changes.clear();
    // A node that has grown, or is about to, took this node's share.
    if (seen.least_announced < seen.nodes) lenient_.changes.clear();
  }
  // Replies from before a gap do not show that all others know of this node.
  if (reply.is_new || (joined_ns_ != kNever && held_back)) {
    joined_ns_ = now_ns + held_ns;
    planned_ = 0;
  }
  const bool joins = joined_ns_ != kNever;
  FollowNodes(seen.nodes, held_back, now_ns);
  if (joins && now_ns - joined_ns_ >= ttl_ns_) Join(seen, now_ns);

  answered_ = true;
  answered_ns_ = sent_ns;
  others_ = reply.others;
  const int64_t until_ns = sent_ns + ttl_ns_ - ttl_ns_ / 8;
  strict_until_ns_ = strict_.none() ? 0 : until_ns;
  lenient_until_ns_ = lenient_.none() ? 0 : std::max(lenient_until_ns_, until_ns);
  Settle(sent_ns, clear, reply);
}

void Membership::FollowNodes(uint32_t nodes, bool held_back, int64_t now_ns) {
  const uint32_t held = std::max(strict_.divisor(), lenient_.divisor());
  if (held == 0 || nodes == held) {
    fewer_since_ns_ = 0;
    if (held != 0) planned_ = 0;
    return;
  }
  if (nodes < held) {
    if (fewer_since_ns_ == 0 || held_back) {
      fewer_since_ns_ = now_ns;
      fewest_ = nodes;
      planned_ = 0;
    }
    fewest_ = std::max(fewest_, nodes);
    if (planned_ == 0 || planned_ < nodes) {
      planned_ = now_ns - fewer_since_ns_ >= ttl_ns_ ? fewest_ : 0;
      return;
    }
  }
  SetDivisor(nodes > held ? nodes : planned_, now_ns);
  planned_ = 0;
  fewer_since_ns_ = 0;
}

void Membership::Join(const Seen& seen, int64_t now_ns) {
  const uint32_t holds = lenient_.divisor();
  if (holds != 0) {
    // All others know of this node by now, and it divides by at least as much as they do.
    Begin(&strict_, holds, now_ns);
    joined_ns_ = kNever;
  } else if (seen.least_announced < seen.nodes) {
    // Another node does not know of this one yet, or has grown: not now.
    planned_ = 0;
  } else if (planned_ >= seen.nodes) {
    Begin(&strict_, planned_, now_ns);
    lenient_ = strict_;
    joined_ns_ = kNever;
    planned_ = 0;
  } else {
    planned_ = seen.nodes;
  }
}

void Membership::Settle(int64_t sent_ns, bool clear, const HeartbeatReply& reply) {
  local_from_ns_ = sent_ns + ttl_ns_ / 4 * 3;
  if (!settling_ && !reply.is_new && sent_ns < exact_until_ns_) {
    exact_until_ns_ = sent_ns + ttl_ns_ / 2;
    return;
  }
  if (!settling_ || back_us_ == 0) {
    settling_ = true;
    back_us_ = reply.now_us;
    exact_until_ns_ = 0;
  }
  if (!clear || reply.hash_age_us < ttl_ns_ / 1000) return;
  for (const HeartbeatReply::Node& other : reply.others) {
    const bool back = reply.now_us - other.age_us >= back_us_;
    if (Lapsed(other)) {
      // It may only take longer to return.
      if (reply.now_us - back_us_ < ttl_ns_ / 1000) return;
    } else if (!back || !other.clear) {
      return;
    }
  }
  settling_ = false;
  exact_until_ns_ = sent_ns + ttl_ns_ / 2;
}

void Membership::Tick(int64_t now_ns) {
  if (now_ns >= lenient_until_ns_) {
    // This node was stopped for a while.
    lenient_.changes.clear();
    lenient_until_ns_ = 0;
  } else if (!lenient_.none()) {
    lenient_until_ns_ = std::max(lenient_until_ns_, now_ns + ttl_ns_ - ttl_ns_ / 8);
  }
  if (answered_ && now_ns >= exact_until_ns_ && now_ns - answered_ns_ > ttl_ns_ / 2) {
    settling_ = true;
    back_us_ = 0;
  }
}

}  // namespace sluice::store::redis
