// Callers of several nodes that wait for slots of one Redis: the order among them, and what happens
// to it when a node dies.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <deque>
#include <functional>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "server/store/redis/wire/hash_slot.h"
#include "server/store/redis/wire/key_names.h"
#include "server/store/redis/wire/open_bucket.h"
#include "server/waiting/alarm_thread.h"
#include "server/waiting/held_callers.h"
#include "tests/contract/redis_store_under_test.h"
#include "tests/support/pass_time.h"
#include "tests/support/redis_cluster.h"
#include "tests/support/redis_node.h"
#include "tests/support/redis_server.h"
#include "tests/support/store_calls.h"
#include "tests/support/threads.h"
#include "tests/unit/waiting/waiting_scene.h"

namespace sluice::testing {
namespace {

using store::Charge;
using store::QueuePlace;
using store::Rule;
using store::redis::Ticket;
using waiting::HeldCallers;

constexpr int64_t kSecond = 1'000'000'000;
constexpr int64_t kDay = 24 * 3600 * kSecond;

// Sends a command to the server of the bucket.
using CallRedis = std::function<RedisValue(const std::vector<std::string>&)>;

// The tickets of limit1's bucket "k" in Redis, with those that have ended.
std::vector<Ticket> TicketsIn(const CallRedis& call, const algorithm::Parameters& slots) {
  const std::string key = store::redis::KeysOf("sluice", "limit1", "k")[2];
  const RedisValue past = call({"HGET", key, "past"});
  if (past.type != RedisValue::Type::kString) return {};
  int64_t origin_ns = 0;
  store::redis::StoredBookings stored;
  EXPECT_TRUE(store::redis::DecodePast(slots, past.text, &origin_ns, &stored).has_value());
  return stored.tickets;
}

// ---- Whole nodes ----

class Node {
 public:
  Node(const std::string& url, const algorithm::Parameters& slots, bool dies = false)
      : redis_(url), rule_(limits_.Set(1, slots)) {
    EXPECT_TRUE(redis_.connected().ok()) << redis_.connected();
    if (!dies) alarm_.Start(held_callers_);
  }
  ~Node() { alarm_.Stop(); }

  store::Store& store() { return redis_.store(); }
  const common::Clock& clock() const { return redis_.clock(); }
  HeldCallers& held_callers() { return held_callers_; }
  uint64_t generation() { return limits_.Generation(); }
  std::vector<Charge> Charges(uint64_t permits) const { return {{&rule_, "k", permits}}; }

  // A caller that does not wait.
  Acquired Take(uint64_t permits = 1) {
    return Acquire(store(), Charges(permits), {.want_receipt = true});
  }
  void End(uint64_t receipt_id, uint64_t permits = 1) {
    const std::vector<Charge> charges = Charges(permits);
    EXPECT_EQ(Refund(store(), receipt_id, charges).outcome, store::RefundOutcome::kRefunded);
    held_callers_.SlotsFreed(charges);
  }

 private:
  RedisNode redis_;
  waiting::Limits limits_{redis_.store()};
  const Rule& rule_;
  waiting::AlarmThread alarm_{redis_.clock()};
  HeldCallers held_callers_{redis_.store(), redis_.clock(), limits_, alarm_};
};

class Waiter;

// Callers in the order of their answers. Thread-safe.
class Answers {
 public:
  void Add(Waiter* waiter) {
    common::MutexLock lock(&mu_);
    answered_.push_back(waiter);
    cv_.SignalAll();
  }
  Waiter* Next() {
    common::MutexLock lock(&mu_);
    while (answered_.empty()) cv_.Wait(&mu_);
    Waiter* const next = answered_.front();
    answered_.pop_front();
    return next;
  }

 private:
  common::Mutex mu_;
  common::CondVar cv_;
  std::deque<Waiter*> answered_ ABSL_GUARDED_BY(mu_);
};

// A request with `hold`. Outlives its answer.
class Waiter final : public waiting::HeldCaller {
 public:
  Waiter(Node& node, uint64_t permits, Answers& answers)
      : node_(node), answers_(answers), charges_(node.Charges(permits)) {
    decided_.charges = charges_;
    decided_.results = results_;
    decided_.want_receipt = true;
    decided_.max_wait_ns = kDay;
    acquisition = &decided_;
  }

  // Returns false if it was granted at once.
  bool Arrive() {
    struct Operation final : store::AcquireOperation {
      void Done() override { done.Notify(); }
      Notification done;
    };
    Operation operation;
    decided_.behind_others = node_.held_callers().SlotsAwaited(charges_);
    operation.acquisitions = absl::MakeSpan(&decided_, 1);
    node_.store().Acquire(&operation);
    operation.done.Wait();
    if (decided_.outcome == store::Outcome::kGranted) return false;
    EXPECT_TRUE(store::LacksSlots(decided_));
    since_ns = node_.clock().NowNs();
    until_ns = since_ns + kDay;
    generation = node_.generation();
    EXPECT_TRUE(node_.held_callers().WaitForSlots(this));
    return true;
  }
  void Cancel() { node_.held_callers().Cancel(this); }
  void End() { node_.End(decided_.receipt_id, charges_[0].permits); }
  uint64_t permits() const { return charges_[0].permits; }
  // REQUIRES: answered.
  bool granted() const { return outcome_ == waiting::HeldOutcome::kGrantTime; }
  waiting::HeldOutcome outcome() const { return outcome_; }

  void OnAnswer(waiting::HeldOutcome outcome) override {
    outcome_ = outcome;
    answers_.Add(this);
  }

 private:
  Node& node_;
  Answers& answers_;
  const std::vector<Charge> charges_;
  store::ChargeResult results_[1];
  store::Acquisition decided_;
  waiting::HeldOutcome outcome_ = waiting::HeldOutcome::kGrantTime;
};

// Several nodes of one Redis, or of one Cluster.
class Scene {
 public:
  Scene(const std::string& url, CallRedis call, uint64_t permits, int64_t hold_for_ns = kDay)
      : url_(url),
        call_(std::move(call)),
        slots_(*algorithm::MakeConcurrency(permits, hold_for_ns)) {
    for (int i = 0; i < 3; ++i) nodes_.push_back(std::make_unique<Node>(url_, slots_));
  }
  // Waiters end before their nodes.
  ~Scene() {
    for (const auto& node : nodes_) node->held_callers().Drain();
  }

  Node& node(size_t i) { return *nodes_[i]; }
  // A node whose alarm never rings: it tries its callers when the test says so, and is then as
  // good as dead.
  Node& AddDyingNode() {
    nodes_.push_back(std::make_unique<Node>(url_, slots_, /*dies=*/true));
    return *nodes_.back();
  }
  Waiter& Wait(Node& node, uint64_t permits = 1) {
    waiters_.push_back(std::make_unique<Waiter>(node, permits, answers_));
    EXPECT_TRUE(waiters_.back()->Arrive());
    return *waiters_.back();
  }
  Answers& answers() { return answers_; }
  // Waits until Redis has tickets of so many callers.
  void AwaitTickets(size_t count) {
    while (TicketsIn(call_, slots_).size() != count) PassTime(std::chrono::milliseconds(1));
  }

 private:
  const std::string url_;
  const CallRedis call_;
  const algorithm::Parameters slots_;
  Answers answers_;
  std::vector<std::unique_ptr<Waiter>> waiters_;
  std::vector<std::unique_ptr<Node>> nodes_;
};

// Each caller that gets the slot passes it on.
void ServesCallersOfAllNodesInOrder(Scene& scene) {
  const Acquired held = scene.node(0).Take();
  ASSERT_TRUE(held.granted());
  std::vector<Waiter*> waiters;
  for (size_t i = 0; i < 12; ++i) {
    // Of one node two in a row, of another none for long.
    waiters.push_back(&scene.Wait(scene.node(i % 5 < 2 ? 0 : i % 5 == 4 ? 2 : 1)));
  }
  scene.AwaitTickets(3);
  scene.node(2).End(held.receipt_id);
  for (size_t i = 0; i < waiters.size(); ++i) {
    Waiter* const next = scene.answers().Next();
    EXPECT_EQ(next, waiters[i]) << i;
    ASSERT_TRUE(next->granted());
    next->End();
  }
}

class RedisSlotLinesTest : public ::testing::Test {
 protected:
  CallRedis call() {
    return [this](const std::vector<std::string>& words) { return calls_.Call(words); };
  }

  RedisServer server_;
  RedisCalls calls_{server_};
};

TEST_F(RedisSlotLinesTest, ServesCallersOfAllNodesInTheOrderOfTheirArrival) {
  Scene scene(server_.url(), call(), 1);
  ServesCallersOfAllNodesInOrder(scene);
}

TEST(RedisClusterSlotLinesTest, ServesCallersOfAllNodesInTheOrderOfTheirArrival) {
  RedisCluster cluster;
  const std::string key = store::redis::KeysOf("sluice", "limit1", "k")[2];
  const size_t owner = cluster.OwnerOf(store::redis::SlotOf(key));
  Scene scene(
      cluster.url(),
      [&](const std::vector<std::string>& words) { return cluster.Call(owner, words); }, 1);
  ServesCallersOfAllNodesInOrder(scene);
}

TEST_F(RedisSlotLinesTest, SmallRequestsOfOtherNodesDoNotStarveALargeOne) {
  Scene scene(server_.url(), call(), 4);
  std::vector<uint64_t> held;
  for (size_t i = 0; i < 4; ++i) held.push_back(scene.node(i % 2).Take().receipt_id);
  Waiter& large = scene.Wait(scene.node(0), 4);
  scene.AwaitTickets(1);
  Waiter& small = scene.Wait(scene.node(1));
  scene.AwaitTickets(2);
  for (const uint64_t receipt_id : held) {
    for (const size_t i : {0, 1, 2}) {
      EXPECT_EQ(scene.node(i).Take().outcome, store::Outcome::kDenied)
          << "a caller that does not wait";
    }
    scene.node(1).End(receipt_id);
  }
  ASSERT_EQ(scene.answers().Next(), &large);
  ASSERT_TRUE(large.granted());
  large.End();
  ASSERT_EQ(scene.answers().Next(), &small);
  ASSERT_TRUE(small.granted());
  // No caller waits any more.
  EXPECT_TRUE(scene.node(2).Take(3).granted());
  EXPECT_FALSE(scene.node(0).Take().granted());
}

TEST_F(RedisSlotLinesTest, LaterCallerIsServedFirstOnlyIfThereIsRoomForBoth) {
  Scene scene(server_.url(), call(), 4);
  Node& dying = scene.AddDyingNode();
  const Acquired held = scene.node(0).Take(4);
  Waiter& first = scene.Wait(dying, 2);
  dying.held_callers().Advance();
  scene.AwaitTickets(1);
  Waiter& second = scene.Wait(scene.node(1), 2);
  scene.node(1).End(held.receipt_id, 4);
  // Nothing has told the first one.
  ASSERT_EQ(scene.answers().Next(), &second);
  ASSERT_TRUE(second.granted());
  dying.held_callers().SlotsFreed(dying.Charges(1));
  dying.held_callers().Advance();
  ASSERT_EQ(scene.answers().Next(), &first);
  EXPECT_TRUE(first.granted());
}

TEST_F(RedisSlotLinesTest, TicketOfADeadNodeEnds) {
  Scene scene(server_.url(), call(), 2);
  const Acquired held = scene.node(0).Take(2);
  Node& dying = scene.AddDyingNode();
  scene.Wait(dying, 2);
  dying.held_callers().Advance();
  scene.AwaitTickets(1);
  Waiter& next = scene.Wait(scene.node(1), 1);
  scene.node(0).End(held.receipt_id, 2);
  ASSERT_EQ(scene.answers().Next(), &next);
  EXPECT_TRUE(next.granted());
  // Also for callers that do not wait.
  while (!scene.node(2).Take().granted()) PassTime(std::chrono::milliseconds(1));
}

TEST_F(RedisSlotLinesTest, CancelledCallerGivesItsPlaceToTheNext) {
  Scene scene(server_.url(), call(), 4);
  const Acquired held = scene.node(0).Take(1);
  Waiter& large = scene.Wait(scene.node(0), 4);
  scene.AwaitTickets(1);
  Waiter& behind = scene.Wait(scene.node(0), 4);
  Waiter& small = scene.Wait(scene.node(1), 3);
  scene.AwaitTickets(2);
  large.Cancel();
  ASSERT_EQ(scene.answers().Next(), &large);
  EXPECT_EQ(large.outcome(), waiting::HeldOutcome::kCancelled);
  // The next one of the same node comes before the small one, which came after it.
  EXPECT_EQ(scene.node(2).Take().outcome, store::Outcome::kDenied);
  behind.Cancel();
  ASSERT_EQ(scene.answers().Next(), &behind);
  ASSERT_EQ(scene.answers().Next(), &small);
  ASSERT_TRUE(small.granted());
  scene.AwaitTickets(0);
  small.End();
  EXPECT_TRUE(scene.node(2).Take(3).granted());
  EXPECT_EQ(Query(scene.node(1).store(), *scene.node(1).Charges(1)[0].rule, "k").level.remaining,
            0);
  scene.node(1).End(held.receipt_id);
}

TEST_F(RedisSlotLinesTest, CallersTakeTheirPlacesAgainAfterAReset) {
  Scene scene(server_.url(), call(), 4);
  ASSERT_TRUE(scene.node(0).Take(4).granted());
  Waiter& first = scene.Wait(scene.node(0), 3);
  scene.AwaitTickets(1);
  Waiter& second = scene.Wait(scene.node(1), 3);
  scene.AwaitTickets(2);
  ASSERT_TRUE(ResetKey(scene.node(2).store(), *scene.node(2).Charges(1)[0].rule, "k") ==
              store::ResetOutcome::kReset);
  // One of them is the first to ask.
  Waiter* const served = scene.answers().Next();
  ASSERT_TRUE(served == &first || served == &second);
  served->End();
  EXPECT_EQ(scene.answers().Next(), served == &first ? &second : &first);
}

// The limit is closed for as long as a lost hold may last. Meanwhile they leave their tickets
// again, with the same numbers.
TEST_F(RedisSlotLinesTest, CallersKeepTheirOrderWhenRedisLosesItsData) {
  Scene scene(server_.url(), call(), 1, kSecond);
  ASSERT_TRUE(scene.node(0).Take().granted());
  std::vector<Waiter*> waiters;
  for (const size_t i : {1, 0, 2}) waiters.push_back(&scene.Wait(scene.node(i)));
  calls_.Call({"FLUSHALL"});
  // Each holds the slot until its hold ends.
  for (Waiter* const waiter : waiters) {
    ASSERT_EQ(scene.answers().Next(), waiter);
    EXPECT_TRUE(waiter->granted());
  }
}

TEST_F(RedisSlotLinesTest, LimitThatNoCallerWaitsForCostsNoMoreCommands) {
  Scene scene(server_.url(), call(), 1);
  Node& node = scene.node(0);
  const auto commands = [&] {
    uint64_t least = std::numeric_limits<uint64_t>::max();
    // The node may ask for other things, now and then.
    for (int i = 0; i < 5; ++i) {
      const uint64_t before = node.store().Stats().commands;
      const Acquired taken = node.Take();
      EXPECT_TRUE(taken.granted());
      EXPECT_FALSE(node.Take().granted());
      EXPECT_EQ(Refund(node.store(), taken.receipt_id, node.Charges(1)).outcome,
                store::RefundOutcome::kRefunded);
      least = std::min(least, node.store().Stats().commands - before);
    }
    return least;
  };
  const uint64_t never = commands();
  const Acquired held = node.Take();
  Waiter& waiter = scene.Wait(scene.node(1));
  scene.AwaitTickets(1);
  scene.node(1).End(held.receipt_id);
  ASSERT_EQ(scene.answers().Next(), &waiter);
  waiter.End();
  scene.AwaitTickets(0);
  EXPECT_EQ(commands(), never);
  EXPECT_EQ(calls_.Call({"EXISTS", store::redis::KeysOf("sluice", "limit1", "k")[0]}).integer, 0)
      << "nothing is left";
}

TEST_F(RedisSlotLinesTest, NeverHoldsMoreThanThePermitsWhileCallersComeAndLeave) {
  constexpr uint64_t kPermits = 4;
  Scene scene(server_.url(), call(), kPermits);
  std::atomic<int> in_use{0};
  std::atomic<int> granted{0};
  std::atomic<int> cancelled{0};
  test_support::RunThreads(6, [&](int thread) {
    Node& node = scene.node(static_cast<size_t>(thread) % 3);
    Answers answers;
    for (int i = 0; i < 25; ++i) {
      const auto permits = static_cast<int>(1 + (thread + i) % 3);
      auto waiter = std::make_unique<Waiter>(node, static_cast<uint64_t>(permits), answers);
      bool got = !waiter->Arrive();
      if (!got) {
        if (i % 5 == 0) waiter->Cancel();
        EXPECT_EQ(answers.Next(), waiter.get());
        got = waiter->granted();
      }
      if (!got) {
        EXPECT_EQ(waiter->outcome(), waiting::HeldOutcome::kCancelled);
        ++cancelled;
        continue;
      }
      ++granted;
      EXPECT_LE(in_use.fetch_add(permits) + permits, static_cast<int>(kPermits));
      in_use.fetch_sub(permits);
      waiter->End();
    }
  });
  EXPECT_EQ(granted.load() + cancelled.load(), 150);
  EXPECT_GT(granted.load(), 100);
  const Rule& rule = *scene.node(0).Charges(1)[0].rule;
  EXPECT_EQ(Query(scene.node(0).store(), rule, "k").level.remaining,
            static_cast<int64_t>(kPermits));
}

// ---- Stores, against a model ----

// One bucket as it should be, in the simplest words.
class Model {
 public:
  explicit Model(uint64_t permits) : permits_(permits) {}

  bool Try(const QueuePlace* place, uint64_t permits, int64_t now_ns) {
    std::erase_if(tickets_, [&](const Ticket& one) { return one.until_ns <= now_ns; });
    uint64_t before = 0;
    for (const Ticket& one : tickets_) {
      const bool earlier = place == nullptr ||
                           std::pair(one.number, one.node) < std::pair(place->number, place->node);
      if (earlier) before += one.permits;
    }
    const bool granted = place == nullptr ? before == 0 && held_ + permits <= permits_
                                          : held_ + before + permits <= permits_;
    if (granted) held_ += permits;
    if (place == nullptr) return granted;
    if (granted || place->last) {
      Leave(*place);
    } else {
      Put(*place, {place->number, permits}, now_ns);
    }
    if ((granted || place->last) && !place->next.empty()) Put(*place, place->next[0], now_ns);
    return granted;
  }
  void Leave(const QueuePlace& place) {
    std::erase_if(tickets_, [&](const Ticket& one) {
      return one.number == place.number && one.node == place.node;
    });
  }
  void Put(const QueuePlace& place, const QueuePlace::Next& of, int64_t now_ns) {
    std::erase_if(tickets_, [&](const Ticket& one) {
      return one.until_ns <= now_ns || (one.node == place.node && one.number < of.number);
    });
    int64_t until_ns = now_ns + place.ticket_for_ns;
    std::erase_if(tickets_, [&](const Ticket& one) {
      if (one.number != of.number || one.node != place.node) return false;
      if (one.until_ns - now_ns > place.ticket_for_ns / 2) until_ns = one.until_ns;
      return true;
    });
    tickets_.push_back({of.number, place.node, of.permits, until_ns});
  }
  void End(uint64_t permits) { held_ -= permits; }
  uint64_t held() const { return held_; }

 private:
  const uint64_t permits_;
  uint64_t held_ = 0;
  std::vector<Ticket> tickets_;
};

class RedisTicketsTest : public ::testing::Test {
 protected:
  static constexpr int64_t kLife = kSecond / 2;

  RedisTicketsTest() {
    for (auto& node : nodes_) node->store().Register(rule_);
  }
  std::vector<Charge> Charges(uint64_t permits) const { return {{rule_.get(), "k", permits}}; }
  Acquired Try(size_t node, const QueuePlace* place, uint64_t permits) {
    return Acquire(nodes_[node]->store(), Charges(permits), {.want_receipt = true, .place = place});
  }
  int64_t NowNs() { return nodes_[0]->NowNs(); }
  void Advance(int64_t by_ns) {
    for (auto& node : nodes_) node->Advance(by_ns);
  }
  size_t Tickets() {
    return TicketsIn([this](const std::vector<std::string>& words) { return calls_.Call(words); },
                     rule_->parameters)
        .size();
  }

  RedisServer server_;
  RedisCalls calls_{server_};
  std::vector<std::unique_ptr<RedisStoreUnderTest>> nodes_ = [this] {
    std::vector<std::unique_ptr<RedisStoreUnderTest>> nodes;
    for (int i = 0; i < 3; ++i) {
      nodes.push_back(std::make_unique<RedisStoreUnderTest>(server_.url()));
    }
    return nodes;
  }();
  const std::shared_ptr<const Rule> rule_ =
      MakeRule(1, *algorithm::MakeConcurrency(5, 24 * 3600 * kSecond));
};

// Callers come, try, leave, or are forgotten by their node, at random. Each decision is compared
// with the model; and beside it the promises are checked: no more than the permits, and never slots
// that a caller with an earlier ticket needs.
TEST_F(RedisTicketsTest, DecideAsTheModelOnARandomHistory) {
  struct Caller {
    int64_t number;
    uint64_t permits;
  };
  std::mt19937_64 random(5);
  const auto below = [&](uint64_t n) { return random() % n; };
  Model model(5);
  std::deque<Caller> lines[3];
  std::vector<std::pair<uint64_t, uint64_t>> held;  // receipt, permits
  int waited_and_granted = 0;
  int overtaken_and_denied = 0;
  for (int step = 0; step < 8000; ++step) {
    const size_t node = below(3);
    std::deque<Caller>& line = lines[node];
    const auto place_of_first = [&](std::vector<QueuePlace::Next>* next, bool last) {
      QueuePlace place = {
          .node = node + 1, .number = line[0].number, .ticket_for_ns = kLife, .last = last};
      if (line.size() > 1) next->push_back({line[1].number, line[1].permits});
      place.next = *next;
      return place;
    };
    std::vector<QueuePlace::Next> next;
    switch (below(8)) {
      case 0:
        Advance(static_cast<int64_t>(below(kLife / 2)));
        break;
      case 1:
        // It was stopped for a while.
        if (below(10) == 0) Advance(2 * kLife);
        break;
      case 2:
      case 3: {
        if (held.empty()) break;
        std::swap(held[below(held.size())], held.back());
        const auto [receipt_id, permits] = held.back();
        held.pop_back();
        ASSERT_EQ(Refund(nodes_[node]->store(), receipt_id, Charges(permits)).outcome,
                  store::RefundOutcome::kRefunded);
        model.End(permits);
        break;
      }
      case 4: {
        if (line.empty()) break;
        // Its first caller leaves, by itself or by its last try.
        const bool tries = below(2) == 0;
        const uint64_t permits = line[0].permits;
        const QueuePlace place = place_of_first(&next, /*last=*/true);
        line.pop_front();
        if (tries) {
          const bool granted = model.Try(&place, permits, NowNs());
          const Acquired tried = Try(node, &place, permits);
          ASSERT_EQ(tried.granted(), granted) << step;
          if (granted) held.push_back({tried.receipt_id, permits});
          break;
        }
        model.Leave(place);
        if (!next.empty()) model.Put(place, next[0], NowNs());
        Refund(nodes_[node]->store(), /*receipt_id=*/0, Charges(permits), 0, nullptr, &place);
        break;
      }
      case 5: {
        const uint64_t permits = 1 + below(5);
        const bool behind = !line.empty();
        const bool granted = !behind && model.Try(nullptr, permits, NowNs());
        if (!behind) {
          const Acquired tried = Try(node, nullptr, permits);
          ASSERT_EQ(tried.granted(), granted) << step;
          if (granted) held.push_back({tried.receipt_id, permits});
          overtaken_and_denied += !granted && model.held() + permits <= 5 ? 1 : 0;
        }
        if (granted || line.size() == 4) break;
        int64_t number = NowNs();
        if (behind) number = std::max(number, line.back().number + 1);
        line.push_back({number, permits});
        break;
      }
      default: {
        if (line.empty()) break;
        const uint64_t permits = line[0].permits;
        const QueuePlace place = place_of_first(&next, /*last=*/false);
        const bool granted = model.Try(&place, permits, NowNs());
        const Acquired tried = Try(node, &place, permits);
        ASSERT_EQ(tried.granted(), granted) << step;
        if (!granted) {
          EXPECT_GT(tried.retry_after_ns, 0);
          break;
        }
        ++waited_and_granted;
        held.push_back({tried.receipt_id, permits});
        line.pop_front();
      }
    }
    ASSERT_LE(model.held(), 5u);
    ASSERT_EQ(Query(nodes_[node]->store(), *rule_, "k").level.remaining,
              5 - static_cast<int64_t>(model.held()));
    ASSERT_LE(Tickets(), 6u);
  }
  EXPECT_GT(waited_and_granted, 100);
  EXPECT_GT(overtaken_and_denied, 20);
}

TEST_F(RedisTicketsTest, AreBoundedHoweverManyNodesWait) {
  const Acquired held = Try(0, nullptr, 5);
  ASSERT_TRUE(held.granted());
  constexpr uint64_t kMost = common::bounds::kMaxTicketsPerBucketInRedis;
  const auto place_of = [&](uint64_t node) {
    return QueuePlace{
        .node = node, .number = 1'000'000 + static_cast<int64_t>(node), .ticket_for_ns = kLife};
  };
  for (uint64_t node = 1; node <= kMost + 20; ++node) {
    const QueuePlace place = place_of(node);
    ASSERT_FALSE(Try(node % 3, &place, 5).granted());
  }
  EXPECT_EQ(Tickets(), kMost);
  ASSERT_EQ(Refund(nodes_[1]->store(), held.receipt_id, Charges(5)).outcome,
            store::RefundOutcome::kRefunded);
  const QueuePlace last = place_of(kMost + 20);
  EXPECT_FALSE(Try(2, &last, 5).granted()) << "it has no ticket, and waits its turn";
  const QueuePlace first = place_of(1);
  EXPECT_TRUE(Try(2, &first, 5).granted());
}

// A node that does not know tickets, as an operation that has none: they stay.
TEST_F(RedisTicketsTest, OutliveOtherOperationsOnTheBucket) {
  const Acquired held = Try(0, nullptr, 4);
  ASSERT_TRUE(held.granted());
  const QueuePlace place = {.node = 1, .number = NowNs(), .ticket_for_ns = kLife};
  ASSERT_FALSE(Try(0, &place, 5).granted());
  ASSERT_EQ(Tickets(), 1u);
  EXPECT_EQ(Try(1, nullptr, 1).outcome, store::Outcome::kDenied);
  ASSERT_EQ(Refund(nodes_[1]->store(), held.receipt_id, Charges(4)).outcome,
            store::RefundOutcome::kRefunded);
  EXPECT_EQ(Tickets(), 1u) << "also without holds";
  EXPECT_EQ(Try(2, nullptr, 1).outcome, store::Outcome::kDenied);
  EXPECT_TRUE(Try(0, &place, 5).granted());
  EXPECT_EQ(Tickets(), 0u);
}

}  // namespace
}  // namespace sluice::testing
