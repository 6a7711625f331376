// Calendars of many chunks, with many bookings of one grant time, against plain lists.
#include "server/algorithm/calendar/calendar_chunks.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <limits>
#include <map>
#include <random>
#include <set>
#include <utility>
#include <vector>

#include "server/algorithm/bucket_state.h"
#include "server/algorithm/calendar/token_bucket_calendar.h"
#include "server/algorithm/calendar/window_calendar.h"
#include "server/algorithm/make_parameters.h"

namespace sluice::algorithm {
namespace {

constexpr int64_t kSecond = 1'000'000'000;
constexpr int64_t kNone = std::numeric_limits<int64_t>::min();

class Random {
 public:
  explicit Random(uint64_t seed) : random_(seed) {}
  uint64_t Below(uint64_t n) { return random_() % n; }
  int64_t Multiple(int64_t of, uint64_t below) { return static_cast<int64_t>(Below(below)) * of; }

 private:
  std::mt19937_64 random_;
};

// Bookings in their order, in one vector.
class List {
 public:
  void Insert(const Booking& booking) {
    all_.insert(std::upper_bound(all_.begin(), all_.end(), booking,
                                 [](const Booking& a, const Booking& b) {
                                   return a.grant_time_ns < b.grant_time_ns;
                                 }),
                booking);
  }
  Booking Remove(size_t i) {
    const Booking booking = all_[i];
    all_.erase(all_.begin() + static_cast<std::ptrdiff_t>(i));
    return booking;
  }
  int64_t LastOfSet(uint64_t set, int64_t until_ns, uint64_t below_id) const {
    int64_t last_ns = kNone;
    for (const Booking& one : all_) {
      if (one.set == set && one.grant_time_ns <= until_ns && one.id < below_id) {
        last_ns = one.grant_time_ns;
      }
    }
    return last_ns;
  }
  size_t size() const { return all_.size(); }
  const std::vector<Booking>& all() const { return all_; }

 private:
  std::vector<Booking> all_;
};

// ---- CalendarChunks.

struct NoSummary {};
using Chunks = CalendarChunks<Booking, NoSummary>;

void Merge(Chunks* chunks, size_t chunk) {
  for (const size_t c : {chunk, chunk - 1}) {
    if (chunks->SmallWithNext(c)) chunks->MergeWithNext(c);
  }
}

void ExpectSame(const Chunks& chunks, const List& list, Random* random) {
  ASSERT_EQ(chunks.size(), list.size());
  ASSERT_EQ(chunks.empty(), list.size() == 0);
  ASSERT_LE(chunks.chunks(), list.size() / 32 + 2);
  size_t i = 0;
  for (size_t c = 0; c < chunks.chunks(); ++c) {
    ASSERT_GT(chunks.chunk(c).size(), 0u);
    ASSERT_LE(chunks.chunk(c).size(), Chunks::kMaxPerChunk);
    for (const Booking& booking : chunks.chunk(c)) {
      ASSERT_EQ(booking.id, list.all()[i].id);
      ASSERT_EQ(booking.grant_time_ns, list.all()[i].grant_time_ns);
      ++i;
    }
  }
  for (int probe = 0; probe < 20 && list.size() != 0; ++probe) {
    const Booking& one = list.all()[random->Below(list.size())];
    Chunks::Position position;
    ASSERT_TRUE(chunks.Find(one.grant_time_ns, one.id, &position));
    ASSERT_EQ(chunks.at(position).id, one.id);
    ASSERT_FALSE(chunks.Find(one.grant_time_ns + 1, one.id, &position));
    ASSERT_FALSE(chunks.Find(one.grant_time_ns, 1'000'000'000 + one.id, &position));
    for (const uint64_t below_id : {one.id, std::numeric_limits<uint64_t>::max()}) {
      ASSERT_EQ(chunks.LastOfSet(one.set, one.grant_time_ns, below_id),
                list.LastOfSet(one.set, one.grant_time_ns, below_id));
    }
    ASSERT_EQ(chunks.LastOfSet(/*set=*/0, one.grant_time_ns, one.id), kNone);
  }
}

TEST(CalendarChunksTest, AreAsAListWhateverTheOrderOfIds) {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    SCOPED_TRACE(seed);
    Random random(seed);
    Chunks chunks;
    List list;
    std::vector<uint64_t> free_ids;
    uint64_t last_id = 0;
    int64_t first_ns = 0;
    const uint64_t grant_times = seed % 4 == 0 ? 1 : 1 + random.Below(60);
    const uint64_t sets = 1 + random.Below(300);
    for (int step = 0; step < 4000; ++step) {
      // It grows, then shrinks.
      const bool grows = random.Below(10) < (step % 2000 < 1000 ? 9u : 2u);
      if (grows || list.size() == 0) {
        Booking booking;
        booking.grant_time_ns = first_ns + random.Multiple(10, grant_times);
        booking.set = 1 + random.Below(sets);
        booking.id = ++last_id;
        if (!free_ids.empty() && random.Below(3) == 0) {
          // One that was taken out and booked again.
          std::swap(booking.id, free_ids[random.Below(free_ids.size())]);
        }
        bool split = false;
        const Chunks::Position position = chunks.Insert(booking, &split);
        ASSERT_EQ(chunks.at(position).id, booking.id);
        list.Insert(booking);
      } else if (random.Below(4) == 0) {
        first_ns = list.Remove(0).grant_time_ns;
        chunks.PopFront();
      } else {
        const Booking booking = list.Remove(random.Below(list.size()));
        Chunks::Position position;
        ASSERT_TRUE(chunks.Find(booking.grant_time_ns, booking.id, &position));
        chunks.Erase(position);
        Merge(&chunks, position.chunk);
        free_ids.push_back(booking.id);
      }
      if (step % 50 == 0) ExpectSame(chunks, list, &random);
      if (HasFatalFailure()) return;
    }
    while (!chunks.empty()) chunks.PopFront();
    EXPECT_EQ(chunks.chunks(), 0u);
  }
}

TEST(CalendarChunksTest, KeepFewChunksOfFewBookings) {
  Chunks chunks;
  bool split = false;
  for (uint64_t id = 1; id <= 12'800; ++id) chunks.Insert({0, 1, id, 1}, &split);
  EXPECT_EQ(chunks.chunks(), 100u);
  const size_t bytes = chunks.MemoryBytes();
  for (uint64_t id = 12'800; id > 0; --id) {
    if (id % 128 == 0) continue;
    Chunks::Position position;
    ASSERT_TRUE(chunks.Find(0, id, &position));
    chunks.Erase(position);
    Merge(&chunks, position.chunk);
  }
  EXPECT_EQ(chunks.size(), 100u);
  EXPECT_LE(chunks.chunks(), 5u);
  EXPECT_LE(chunks.MemoryBytes(), bytes / 10);
}

// ---- WindowCalendar.

class ExposedWindowCalendar : public WindowCalendar {
 public:
  size_t chunks() const { return bookings_.chunks(); }
};

// A past of permits that count until given moments.
class ListedHistory final : public WindowHistory {
 public:
  ListedHistory(uint64_t capacity, int64_t period_ns, bool fixed)
      : capacity_(capacity), period_ns_(period_ns), fixed_(fixed) {}

  uint64_t Capacity() const override { return capacity_; }
  uint64_t CountedAt(int64_t grant_time_ns) const override {
    uint64_t counted = 0;
    for (const auto& [until_ns, permits] : past) {
      if (until_ns > grant_time_ns) counted += permits;
    }
    return counted;
  }
  int64_t FirstAtMostNs(uint64_t permits) const override {
    if (CountedAt(now_ns) <= permits) return now_ns;
    for (const auto& [until_ns, counted] : past) {
      if (until_ns > now_ns && CountedAt(until_ns) <= permits) return until_ns;
    }
    return kNeverNs;
  }
  int64_t CountedUntilNs(int64_t grant_time_ns) const override {
    return fixed_ ? (grant_time_ns / period_ns_ + 1) * period_ns_ : grant_time_ns + period_ns_;
  }

  int64_t now_ns = 0;
  std::map<int64_t, uint64_t> past;  // by the moment until which they count

 private:
  const uint64_t capacity_;
  const int64_t period_ns_;
  const bool fixed_;
};

// A calendar beside a list.
class WindowModel {
 public:
  WindowModel(uint64_t seed, bool fixed)
      : random_(seed), history_(100 + random_.Below(400), kPeriodNs, fixed) {
    history_.now_ns = 1000 * kPeriodNs;
  }

  void Book() {
    const uint64_t permits = random_.Below(5) == 0 ? 3 : 1;
    const int64_t from_ns = history_.now_ns + random_.Multiple(kStepNs, 30);
    SearchBudget budget;
    const int64_t grant_time_ns =
        calendar_.EarliestNs(history_, permits, history_.now_ns, from_ns, &budget);
    if (grant_time_ns > history_.now_ns) {
      const Booking booking{grant_time_ns, permits, ++last_id_, 1 + random_.Below(3)};
      calendar_.Insert(history_, booking);
      list_.Insert(booking);
      return;
    }
    const int64_t until_ns = history_.CountedUntilNs(grant_time_ns);
    history_.past[until_ns] += permits;
    calendar_.NotePast(static_cast<int64_t>(permits), until_ns);
  }

  void Cancel() {
    if (list_.size() == 0) return;
    const Booking booking = list_.Remove(random_.Below(list_.size()));
    ASSERT_TRUE(calendar_.Cancel(booking.grant_time_ns, booking.id));
    ASSERT_FALSE(calendar_.Cancel(booking.grant_time_ns, booking.id));
  }

  void Refund() {
    if (history_.past.empty()) return;
    auto one = history_.past.begin();
    std::advance(one, random_.Below(history_.past.size()));
    const uint64_t permits = random_.Below(one->second + 1);
    one->second -= permits;
    calendar_.NotePast(-static_cast<int64_t>(permits), one->first);
  }

  void Advance() {
    history_.now_ns += random_.Multiple(kStepNs, 8);
    while (list_.size() != 0 && list_.all()[0].grant_time_ns <= history_.now_ns) {
      const Booking booking = list_.Remove(0);
      ASSERT_EQ(calendar_.front().id, booking.id);
      history_.past[history_.CountedUntilNs(booking.grant_time_ns)] += booking.permits;
      calendar_.PopFront();
    }
    std::erase_if(history_.past, [&](const auto& one) { return one.first <= history_.now_ns; });
  }

  void Check() {
    ASSERT_EQ(calendar_.size(), list_.size());
    ASSERT_LE(calendar_.chunks(), list_.size() / 32 + 2);
    Count();
    ASSERT_EQ(calendar_.FreePermits(history_, history_.now_ns),
              static_cast<int64_t>(history_.Capacity()) - GreatestIn(history_.now_ns));
    for (const uint64_t permits : {uint64_t{1}, uint64_t{5}, history_.Capacity() / 2}) {
      const int64_t from_ns = history_.now_ns + random_.Multiple(kStepNs, 40);
      SearchBudget budget;
      ASSERT_EQ(calendar_.EarliestNs(history_, permits, history_.now_ns, from_ns, &budget),
                EarliestNs(permits, from_ns));
      ASSERT_EQ(calendar_.FitsNow(history_, permits, history_.now_ns),
                EarliestNs(permits, history_.now_ns) == history_.now_ns);
    }
    for (uint64_t set = 1; set <= 3; ++set) {
      ASSERT_EQ(calendar_.sets().LastGrantTimeNs(set),
                list_.LastOfSet(set, kNeverNs, std::numeric_limits<uint64_t>::max()));
    }
    for (int probe = 0; probe < 5 && list_.size() != 0; ++probe) {
      const size_t rank = random_.Below(list_.size());
      const Booking& one = list_.all()[rank];
      Booking found;
      int64_t previous_ns = 0;
      ASSERT_EQ(calendar_.RankOf(one.grant_time_ns, one.id), rank);
      ASSERT_TRUE(calendar_.Find(one.grant_time_ns, one.id, &found, &previous_ns));
      ASSERT_EQ(found.permits, one.permits);
      ASSERT_EQ(previous_ns, list_.LastOfSet(one.set, one.grant_time_ns, one.id));
    }
  }

 private:
  static constexpr int64_t kPeriodNs = 1000;
  static constexpr int64_t kStepNs = 100;

  // Adds up the bookings of each grant time.
  void Count() {
    booked_.clear();
    falls_.clear();
    for (const Booking& one : list_.all()) {
      booked_[one.grant_time_ns] += static_cast<int64_t>(one.permits);
      falls_.insert(history_.CountedUntilNs(one.grant_time_ns));
    }
    for (const auto& one : history_.past) falls_.insert(one.first);
  }
  int64_t CountedAt(int64_t at_ns) const {
    auto counted = static_cast<int64_t>(history_.CountedAt(at_ns));
    for (auto one = booked_.lower_bound(at_ns - kPeriodNs); one != booked_.upper_bound(at_ns);
         ++one) {
      if (at_ns < history_.CountedUntilNs(one->first)) counted += one->second;
    }
    return counted;
  }
  // The most that counts while permits taken at that moment count.
  int64_t GreatestIn(int64_t at_ns) const {
    int64_t greatest = CountedAt(at_ns);
    const auto end = booked_.lower_bound(history_.CountedUntilNs(at_ns));
    for (auto one = booked_.upper_bound(at_ns); one != end; ++one) {
      greatest = std::max(greatest, CountedAt(one->first));
    }
    return greatest;
  }
  int64_t EarliestNs(uint64_t permits, int64_t from_ns) const {
    const auto most = static_cast<int64_t>(history_.Capacity() - permits);
    if (GreatestIn(from_ns) <= most) return from_ns;
    for (const int64_t at_ns : falls_) {
      if (at_ns > from_ns && GreatestIn(at_ns) <= most) return at_ns;
    }
    return kNeverNs;
  }

  Random random_;
  ListedHistory history_;
  ExposedWindowCalendar calendar_;
  List list_;
  uint64_t last_id_ = 0;
  std::map<int64_t, int64_t> booked_;
  std::set<int64_t> falls_;
};

TEST(WindowCalendarTest, DecidesAsAListWithManyEqualGrantTimes) {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    SCOPED_TRACE(seed);
    WindowModel model(seed, /*fixed=*/seed % 2 == 0);
    Random random(seed + 1000);
    for (int step = 0; step < 4000; ++step) {
      const uint64_t kind = random.Below(100);
      if (kind < 2) {
        model.Advance();
      } else if (kind < 6) {
        model.Refund();
      } else if (kind < (step % 2000 < 1200 ? 20u : 80u)) {
        model.Cancel();
      } else {
        model.Book();
      }
      if (step % 40 == 0) model.Check();
      if (HasFatalFailure()) return;
    }
  }
}

TEST(WindowCalendarTest, KeepsFewChunksOfFewBookings) {
  ListedHistory history(1280, 1000, /*fixed=*/true);
  history.past[1000] = 1280;
  ExposedWindowCalendar calendar;
  std::vector<Booking> booked;
  for (uint64_t id = 1; id <= 12'800; ++id) {
    SearchBudget budget;
    const int64_t grant_time_ns = calendar.EarliestNs(history, 1, 0, 0, &budget);
    ASSERT_EQ(grant_time_ns, 1000 * static_cast<int64_t>(1 + (id - 1) / 1280));
    booked.push_back({grant_time_ns, 1, id, 1});
    calendar.Insert(history, booked.back());
  }
  for (const Booking& booking : booked) {
    if (booking.id % 128 == 0) continue;
    ASSERT_TRUE(calendar.Cancel(booking.grant_time_ns, booking.id));
  }
  EXPECT_EQ(calendar.size(), 100u);
  EXPECT_LE(calendar.chunks(), 5u);
  SearchBudget budget;
  EXPECT_EQ(calendar.EarliestNs(history, 1270, 0, 0, &budget), 1000);
  EXPECT_EQ(calendar.EarliestNs(history, 1271, 0, 0, &budget), 11'000);
}

// ---- TokenCalendar, and all kinds within a bucket.

class ExposedTokenCalendar : public TokenCalendar {
 public:
  using TokenCalendar::TokenCalendar;
  size_t chunks() const { return bookings_.chunks(); }
};

TEST(TokenCalendarTest, KeepsFewChunksOfFewBookings) {
  const TokenBucket limit = MakeTokenBucket({1, kSecond}, 1, 0).value().token_bucket;
  const uint64_t tat = ToTicks(limit, kSecond);
  ExposedTokenCalendar calendar(limit, tat);
  ExposedTokenCalendar expected(limit, tat);
  const auto booking = [](uint64_t id) {
    return Booking{static_cast<int64_t>(id) * kSecond, 1, id, 1};
  };
  for (uint64_t id = 1; id <= 12'800; ++id) calendar.Insert(limit, booking(id));
  for (uint64_t id = 1; id <= 12'800; ++id) {
    if (id % 128 == 0) {
      expected.Insert(limit, booking(id));
    } else {
      ASSERT_TRUE(calendar.Cancel(limit, booking(id).grant_time_ns, id));
    }
  }
  EXPECT_LE(calendar.chunks(), 5u);
  while (!calendar.empty()) {
    ASSERT_EQ(calendar.size(), expected.size());
    const int64_t now_ns = calendar.front().grant_time_ns - kSecond / 2;
    ASSERT_EQ(calendar.FreePermits(limit, now_ns), expected.FreePermits(limit, now_ns));
    ASSERT_EQ(calendar.FullAgainNs(limit), expected.FullAgainNs(limit));
    SearchBudget budget;
    ASSERT_EQ(calendar.EarliestNs(limit, 1, now_ns, now_ns, &budget),
              expected.EarliestNs(limit, 1, now_ns, now_ns, &budget));
    calendar.Fold(limit);
    expected.Fold(limit);
    ASSERT_EQ(calendar.tat(), expected.tat());
  }
}

// A bucket that was changed step by step decides as one that is made of its image.
TEST(ChangedBookingsTest, DecideAsNewOnes) {
  const Parameters limits[] = {
      MakeTokenBucket({300, kSecond}, 300, 0).value(),
      MakeTokenBucket({300, kSecond}, 3, 5).value(), MakeSlidingLog({300, kSecond}).value(),
      MakeSlidingWindow({300, kSecond}, 10).value(), MakeFixedWindow({300, kSecond}, 0).value()};
  for (uint64_t seed = 0; seed < 10; ++seed) {
    const Parameters& limit = limits[seed % std::size(limits)];
    SCOPED_TRACE(seed);
    Random random(seed);
    BucketState state(limit);
    Moment at{1000 * kSecond, 1000 * kSecond};
    std::vector<Booking> given;
    uint64_t last_id = 0;
    for (int step = 0; step < 4000; ++step) {
      const uint64_t kind = random.Below(100);
      if (kind < 1) {
        const int64_t by_ns = random.Multiple(kSecond / 10, 6);
        at = {at.now_ns + by_ns, at.wall_ns + by_ns};
        state.Fold(limit, at);
      } else if (kind < (step % 2000 < 1200 ? 15u : 80u)) {
        if (given.empty()) continue;
        const size_t which = random.Below(given.size());
        const Booking one = given[which];
        given.erase(given.begin() + static_cast<std::ptrdiff_t>(which));
        if (one.grant_time_ns > at.now_ns) {
          ASSERT_TRUE(state.CancelBooking(limit, one.grant_time_ns, one.id));
        } else {
          state.Refund(limit, one.id, at);
        }
      } else {
        const uint64_t permits = 1 + random.Below(2);
        const uint64_t set = 1 + random.Below(3);
        const int64_t from_ns = at.now_ns + random.Multiple(kSecond / 4, 6);
        const int64_t grant_time_ns = state.EarliestNs(limit, permits, at, set, from_ns);
        given.push_back({grant_time_ns, permits, ++last_id, set});
        if (grant_time_ns > at.now_ns) {
          state.Book(limit, given.back(), at);
        } else {
          ASSERT_TRUE(state.TryTake(limit, permits, at, last_id, nullptr, set));
        }
      }
      if (step % 40 != 0) continue;
      const BucketState expected = BucketState::FromImage(limit, state.ToImage());
      ASSERT_EQ(state.bookings(), expected.bookings());
      ASSERT_TRUE(state.LevelAt(limit, at) == expected.LevelAt(limit, at));
      for (const uint64_t permits : {1, 2, 7}) {
        const uint64_t set = random.Below(4);
        const int64_t from_ns = at.now_ns + random.Multiple(kSecond / 7, 20);
        ASSERT_EQ(state.CanTake(limit, permits, at, set),
                  expected.CanTake(limit, permits, at, set));
        ASSERT_EQ(state.EarliestNs(limit, permits, at, set, from_ns),
                  expected.EarliestNs(limit, permits, at, set, from_ns));
      }
    }
  }
}

}  // namespace
}  // namespace sluice::algorithm
