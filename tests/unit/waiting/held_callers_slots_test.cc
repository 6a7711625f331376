// Callers that wait for slots, on a store that answers late and on many threads.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "server/store/memory/memory_store.h"
#include "server/waiting/alarm_thread.h"
#include "tests/support/late_store.h"
#include "tests/support/threads.h"
#include "tests/unit/waiting/waiting_scene.h"

namespace sluice::waiting {
namespace {

constexpr uint64_t kPermits = 4;

algorithm::Parameters Slots(uint64_t permits) {
  return *algorithm::MakeConcurrency(permits, 24 * 3600 * kSecond);
}

void Ask(store::Store& store, const HeldCallers& held_callers, int64_t now_ns, int64_t max_wait_ns,
         HeldCaller* caller) {
  store::Acquisition& acquisition = *caller->acquisition;
  acquisition.want_receipt = true;
  acquisition.max_wait_ns = max_wait_ns;
  acquisition.behind_others = held_callers.SlotsAwaited(acquisition.charges);
  Decide(store, acquisition);
  caller->since_ns = now_ns;
  caller->until_ns = now_ns + max_wait_ns;
}

// Random callers on two limits of slots. Those that leave do so in any state of a try.
class Ledger {
 public:
  Ledger(uint64_t seed, bool late, bool shared = false)
      : random_(seed), late_(late), later_(memory_, {.shared = shared}, seed) {}

  void Run() {
    Change();
    for (int step = 0; step < 1500; ++step) {
      for (uint64_t n = Below(4); late_ && n > 0; --n) later_.Step();
      Step();
      ASSERT_NO_FATAL_FAILURE(Collect());
    }
    for (int i = 0; i < 100'000 && (held_callers_.size() > 0 || later_.under_way() > 0); ++i) {
      later_.Step();
      if (i % 8 == 0) Advance(kSecond / 20);
    }
    ASSERT_EQ(held_callers_.size(), 0u);
    ASSERT_EQ(later_.under_way(), 0u);
    Advance(0);
    ASSERT_NO_FATAL_FAILURE(Collect());
    for (const Rule* rule : rules_) {
      uint64_t held = 0;
      for (const auto& caller : granted_) {
        for (const Charge& charge : caller->charges_) {
          held += charge.rule->limit_id == rule->limit_id ? charge.permits : 0;
        }
      }
      const store::QueryItem item = testing::Query(memory_, *rule, "k");
      EXPECT_EQ(item.level.remaining,
                static_cast<int64_t>(rule->parameters.concurrency.permits - held));
    }
    EXPECT_GT(waited_and_granted_, 0);
    EXPECT_GT(left_, 0);
  }

 private:
  uint64_t Below(uint64_t n) { return random_() % n; }
  store::Store& store() { return late_ ? static_cast<store::Store&>(later_) : memory_; }

  void Change() {
    for (uint32_t i = 0; i < 2; ++i) rules_[i] = &limits_.Set(1 + i, Slots(kPermits));
    held_callers_.LimitsChanged();
  }
  void Advance(int64_t by_ns) {
    clock_.Advance(by_ns);
    // Bounded: Advance can ask to be called again while an operation is pending.
    for (int i = 0; i < 100 && held_callers_.Advance() <= clock_.NowNs(); ++i) {
    }
  }
  void Step() {
    switch (Below(12)) {
      case 0:
        if (Below(20) == 0) Change();
        break;
      case 1:
      case 2:
        Advance(static_cast<int64_t>(Below(kSecond / 5)));
        break;
      case 3:
        if (!waiting_.empty()) held_callers_.Cancel(waiting_[Below(waiting_.size())].get());
        break;
      case 4:
      case 5:
      case 6:
        End();
        break;
      default:
        Arrive();
    }
    if (!late_) Advance(0);
  }
  void Arrive() {
    std::vector<Charge> charges;
    for (const Rule* rule : rules_) {
      if (Below(2) == 0) charges.push_back({rule, "k", 1 + Below(3)});
    }
    if (charges.empty()) return;
    auto caller = std::make_unique<Caller>(clock_, std::move(charges));
    Ask(memory_, held_callers_, clock_.NowNs(), 10 * kSecond, caller.get());
    if (caller->decided_.outcome == Outcome::kGranted) {
      granted_.push_back(std::move(caller));
      return;
    }
    ASSERT_TRUE(store::LacksSlots(caller->decided_));
    caller->generation = limits_.Generation();
    ASSERT_TRUE(held_callers_.WaitForSlots(caller.get()));
    waiting_.push_back(std::move(caller));
  }
  void Collect() {
    for (auto& caller : waiting_) {
      if (!caller->answered()) continue;
      ASSERT_EQ(caller->answers_.size(), 1u);
      if (caller->answers_[0] != HeldOutcome::kGrantTime) {
        ++left_;
        caller.reset();
        continue;
      }
      ASSERT_EQ(caller->decided_.outcome, Outcome::kGranted);
      ++waited_and_granted_;
      granted_.push_back(std::move(caller));
    }
    std::erase(waiting_, nullptr);
    for (const Rule* rule : rules_) {
      ASSERT_GE(testing::Query(memory_, *rule, "k").level.remaining, 0);
    }
  }
  void End() {
    if (granted_.empty()) return;
    std::swap(granted_[Below(granted_.size())], granted_.back());
    std::vector<Charge> charges = granted_.back()->charges_;
    for (Charge& charge : charges) charge.rule = rules_[charge.rule->limit_id - 1];
    const testing::Refunded refunded =
        testing::Refund(memory_, granted_.back()->decided_.receipt_id, charges);
    ASSERT_EQ(refunded.outcome, store::RefundOutcome::kRefunded);
    granted_.pop_back();
    held_callers_.SlotsFreed(charges);
  }

  std::mt19937_64 random_;
  const bool late_;
  common::FakeClock clock_{1000 * kSecond};
  store::MemoryStore memory_{clock_};
  testing::LateStore later_;
  Limits limits_{memory_};
  ManualAlarm alarm_;
  std::vector<std::unique_ptr<Caller>> waiting_;
  std::vector<std::unique_ptr<Caller>> granted_;
  HeldCallers held_callers_{store(), clock_, limits_, alarm_};
  const Rule* rules_[2] = {};
  int waited_and_granted_ = 0;
  int left_ = 0;
};

TEST(HeldCallersSlotsTest, HeldSlotsAddUpToTheGrants) {
  for (uint64_t seed = 1; seed <= 20; ++seed) Ledger(seed, /*late=*/false).Run();
}

TEST(HeldCallersSlotsTest, HeldSlotsAddUpOnASlowStore) {
  for (uint64_t seed = 1; seed <= 20; ++seed) Ledger(seed, /*late=*/true).Run();
}

// Operations that remove tickets are under way beside the tries.
TEST(HeldCallersSlotsTest, HeldSlotsAddUpOnASharedStore) {
  for (uint64_t seed = 1; seed <= 20; ++seed) Ledger(seed, /*late=*/true, /*shared=*/true).Run();
}

TEST(HeldCallersSlotsTest, AnswersACallerWhoseTryIsLost) {
  common::FakeClock clock{1000 * kSecond};
  store::MemoryStore memory(clock);
  testing::LateStore later(memory, {.lost_percent = 100}, /*seed=*/1);
  Limits limits(memory);
  ManualAlarm alarm;
  const Rule& rule = limits.Set(1, Slots(1));
  Caller caller(clock, {{&rule, "k", 1}});
  HeldCallers held_callers(later, clock, limits, alarm);
  testing::Acquire(memory, rule, "k", 1, {.want_receipt = true});
  Ask(memory, held_callers, clock.NowNs(), kMinute, &caller);
  ASSERT_TRUE(held_callers.WaitForSlots(&caller));
  held_callers.Advance();
  while (later.Step()) {
  }
  ASSERT_EQ(caller.answers_, std::vector<HeldOutcome>{HeldOutcome::kUnavailable});
  EXPECT_EQ(caller.decided_.outcome, Outcome::kUnavailable);
  EXPECT_EQ(held_callers.size(), 0u);
}

// A key with this std::hash in libstdc++: that of 8 bytes (MurmurHash64A), step by step backwards.
std::string KeyWithHash(uint64_t hash) {
  constexpr uint64_t kMul = 0xc6a4a7935bd1e995;
  uint64_t inverse = kMul;
  for (int i = 0; i < 5; ++i) inverse *= 2 - kMul * inverse;
  const auto mix = [](uint64_t v) { return v ^ (v >> 47); };
  const uint64_t mixed = mix(mix(hash) * inverse) * inverse ^ 0xc70f6907 ^ (8 * kMul);
  const uint64_t word = mix(mixed * inverse) * inverse;
  return {reinterpret_cast<const char*>(&word), sizeof(word)};
}

// Peers choose keys.
TEST(HeldCallersSlotsTest, NoKeyIsMadeToStandForABucketOfAnotherLimit) {
  common::FakeClock clock{1000 * kSecond};
  store::MemoryStore store(clock);
  Limits limits(store);
  ManualAlarm alarm;
  const Rule& of_peer = limits.Set(1 + 31, Slots(1));
  const Rule& of_others = limits.Set(1, Slots(1));
  const std::hash<std::string_view> hash{};
  const std::string key = KeyWithHash(hash("others") - 1);
#ifdef __GLIBCXX__
  ASSERT_EQ(hash(key) * 31 + of_peer.limit_id, hash("others") * 31 + of_others.limit_id);
#endif
  Caller caller(clock, {{&of_peer, key, 1}});
  HeldCallers held_callers(store, clock, limits, alarm);
  testing::Acquire(store, of_peer, key, 1, {.want_receipt = true});
  Ask(store, held_callers, clock.NowNs(), kMinute, &caller);
  ASSERT_TRUE(held_callers.WaitForSlots(&caller));
  EXPECT_EQ(held_callers.InLine({&of_peer, key, 1}), 1u);
  EXPECT_EQ(held_callers.InLine({&of_others, "others", 1}), 0u);
  const Charge charge{&of_others, "others", 1};
  EXPECT_FALSE(held_callers.SlotsAwaited({&charge, 1}));
}

TEST(HeldCallersSlotsTest, AsksASharedStoreAgainWithoutBeingWoken) {
  common::FakeClock clock{1000 * kSecond};
  store::MemoryStore memory(clock);
  testing::LateStore shared(memory, {.shared = true}, /*seed=*/1);
  Limits limits(memory);
  ManualAlarm alarm;
  const Rule& rule = limits.Set(1, Slots(1));
  Caller caller(clock, {{&rule, "k", 1}});
  HeldCallers held_callers(shared, clock, limits, alarm);
  const testing::Acquired held = testing::Acquire(memory, rule, "k", 1, {.want_receipt = true});
  Ask(memory, held_callers, clock.NowNs(), kMinute, &caller);
  ASSERT_TRUE(held_callers.WaitForSlots(&caller));
  const auto advance = [&](int64_t by_ns) {
    clock.Advance(by_ns);
    held_callers.Advance();
    while (shared.Step()) {
    }
  };
  advance(0);
  EXPECT_FALSE(caller.answered());
  // As another node does.
  testing::Refund(memory, held.receipt_id, {{&rule, "k", 1}});
  advance(HeldCallers::kSharedRetryNs / 2);
  EXPECT_FALSE(caller.answered());
  advance(HeldCallers::kSharedRetryNs);
  EXPECT_EQ(caller.answers_, std::vector<HeldOutcome>{HeldOutcome::kGrantTime});
}

// ---- Places in a shared store ----

// A store in memory that says that it is shared, and records the places that it was passed.
class PlacesStore final : public store::Store {
 public:
  struct Passed {
    bool try_ = true;  // false: a refund
    store::QueuePlace place;
    std::vector<store::QueuePlace::Next> next;
    uint64_t receipt_id = 0;  // of a refund
  };

  explicit PlacesStore(store::Store& store) : store_(store) {}
  std::string_view Kind() const override { return store_.Kind(); }
  bool Shared() const override { return true; }
  void Register(std::shared_ptr<const Rule> rule) override { store_.Register(std::move(rule)); }
  store::StoreStats Stats() const override { return store_.Stats(); }
  void Acquire(store::AcquireOperation* operation) override {
    if (const store::QueuePlace* const place = operation->acquisitions[0].place; place != nullptr) {
      passed_.push_back({true, *place, {place->next.begin(), place->next.end()}});
    }
    store_.Acquire(operation);
  }
  void Query(store::QueryOperation* operation) override { store_.Query(operation); }
  void Refund(store::RefundOperation* operation) override {
    if (const store::QueuePlace* const place = operation->place; place != nullptr) {
      passed_.push_back(
          {false, *place, {place->next.begin(), place->next.end()}, operation->receipt_id});
    }
    store_.Refund(operation);
  }
  void Reset(const Rule& rule, std::string_view key, ResetDone done, void* context) override {
    store_.Reset(rule, key, done, context);
  }
  std::vector<Passed> Take() { return std::exchange(passed_, {}); }

 private:
  store::Store& store_;
  std::vector<Passed> passed_;
};

class PlacesTest : public ::testing::Test {
 protected:
  // `clock_back_ns`: how far the store's clock is behind that of the node.
  Caller* Wait(std::vector<Charge> charges, int64_t clock_back_ns = 0) {
    Caller* const caller =
        callers_.emplace_back(std::make_unique<Caller>(clock_, std::move(charges))).get();
    clock_.Advance(1000);
    Ask(memory_, held_callers_, clock_.NowNs(), kMinute, caller);
    EXPECT_TRUE(store::LacksSlots(caller->decided_));
    caller->decided_.now_ns -= clock_back_ns;
    caller->generation = limits_.Generation();
    EXPECT_TRUE(held_callers_.WaitForSlots(caller));
    return caller;
  }
  std::vector<PlacesStore::Passed> Advance(int64_t by_ns) {
    clock_.Advance(by_ns);
    while (held_callers_.Advance() <= clock_.NowNs()) {
    }
    return store_.Take();
  }

  common::FakeClock clock_{1000 * kSecond};
  store::MemoryStore memory_{clock_};
  PlacesStore store_{memory_};
  Limits limits_{memory_};
  ManualAlarm alarm_;
  const Rule& rule_ = limits_.Set(1, Slots(1));
  const Rule& other_ = limits_.Set(2, Slots(1));
  const testing::Acquired held_ = testing::Acquire(memory_, rule_, "k", 1, {.want_receipt = true});
  std::vector<std::unique_ptr<Caller>> callers_;
  HeldCallers held_callers_{store_, clock_, limits_, alarm_};
};

TEST_F(PlacesTest, FirstCallerHandsItsTicketOnToTheNext) {
  Caller* const first = Wait({{&rule_, "k", 1}});
  const int64_t came_ns = clock_.NowNs();
  std::vector<PlacesStore::Passed> passed = Advance(0);
  ASSERT_EQ(passed.size(), 1u);
  EXPECT_NE(passed[0].place.node, 0u);
  EXPECT_EQ(passed[0].place.number, came_ns) << "on the store's clock";
  EXPECT_EQ(passed[0].place.ticket_for_ns, HeldCallers::kTicketNs);
  EXPECT_FALSE(passed[0].place.last);
  EXPECT_TRUE(passed[0].next.empty());
  Wait({{&rule_, "k", 1}});
  Wait({{&rule_, "k", 1}});
  EXPECT_TRUE(Advance(0).empty()) << "only the first one tries";
  testing::Refund(memory_, held_.receipt_id, {{&rule_, "k", 1}});
  held_callers_.SlotsFreed(first->decided_.charges);
  passed = Advance(0);
  ASSERT_TRUE(first->answered());
  ASSERT_EQ(passed.size(), 2u) << "the first, then the second";
  ASSERT_EQ(passed[0].next.size(), 1u);
  EXPECT_EQ(passed[0].next[0].number, passed[1].place.number);
  EXPECT_EQ(passed[0].next[0].permits, 1u);
  EXPECT_GT(passed[1].place.number, came_ns);
  EXPECT_EQ(passed[1].place.node, passed[0].place.node);
}

TEST_F(PlacesTest, CallerThatLeavesRemovesItsTicket) {
  Caller* const first = Wait({{&rule_, "k", 1}});
  Caller* const second = Wait({{&rule_, "k", 1}});
  Caller* const third = Wait({{&rule_, "k", 1}});
  const std::vector<PlacesStore::Passed> tried = Advance(0);
  ASSERT_EQ(tried.size(), 1u);
  EXPECT_TRUE(held_callers_.Cancel(third));
  EXPECT_TRUE(store_.Take().empty()) << "it had none";
  EXPECT_TRUE(held_callers_.Cancel(first));
  std::vector<PlacesStore::Passed> passed = store_.Take();
  ASSERT_EQ(passed.size(), 1u);
  EXPECT_FALSE(passed[0].try_);
  EXPECT_EQ(passed[0].receipt_id, 0u);
  EXPECT_EQ(passed[0].place.number, tried[0].place.number);
  ASSERT_EQ(passed[0].next.size(), 1u) << "the second caller takes its place";
  passed = Advance(0);
  ASSERT_EQ(passed.size(), 1u);
  EXPECT_TRUE(passed[0].try_);
  // Its last try leaves none.
  passed = Advance(kMinute);
  ASSERT_EQ(second->answers_, std::vector<HeldOutcome>{HeldOutcome::kDenied});
  ASSERT_EQ(passed.size(), 1u);
  EXPECT_TRUE(passed[0].place.last);
}

TEST_F(PlacesTest, DrainRemovesTicketsAndPassesNoneOn) {
  Wait({{&rule_, "k", 1}});
  Wait({{&rule_, "k", 1}});
  ASSERT_EQ(Advance(0).size(), 1u);
  held_callers_.Drain();
  const std::vector<PlacesStore::Passed> passed = store_.Take();
  ASSERT_FALSE(passed.empty());
  for (const PlacesStore::Passed& one : passed) {
    EXPECT_FALSE(one.try_);
    EXPECT_TRUE(one.next.empty());
  }
}

TEST_F(PlacesTest, CallerWithSeveralLinesGetsATicketWhenItIsTheFirstInAll) {
  testing::Acquire(memory_, other_, "k", 1, {.want_receipt = true});
  Wait({{&rule_, "k", 1}});
  Caller* const other = Wait({{&other_, "k", 1}});
  Wait({{&rule_, "k", 1}, {&other_, "k", 1}});
  for (const PlacesStore::Passed& one : Advance(0)) {
    EXPECT_TRUE(one.next.empty()) << "it is behind the other one too";
  }
  EXPECT_TRUE(held_callers_.Cancel(other));
  store_.Take();
  const std::vector<PlacesStore::Passed> passed = Advance(HeldCallers::kSharedRetryNs * 2);
  ASSERT_EQ(passed.size(), 1u);
  ASSERT_EQ(passed[0].next.size(), 1u);
  EXPECT_GT(passed[0].next[0].number, passed[0].place.number);
}

TEST_F(PlacesTest, NumbersGrowAlongEachLineWhenTheClockIsSetBack) {
  Caller* const first = Wait({{&rule_, "k", 1}});
  const std::vector<PlacesStore::Passed> tried = Advance(0);
  ASSERT_EQ(tried.size(), 1u);
  Wait({{&rule_, "k", 1}}, 3600 * kSecond);
  EXPECT_TRUE(held_callers_.Cancel(first));
  const std::vector<PlacesStore::Passed> left = store_.Take();
  ASSERT_EQ(left.size(), 1u);
  ASSERT_EQ(left[0].next.size(), 1u);
  EXPECT_EQ(left[0].next[0].number, tried[0].place.number + 1);
}

// No wake-up is lost: holds last for a day, so a caller that is not woken would be denied.
TEST(HeldCallersSlotsTest, HandsSlotsOnBetweenManyThreads) {
  const common::SystemClock clock;
  store::MemoryStore store(clock);
  Limits limits(store);
  const Rule& rule = limits.Set(1, Slots(kPermits));
  AlarmThread alarm(clock);
  HeldCallers held_callers(store, clock, limits, alarm);
  alarm.Start(held_callers);
  std::atomic<int> in_use{0};
  std::atomic<int> most{0};
  std::atomic<int> granted{0};
  std::atomic<int> cancelled{0};
  std::atomic<int> other{0};
  test_support::RunThreads(8, [&](int thread) {
    struct Waiter final : HeldCaller {
      void OnAnswer(HeldOutcome outcome) override {
        answer = outcome;
        answered.store(true, std::memory_order_release);
        answered.notify_one();
      }
      HeldOutcome answer = HeldOutcome::kGrantTime;
      std::atomic<bool> answered{false};
    };
    for (int i = 0; i < 1000; ++i) {
      auto waiter = std::make_unique<Waiter>();
      const Charge charge = {&rule, "k", 1 + static_cast<uint64_t>((thread + i) % 2)};
      store::ChargeResult result;
      store::Acquisition acquisition;
      acquisition.charges = absl::MakeConstSpan(&charge, 1);
      acquisition.results = &result;
      waiter->acquisition = &acquisition;
      waiter->generation = 1;
      Ask(store, held_callers, clock.NowNs(), 10 * kMinute, waiter.get());
      if (acquisition.outcome != Outcome::kGranted) {
        held_callers.WaitForSlots(waiter.get());
        if (i % 7 == 0) held_callers.Cancel(waiter.get());
        waiter->answered.wait(false, std::memory_order_acquire);
      }
      if (waiter->answer == HeldOutcome::kCancelled) {
        ++cancelled;
        continue;
      }
      if (acquisition.outcome != Outcome::kGranted) {
        ++other;
        continue;
      }
      ++granted;
      const auto permits = static_cast<int>(charge.permits);
      const int now = in_use.fetch_add(permits) + permits;
      int before = most.load();
      while (before < now && !most.compare_exchange_weak(before, now)) {
      }
      in_use.fetch_sub(permits);
      testing::Refund(store, acquisition.receipt_id, {charge});
      held_callers.SlotsFreed(acquisition.charges);
    }
  });
  alarm.Stop();
  EXPECT_EQ(other.load(), 0);
  EXPECT_EQ(granted.load() + cancelled.load(), 8000);
  EXPECT_LE(most.load(), static_cast<int>(kPermits));
  EXPECT_EQ(held_callers.size(), 0u);
  EXPECT_EQ(testing::Query(store, rule, "k").level.remaining, static_cast<int64_t>(kPermits));
}

}  // namespace
}  // namespace sluice::waiting
