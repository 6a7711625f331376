// Nodes on one model of Redis, on a fake clock. What matters is that no window of what all grant
// together holds more than the limit, whatever becomes of nodes, answers and Redis.
#include "server/store/redis/sharing/membership.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "server/algorithm/make_parameters.h"
#include "server/store/redis/sharing/local_buckets.h"
#include "tests/support/grant_history.h"
#include "tests/support/heartbeat_model.h"
#include "tests/support/store_calls.h"

namespace sluice::store::redis {
namespace {

using testing::GrantHistory;
using testing::HeartbeatModel;

constexpr int64_t kMillisecond = 1'000'000;
constexpr int64_t kSecond = 1'000'000'000;
constexpr int64_t kTtl = 2 * kSecond;
constexpr int64_t kStart = 1000 * kSecond;

// A node of the simulation: beats, ticks and decides.
class SimulatedNode {
 public:
  SimulatedNode(HeartbeatModel& redis, std::string id)
      : redis_(&redis), id_(std::move(id)), membership_(kTtl) {}
  // From now on that one is asked.
  void MoveTo(HeartbeatModel& redis) { redis_ = &redis; }

  const std::string& id() const { return id_; }
  Membership& membership() { return membership_; }

  // A heartbeat that takes `trip_ns` there and back; lost: only the answer.
  void Send(int64_t now_ns, int64_t trip_ns, bool reaches, bool lost) {
    if (sent_.has_value()) return;
    Sent sent;
    sent.at_ns = now_ns;
    sent.clear = membership_.Clear(false);
    if (reaches) {
      sent.reply = redis_->Beat(id_, (now_ns + trip_ns / 2) / 1000, membership_.announced(),
                                sent.clear, kTtl / 1000);
    }
    if (!reaches || lost) {
      membership_.Tick(now_ns);
      return;
    }
    sent.answered_at_ns = now_ns + trip_ns;
    sent_ = sent;
  }

  void Advance(int64_t now_ns) {
    if (sent_.has_value() && sent_->answered_at_ns <= now_ns) {
      membership_.OnReply(sent_->at_ns, now_ns, sent_->clear, *sent_->reply);
      sent_.reset();
    }
    if (now_ns >= next_tick_ns_) {
      membership_.Tick(now_ns);
      next_tick_ns_ = now_ns + kTtl / 8;
    }
  }

  bool Due(int64_t now_ns) {
    if (now_ns < next_beat_ns_) return false;
    next_beat_ns_ = now_ns + membership_.IntervalNs();
    return true;
  }

  // Whether it grants.
  bool Acquire(const std::shared_ptr<const RuleEntry>& rule, uint64_t permits, int64_t now_ns) {
    const bool lenient = rule->rule->split_when_store_unavailable;
    const ShareHistory& history = lenient ? membership_.lenient() : membership_.strict();
    const int64_t until_ns =
        lenient ? membership_.lenient_until_ns() : membership_.strict_until_ns();
    if (!MayGrant(history, until_ns, now_ns)) return false;
    ChargeResult result;
    const LocalBuckets::Part part{rule, "k", permits, &result, &history};
    int64_t retry_ns = 0;
    return buckets_.Acquire({&part, 1}, {now_ns, now_ns}, 0, &retry_ns) == Outcome::kGranted;
  }

  void Sweep(int64_t now_ns) {
    for (int i = 0; i < 16; ++i) {
      buckets_.Sweep(membership_.strict(), membership_.lenient(), {now_ns, now_ns});
    }
  }

  const HeartbeatModel* redis() const { return redis_; }

  bool stopped = false;  // SIGSTOP
  bool cut_off = false;  // from Redis

 private:
  struct Sent {
    int64_t at_ns = 0;
    int64_t answered_at_ns = 0;
    bool clear = true;
    std::optional<HeartbeatReply> reply;
  };
  HeartbeatModel* redis_;
  const std::string id_;
  Membership membership_;
  LocalBuckets buckets_{1000};
  std::optional<Sent> sent_;
  int64_t next_beat_ns_ = 0;
  int64_t next_tick_ns_ = 0;
};

std::shared_ptr<const RuleEntry> EntryOf(const algorithm::Parameters& parameters, bool lenient) {
  static uint32_t next_id = 1;
  auto rule = std::make_shared<Rule>();
  rule->id = rule->limit_id = next_id++;
  rule->limit_name = "limit" + std::to_string(rule->id);
  rule->parameters = parameters;
  rule->sharing = Sharing::kSplit;
  rule->split_when_store_unavailable = lenient;
  auto entry = std::make_shared<RuleEntry>();
  entry->rule = rule;
  return entry;
}

std::vector<algorithm::Parameters> Kinds() {
  return {algorithm::MakeTokenBucket({100, kSecond}, 31, 0).value(),
          algorithm::MakeTokenBucket({50, kSecond}, 10, 23).value(),
          algorithm::MakeTokenBucket({1, kSecond}, 100, 0).value(),
          algorithm::MakeSlidingLog({100, 3 * kSecond}).value(),
          algorithm::MakeSlidingWindow({100, kSecond}, 10).value(),
          algorithm::MakeFixedWindow({50, kSecond}, 0).value()};
}

struct Limits {
  explicit Limits(bool lenient) {
    for (const algorithm::Parameters& parameters : Kinds()) {
      entries.push_back(EntryOf(parameters, lenient));
      histories.push_back(std::make_unique<GrantHistory>(parameters));
    }
  }
  std::string Check() const {
    std::string over;
    for (size_t i = 0; i < histories.size(); ++i) {
      const std::string one = histories[i]->Check();
      if (!one.empty()) over += "limit " + std::to_string(i) + ": " + one + "\n";
    }
    return over;
  }
  std::vector<std::shared_ptr<const RuleEntry>> entries;
  std::vector<std::unique_ptr<GrantHistory>> histories;
};

TEST(MembershipTest, SingleNodeTakesTheWholeAfterATimeToLive) {
  HeartbeatModel redis;
  SimulatedNode node(redis, "a");
  int64_t now_ns = kStart;
  for (; now_ns < kStart + kTtl; now_ns += 50 * kMillisecond) {
    node.Advance(now_ns);
    if (node.Due(now_ns)) node.Send(now_ns, kMillisecond, true, false);
    EXPECT_TRUE(node.membership().strict().none());
  }
  for (; now_ns < kStart + 2 * kTtl; now_ns += 50 * kMillisecond) {
    node.Advance(now_ns);
    if (node.Due(now_ns)) node.Send(now_ns, kMillisecond, true, false);
  }
  EXPECT_EQ(node.membership().strict().divisor(), 1u);
  EXPECT_EQ(node.membership().lenient().divisor(), 1u);
}

TEST(MembershipTest, IsExactAtOnceOnARedisThatHasKnownNodesForLong) {
  HeartbeatModel redis;
  redis.Beat("b", (kStart - kTtl) / 1000, 0, true, kTtl / 1000);
  redis.Leave("b");
  SimulatedNode node(redis, "a");
  node.Send(kStart, kMillisecond, true, false);
  node.Advance(kStart + kMillisecond);
  EXPECT_FALSE(node.membership().settling());
  EXPECT_EQ(node.membership().exact_until_ns(), kStart + kTtl / 2);
}

// The others may still grant by their shares, and are about to come back.
TEST(MembershipTest, IsNotExactForATimeToLiveOnARedisThatLostItsData) {
  HeartbeatModel redis;
  SimulatedNode node(redis, "a");
  int64_t now_ns = kStart;
  const auto settle = [&] {
    const int64_t from_ns = now_ns;
    for (; node.membership().settling(); now_ns += kTtl / 40) {
      if (now_ns > from_ns + 2 * kTtl) break;
      node.Send(now_ns, kMillisecond, true, false);
      node.Advance(now_ns + kMillisecond);
    }
    EXPECT_GE(now_ns, from_ns + kTtl);
    EXPECT_FALSE(node.membership().settling());
  };
  settle();
  now_ns += kTtl;
  node.membership().Tick(now_ns);
  redis.Lose();
  settle();
}

TEST(MembershipTest, IsNotExactBeforeTheOtherNodesHaveDebited) {
  HeartbeatModel redis;
  SimulatedNode node(redis, "a");
  int64_t now_ns = kStart;
  redis.Beat("b", (now_ns - kTtl) / 1000, 0, true, kTtl / 1000);
  node.Send(now_ns, kMillisecond, true, false);
  node.Advance(now_ns + kMillisecond);
  redis.Beat("b", now_ns / 1000, 0, true, kTtl / 1000);
  // Redis is unavailable.
  now_ns += 3 * kTtl;
  node.membership().Tick(now_ns);
  EXPECT_TRUE(node.membership().settling());
  const auto beat = [&] {
    now_ns += kTtl / 40;
    node.Send(now_ns, kMillisecond, true, false);
    node.Advance(now_ns + kMillisecond);
  };
  // b has lapsed, and perhaps is on its way.
  beat();
  EXPECT_TRUE(node.membership().settling());
  redis.Beat("b", now_ns / 1000 + 2000, 0, false, kTtl / 1000);
  beat();
  beat();
  EXPECT_TRUE(node.membership().settling());
  redis.Beat("b", now_ns / 1000 + 2000, 0, true, kTtl / 1000);
  beat();
  EXPECT_FALSE(node.membership().settling());
  EXPECT_GT(node.membership().exact_until_ns(), now_ns);
}

TEST(MembershipTest, WaitsATimeToLiveForANodeThatDoesNotReturn) {
  HeartbeatModel redis;
  SimulatedNode node(redis, "a");
  redis.Beat("b", kStart / 1000, 0, true, kTtl / 1000);
  int64_t now_ns = kStart + 2 * kTtl;
  const int64_t back_ns = now_ns;
  for (; node.membership().settling(); now_ns += kTtl / 40) {
    ASSERT_LT(now_ns, back_ns + 2 * kTtl);
    node.Send(now_ns, kMillisecond, true, false);
    node.Advance(now_ns + kMillisecond);
  }
  EXPECT_GE(now_ns, back_ns + kTtl);
}

// Random joins, departures, deaths, stops, slow and lost answers, and (lenient) an absent Redis.
void Simulate(uint32_t seed, bool lenient, bool* all_granted) {
  std::minstd_rand random(seed);
  const auto below = [&](uint32_t n) { return static_cast<uint32_t>(random() / 7) % n; };
  HeartbeatModel redis;
  std::vector<std::unique_ptr<SimulatedNode>> nodes;
  Limits limits(lenient);
  int next_id = 0;
  int64_t now_ns = kStart;
  int64_t redis_back_ns = 0;
  bool busy = true;  // else buckets fill
  const int64_t until_ns = kStart + 60 * kSecond;
  for (; now_ns < until_ns; now_ns += 5 * kMillisecond) {
    if (nodes.size() < 2 || (nodes.size() < 5 && below(1000) == 0)) {
      nodes.push_back(std::make_unique<SimulatedNode>(redis, std::to_string(next_id++)));
    }
    if (nodes.size() > 1 && below(1500) == 0) {
      const size_t which = below(static_cast<uint32_t>(nodes.size()));
      if (below(2) == 0) redis.Leave(nodes[which]->id());
      nodes.erase(nodes.begin() + static_cast<std::ptrdiff_t>(which));
    }
    if (below(2000) == 0) redis_back_ns = now_ns + below(6000) * kMillisecond;
    if (redis_back_ns > now_ns && below(500) == 0) redis.Lose();
    if (below(200) == 0) busy = !busy;
    for (const auto& node : nodes) {
      if (below(1000) == 0) node->stopped = true;
      if (node->stopped && below(300) == 0) node->stopped = false;
      // With on_store_failure: split a node that alone is cut off is on top of the others.
      if (!lenient && below(1000) == 0) node->cut_off = true;
      if (node->cut_off && below(300) == 0) node->cut_off = false;
      if (node->stopped) continue;
      // Requests are served before timers: what a node that was stopped does first.
      for (size_t l = 0; busy && l < limits.entries.size(); ++l) {
        const uint64_t permits = 1 + below(3);
        // All that there is, mostly.
        while (below(30) != 0 && node->Acquire(limits.entries[l], permits, now_ns)) {
          limits.histories[l]->Add(now_ns, permits);
        }
      }
      node->Advance(now_ns);
      if (below(100) == 0) node->Sweep(now_ns);
      if (!node->Due(now_ns)) continue;
      const int64_t trip_ns = (1 + below(8) * below(8)) * kMillisecond;
      node->Send(now_ns, trip_ns, redis_back_ns <= now_ns && !node->cut_off, below(30) == 0);
    }
  }
  EXPECT_EQ(limits.Check(), "") << "seed " << seed;
  for (const auto& history : limits.histories) *all_granted &= history->permits() > 0;
}

TEST(MembershipTest, GrantsAtMostTheLimitWhileNodesComeAndGo) {
  for (uint32_t seed = 1; seed <= 12; ++seed) {
    bool all_granted = true;
    Simulate(seed, /*lenient=*/false, &all_granted);
    EXPECT_TRUE(all_granted) << seed;
  }
}

TEST(MembershipTest, GrantsAtMostTheLimitWhileRedisIsUnavailable) {
  for (uint32_t seed = 101; seed <= 112; ++seed) {
    bool all_granted = true;
    Simulate(seed, /*lenient=*/true, &all_granted);
    EXPECT_TRUE(all_granted) << seed;
  }
}

// A replica that lags is promoted, while the old primary goes on for its lag: some nodes stay
// there, some move, at different moments; nodes are new and nodes leave on either side.
void SimulateTakeOver(uint32_t seed, uint64_t* granted_meanwhile) {
  std::minstd_rand random(seed);
  const auto below = [&](uint32_t n) { return static_cast<uint32_t>(random() / 7) % n; };
  constexpr int64_t kLag = 6 * kSecond;
  HeartbeatModel old;
  old.data = {"old", kLag / 1000, 0};
  HeartbeatModel promoted;
  std::vector<std::unique_ptr<SimulatedNode>> nodes;
  Limits limits(/*lenient=*/false);
  int next_id = 0;
  const int64_t promoted_ns = kStart + 15 * kSecond + below(1000) * kMillisecond;
  const int64_t lags_from_ns = promoted_ns - below(3) * below(4000) * kMillisecond;
  // The last one that dies is counted for the lag too, and then it takes some times to live.
  const int64_t until_ns = promoted_ns + 2 * kLag + 6 * kTtl;
  bool copied = false;
  for (int64_t now_ns = kStart; now_ns < until_ns; now_ns += 5 * kMillisecond) {
    const bool over = now_ns >= promoted_ns;
    if (!copied && now_ns >= lags_from_ns) {
      promoted = old;
      copied = true;
    }
    if (promoted.data.word != "promoted" && over) {
      promoted.data = {"promoted", kLag / 1000, (promoted_ns + kLag) / 1000};
    }
    const bool changes = now_ns < promoted_ns + kLag;
    if (changes && (nodes.size() < 3 || (nodes.size() < 6 && below(500) == 0))) {
      HeartbeatModel& its = over && below(2) == 0 ? promoted : old;
      nodes.push_back(std::make_unique<SimulatedNode>(its, std::to_string(next_id++)));
    }
    if (changes && nodes.size() > 3 && below(800) == 0) {
      nodes.erase(nodes.begin() + below(static_cast<uint32_t>(nodes.size())));
    }
    // The last one moves when the old primary has stopped.
    for (size_t n = 0; n < nodes.size(); ++n) {
      const bool moves = n % 2 == 0 ? below(100) == 0 : now_ns >= promoted_ns + kLag;
      if (over && moves) nodes[n]->MoveTo(promoted);
    }
    for (const auto& node : nodes) {
      for (size_t l = 0; l < limits.entries.size(); ++l) {
        while (below(30) != 0 && node->Acquire(limits.entries[l], 1, now_ns)) {
          limits.histories[l]->Add(now_ns, 1);
          if (over && now_ns < promoted_ns + kLag) ++*granted_meanwhile;
        }
      }
      node->Advance(now_ns);
      if (!node->Due(now_ns)) continue;
      const bool answers = node->redis() == &promoted || now_ns < promoted_ns + kLag;
      node->Send(now_ns, (1 + below(20)) * kMillisecond, answers, below(30) == 0);
    }
  }
  EXPECT_EQ(limits.Check(), "") << "seed " << seed;
  // All serve again, with most of the whole.
  double shares = 0;
  for (const auto& node : nodes) {
    const uint32_t divisor = node->membership().strict().divisor();
    if (divisor != 0) shares += 1.0 / divisor;
  }
  EXPECT_GT(shares, 0.6) << "seed " << seed;
}

TEST(MembershipTest, GrantsAtMostTheLimitWhileTwoServersAnswer) {
  uint64_t granted_meanwhile = 0;
  for (uint32_t seed = 1; seed <= 24; ++seed) SimulateTakeOver(seed, &granted_meanwhile);
  EXPECT_GT(granted_meanwhile, 1000u);
}

}  // namespace
}  // namespace sluice::store::redis
