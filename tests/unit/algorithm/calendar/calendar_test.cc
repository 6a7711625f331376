// What is booked ahead, against brute force: every moment is tried, every bucket replayed from its
// beginning by the reference.
#include "server/algorithm/calendar/calendar.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>
#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "server/algorithm/bucket_state.h"
#include "server/algorithm/make_parameters.h"
#include "tests/support/reference.h"
#include "tests/support/tiny_parameters.h"
#include "tests/support/window_checker.h"

namespace sluice::algorithm {
namespace {

using test_support::CheckCountInEveryWindow;
using test_support::CheckRateInEveryWindow;
using test_support::Grant;
using test_support::ReferenceFixedWindow;
using test_support::ReferenceLog;
using test_support::ReferenceSlidingWindow;
using test_support::ReferenceTokenBucket;
using testing::AnyTiny;
using testing::TinyTokenBucket;

constexpr int64_t kSecond = 1'000'000'000;

// A permit taken or booked.
struct Event {
  int64_t grant_time_ns = 0;
  uint64_t permits = 0;
  uint64_t id = 0;
};

// A bucket beside the reference's view of it. The wall clock shows what the other one does.
struct ModelBucket {
  explicit ModelBucket(const Parameters& p) : parameters(p), state(p) {}

  // Would all of these be granted, one after the other?
  bool AllGranted(const std::vector<Event>& all) const {
    switch (parameters.kind) {
      case Kind::kTokenBucket: {
        const TokenBucket& p = parameters.token_bucket;
        ReferenceTokenBucket reference(p.unit_ticks, uint64_t{1} << p.shift, p.burst, p.debt);
        return Replay(all, reference);
      }
      case Kind::kSlidingLog: {
        const SlidingLog& p = parameters.sliding_log;
        ReferenceLog reference(p.rate.permits, p.rate.period_ns, p.quantum_ns);
        return Replay(all, reference);
      }
      case Kind::kSlidingWindow: {
        const SlidingWindow& p = parameters.sliding_window;
        ReferenceSlidingWindow reference(p.rate.permits, p.rate.period_ns, p.sub_windows);
        return Replay(all, reference);
      }
      case Kind::kFixedWindow: {
        const FixedWindow& p = parameters.fixed_window;
        ReferenceFixedWindow reference(p.rate.permits, p.rate.period_ns, p.utc_offset_ns);
        return Replay(all, reference);
      }
      case Kind::kConcurrency:
        break;
    }
    return false;
  }

  template <typename Reference>
  static bool Replay(const std::vector<Event>& all, Reference& reference) {
    return std::all_of(all.begin(), all.end(), [&](const Event& event) {
      return reference.TryTake(event.permits, event.grant_time_ns);
    });
  }

  // After bookings of the same grant time.
  static void InsertInto(std::vector<Event>* all, const Event& event) {
    all->insert(std::upper_bound(all->begin(), all->end(), event,
                                 [](const Event& a, const Event& b) {
                                   return a.grant_time_ns < b.grant_time_ns;
                                 }),
                event);
  }

  bool Fits(const Event& event) const {
    std::vector<Event> with = events;
    InsertInto(&with, event);
    return AllGranted(with);
  }

  // No window of the history, past or to come, holds too much.
  std::string CheckWindows() const {
    std::vector<Grant> history;
    for (const Event& event : events) history.push_back({event.grant_time_ns, event.permits});
    switch (parameters.kind) {
      case Kind::kTokenBucket: {
        const TokenBucket& p = parameters.token_bucket;
        for (Grant& grant : history) grant.at_ns <<= p.shift;
        return CheckRateInEveryWindow(history, 1, static_cast<int64_t>(p.unit_ticks),
                                      p.burst + p.debt);
      }
      case Kind::kSlidingLog:
        return CheckCountInEveryWindow(history, parameters.sliding_log.rate.period_ns,
                                       parameters.sliding_log.rate.permits);
      case Kind::kSlidingWindow:
        return CheckCountInEveryWindow(history, parameters.sliding_window.rate.period_ns,
                                       parameters.sliding_window.rate.permits);
      case Kind::kFixedWindow: {
        std::map<int64_t, uint64_t> windows;
        for (const Grant& grant : history) {
          uint64_t& count = windows[grant.at_ns / parameters.fixed_window.rate.period_ns];
          count += grant.permits;
          if (count > parameters.fixed_window.rate.permits) return "a window is over";
        }
        return "";
      }
      case Kind::kConcurrency:
        break;
    }
    return "";
  }

  Parameters parameters;
  BucketState state;
  std::vector<Event> events;
};

using Charges = std::vector<std::pair<size_t, uint64_t>>;  // bucket, permits

struct Outstanding {
  uint64_t id = 0;
  int64_t grant_time_ns = 0;
  uint64_t set = 0;
  Charges charges;
};

// What a store does with buckets, one step at a time.
class Model {
 public:
  // `search_steps`: the budget of each search.
  explicit Model(const std::vector<Parameters>& parameters,
                 int64_t search_steps = common::bounds::kMaxSearchSteps)
      : search_steps_(search_steps) {
    for (const Parameters& p : parameters) buckets_.emplace_back(p);
  }

  Moment at() const { return {now_ns_, now_ns_}; }
  int64_t now_ns() const { return now_ns_; }

  void Advance(int64_t by_ns) {
    now_ns_ += by_ns;
    for (ModelBucket& bucket : buckets_) bucket.state.Fold(bucket.parameters, at());
    std::erase_if(outstanding_, [&](const Outstanding& o) { return o.grant_time_ns <= now_ns_; });
  }

  int64_t Joint(const Charges& charges, uint64_t set) const {
    int64_t after_all_ns = now_ns_;
    for (const auto& [b, permits] : charges) {
      if (buckets_[b].state.bookings() > 0) {
        after_all_ns = std::max(after_all_ns, buckets_[b].state.LastGrantTimeNs());
      }
    }
    SearchBudget budget(search_steps_);
    return JointGrantTimeNs(charges.size(), now_ns_, after_all_ns, &budget,
                            [&](size_t i, int64_t from_ns) {
                              const ModelBucket& bucket = buckets_[charges[i].first];
                              return bucket.state.EarliestNs(bucket.parameters, charges[i].second,
                                                             at(), set, from_ns, &budget);
                            });
  }

  int64_t BruteForce(const Charges& charges, uint64_t set, int64_t until_ns) const {
    for (int64_t t = FromNs(set); t <= until_ns; ++t) {
      if (FitsAt(charges, t)) return t;
    }
    return kNeverNs;
  }

  // The order: not before the last of the same set.
  int64_t FromNs(uint64_t set) const {
    int64_t from_ns = now_ns_;
    for (const Outstanding& o : outstanding_) {
      if (o.set == set) from_ns = std::max(from_ns, o.grant_time_ns);
    }
    return from_ns;
  }

  bool FitsAt(const Charges& charges, int64_t grant_time_ns) const {
    return std::all_of(charges.begin(), charges.end(), [&](const auto& charge) {
      return buckets_[charge.first].Fits({grant_time_ns, charge.second, 0});
    });
  }

  void Take(const Charges& charges, uint64_t set, int64_t grant_time_ns) {
    const uint64_t id = ++last_id_;
    for (const auto& [b, permits] : charges) {
      ModelBucket& bucket = buckets_[b];
      if (grant_time_ns == now_ns_) {
        RC_ASSERT(bucket.state.TryTake(bucket.parameters, permits, at(), id, nullptr, set));
      } else {
        RC_ASSERT(search_steps_ < common::bounds::kMaxSearchSteps || charges.size() > 1 ||
                  !bucket.state.CanTake(bucket.parameters, permits, at(), set));
        bucket.state.Book(bucket.parameters, {grant_time_ns, permits, id, set}, at());
      }
      ModelBucket::InsertInto(&bucket.events, {grant_time_ns, permits, id});
    }
    if (grant_time_ns > now_ns_) outstanding_.push_back({id, grant_time_ns, set, charges});
  }

  void CancelOne(size_t which) {
    if (outstanding_.empty()) return;
    const Outstanding o = outstanding_[which % outstanding_.size()];
    outstanding_.erase(outstanding_.begin() +
                       static_cast<std::ptrdiff_t>(which % outstanding_.size()));
    for (const auto& [b, permits] : o.charges) {
      ModelBucket& bucket = buckets_[b];
      RC_ASSERT(bucket.state.CancelBooking(bucket.parameters, o.grant_time_ns, o.id));
      RC_ASSERT(!bucket.state.CancelBooking(bucket.parameters, o.grant_time_ns, o.id));
      std::erase_if(bucket.events, [&](const Event& e) { return e.id == o.id; });
    }
  }

  // Only what windows to come may still see.
  void ForgetBefore(int64_t grant_time_ns) {
    for (ModelBucket& bucket : buckets_) {
      std::erase_if(bucket.events, [&](const Event& e) { return e.grant_time_ns < grant_time_ns; });
    }
  }

  void Check() const {
    for (const ModelBucket& bucket : buckets_) {
      RC_ASSERT(bucket.AllGranted(bucket.events));
      RC_ASSERT(bucket.CheckWindows() == "");
      const auto outstanding =
          std::count_if(bucket.events.begin(), bucket.events.end(),
                        [&](const Event& e) { return e.grant_time_ns > now_ns_; });
      RC_ASSERT(bucket.state.bookings() == static_cast<size_t>(outstanding));
      // What a query says can be taken can be taken, and no more.
      const Level level = bucket.state.LevelAt(bucket.parameters, at());
      if (level.remaining > 0) {
        RC_ASSERT(bucket.Fits({now_ns_, static_cast<uint64_t>(level.remaining), 0}));
        RC_ASSERT(level.next_permit_after_ns == 0);
      } else if (level.remaining == 0 &&
                 Capacity(bucket.parameters) == MaxGrant(bucket.parameters)) {
        RC_ASSERT(!bucket.Fits({now_ns_, 1, 0}));
        RC_ASSERT(level.next_permit_after_ns > 0);
      }
    }
  }

  size_t outstanding() const { return outstanding_.size(); }
  const std::vector<ModelBucket>& buckets() const { return buckets_; }

 private:
  const int64_t search_steps_;
  int64_t now_ns_ = 1000;
  uint64_t last_id_ = 0;
  std::vector<ModelBucket> buckets_;
  std::vector<Outstanding> outstanding_;
};

// Bucket 0 is shared; 1 and 2 are channels under it.
Charges AnyCharges(const Model& model, uint64_t* set) {
  static const std::array<std::vector<size_t>, 5> kSets = {{{0}, {1, 0}, {2, 0}, {1}, {2, 1, 0}}};
  *set = *rc::gen::inRange<uint64_t>(0, kSets.size());
  const uint64_t same = *rc::gen::weightedElement<uint64_t>({{4, 1}, {1, 2}, {1, 3}});
  Charges charges;
  for (const size_t b : kSets[*set]) {
    charges.push_back({b, std::min(same, MaxGrant(model.buckets()[b].parameters))});
  }
  ++*set;
  return charges;
}

// Beyond search_steps the moment still fits, but need not be the earliest.
void RandomHistoryAgainstBruteForce(const std::array<Kind, 3>& kinds,
                                    int64_t search_steps = common::bounds::kMaxSearchSteps) {
  Model model({AnyTiny(kinds[0]), AnyTiny(kinds[1]), AnyTiny(kinds[2])}, search_steps);
  const int steps = *rc::gen::inRange(5, 45);
  for (int step = 0; step < steps; ++step) {
    switch (*rc::gen::inRange(0, 8)) {
      case 0:
      case 1:
        model.Advance(*rc::gen::inRange<int64_t>(0, 15));
        break;
      case 2:
        model.CancelOne(*rc::gen::inRange<size_t>(0, 50));
        break;
      default: {
        uint64_t set = 0;
        const Charges charges = AnyCharges(model, &set);
        const int64_t max_wait = *rc::gen::element<int64_t>(0, 10, 60, 150);
        const int64_t moment = model.Joint(charges, set);
        RC_ASSERT(moment != kNeverNs);
        if (search_steps == common::bounds::kMaxSearchSteps) {
          RC_ASSERT(model.BruteForce(charges, set, moment) == moment);
        } else {
          RC_ASSERT(moment >= model.FromNs(set));
          RC_ASSERT(model.FitsAt(charges, moment));
        }
        if (moment <= model.now_ns() + max_wait) model.Take(charges, set, moment);
      }
    }
    model.Check();
  }
  while (model.outstanding() > 0) model.Advance(20);
  model.Check();
}

RC_GTEST_PROP(CalendarPropertyTest, TokenBucketsGiveTheEarliestGrantTimeInOrder, ()) {
  RandomHistoryAgainstBruteForce({Kind::kTokenBucket, Kind::kTokenBucket, Kind::kTokenBucket});
}

RC_GTEST_PROP(CalendarPropertyTest, LogsGiveTheEarliestGrantTimeInOrder, ()) {
  RandomHistoryAgainstBruteForce({Kind::kSlidingLog, Kind::kSlidingLog, Kind::kSlidingLog});
}

RC_GTEST_PROP(CalendarPropertyTest, SlidingWindowsGiveTheEarliestGrantTimeInOrder, ()) {
  RandomHistoryAgainstBruteForce(
      {Kind::kSlidingWindow, Kind::kSlidingWindow, Kind::kSlidingWindow});
}

RC_GTEST_PROP(CalendarPropertyTest, FixedWindowsGiveTheEarliestGrantTimeInOrder, ()) {
  RandomHistoryAgainstBruteForce({Kind::kFixedWindow, Kind::kFixedWindow, Kind::kFixedWindow});
}

RC_GTEST_PROP(CalendarPropertyTest, MixedAlgorithmsGiveTheEarliestGrantTimeInOrder, ()) {
  const auto any = [] {
    return *rc::gen::element(Kind::kTokenBucket, Kind::kSlidingLog, Kind::kSlidingWindow,
                             Kind::kFixedWindow);
  };
  RandomHistoryAgainstBruteForce({any(), any(), any()});
}

RC_GTEST_PROP(CalendarPropertyTest, WhatASearchWithASpentBudgetGrantsFits, ()) {
  const auto any = [] {
    return *rc::gen::element(Kind::kTokenBucket, Kind::kSlidingLog, Kind::kSlidingWindow,
                             Kind::kFixedWindow);
  };
  RandomHistoryAgainstBruteForce({any(), any(), any()}, *rc::gen::inRange(0, 8));
}

// So many bookings that there are many chunks: the moment fits, the nanosecond before it does not,
// nor do others before it.
void LongHistory(Kind kind, uint64_t seed) {
  std::mt19937_64 random(seed);
  const auto below = [&](uint64_t n) { return random() % n; };
  Model model({AnyTiny(kind), AnyTiny(kind), AnyTiny(kind)});
  for (int step = 0; step < 500; ++step) {
    if (below(100) == 0) model.Advance(static_cast<int64_t>(below(60)));
    if (below(10) == 0) model.CancelOne(below(10'000));
    Charges charges;
    const uint64_t set = 1 + below(5);
    for (size_t b = 0; b < 3; ++b) {
      if (b + 1 != set && set != 4 && b != 0) continue;
      charges.push_back({b, std::min(1 + below(2), MaxGrant(model.buckets()[b].parameters))});
    }
    const int64_t moment = model.Joint(charges, set);
    if (step % 8 == 0) {
      RC_ASSERT(model.FitsAt(charges, moment));
      const int64_t from = model.FromNs(set);
      if (moment > from) {
        RC_ASSERT(!model.FitsAt(charges, moment - 1));
        for (int i = 0; i < 4; ++i) {
          RC_ASSERT(!model.FitsAt(
              charges, from + static_cast<int64_t>(below(static_cast<uint64_t>(moment - from)))));
        }
      }
    }
    model.Take(charges, set, moment);
    if (step % 100 == 0) model.Check();
  }
  model.Check();
  while (model.outstanding() > 0) model.Advance(static_cast<int64_t>(1 + below(500)));
  model.Check();
}

RC_GTEST_PROP(CalendarPropertyTest, ManyBookingsOfAnyAlgorithmAreGrantedInOrder, (uint64_t seed)) {
  LongHistory(*rc::gen::element(Kind::kTokenBucket, Kind::kSlidingLog, Kind::kSlidingWindow,
                                Kind::kFixedWindow),
              seed);
}

Parameters OnePerSecond(uint64_t burst) { return MakeTokenBucket({1, kSecond}, burst, 0).value(); }

TEST(CalendarTest, DebitsABookingAtItsGrantTimeAndRefundsItLater) {
  const Parameters p = OnePerSecond(1);
  BucketState state(p);
  ASSERT_TRUE(state.TryTake(p, 1, {100 * kSecond, 0}));
  const int64_t moment = state.EarliestNs(p, 1, {100 * kSecond, 0}, 7);
  ASSERT_EQ(moment, 101 * kSecond);
  state.Book(p, {moment, 1, 42, 7}, {100 * kSecond, 0});
  EXPECT_FALSE(state.IsPlainTokenBucket());
  EXPECT_FALSE(state.IsFull(p, {200 * kSecond, 0}));
  EXPECT_EQ(state.Refund(p, 42, {100 * kSecond, 0}), std::nullopt);

  EXPECT_EQ(state.Fold(p, {moment, 0}), 0u);
  EXPECT_EQ(state.bookings(), 0u);
  EXPECT_EQ(state.LevelAt(p, {moment, 0}).remaining, 0);
  EXPECT_FALSE(state.CancelBooking(p, moment, 42));
  EXPECT_EQ(state.Refund(p, 42, {moment, 0}), 1u);
  EXPECT_TRUE(state.IsPlainTokenBucket());
  EXPECT_EQ(state.LevelAt(p, {moment, 0}).remaining, 1);
}

TEST(CalendarTest, FitsThreePermitsBetweenBookingsAsInTheHeadersExample) {
  const Parameters p = OnePerSecond(1);
  const Moment at{1000 * kSecond, 0};
  BucketState state(p);
  for (const int64_t s : {1, 2, 6}) {
    state.Book(p, {(1000 + s) * kSecond, 1, static_cast<uint64_t>(s), 1}, at);
  }
  // At the present, then at 3, 4, 5, and behind.
  for (const int64_t s : {0, 3, 4, 5, 7, 8}) {
    const auto set = static_cast<uint64_t>(100 + s);
    const int64_t moment = state.EarliestNs(p, 1, at, set);
    EXPECT_EQ(moment, (1000 + s) * kSecond);
    if (s == 0) {
      EXPECT_TRUE(state.TryTake(p, 1, at, 0, nullptr, set));
    } else {
      state.Book(p, {moment, 1, set, set}, at);
    }
  }
}

TEST(CalendarTest, CallersThatDoNotWaitObeyTheOrderOfTheirSet) {
  const Parameters p = OnePerSecond(5);
  const Moment at{1000 * kSecond, 0};
  BucketState state(p);
  state.Book(p, {1003 * kSecond, 1, 1, 1}, at);
  EXPECT_FALSE(state.CanTake(p, 1, at, 1));
  EXPECT_FALSE(state.TryTake(p, 1, at, 0, nullptr, 1));
  EXPECT_EQ(state.EarliestNs(p, 1, at, 1), 1003 * kSecond);
  EXPECT_TRUE(state.TryTake(p, 1, at, 0, nullptr, 2));
}

TEST(CalendarTest, FindsTheLastBookingOfASetAgainWhenItIsCancelled) {
  const Parameters p = OnePerSecond(5);
  const Moment at{1000 * kSecond, 0};
  BucketState state(p);
  state.Book(p, {1003 * kSecond, 1, 1, 1}, at);
  state.Book(p, {1004 * kSecond, 1, 2, 2}, at);
  state.Book(p, {1005 * kSecond, 1, 3, 1}, at);
  ASSERT_EQ(state.EarliestNs(p, 1, at, 1), 1005 * kSecond);
  ASSERT_TRUE(state.CancelBooking(p, 1005 * kSecond, 3));
  EXPECT_EQ(state.EarliestNs(p, 1, at, 1), 1003 * kSecond);
  ASSERT_TRUE(state.CancelBooking(p, 1003 * kSecond, 1));
  EXPECT_EQ(state.EarliestNs(p, 1, at, 1), 1000 * kSecond);
}

// Whatever the parameters become, of whatever algorithm: what is booked stands, and what is given
// afterwards harms nothing that could still be harmed.
RC_GTEST_PROP(CalendarPropertyTest, GrantTimesStayWhenParametersChange, ()) {
  const auto any = [] {
    return AnyTiny(*rc::gen::element(Kind::kTokenBucket, Kind::kSlidingLog, Kind::kSlidingWindow,
                                     Kind::kFixedWindow));
  };
  Parameters p = any();
  BucketState state(p);
  std::map<uint64_t, int64_t> moments;
  int64_t now = 1000;
  for (uint64_t id = 1; id < 60; ++id) {
    const Moment at{now, now};
    state.Fold(p, at);
    std::erase_if(moments, [&](const auto& m) { return m.second <= now; });
    RC_ASSERT(state.bookings() == moments.size());
    switch (*rc::gen::inRange(0, 6)) {
      case 0: {
        const Parameters next = any();
        state.Convert(p, next, at);
        p = next;
        RC_ASSERT(state.bookings() == moments.size());
        break;
      }
      case 1:
        now += *rc::gen::inRange<int64_t>(0, 30);
        break;
      default: {
        const uint64_t permits = *rc::gen::inRange<uint64_t>(1, MaxGrant(p) + 1);
        const int64_t moment = state.EarliestNs(p, permits, at, 1);
        RC_ASSERT(moment >= now);
        for (const auto& [other, other_moment] : moments) RC_ASSERT(moment >= other_moment);
        if (moment == now) {
          RC_ASSERT(state.TryTake(p, permits, at, id, nullptr, 1));
        } else {
          RC_ASSERT(!state.TryTake(p, permits, at, id, nullptr, 1));
          state.Book(p, {moment, permits, id, 1}, at);
          moments[id] = moment;
        }
      }
    }
  }
  for (const auto& [id, moment] : moments) {
    RC_ASSERT(state.CancelBooking(p, moment, id));
  }
  RC_ASSERT(state.bookings() == 0U);
}

TEST(CalendarTest, SmallWallClockDifferencesGrantNoWindowTwice) {
  const Parameters p = MakeFixedWindow({10, kSecond}, 0).value();
  BucketState state(p);
  // The wall clock is read 100 us late at first, then in time.
  ASSERT_TRUE(state.TryTake(p, 10, {1'000'500'000'000, 2'000'500'100'000}));
  std::map<int64_t, uint64_t> of_window;
  for (uint64_t id = 1; id <= 55; ++id) {
    const Moment at{1'000'500'000'000 + static_cast<int64_t>(id), 2'000'500'000'000};
    const int64_t moment = state.EarliestNs(p, 1, at, id);
    ++of_window[(moment + 100'000) / kSecond];
    state.Book(p, {moment, 1, id, id}, at);
  }
  for (const auto& [window, permits] : of_window) EXPECT_LE(permits, 10u) << window;
  EXPECT_EQ(of_window.size(), 6u);
  for (int64_t ms = 500; ms < 8000; ms += 7) {
    const Moment at{1'000'000'000'000 + ms * 1'000'000, 2'000'000'000'000 + ms * 1'000'000};
    state.Fold(p, at);
    EXPECT_GE(state.LevelAt(p, at).remaining, 0) << ms;
  }
  EXPECT_EQ(state.bookings(), 0u);
}

// The wall clock is set by up to a period, then callers take and book: no number that the clock
// shows gets more than its permits, and what fits now is granted now.
RC_GTEST_PROP(CalendarPropertyTest, BookingsAfterTheClockWasSetGrantNoNumberTwice, ()) {
  const Parameters p = AnyTiny(Kind::kFixedWindow);
  const int64_t period = p.fixed_window.rate.period_ns;
  const uint64_t most = p.fixed_window.rate.permits;
  BucketState state(p);
  std::map<int64_t, uint64_t> of_number;
  int64_t offset = 10 * period;
  int64_t now = 0;
  const auto count = [&](int64_t grant_time_ns, uint64_t permits) {
    RC_ASSERT((of_number[(grant_time_ns + offset) / period] += permits) <= most);
  };
  const auto pass_time = [&] { now += *rc::gen::inRange<int64_t>(0, period); };
  for (int i = 0; i < 6; ++i) {
    const auto permits = *rc::gen::inRange<uint64_t>(1, most + 1);
    if (state.TryTake(p, permits, {now, now + offset})) count(now, permits);
    pass_time();
  }
  offset += *rc::gen::inRange<int64_t>(-period, period + 1);
  for (uint64_t id = 1; id <= 30; ++id) {
    const Moment at{now, now + offset};
    state.Fold(p, at);
    const auto permits = *rc::gen::inRange<uint64_t>(1, most + 1);
    const int64_t earliest = state.EarliestNs(p, permits, at, id);
    RC_ASSERT(state.CanTake(p, permits, at, id) == (earliest == now));
    if (earliest == now) {
      RC_ASSERT(state.TryTake(p, permits, at, id, nullptr, id));
      count(now, permits);
    } else if (*rc::gen::arbitrary<bool>()) {
      state.Book(p, {earliest, permits, id, id}, at);
      count(earliest, permits);
    }
    if (*rc::gen::inRange(0, 3) == 0) pass_time();
  }
}

// The bound of a gap that was looked at while the booking before it was ahead did not hold any more
// when that one had come and was refunded.
TEST(CalendarTest, RefundMakesRoomBeforeTheNextBooking) {
  const Parameters p = TinyTokenBucket(/*unit_ticks=*/10, /*burst=*/1, /*debt=*/0, /*shift=*/0);
  BucketState state(p);
  ASSERT_TRUE(state.TryTake(p, 1, {0, 0}));
  state.Book(p, {10, 1, /*id=*/1, /*set=*/1}, {5, 5});
  state.Book(p, {20, 1, /*id=*/2, /*set=*/1}, {5, 5});
  ASSERT_EQ(state.EarliestNs(p, 1, {5, 5}, /*set=*/2), 30);
  state.Fold(p, {10, 10});
  ASSERT_EQ(state.Refund(p, 1, {10, 10}), 1u);
  EXPECT_EQ(state.EarliestNs(p, 1, {10, 10}, /*set=*/2), 10);
}

// A log of a year keeps times in steps of 8 minutes, rounded up. Under a period of a minute they
// lie in the future, and what is taken now is written down there too.
TEST(CalendarTest, BookingsAfterALogOfAnotherPeriodCountForTheNewPeriod) {
  const Parameters year = MakeSlidingLog({10, 366 * 24 * 3600 * kSecond}).value();
  const Parameters minute = MakeSlidingLog({20, 60 * kSecond}).value();
  const int64_t now = 416'795'078'472;
  for (const bool refund : {false, true}) {
    BucketState state(year);
    ASSERT_TRUE(state.TryTake(year, 10, {now, now}, /*receipt_id=*/1));
    state.Convert(year, minute, {now, now});
    state.Book(minute, {now + kSecond, 5, /*id=*/2, /*set=*/1}, {now, now});
    if (refund) {
      ASSERT_EQ(state.Refund(minute, 1, {now, now}), 10u);
    }
    const int64_t moment = state.EarliestNs(minute, 20, {now, now}, /*set=*/2);
    if (refund) {
      EXPECT_LE(moment, now + 62 * kSecond);
    } else {
      EXPECT_GT(moment, now + 62 * kSecond);
    }
    state.Fold(minute, {moment - 1, moment - 1});
    EXPECT_FALSE(state.CanTake(minute, 20, {moment - 1, moment - 1}));
    EXPECT_TRUE(state.CanTake(minute, 20, {moment, moment}));
  }
}

}  // namespace
}  // namespace sluice::algorithm
