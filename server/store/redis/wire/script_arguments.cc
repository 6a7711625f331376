#include "server/store/redis/wire/script_arguments.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "server/algorithm/wide.h"
#include "server/store/redis/wire/parameters_text.h"

namespace sluice::store::redis {
namespace {

using algorithm::Kind;
using algorithm::kNeverNs;
using algorithm::Parameters;
using algorithm::Uint128;

void Append(std::vector<std::string>* out, std::initializer_list<int64_t> numbers) {
  for (const int64_t number : numbers) out->push_back(absl::StrCat(number));
}

// See AppendFloor.
TimePair FloorOf(const Parameters& parameters, int64_t floor_us) {
  if (floor_us == 0) return {};
  if (floor_us < 0) {
    const TimePair floor = FloorOf(parameters, -floor_us);
    return {-floor.us, floor.parts};
  }
  if (parameters.kind != Kind::kTokenBucket) return PairOfNs(UsedUpUntilNs(parameters, floor_us));
  const algorithm::TokenBucket& p = parameters.token_bucket;
  const TimePair full = PairOfTicks(p, p.burst_ticks + p.debt_ticks);
  return {floor_us + full.us, full.parts};
}

struct Cost {
  TimePair costs;
  TimePair room;
};

Cost CostOf(const algorithm::TokenBucket& p, uint64_t permits) {
  // What can never be granted costs more than there can ever be room for. That a forced debit is
  // not counted must forgive all that any receipt is worth.
  const Uint128 product = static_cast<Uint128>(permits) * p.unit_ticks;
  const auto cost =
      static_cast<uint64_t>(std::min<Uint128>(product, 3 * Uint128{algorithm::kMaxBurstTicks}));
  return {PairOfTicks(p, cost), PairOfTicks(p, p.burst_ticks + std::min(cost, p.debt_ticks))};
}

}  // namespace

std::string TestTime(int64_t now_ns) {
  const TimePair now = PairOfNs(now_ns);
  return absl::StrCat(now.us, " ", now.parts);
}

std::string ServerTime(const ServerClock& clock) {
  if (clock.correction_us == 0 && clock.latest_us == 0) return "";
  return absl::StrCat("-", clock.correction_us, " ", clock.least_us, " ",
                      clock.latest_us == 0 ? kMaxCounted : clock.latest_us);
}

void AppendBucket(const Parameters& parameters, std::string_view encoded_parameters,
                  std::string_view writer, bool shadow, int64_t floor_us,
                  std::vector<std::string>* arguments) {
  arguments->emplace_back(1, LetterOf(parameters.kind));
  arguments->emplace_back(encoded_parameters);
  arguments->emplace_back(writer);
  arguments->emplace_back(shadow ? "1" : "0");
  const auto append_window = [&](const algorithm::Rate& rate, int64_t own, int64_t own_too) {
    const TimePair period = PairOfNs(rate.period_ns);
    Append(arguments, {static_cast<int64_t>(CappedCount(rate.permits)), period.us, period.parts,
                       own, own_too, 0});
  };
  switch (parameters.kind) {
    case Kind::kTokenBucket:
      Append(arguments, {PartsPerUs(parameters.token_bucket), 0, 0, 0, 0, 0});
      break;
    case Kind::kSlidingLog:
      append_window(parameters.sliding_log.rate, parameters.sliding_log.quantum_ns, 0);
      break;
    case Kind::kSlidingWindow:
      append_window(parameters.sliding_window.rate, parameters.sliding_window.sub_windows, 0);
      break;
    case Kind::kFixedWindow: {
      const TimePair offset = PairOfNs(parameters.fixed_window.utc_offset_ns);
      append_window(parameters.fixed_window.rate, offset.us, offset.parts);
      break;
    }
    case Kind::kConcurrency:
      Append(arguments, {0, 0, 0, 0, 0, 0});  // no script decides on it
      break;
  }
  AppendFloor(parameters, floor_us, arguments);
}

int64_t UsedUpUntilNs(const Parameters& parameters, int64_t floor_us) {
  if (floor_us == 0 || parameters.kind == Kind::kTokenBucket) return 0;
  const int64_t floor_ns = floor_us * 1000;
  const int64_t period_ns = WindowNs(parameters);
  if (parameters.kind != Kind::kFixedWindow) return floor_ns + period_ns;
  const int64_t since_begin = (floor_ns + parameters.fixed_window.utc_offset_ns) % period_ns;
  return since_begin == 0 ? floor_ns : floor_ns + period_ns - since_begin;
}

int64_t LaterFloorUs(const Parameters& parameters, int64_t floor_us, int64_t missing_floor_us,
                     int64_t owed_us) {
  if (missing_floor_us <= floor_us) return floor_us == 0 ? 0 : floor_us + owed_us;
  if (parameters.kind != Kind::kTokenBucket) return missing_floor_us;
  const TimePair over = FloorOf(parameters, floor_us == 0 ? 0 : floor_us + owed_us);
  const int64_t later_us = missing_floor_us + owed_us;
  return over.us < missing_floor_us ? -later_us : later_us;
}

int64_t OwedBeyondDebtUs(const Parameters& parameters, uint64_t max_owed) {
  if (parameters.kind != Kind::kTokenBucket) return 0;
  const algorithm::TokenBucket& p = parameters.token_bucket;
  if (max_owed <= p.debt) return 0;
  const Uint128 ticks = static_cast<Uint128>(max_owed - p.debt) * p.unit_ticks;
  return PairOfTicks(p, static_cast<uint64_t>(std::min<Uint128>(ticks, algorithm::kMaxTat))).us + 1;
}

void CloseLevel(int64_t closed_ns, algorithm::Level* level) {
  if (closed_ns <= 0) return;
  level->remaining = std::min<int64_t>(level->remaining, 0);
  level->reset_after_ns = std::max(level->reset_after_ns, closed_ns);
  level->next_permit_after_ns = std::max(level->next_permit_after_ns, closed_ns);
}

void AppendFloor(const Parameters& parameters, int64_t floor_us,
                 std::vector<std::string>* arguments) {
  const TimePair floor = FloorOf(parameters, floor_us);
  Append(arguments, {floor.us, floor.parts});
}

void AppendCost(const Parameters& parameters, uint64_t permits,
                std::vector<std::string>* arguments) {
  if (parameters.kind != Kind::kTokenBucket) {
    Append(arguments, {static_cast<int64_t>(std::min(permits, kMaxCounted + 1)), 0, 0, 0});
    return;
  }
  const Cost cost = CostOf(parameters.token_bucket, permits);
  Append(arguments, {cost.costs.us, cost.costs.parts, cost.room.us, cost.room.parts});
}

void AppendForced(const Parameters& parameters, uint64_t permits, uint64_t max_owed,
                  std::string_view charged_by, uint64_t own, std::vector<std::string>* arguments) {
  if (parameters.kind == Kind::kTokenBucket) {
    const algorithm::TokenBucket& p = parameters.token_bucket;
    const Uint128 most = p.burst_ticks + static_cast<Uint128>(max_owed) * p.unit_ticks;
    const TimePair until =
        PairOfTicks(p, static_cast<uint64_t>(std::min<Uint128>(most, algorithm::kMaxTat)));
    const TimePair unit = PairOfTicks(p, p.unit_ticks);
    Append(arguments, {until.us, until.parts, unit.us, unit.parts});
  } else {
    const uint64_t capacity = CappedCount(algorithm::Capacity(parameters));
    Append(arguments,
           {static_cast<int64_t>(capacity + CountableOwed(parameters, max_owed)), 0, 1, 0});
  }
  Append(arguments, {static_cast<int64_t>(std::min(permits, kMaxCounted + 1))});
  arguments->emplace_back(charged_by);
  Append(arguments, {static_cast<int64_t>(std::min(own, kMaxCounted + 1))});
}

std::string PackHeader(int64_t test_now_ns, const ServerClock& clock, int64_t reading,
                       bool may_set_range) {
  const TimePair now =
      test_now_ns < 0 ? TimePair{-1 - clock.correction_us, clock.latest_us} : PairOfNs(test_now_ns);
  std::string numbers;
  PackNumbers({now.us, now.parts, clock.least_us, reading, may_set_range ? 1 : 0}, &numbers);
  return numbers;
}

void PackTokenBucket(const Parameters& parameters, size_t limit, int64_t floor_us, size_t runs,
                     std::string* numbers) {
  const TimePair floor = FloorOf(parameters, floor_us);
  PackNumbers({static_cast<int64_t>(limit), PartsPerUs(parameters.token_bucket), floor.us,
               floor.parts, static_cast<int64_t>(runs)},
              numbers);
}

void PackRun(const Parameters& parameters, uint64_t permits, int64_t callers,
             std::string* numbers) {
  const Cost cost = CostOf(parameters.token_bucket, permits);
  PackNumbers({cost.costs.us, cost.costs.parts, cost.room.us, cost.room.parts, callers}, numbers);
}

BucketNumbers NextBucket(ReplyNumbers* numbers) {
  BucketNumbers bucket;
  for (int64_t& number : bucket) number = numbers->Next();
  return bucket;
}

uint64_t TicksOf(const algorithm::TokenBucket& parameters, int64_t us, int64_t ticks) {
  const Uint128 sum = static_cast<Uint128>(us) * PartsPerUs(parameters) + ticks;
  return static_cast<uint64_t>(std::min<Uint128>(sum, algorithm::kMaxTat));
}

algorithm::Level LevelOf(const Parameters& parameters, const BucketNumbers& numbers, int64_t now_ns,
                         int64_t floor_us) {
  algorithm::Level level;
  const auto counted = static_cast<uint64_t>(numbers[0]);
  switch (parameters.kind) {
    case Kind::kTokenBucket: {
      const algorithm::TokenBucket& p = parameters.token_bucket;
      // Seen from now: a bucket that is full again in so many ticks.
      return algorithm::LevelAt(p, TicksOf(p, numbers[0], numbers[1]), 0);
    }
    case Kind::kSlidingLog:
      level.capacity = CappedCount(parameters.sliding_log.rate.permits);
      level.reset_after_ns = NsOf(numbers[1], numbers[2]);
      level.next_permit_after_ns = numbers[5] < 0 ? kNeverNs : NsOf(numbers[5], numbers[6]);
      break;
    case Kind::kSlidingWindow: {
      const auto until = [&](int64_t index) -> int64_t {
        if (index <= 0) return index == 0 ? 0 : kNeverNs;
        return algorithm::SubWindowStartNs(parameters.sliding_window,
                                           static_cast<uint64_t>(index)) -
               now_ns;
      };
      level.capacity = CappedCount(parameters.sliding_window.rate.permits);
      level.reset_after_ns = until(numbers[1]);
      level.next_permit_after_ns = until(numbers[3]);
      break;
    }
    case Kind::kFixedWindow:
      level.capacity = CappedCount(parameters.fixed_window.rate.permits);
      level.reset_after_ns = NsOf(numbers[1], numbers[2]);
      if (counted >= level.capacity) level.next_permit_after_ns = level.reset_after_ns;
      break;
    case Kind::kConcurrency:
      break;
  }
  level.remaining = algorithm::RemainingOf(level.capacity, counted);
  CloseLevel(UsedUpUntilNs(parameters, floor_us) - now_ns, &level);
  return level;
}

int64_t WaitNs(const Parameters& parameters, uint64_t permits, const BucketNumbers& numbers,
               int64_t now_ns, int64_t floor_us) {
  int64_t wait_ns = kNeverNs;
  switch (parameters.kind) {
    case Kind::kTokenBucket: {
      const algorithm::TokenBucket& p = parameters.token_bucket;
      wait_ns = algorithm::EarliestNs(p, permits, TicksOf(p, numbers[0], numbers[1]), 0);
      break;
    }
    case Kind::kSlidingLog:
      if (numbers[3] >= 0) wait_ns = NsOf(numbers[3], numbers[4]);
      break;
    case Kind::kSlidingWindow: {
      if (numbers[2] < 0) break;
      const auto from = static_cast<uint64_t>(numbers[2]);
      wait_ns =
          from == 0 ? 0 : algorithm::SubWindowStartNs(parameters.sliding_window, from) - now_ns;
      break;
    }
    case Kind::kFixedWindow: {
      const uint64_t capacity = CappedCount(parameters.fixed_window.rate.permits);
      const auto counted = static_cast<uint64_t>(numbers[0]);
      if (permits > capacity) break;
      const bool fits = counted <= capacity && permits <= capacity - counted;
      wait_ns = fits ? 0 : NsOf(numbers[1], numbers[2]);
      break;
    }
    case Kind::kConcurrency:
      break;
  }
  return std::max(wait_ns, UsedUpUntilNs(parameters, floor_us) - now_ns);
}

algorithm::Refundable NextRefundable(const Parameters& parameters, ReplyNumbers* numbers) {
  algorithm::Refundable refundable;
  refundable.receipts = static_cast<uint64_t>(numbers->Next());
  const int64_t a = numbers->Next();
  const int64_t b = numbers->Next();
  const algorithm::TokenBucket& token = parameters.token_bucket;
  refundable.permits = parameters.kind == Kind::kTokenBucket
                           ? TicksOf(token, a, b) / token.unit_ticks
                           : static_cast<uint64_t>(a);
  return refundable;
}

}  // namespace sluice::store::redis
