// Estimates (BucketState::Settle) of all algorithms. A bucket is never fuller than if each settled
// acquisition had taken what it was settled with.
#include "server/algorithm/estimates.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <vector>

#include "server/algorithm/bucket_state.h"
#include "server/algorithm/make_parameters.h"
#include "tests/support/tiny_parameters.h"
#include "tests/unit/algorithm/earliest_check.h"

namespace sluice::algorithm {
namespace {

using testing::AnyTiny;
using State = Estimate::State;

constexpr int64_t kSecond = 1'000'000'000;

Moment At(int64_t now_ns) { return {now_ns, now_ns}; }

Parameters Tokens(uint64_t burst) { return *MakeTokenBucket({1, kSecond}, burst, 0); }

std::vector<Parameters> AllOfTen() {
  return {Tokens(10), *MakeSlidingLog({10, 100 * kSecond}),
          *MakeSlidingWindow({10, 100 * kSecond}, 10), *MakeFixedWindow({10, 100 * kSecond}, 0)};
}

void Take(BucketState& state, const Parameters& parameters, uint64_t id, uint64_t permits,
          int64_t now_ns, int64_t within_ns = kSecond) {
  state.BeginEstimate(id, permits, now_ns, within_ns);
  ASSERT_TRUE(state.TryTake(parameters, permits, At(now_ns), id));
}

uint64_t Settle(BucketState& state, const Parameters& parameters, uint64_t id, uint64_t actual,
                int64_t now_ns, bool more = false, uint64_t max_owed = 5) {
  return state.Settle(parameters, id,
                      {.actual = actual, .share = ~uint64_t{0}, .max_owed = max_owed, .more = more},
                      At(now_ns));
}

int64_t RemainingOf(const BucketState& state, const Parameters& parameters, int64_t now_ns) {
  return state.LevelAt(parameters, At(now_ns)).remaining;
}

TEST(EstimatesTest, LessGivesTheRestBack) {
  for (const Parameters& parameters : AllOfTen()) {
    BucketState state(parameters);
    Take(state, parameters, 1, 8, 0);
    Settle(state, parameters, 1, 3, 0);
    EXPECT_EQ(RemainingOf(state, parameters, 0), 7);
    EXPECT_EQ(state.FindEstimate(1)->changed, 5u);
    EXPECT_EQ(state.FindEstimate(1)->state, State::kSettled);
    EXPECT_EQ(state.open_receipts(), 0u);
  }
}

TEST(EstimatesTest, MoreThanAskedIsForced) {
  for (const Parameters& parameters : AllOfTen()) {
    BucketState state(parameters);
    Take(state, parameters, 1, 8, 0);
    const BucketState::Settlement settlement = {
        .actual = 20, .share = 12, .max_owed = 5, .more = false};
    EXPECT_EQ(state.Settle(parameters, 1, settlement, At(0)), 7u);
    EXPECT_EQ(RemainingOf(state, parameters, 0), -5);
    EXPECT_EQ(state.FindEstimate(1)->changed, 7u);
  }
}

TEST(EstimatesTest, ContinuedChargesOnlyWhatIsNew) {
  for (const Parameters& parameters : AllOfTen()) {
    BucketState state(parameters);
    Take(state, parameters, 1, 4, 0);
    const auto settle = [&](uint64_t actual, uint64_t share, int64_t now_ns, bool more) {
      state.Settle(parameters, 1, {.actual = actual, .share = share, .max_owed = 5, .more = more},
                   At(now_ns));
    };
    settle(2, 0, 0, /*more=*/true);
    EXPECT_EQ(RemainingOf(state, parameters, 0), 6);
    settle(6, 2, 0, /*more=*/true);
    EXPECT_EQ(RemainingOf(state, parameters, 0), 4);
    settle(6, 0, 0, /*more=*/true);
    EXPECT_EQ(RemainingOf(state, parameters, 0), 4);
    settle(9, 3, 0, /*more=*/false);
    EXPECT_EQ(RemainingOf(state, parameters, 0), 1);
    EXPECT_EQ(state.FindEstimate(1)->changed, 5u);
  }
}

TEST(EstimatesTest, ContinuedRestartsTheTerm) {
  const Parameters parameters = *MakeFixedWindow({10, 100 * kSecond}, 0);
  BucketState state(parameters);
  Take(state, parameters, 1, 8, 0);
  Settle(state, parameters, 1, 2, kSecond, /*more=*/true);
  EXPECT_EQ(state.FindEstimate(1)->state, State::kContinued);
  Settle(state, parameters, 1, 3, 2 * kSecond);
  EXPECT_EQ(state.FindEstimate(1)->state, State::kSettled);
  EXPECT_EQ(RemainingOf(state, parameters, 2 * kSecond), 7);
}

TEST(EstimatesTest, LateGivesNothingBack) {
  for (const Parameters& parameters : AllOfTen()) {
    BucketState state(parameters);
    Take(state, parameters, 1, 8, 0);
    const int64_t before = RemainingOf(state, parameters, kSecond + 1);
    Settle(state, parameters, 1, 3, kSecond + 1);
    EXPECT_EQ(RemainingOf(state, parameters, kSecond + 1), before);
    EXPECT_EQ(state.FindEstimate(1)->state, State::kLate);
    EXPECT_EQ(state.FindEstimate(1)->changed, 0u);
  }
}

TEST(EstimatesTest, LateExcessIsForced) {
  for (const Parameters& parameters : AllOfTen()) {
    BucketState state(parameters);
    Take(state, parameters, 1, 8, 0);
    const int64_t before = RemainingOf(state, parameters, kSecond + 1);
    state.Settle(parameters, 1, {.actual = 10, .share = 2, .max_owed = 5, .more = true},
                 At(kSecond + 1));
    EXPECT_EQ(RemainingOf(state, parameters, kSecond + 1), before - 2);
    EXPECT_EQ(state.FindEstimate(1)->state, State::kLate);
  }
}

// The bucket was full since, so the permits would have been lost.
TEST(EstimatesTest, TokenBucketThatWasFullGetsNothingBack) {
  const Parameters parameters = Tokens(10);
  BucketState state(parameters);
  Take(state, parameters, 1, 8, 0, /*within_ns=*/100 * kSecond);
  ASSERT_TRUE(state.TryTake(parameters, 10, At(20 * kSecond)));
  Settle(state, parameters, 1, 0, 20 * kSecond);
  EXPECT_EQ(RemainingOf(state, parameters, 20 * kSecond), 0);
  EXPECT_EQ(state.FindEstimate(1)->state, State::kSettled);
}

TEST(EstimatesTest, BucketIsNotFullUntilTenMinutesAfterTheEnd) {
  for (const Parameters& parameters : AllOfTen()) {
    BucketState state(parameters);
    Take(state, parameters, 1, 8, 0);
    EXPECT_FALSE(state.IsFull(parameters, At(kSecond + Estimate::kKeptNs)));
    EXPECT_TRUE(state.IsFull(parameters, At(kSecond + Estimate::kKeptNs + 1)));
    state.CloseWorthless(parameters, At(kSecond + Estimate::kKeptNs + 1));
    EXPECT_EQ(state.FindEstimate(1), nullptr);
  }
}

TEST(EstimatesTest, RefundEndsAnOpenEstimate) {
  for (const Parameters& parameters : AllOfTen()) {
    BucketState state(parameters);
    Take(state, parameters, 1, 8, 0);
    EXPECT_EQ(state.Refund(parameters, 1, At(0)), 8u);
    EXPECT_EQ(state.FindEstimate(1)->state, State::kRefunded);
    EXPECT_EQ(state.Refund(parameters, 1, At(0)), std::nullopt);
  }
}

TEST(EstimatesTest, ResetTakesNothingFromTheExcess) {
  for (const Parameters& parameters : AllOfTen()) {
    BucketState state(parameters);
    Take(state, parameters, 1, 8, 0);
    state.Reset(parameters, At(0));
    state.Settle(parameters, 1, {.actual = 9, .share = 1, .max_owed = 5}, At(0));
    EXPECT_EQ(RemainingOf(state, parameters, 0), 9);
    Take(state, parameters, 2, 3, 0);
    state.Reset(parameters, At(0));
    Settle(state, parameters, 2, 0, 0);
    EXPECT_EQ(RemainingOf(state, parameters, 0), 10);
  }
}

TEST(EstimatesTest, StaysWhenTheAlgorithmChanges) {
  for (const Parameters& from : AllOfTen()) {
    for (const Parameters& to : AllOfTen()) {
      BucketState state(from);
      Take(state, from, 1, 4, 0);
      Take(state, from, 2, 4, 0);
      state.Convert(from, to, At(0));
      const int64_t before = RemainingOf(state, to, 0);
      state.Settle(to, 1, {.actual = 5, .share = 1, .max_owed = 5}, At(0));
      EXPECT_EQ(RemainingOf(state, to, 0), before - 1);
      Settle(state, to, 2, 1, 0);
      const int64_t given = from.kind == to.kind ? 3 : 0;
      EXPECT_EQ(RemainingOf(state, to, 0), before - 1 + given);
    }
  }
}

TEST(EstimatesTest, EstimateOfABookingBeginsAtItsGrantTime) {
  for (const Parameters& parameters : AllOfTen()) {
    BucketState state(parameters);
    ASSERT_TRUE(state.TryTake(parameters, 10, At(0)));
    const int64_t grant_time_ns = state.EarliestNs(parameters, 4, At(0));
    state.BeginEstimate(1, 4, grant_time_ns, kSecond);
    state.Book(parameters, {grant_time_ns, 4, /*id=*/1, /*set=*/1}, At(0));
    state.Fold(parameters, At(grant_time_ns));
    EXPECT_EQ(state.FindEstimate(1)->end_ns, grant_time_ns + kSecond);
    EXPECT_EQ(state.open_estimates(), 1u);
    const int64_t before = RemainingOf(state, parameters, grant_time_ns);
    Settle(state, parameters, 1, 1, grant_time_ns);
    EXPECT_EQ(RemainingOf(state, parameters, grant_time_ns), before + 3);
  }
}

TEST(EstimatesTest, MovedBookingMovesItsEstimate) {
  const Parameters parameters = Tokens(10);
  BucketState state(parameters);
  ASSERT_TRUE(state.TryTake(parameters, 10, At(0)));
  state.BeginEstimate(1, 4, 9 * kSecond, kSecond);
  state.Book(parameters, {9 * kSecond, 4, 1, 1}, At(0));
  ASSERT_TRUE(state.CancelBooking(parameters, 9 * kSecond, 1));
  EXPECT_EQ(state.FindEstimate(1)->state, State::kRefunded);
  state.Book(parameters, {4 * kSecond, 4, 1, 1}, At(0));
  EXPECT_EQ(state.FindEstimate(1)->state, State::kOpen);
  EXPECT_EQ(state.FindEstimate(1)->end_ns, 5 * kSecond);
}

TEST(EstimatesTest, ImageHasThem) {
  for (const Parameters& parameters : AllOfTen()) {
    BucketState state(parameters);
    Take(state, parameters, 1, 4, 0);
    Take(state, parameters, 2, 4, 0);
    Settle(state, parameters, 1, 3, 0, /*more=*/true);
    BucketState copy = BucketState::FromImage(parameters, state.ToImage());
    EXPECT_EQ(copy.open_estimates(), 2u);
    Settle(copy, parameters, 1, 3, 0);
    Settle(copy, parameters, 2, 1, 0);
    EXPECT_EQ(RemainingOf(copy, parameters, 0), 6);
  }
}

// ---- The container ----

RC_GTEST_PROP(EstimatesTest, FindsWhatWasAddedUntilItIsOver, ()) {
  Estimates estimates;
  std::map<uint64_t, Estimate> all;
  uint64_t last_id = 0;
  int64_t now_ns = 0;
  // With the longer times there are several chunks.
  const auto most_ns = *rc::gen::element<int64_t>(300, 3000);
  for (int steps = *rc::gen::inRange(1, 600); steps > 0; --steps) {
    now_ns += *rc::gen::inRange<int64_t>(0, 20);
    Estimate one;
    one.id = last_id += 10;
    if (*rc::gen::inRange(0, 8) == 0) one.id -= *rc::gen::inRange<uint64_t>(0, last_id);
    if (all.contains(one.id)) continue;
    one.end_ns = now_ns + *rc::gen::inRange<int64_t>(0, most_ns) - Estimate::kKeptNs;
    estimates.RemoveSome(now_ns, [&](const Estimate& over) {
      RC_ASSERT(over == all.at(over.id));
      RC_ASSERT(over.end_ns + Estimate::kKeptNs < now_ns);
      all.erase(over.id);
    });
    RC_ASSERT(estimates.Add(one) == one);
    all[one.id] = one;
    RC_ASSERT(estimates.size() == all.size());
    RC_ASSERT(estimates.MemoryBytes() >= all.size() * sizeof(Estimate));
  }
  auto next = all.begin();
  estimates.ForEach([&](const Estimate& one) { RC_ASSERT(one == (next++)->second); });
  RC_ASSERT(next == all.end());
  for (const auto& [id, one] : all) {
    RC_ASSERT(estimates.Find(id) != nullptr && *estimates.Find(id) == one);
    RC_ASSERT(estimates.Find(id + 1) == nullptr || all.contains(id + 1));
  }
}

TEST(EstimatesTest, SparseChunksAreJoined) {
  Estimates estimates;
  for (uint64_t id = 1; id <= 6400; ++id) {
    Estimate one;
    one.id = id;
    one.end_ns = id % 16 == 0 ? kSecond : 0;
    estimates.Add(one);
  }
  const size_t before = estimates.MemoryBytes();
  for (int i = 0; i < 300; ++i) {
    estimates.RemoveSome(Estimate::kKeptNs + 1,
                         [](const Estimate& one) { EXPECT_NE(one.id % 16, 0u); });
  }
  EXPECT_EQ(estimates.size(), 400u);
  EXPECT_LT(estimates.MemoryBytes() * 3, before);
  uint64_t last_id = 0;
  estimates.ForEach([&](const Estimate& one) { EXPECT_EQ(one.id, last_id += 16); });
  EXPECT_EQ(last_id, 6400u);
  for (uint64_t id = 1; id <= 6400; ++id) EXPECT_EQ(estimates.Find(id) != nullptr, id % 16 == 0);
}

TEST(EstimatesTest, ManyAreForgottenSomeAtATime) {
  constexpr uint64_t kMany = 1000;
  for (const Parameters& parameters :
       {Tokens(2 * kMany), *MakeSlidingLog({2 * kMany, 100 * kSecond}),
        *MakeSlidingWindow({2 * kMany, 100 * kSecond}, 10),
        *MakeFixedWindow({2 * kMany, 100 * kSecond}, 0)}) {
    BucketState state(parameters);
    for (uint64_t id = 1; id <= kMany; ++id) {
      Take(state, parameters, id, 1, 0);
      if (id % 2 == 0) Settle(state, parameters, id, 1, 0);
    }
    const Moment later = At(kSecond + Estimate::kKeptNs + 1);
    size_t calls = 0;
    while (state.estimates() != nullptr) {
      const size_t before = state.estimates()->size();
      state.CloseWorthless(parameters, later, BucketState::Forget::kSome);
      const size_t left = state.estimates() == nullptr ? 0 : state.estimates()->size();
      EXPECT_LE(before - left, kMany / 2);
      ASSERT_LT(++calls, 100u);
    }
    EXPECT_GT(calls, 5u);
    EXPECT_EQ(state.open_estimates(), 0u);
  }
}

// ---- Against the history as it was settled ----

struct Event {
  enum class What : uint8_t { kTake, kForce, kReload, kReset };
  What what = What::kTake;
  int64_t at_ns = 0;
  uint64_t permits = 0;  // as settled
  uint64_t max_owed = 0;
  Parameters to = {};
};

// A random history on one bucket, and the events of the history as it would have been, had each
// acquisition taken what it was settled with.
class SettledHistory {
 public:
  explicit SettledHistory(Kind kind) : first_(AnyTiny(kind)), now_(first_), state_(first_) {
    max_owed_ = Debt(first_) + *rc::gen::inRange<uint64_t>(0, 6);
  }

  void Step() {
    now_ns_ += *rc::gen::weightedOneOf<int64_t>(
        {{2, rc::gen::just(int64_t{0})}, {3, rc::gen::inRange<int64_t>(1, 12)}});
    const auto permits = *rc::gen::inRange<uint64_t>(1, 7);
    switch (*rc::gen::inRange(0, 12)) {
      case 0:
      case 1:
      case 2:
      case 3:
        return Take(permits);
      case 4:
        return Force(permits);
      case 5:
        return Refund();
      case 6:
        return Reload();
      case 7:
        if (*rc::gen::inRange(0, 4) == 0) Reset();
        return;
      default:
        return Settle();
    }
  }

  void Check() const {
    Parameters parameters = first_;
    BucketState without(parameters);
    for (const Event& event : events_) {
      switch (event.what) {
        case Event::What::kTake:
          RC_ASSERT(without.TryTake(parameters, event.permits, At(event.at_ns)));
          break;
        case Event::What::kForce:
          without.Force(parameters, event.permits, event.max_owed, At(event.at_ns));
          break;
        case Event::What::kReload:
          without.Convert(parameters, event.to, At(event.at_ns));
          parameters = event.to;
          break;
        case Event::What::kReset:
          without.Reset(parameters, At(event.at_ns));
          break;
      }
    }
    const Level with = state_.LevelAt(now_, At(now_ns_));
    const Level level = without.LevelAt(now_, At(now_ns_));
    RC_ASSERT(with.remaining <= level.remaining);
    RC_ASSERT(with.reset_after_ns >= level.reset_after_ns);
    CheckEarliest(state_, now_, *rc::gen::inRange<uint64_t>(1, 7), now_ns_);
  }

 private:
  struct Asked {
    size_t event;
    int64_t end_ns;
    int64_t within_ns;
  };

  void Add(Event::What what, uint64_t permits) {
    events_.push_back({what, now_ns_, permits, max_owed_, now_});
  }

  // A token bucket is compared with one that is asked to count all of it. A log or window counts a
  // permit for some time, so there what is forgiven, and not counted now, is never counted.
  void AddForced(uint64_t permits) { Add(Event::What::kForce, permits); }
  void NoteForgiven(uint64_t forgiven) {
    if (now_.kind == Kind::kTokenBucket) return;
    events_.back().permits -= forgiven;
    events_.back().max_owed = uint64_t{1} << 32;
  }

  void Begin(uint64_t id, uint64_t permits) {
    const auto within_ns = *rc::gen::inRange<int64_t>(1, 60);
    state_.BeginEstimate(id, permits, now_ns_, within_ns);
    RC_ASSERT(state_.HasRoomForEstimate(At(now_ns_)));
    open_[id] = {events_.size() - 1, now_ns_ + within_ns, within_ns};
  }

  void Take(uint64_t permits) {
    if (!state_.CanTake(now_, permits, At(now_ns_))) return;
    Add(Event::What::kTake, permits);
    Begin(++last_id_, permits);
    RC_ASSERT(state_.TryTake(now_, permits, At(now_ns_), last_id_));
  }

  void Force(uint64_t permits) {
    AddForced(permits);
    Begin(++last_id_, permits);
    const uint64_t forgiven = state_.Force(now_, permits, max_owed_, At(now_ns_), last_id_);
    NoteForgiven(forgiven);
  }

  uint64_t AnyOpen() {
    return std::next(open_.begin(), *rc::gen::inRange<size_t>(0, open_.size()))->first;
  }

  void Refund() {
    if (open_.empty()) return;
    const uint64_t id = AnyOpen();
    if (state_.FindEstimate(id)->state != State::kOpen) return;
    RC_ASSERT(state_.Refund(now_, id, At(now_ns_)).has_value());
    events_[open_[id].event].permits = 0;
    open_.erase(id);
  }

  void Settle() {
    if (open_.empty()) return;
    const uint64_t id = AnyOpen();
    Asked& asked = open_[id];
    const Estimate before = *state_.FindEstimate(id);
    const auto actual = before.actual + *rc::gen::inRange<uint64_t>(0, 9);
    const bool more = *rc::gen::inRange(0, 3) == 0;
    const bool late = now_ns_ > asked.end_ns;
    const uint64_t so_far = before.asked_so_far();
    const uint64_t excess = actual > so_far ? actual - so_far : 0;
    const auto share = *rc::gen::inRange<uint64_t>(0, excess + 1);
    if (excess > 0) AddForced(share);
    const uint64_t counted = state_.Settle(
        now_, id, {.actual = actual, .share = share, .max_owed = max_owed_, .more = more},
        At(now_ns_));
    if (excess > 0) NoteForgiven(share - counted);
    const Estimate after = *state_.FindEstimate(id);
    RC_ASSERT(after.actual == actual);
    RC_ASSERT(after.closed() == (late || !more));
    if (excess == 0 && !late && !more) {
      uint64_t& permits = events_[asked.event].permits;
      permits = std::min(permits, actual);
    }
    if (after.closed()) {
      RC_ASSERT(after.state == (late ? State::kLate : State::kSettled));
      open_.erase(id);
    } else {
      asked.end_ns = now_ns_ + asked.within_ns;
    }
  }

  void Reload() {
    const Parameters to = AnyTiny(now_.kind);
    state_.Convert(now_, to, At(now_ns_));
    now_ = to;
    max_owed_ = Debt(to) + *rc::gen::inRange<uint64_t>(0, 6);
    Add(Event::What::kReload, 0);
  }

  void Reset() {
    state_.Reset(now_, At(now_ns_));
    Add(Event::What::kReset, 0);
  }

  const Parameters first_;
  Parameters now_;
  uint64_t max_owed_ = 0;
  BucketState state_;
  int64_t now_ns_ = 1000;
  uint64_t last_id_ = 0;
  std::vector<Event> events_;
  std::map<uint64_t, Asked> open_;
};

RC_GTEST_PROP(EstimatesTest, NoBucketIsFullerThanTheSettledHistoryLeavesIt, ()) {
  for (const Kind kind : kKinds) {
    if (kind == Kind::kConcurrency) continue;  // it has no estimates
    SettledHistory history(kind);
    for (int steps = *rc::gen::inRange(1, 40); steps > 0; --steps) {
      history.Step();
      history.Check();
    }
  }
}

}  // namespace
}  // namespace sluice::algorithm
