#include "server/store/redis/fencing/clock_watch.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <memory>
#include <optional>
#include <queue>
#include <random>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

namespace sluice::store::redis {
namespace {

constexpr int64_t kMs = 1000;
constexpr int64_t kSecond = 1'000'000;

Fence FenceOf(const std::string& word, int64_t correction_us = 0) {
  Fence fence;
  fence.identity = "a";
  fence.number = 1;
  fence.word = word;
  fence.correction_us = correction_us;
  return fence;
}

FenceStep AdoptStep() {
  FenceStep step;
  step.adopt = true;
  return step;
}

// Redis' clock is `ahead` of ours; a reading takes 2 ms.
ClockReading At(int64_t our_us, int64_t ahead_us) {
  return {our_us - kMs, our_us + kMs, our_us + ahead_us};
}

TEST(ClockWatchTest, ExpectsAClockThatDrifts) {
  ClockWatch watch;
  EXPECT_EQ(watch.ClockAt(0).latest_us, 0);
  watch.Adopt(FenceOf("w"), At(0, 5 * kSecond));
  int64_t ahead_us = 5 * kSecond;
  for (int64_t s = 1; s < 3600; ++s) {
    ahead_us += 300;
    ASSERT_TRUE(watch.See(At(s * kSecond, ahead_us)));
    ASSERT_GT(watch.ClockAt(s * kSecond).latest_us, s * kSecond + ahead_us);
    ASSERT_LT(watch.ClockAt(s * kSecond).latest_us, s * kSecond + ahead_us + kSecond + 10 * kMs);
  }
}

TEST(ClockWatchTest, DetectsAClockThatIsSetInManySmallSteps) {
  ClockWatch watch;
  watch.Adopt(FenceOf("w"), At(0, 0));
  ASSERT_TRUE(watch.See(At(10 * kSecond, 900 * kMs)));
  EXPECT_FALSE(watch.See(At(20 * kSecond, 1800 * kMs)));
}

TEST(ClockWatchTest, KeepsItsRangeAfterASlowReading) {
  ClockWatch watch;
  watch.Adopt(FenceOf("w"), At(0, 0));
  EXPECT_TRUE(watch.See({kSecond, 30 * kSecond, 29 * kSecond}));
  EXPECT_LT(watch.ClockAt(30 * kSecond).latest_us, 31 * kSecond + 30 * kMs);
}

TEST(ClockWatchTest, CorrectsAClockThatIsSetForwardAndBack) {
  ClockWatch watch;
  watch.Adopt(FenceOf("w"), At(0, 0));
  const ClockReading forward = At(10 * kSecond, 3600 * kSecond);
  ASSERT_FALSE(watch.See(forward));
  FenceStep step = AdoptStep();
  watch.Revise(FenceOf("w"), forward, {}, "v", &step);
  ASSERT_FALSE(step.adopt);
  EXPECT_EQ(step.write.number, 2u);
  EXPECT_EQ(step.write.word, "v");
  // Late by what the range left open, never early.
  EXPECT_GE(step.write.correction_us, 3600 * kSecond);
  EXPECT_LE(step.write.correction_us, 3600 * kSecond + 10 * kMs);
  // Keys that are missing may have been dropped early.
  EXPECT_FALSE(step.floor_after_us.has_value());
  EXPECT_NEAR(step.write.missing_floor_us, 10 * kSecond, 10 * kMs);
  const Fence corrected = step.write;
  watch.Adopt(corrected, At(10 * kSecond + 10 * kMs, 3600 * kSecond));
  EXPECT_TRUE(watch.See(At(11 * kSecond, 3600 * kSecond)));
  EXPECT_GT(watch.ClockAt(12 * kSecond).latest_us, 3612 * kSecond);

  const ClockReading back = At(20 * kSecond, 0);
  ASSERT_FALSE(watch.See(back));
  step = AdoptStep();
  watch.Revise(corrected, back, {}, "u", &step);
  EXPECT_LE(step.write.correction_us, 20 * kMs);
  // Nothing was lost.
  EXPECT_FALSE(step.floor_after_us.has_value());
}

TEST(ClockWatchTest, KeepsPromisesOfLimitsWhoseBucketsMayBeMissing) {
  ClockWatch watch;
  Fence fence = FenceOf("w");
  fence.promised_us = 15 * kSecond;
  fence.limits["far"] = {.promised_us = 80 * kSecond};
  fence.limits["near"] = {.promised_us = 14 * kSecond};
  watch.Adopt(fence, At(0, 0));
  const auto revised = [&](bool slots_move) {
    FencePolicy policy;
    policy.slots_move = slots_move;
    FenceStep step = AdoptStep();
    ClockWatch(watch).Revise(fence, At(10 * kSecond, 3600 * kSecond), policy, "v", &step);
    return step;
  };
  const Fence alone = revised(false).write;
  EXPECT_EQ(alone.floor_us, 0);
  EXPECT_EQ(alone.missing_floor_us, 15 * kSecond);
  EXPECT_EQ(alone.limits.at("far").floor_us, 80 * kSecond);
  EXPECT_EQ(alone.limits.at("near").floor_us, 0);
  EXPECT_EQ(Fence::Parse(alone.Text())->Text(), alone.Text());
  EXPECT_EQ(Fence::Parse(alone.Text())->missing_floor_us, alone.missing_floor_us);
  // In a Cluster keys and gaps move to other servers: all buckets start empty.
  const FenceStep cluster = revised(true);
  EXPECT_EQ(cluster.write.floor_us, 15 * kSecond);
  EXPECT_EQ(cluster.floor_after_us, 0);
  EXPECT_EQ(cluster.write.missing_floor_us, 0);
}

TEST(ClockWatchTest, GoesOnFromAClockThatIsSetBackBehindAllCorrections) {
  ClockWatch watch;
  watch.Adopt(FenceOf("w"), At(0, 0));
  const ClockReading back = At(10 * kSecond, -60 * kSecond);
  EXPECT_FALSE(watch.See(back));
  FenceStep step = AdoptStep();
  EXPECT_TRUE(watch.Revise(FenceOf("w"), back, {}, "v", &step));
  EXPECT_EQ(step.write.correction_us, 0);
  EXPECT_FALSE(step.floor_after_us.has_value());
  EXPECT_EQ(step.write.missing_floor_us, 0);
  watch.Adopt(step.write, At(11 * kSecond, -60 * kSecond));
  EXPECT_TRUE(watch.See(At(12 * kSecond, -60 * kSecond)));
  // What was granted meanwhile counts by the clock that is behind.
  EXPECT_FALSE(watch.See(At(20 * kSecond, 0)));
}

TEST(ClockWatchTest, BelievesTheFenceOfAnotherNode) {
  ClockWatch watch;
  watch.Adopt(FenceOf("w"), At(0, 0));
  // This node's machine was stopped for a minute; another node wrote a fence meanwhile.
  Fence other = FenceOf("v");
  other.number = 2;
  const ClockReading reading = At(kSecond, 60 * kSecond);
  FenceStep step = AdoptStep();
  watch.Revise(other, reading, {}, "x", &step);
  EXPECT_TRUE(step.adopt);
  watch.Adopt(other, reading);
  EXPECT_TRUE(watch.See(At(2 * kSecond, 60 * kSecond)));
}

TEST(ClockWatchTest, CorrectsAPromotedServerByTheTimeOfTheOldOne) {
  ClockWatch watch;
  watch.Adopt(FenceOf("w", 3600 * kSecond), At(0, 3600 * kSecond));
  ServerInfo server;
  server.identity = "b";
  server.has_replicas = true;
  server.max_lag_us = 2 * kSecond;
  const auto revised = [&](int64_t ahead_us) {
    const Fence found = FenceOf("w", 3600 * kSecond);
    FenceStep step = NextFence(server, found, false, found, {}, "v");
    ClockWatch copy = watch;
    copy.Revise(found, At(10 * kSecond, ahead_us), {}, "x", &step);
    EXPECT_EQ(step.write.word, "v");
    EXPECT_EQ(step.floor_after_us, 2 * kSecond + kLagMarginUs);
    return step.write.correction_us;
  };
  // Its clock is right, a little behind, and two minutes ahead.
  EXPECT_NEAR(revised(0), 0, 10 * kMs);
  EXPECT_EQ(revised(-2 * kSecond), 0);
  EXPECT_NEAR(revised(120 * kSecond), 120 * kSecond, 10 * kMs);
}

// ---- Random histories ----
//
// Nodes share one token bucket and one log. A Redis server's clock is set, it loses its data and
// keys expire by its clock, and another server is promoted; nodes are stopped, alone or with their
// machine, replies are late or lost, and nodes restart. The judge sees when callers proceed, by the
// true time.

class History {
 public:
  explicit History(uint64_t seed) : random_(seed) {
    server_.identity = "s0";
    server_.has_replicas = true;
    server_.guarded = true;
    server_.max_lag_us = 2 * kSecond;
    drift_ppm_ = Random(-200, 200);
    policy_.slots_move = OneIn(2);
    for (int i = 0; i < 3; ++i) {
      Start(nodes_.emplace_back(std::make_unique<Node>()).get());
    }
    After(Random(3, 10) * kSecond, [this] { Happen(); });
  }

  void Run() {
    while (!events_.empty() && events_.top().at_us < 120 * kSecond) {
      now_us_ = events_.top().at_us;
      std::function<void()> run = std::move(const_cast<Event&>(events_.top()).run);
      events_.pop();
      run();
    }
  }

  // Empty: no window exceeds its limit.
  std::string Check() { return absl::StrCat(CheckBucket(), CheckLog()); }
  size_t granted() const { return bucket_grants_.size() + log_grants_.size(); }
  size_t granted_late() const {
    return static_cast<size_t>(std::count_if(bucket_grants_.begin(), bucket_grants_.end(),
                                             [](int64_t at) { return at > 90 * kSecond; }));
  }
  int corrections() const { return corrections_; }

 private:
  static constexpr int64_t kPermit = kSecond / 2;  // one permit each
  static constexpr int64_t kBurst = 5 * kPermit;
  static constexpr int64_t kLogPeriod = 8 * kSecond;
  static constexpr size_t kLogPermits = 4;

  struct Node {
    std::optional<Fence> known;
    ClockWatch watch;
    bool serves = false;
    int64_t lost_us = 0;  // by which its own clock is late, since its machine was stopped
    int64_t stopped_until_us = 0;
    int64_t checked_us = 0;
    uint64_t life = 0;
  };
  struct Event {
    int64_t at_us;
    uint64_t order;
    std::function<void()> run;
    bool operator<(const Event& other) const {
      return std::tie(at_us, order) > std::tie(other.at_us, other.order);
    }
  };
  struct Log {
    std::vector<int64_t> at_us;
    int64_t expires_us = 0;
  };
  struct Bucket {
    int64_t tat_us = 0;
    int64_t expires_us = 0;
  };
  struct Data {
    std::optional<Fence> fence;
    std::optional<Bucket> bucket;
    std::optional<Log> log;
  };

  int64_t Random(int64_t from, int64_t to) {
    return from + static_cast<int64_t>(random_() % static_cast<uint64_t>(to - from + 1));
  }
  bool OneIn(int64_t n) { return Random(1, n) == 1; }
  void After(int64_t us, std::function<void()> run) {
    events_.push({now_us_ + us, ++order_, std::move(run)});
  }
  // On the way to Redis, or back. Seldom Redis is stopped meanwhile.
  int64_t Travel() { return OneIn(100) ? Random(0, 5 * kSecond) : Random(50, 5 * kMs); }
  int64_t Time() const {
    return 1'000'000 * kSecond + now_us_ + offset_us_ + now_us_ * drift_ppm_ / 1'000'000;
  }
  int64_t Own(const Node& node) const { return now_us_ - node.lost_us; }

  // Runs on the node, unless it has restarted; later if it is stopped.
  void On(Node* node, std::function<void()> run) {
    const uint64_t life = node->life;
    if (now_us_ >= node->stopped_until_us) return run();
    After(node->stopped_until_us - now_us_, [this, node, life, run = std::move(run)] {
      if (node->life == life) On(node, run);
    });
  }
  // Calls `at_redis` there, then `then` on the node.
  void Call(Node* node, std::function<void()> at_redis, std::function<void()> then) {
    const uint64_t life = node->life;
    After(Travel(), [=, this] {
      at_redis();
      After(Travel(), [=, this] {
        if (node->life == life) On(node, then);
      });
    });
  }

  // ---- Nodes ----

  void Start(Node* node) {
    const uint64_t life = node->life + 1;
    *node = Node();
    node->life = life;
    ReadFence(node);
  }

  // A node that does not yet go by the fence would believe a clock that was set and not yet
  // detected: see docs/redis.md.
  bool MayRead(const Node& node) const {
    return !undetected_ || (node.known.has_value() && data_.fence.has_value() &&
                            node.known->word == data_.fence->word);
  }

  void ReadFence(Node* node) {
    node->serves = false;
    struct Read {
      std::optional<Fence> found;
      bool stands = false;
      ServerInfo server;
      ClockReading reading;
      bool refused = false;
    };
    auto read = std::make_shared<Read>();
    Call(
        node,
        [=, this] {
          read->refused = undetected_ && !MayRead(*node);
          read->found = data_.fence;
          read->stands = data_.fence.has_value() && !loaded_;
          read->server = server_;
        },
        [=, this] {
          if (read->refused) return After(100 * kMs, Again(node, &History::ReadFence));
          read->reading.sent_us = Own(*node);
          Call(
              node,
              [=, this] {
                read->refused = undetected_ && !MayRead(*node);
                read->reading.redis_us = Time();
              },
              [=, this] {
                if (read->refused) return After(100 * kMs, Again(node, &History::ReadFence));
                read->reading.answered_us = Own(*node);
                if (read->reading.slow() && !node->watch.See(read->reading)) {
                  return ReadFence(node);
                }
                OnRead(node, read->server, read->found, read->stands, read->reading);
              });
        });
  }

  std::function<void()> Again(Node* node, void (History::*what)(Node*)) {
    return [=, this, life = node->life] {
      if (node->life == life) On(node, [=, this] { (this->*what)(node); });
    };
  }

  void OnRead(Node* node, const ServerInfo& server, const std::optional<Fence>& found, bool stands,
              const ClockReading& reading) {
    FenceStep step = NextFence(server, found, stands, node->known, {}, absl::StrCat("w", ++words_));
    node->watch.Revise(found, reading, policy_, absl::StrCat("w", ++words_), &step);
    if (step.adopt) {
      node->known = found;
      node->watch.Adopt(*found, reading);
      node->serves = true;
      node->checked_us = Own(*node);
      return After(Random(1, 50) * kMs, Again(node, &History::Act));
    }
    Call(
        node,
        [=, this] {
          if (data_.fence.has_value() != found.has_value()) return;
          if (found.has_value() && data_.fence->Text() != found->Text()) return;
          if (server.identity != server_.identity) return;
          Fence fence = step.write;
          if (step.floor_after_us.has_value()) {
            fence.floor_us =
                std::max(fence.floor_us + 1, Time() - fence.correction_us + *step.floor_after_us);
          }
          if (!found.has_value() || found->correction_us != fence.correction_us) ++corrections_;
          TellPromises();
          data_.fence = fence;
          loaded_ = false;
          undetected_ = false;
        },
        [=, this] { ReadFence(node); });
  }

  void Act(Node* node) {
    if (!node->serves) return;
    // It compares the clocks at least once a second.
    if (Own(*node) - node->checked_us > kSecond || OneIn(5)) return ReadClock(node);
    if (OneIn(3)) return Ask(node, &History::DecideLog);
    Ask(node, OneIn(3) ? &History::Reserve : &History::DecideBucket);
  }
  void Continue(Node* node) { After(Random(1, 600) * kMs, Again(node, &History::Act)); }

  void ReadClock(Node* node) {
    auto reading = std::make_shared<ClockReading>();
    reading->sent_us = Own(*node);
    Call(
        node, [=, this] { reading->redis_us = Time(); },
        [=, this] {
          reading->answered_us = Own(*node);
          node->checked_us = Own(*node);
          if (!node->serves) return;
          if (!node->watch.See(*reading)) return ReadFence(node);
          Continue(node);
        });
  }

  // What a script is passed, and answers.
  struct Script {
    Fence fence;
    ServerClock clock;
    enum class Answer : uint8_t { kDecided, kFence, kClock } answer = Answer::kDecided;
    std::optional<int64_t> granted_us = {};  // by the true time
  };
  void Ask(Node* node, void (History::*decide)(Script*, int64_t time_us, int64_t now_us)) {
    auto script = std::make_shared<Script>(Script{*node->known, node->watch.ClockAt(Own(*node))});
    const bool log = decide == &History::DecideLog;
    const int64_t sent_us = now_us_;
    Call(
        node,
        [=, this] {
          if (!data_.fence.has_value() || loaded_ || data_.fence->word != script->fence.word) {
            script->answer = Script::Answer::kFence;
          } else if (Time() > script->clock.latest_us || Time() < script->clock.least_us) {
            script->answer = Script::Answer::kClock;
          } else {
            Expire();
            (this->*decide)(script.get(), Time(), Time() - script->fence.correction_us);
          }
        },
        [=, this] {
          if (!node->serves) return;
          // The circuit breaker has opened meanwhile, or the reply is lost: no caller hears of it.
          const bool late = now_us_ - sent_us > kSecond;
          if (script->granted_us.has_value() && !late && !OneIn(20)) {
            (log ? log_grants_ : bucket_grants_).push_back(*script->granted_us);
          }
          switch (script->answer) {
            case Script::Answer::kFence:
              return ReadFence(node);
            case Script::Answer::kClock:
              return ReadClock(node);
            case Script::Answer::kDecided:
              return Continue(node);
          }
        });
  }

  // ---- Redis ----

  void Expire() {
    if (data_.bucket.has_value() && data_.bucket->expires_us <= Time()) data_.bucket.reset();
    if (data_.log.has_value() && data_.log->expires_us <= Time()) data_.log.reset();
  }
  static int64_t FloorUs(const Script& script, bool exists) {
    return exists ? script.fence.floor_us
                  : std::max(script.fence.floor_us, script.fence.missing_floor_us);
  }
  int64_t Tat(const Script& script, int64_t now_us) const {
    int64_t tat_us = now_us;
    if (data_.bucket.has_value()) tat_us = std::max(tat_us, data_.bucket->tat_us);
    const int64_t floor_us = FloorUs(script, data_.bucket.has_value());
    if (floor_us > 0) tat_us = std::max(tat_us, floor_us + kBurst);
    return tat_us;
  }
  void Debit(int64_t tat_us, int64_t time_us, int64_t now_us) {
    data_.bucket = Bucket{tat_us, time_us + tat_us - now_us + 2 * kMs};
  }
  void DecideBucket(Script* script, int64_t time_us, int64_t now_us) {
    const int64_t tat_us = Tat(*script, now_us) + kPermit;
    if (tat_us > now_us + kBurst) return;
    Debit(tat_us, time_us, now_us);
    script->granted_us = now_us_;
  }
  // Redis checks both the promise and the booking by the fence's word.
  void Reserve(Script* script, int64_t time_us, int64_t now_us) {
    const int64_t tat_us = Tat(*script, now_us) + kPermit;
    const int64_t wait_us = std::max<int64_t>(tat_us - now_us - kBurst, 0);
    if (wait_us > 4 * kSecond) return;
    data_.fence->promised_us = std::max(data_.fence->promised_us, now_us + wait_us);
    Debit(tat_us, time_us, now_us);
    script->granted_us = now_us_ + wait_us;
  }
  void DecideLog(Script* script, int64_t time_us, int64_t now_us) {
    const int64_t floor_us = FloorUs(*script, /*exists=*/false);
    if (floor_us > 0 && now_us < floor_us + kLogPeriod) return;
    Log log;
    if (data_.log.has_value()) log = *data_.log;
    std::erase_if(log.at_us, [&](int64_t at_us) { return at_us + kLogPeriod <= now_us; });
    if (log.at_us.size() >= kLogPermits) return;
    log.at_us.push_back(now_us);
    const int64_t last_us = *std::max_element(log.at_us.begin(), log.at_us.end());
    log.expires_us = time_us + last_us + kLogPeriod - now_us + 2 * kMs;
    data_.log = log;
    script->granted_us = now_us_;
  }

  // ---- What happens ----

  void Happen() {
    Node* const node = nodes_[static_cast<size_t>(Random(0, 2))].get();
    switch (Random(1, 8)) {
      case 1:
      case 2:
      case 3: {
        // The clock is set.
        if (undetected_ || !AnyServes()) break;
        static constexpr int64_t kSteps[] = {1500 * kMs, 3 * kSecond, 20 * kSecond, 600 * kSecond};
        const int64_t by_us = kSteps[Random(0, 3)];
        const bool back = OneIn(2);
        offset_us_ += back ? -by_us : by_us;
        undetected_ = true;
        break;
      }
      case 4:
        // It is right again.
        if (undetected_ || !AnyServes()) break;
        if (std::abs(offset_us_) <= 1400 * kMs) break;
        undetected_ = true;
        offset_us_ = 0;
        break;
      case 5:
        // The node is stopped, perhaps with its machine.
        node->stopped_until_us = now_us_ + Random(0, 10 * kSecond);
        if (OneIn(2)) node->lost_us += node->stopped_until_us - now_us_;
        if (undetected_ && !AnyServes()) node->stopped_until_us = now_us_;
        break;
      case 6:
        // A node that knows no fence, and finds none, takes it for the first start.
        if (!undetected_ && data_.fence.has_value()) Start(node);
        break;
      case 7:
        if (!AllKnow()) break;
        TellPromises();
        data_ = Data();
        loaded_ = false;
        break;
      case 8:
        // Another server is promoted, whose clock is right to 2 s.
        if (undetected_ || !AnyServes()) break;
        TellPromises();
        server_.identity = absl::StrCat("s", ++words_);
        loaded_ = true;
        if (OneIn(2)) data_.bucket.reset();
        if (OneIn(2)) data_.log.reset();
        undetected_ = false;
        if (OneIn(2)) offset_us_ = Random(-2 * kSecond, 2 * kSecond);
        break;
    }
    After(Random(100 * kMs, 12 * kSecond), [this] { Happen(); });
  }
  // Nodes know what was promised; that they learn it in time is not what is tested here.
  void TellPromises() {
    for (const auto& node : nodes_) {
      if (!node->known.has_value() || !data_.fence.has_value()) continue;
      if (node->known->Same(*data_.fence)) node->known->Merge(*data_.fence);
    }
  }
  bool AllKnow() const {
    return std::all_of(nodes_.begin(), nodes_.end(),
                       [](const auto& node) { return node->known.has_value(); });
  }
  // A node goes by the fence, and so will detect that the clock is set.
  bool AnyServes() const {
    return std::any_of(nodes_.begin(), nodes_.end(), [&](const auto& node) {
      return node->serves && node->stopped_until_us <= now_us_ && data_.fence.has_value() &&
             node->known->word == data_.fence->word && !loaded_;
    });
  }

  // ---- The judge ----

  // Redis' clock may drift against the true time, and a correction is as exact as the reading.
  static int64_t Longer(int64_t us) { return us + us / 1000 + 100 * kMs; }

  std::string CheckBucket() {
    std::sort(bucket_grants_.begin(), bucket_grants_.end());
    int64_t tat_us = 0;
    for (const int64_t at_us : bucket_grants_) {
      tat_us = std::max(tat_us, at_us) + kPermit - kPermit / 1000;
      if (tat_us > at_us + Longer(kBurst)) {
        return absl::StrCat("bucket exceeds its limit at ", at_us, " by ", tat_us - at_us - kBurst,
                            "\n");
      }
    }
    return "";
  }
  std::string CheckLog() {
    std::sort(log_grants_.begin(), log_grants_.end());
    for (size_t i = kLogPermits; i < log_grants_.size(); ++i) {
      if (Longer(log_grants_[i] - log_grants_[i - kLogPermits]) < kLogPeriod) {
        return absl::StrCat("log exceeds its limit at ", log_grants_[i], "\n");
      }
    }
    return "";
  }

  std::mt19937_64 random_;
  std::priority_queue<Event> events_;
  uint64_t order_ = 0;
  int64_t now_us_ = 0;  // the true time
  int words_ = 0;

  ServerInfo server_;
  FencePolicy policy_;
  int64_t drift_ppm_ = 0;
  int64_t offset_us_ = 0;
  // The clock was set, and no node has written a fence since.
  bool undetected_ = false;
  Data data_;
  bool loaded_ = false;  // from another server
  std::vector<std::unique_ptr<Node>> nodes_;

  std::vector<int64_t> bucket_grants_;  // when callers proceed, by the true time
  std::vector<int64_t> log_grants_;
  int corrections_ = 0;
};

TEST(ClockWatchTest, NoWindowExceedsItsLimitInRandomHistories) {
  size_t granted = 0;
  size_t granted_late = 0;
  int corrections = 0;
  constexpr uint64_t kHistories = 4000;
  for (uint64_t seed = 1; seed <= kHistories; ++seed) {
    History history(seed);
    history.Run();
    ASSERT_EQ(history.Check(), "") << "seed " << seed;
    granted += history.granted();
    granted_late += history.granted_late();
    corrections += history.corrections();
  }
  // The histories are of interest.
  EXPECT_GT(granted, 40 * kHistories);
  EXPECT_GT(granted_late, 2 * kHistories);
  EXPECT_GT(corrections, static_cast<int>(kHistories));
}

}  // namespace
}  // namespace sluice::store::redis
