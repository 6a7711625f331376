// What a booking costs: the first on a bucket, one behind many, and one in a gap between many.
// Each iteration books once and cancels what it booked outside of the clock.
#include <benchmark/benchmark.h>

#include <cstdint>
#include <memory>

#include "server/algorithm/bucket_state.h"
#include "server/algorithm/make_parameters.h"

namespace sluice::algorithm {
namespace {

constexpr int64_t kSecond = 1'000'000'000;
constexpr Moment kNow{1000 * kSecond, 1000 * kSecond};

Parameters ParametersOf(int64_t kind) {
  const Rate rate{10, kSecond};
  switch (kind) {
    case 0:
      return MakeTokenBucket(rate, 10, 0).value();
    case 1:
      return MakeSlidingLog(rate).value();
    default:
      return MakeSlidingWindow(rate, 10).value();
  }
}

// Spent, with `bookings` of one set behind each other. With `gap`: room for one set in the middle.
std::unique_ptr<BucketState> Booked(const Parameters& p, int64_t bookings, bool gap) {
  auto state = std::make_unique<BucketState>(p);
  state->TryTake(p, 10, kNow, 1);
  for (int64_t i = 0; i < bookings; ++i) {
    const int64_t moment = state->EarliestNs(p, 1, kNow, 7);
    state->Book(p, {moment, 1, static_cast<uint64_t>(i + 2), 7}, kNow);
    if (gap && i == bookings / 2) {
      state->Book(p, {moment + kSecond * 3 / 2, 1, static_cast<uint64_t>(bookings + 2), 7}, kNow);
    }
  }
  return state;
}

// Books with the order of set 7 (the one that waits), or of another.
void BookOnce(benchmark::State& bench, int64_t bookings, bool gap, uint64_t set) {
  const Parameters p = ParametersOf(bench.range(0));
  auto state = Booked(p, bookings, gap);
  const int64_t last = bookings > 0 ? state->LastGrantTimeNs() : 0;
  // A request for two permits does not fit where one does; searched for, and remembered.
  state->EarliestNs(p, 1, kNow, set);
  int64_t moment = 0;
  for (auto _ : bench) {
    moment = state->EarliestNs(p, 1, kNow, set);
    state->Book(p, {moment, 1, 1'000'000, set}, kNow);
    benchmark::DoNotOptimize(moment);
    bench.PauseTiming();
    state->CancelBooking(p, moment, 1'000'000);
    state->EarliestNs(p, 1, kNow, set);
    bench.ResumeTiming();
  }
  bench.counters["in_gap"] = moment < last ? 1 : 0;
}

void BM_FirstBooking(benchmark::State& bench) { BookOnce(bench, 0, false, 7); }
void BM_BehindTenThousandOfTheSameSet(benchmark::State& bench) {
  BookOnce(bench, 10'000, false, 7);
}
void BM_BehindTenThousandOfAnotherSet(benchmark::State& bench) {
  BookOnce(bench, 10'000, false, 8);
}
void BM_InAGapOfTenThousand(benchmark::State& bench) { BookOnce(bench, 10'000, true, 8); }

// A line that moves: one folds, one is booked behind. Nothing is cancelled.
void BM_MovingLine(benchmark::State& bench) {
  const Parameters p = ParametersOf(bench.range(0));
  const int64_t bookings = bench.range(1);
  auto state = Booked(p, bookings, false);
  uint64_t id = 1'000'000;
  Moment at = kNow;
  for (auto _ : bench) {
    at.now_ns = state->NextGrantTimeNs();
    state->Fold(p, at);
    const int64_t moment = state->EarliestNs(p, 1, at, ++id % 3);
    state->Book(p, {moment, 1, id, id % 3}, at);
  }
}

BENCHMARK(BM_FirstBooking)->DenseRange(0, 2)->Iterations(20000);
BENCHMARK(BM_BehindTenThousandOfTheSameSet)->DenseRange(0, 2)->Iterations(20000);
BENCHMARK(BM_BehindTenThousandOfAnotherSet)->DenseRange(0, 2)->Iterations(20000);
BENCHMARK(BM_InAGapOfTenThousand)->DenseRange(0, 2)->Iterations(20000);
BENCHMARK(BM_MovingLine)->ArgsProduct({{0, 1, 2}, {1, 100, 10'000}});

}  // namespace
}  // namespace sluice::algorithm

BENCHMARK_MAIN();
