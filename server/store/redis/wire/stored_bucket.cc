#include "server/store/redis/wire/stored_bucket.h"

#include <algorithm>
#include <limits>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/errors.h"
#include "common/strings.h"
#include "server/algorithm/carry_over.h"
#include "server/algorithm/make_parameters.h"
#include "server/algorithm/wide.h"
#include "server/store/redis/wire/hash_slot.h"
#include "server/store/redis/wire/packed_numbers.h"

namespace sluice::store::redis {
namespace {

using algorithm::Kind;
using algorithm::kNeverNs;
using algorithm::Parameters;
using algorithm::Uint128;
using common::ToAbsl;

constexpr int64_t kNsPerUs = 1000;

int64_t PartsOf(const algorithm::TokenBucket& parameters) { return kNsPerUs << parameters.shift; }

struct Pair {
  int64_t us = 0;
  int64_t parts = 0;
};

Pair PairOf(const algorithm::TokenBucket& parameters, uint64_t ticks) {
  const auto parts = static_cast<uint64_t>(PartsOf(parameters));
  return {static_cast<int64_t>(ticks / parts), static_cast<int64_t>(ticks % parts)};
}

// Rounds towards the past.
Pair PairOfNs(int64_t ns) {
  int64_t us = ns / kNsPerUs;
  int64_t rest = ns % kNsPerUs;
  if (rest < 0) {
    --us;
    rest += kNsPerUs;
  }
  return {us, rest};
}

int64_t NsOf(int64_t us, int64_t ns) {
  const algorithm::Int128 sum = static_cast<algorithm::Int128>(us) * kNsPerUs + ns;
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  return sum > kMost ? kMost : static_cast<int64_t>(sum);
}

void Append(std::vector<std::string>* out, std::initializer_list<int64_t> numbers) {
  for (const int64_t number : numbers) out->push_back(absl::StrCat(number));
}

// See AppendFloor.
Pair FloorOf(const Parameters& parameters, int64_t floor_us) {
  if (floor_us == 0) return {};
  if (parameters.kind != Kind::kTokenBucket) return PairOfNs(UsedUpUntilNs(parameters, floor_us));
  const algorithm::TokenBucket& p = parameters.token_bucket;
  const Pair full = PairOf(p, p.burst_ticks + p.debt_ticks);
  return {floor_us + full.us, full.parts};
}

struct Cost {
  Pair costs;
  Pair room;
};

Cost CostOf(const algorithm::TokenBucket& p, uint64_t permits) {
  // What can never be granted costs more than there can ever be room for.
  const Uint128 product = static_cast<Uint128>(permits) * p.unit_ticks;
  const auto cost =
      static_cast<uint64_t>(std::min<Uint128>(product, algorithm::kMaxBurstTicks + 1));
  return {PairOf(p, cost), PairOf(p, p.burst_ticks + std::min(cost, p.debt_ticks))};
}

uint64_t Capped(uint64_t permits) { return std::min(permits, kMaxCounted); }

absl::Status NotOurs(absl::string_view what, absl::string_view text) {
  return absl::InvalidArgumentError(
      absl::StrCat(what, " \"", ToAbsl(common::errors::Shown(common::ToStd(text))),
                   "\": not written by this program; is the name space shared with another?"));
}

template <typename Number>
bool ParseAll(const std::vector<absl::string_view>& words, size_t first,
              std::initializer_list<Number*> numbers) {
  for (Number* number : numbers) {
    if (first >= words.size() || !absl::SimpleAtoi(words[first], number)) return false;
    ++first;
  }
  return true;
}

// A log's moments are whole quanta.
uint64_t QuantumOf(const algorithm::SlidingLog& parameters, int64_t at_ns) {
  return static_cast<uint64_t>(at_ns / parameters.quantum_ns);
}
Pair PairOfQuantum(const algorithm::SlidingLog& parameters, uint64_t quantum) {
  return PairOfNs(static_cast<int64_t>(quantum) * parameters.quantum_ns);
}

absl::Status ParseReceipts(const Parameters& parameters, absl::string_view text,
                           std::vector<algorithm::BucketImage::Receipt>* receipts) {
  for (const absl::string_view one : absl::StrSplit(text, ';', absl::SkipEmpty())) {
    const std::vector<absl::string_view> words = absl::StrSplit(one, ',');
    algorithm::BucketImage::Receipt& receipt = receipts->emplace_back();
    int64_t a, b, c, d;
    if (words.size() != 5 || !ParseAll(words, 0, {&receipt.id}) ||
        !ParseAll(words, 1, {&a, &b, &c, &d})) {
      return NotOurs("receipts", text);
    }
    receipt.cost_or_when = static_cast<uint64_t>(a);
    receipt.shortfall_or_permits = static_cast<uint64_t>(c);
    switch (parameters.kind) {
      case Kind::kTokenBucket:
        receipt.cost_or_when = TicksOf(parameters.token_bucket, a, b);
        receipt.shortfall_or_permits = TicksOf(parameters.token_bucket, c, d);
        break;
      case Kind::kSlidingLog:
        receipt.cost_or_when = QuantumOf(parameters.sliding_log, NsOf(a, b));
        break;
      case Kind::kSlidingWindow:
      case Kind::kFixedWindow:
        break;
    }
  }
  return absl::OkStatus();
}

std::string FormatReceipts(const StoredBucket& bucket) {
  const Parameters& parameters = bucket.parameters;
  const std::vector<algorithm::BucketImage::Receipt>& receipts = bucket.image.receipts;
  std::string text;
  const size_t closed = receipts.size() - std::min(receipts.size(), kMaxReceiptsInRedis);
  for (size_t i = closed; i < receipts.size(); ++i) {
    Pair first{static_cast<int64_t>(receipts[i].cost_or_when), 0};
    Pair second{static_cast<int64_t>(receipts[i].shortfall_or_permits), 0};
    switch (parameters.kind) {
      case Kind::kTokenBucket:
        first = PairOf(parameters.token_bucket, receipts[i].cost_or_when);
        second = PairOf(parameters.token_bucket, receipts[i].shortfall_or_permits);
        break;
      case Kind::kSlidingLog:
        first = PairOfQuantum(parameters.sliding_log, receipts[i].cost_or_when);
        break;
      case Kind::kSlidingWindow:
      case Kind::kFixedWindow:
        break;
    }
    absl::StrAppend(&text, receipts[i].id, ",", first.us, ",", first.parts, ",");
    absl::StrAppend(&text, second.us, ",", second.parts, ";");
  }
  return text;
}

// Rounds towards the past.
std::string PairText(Pair pair) { return absl::StrCat(pair.us, " ", pair.parts); }

}  // namespace

std::array<std::string, 3> KeysOf(std::string_view name_space, std::string_view limit,
                                  std::string_view key, std::string_view limit_tag) {
  std::array<std::string, 3> keys;
  const std::string_view tag = limit_tag.empty() ? HashTagOf(key) : limit_tag;
  if (tag.empty()) {
    keys[0] = absl::StrCat(ToAbsl(name_space), ":{", limit.size(), ":", ToAbsl(limit), ":",
                           ToAbsl(key), "}");
  } else {
    keys[0] = absl::StrCat(ToAbsl(name_space), ":{", ToAbsl(tag), "}", limit.size(), ":",
                           ToAbsl(limit), ":", ToAbsl(key), ";");
  }
  keys[1] = absl::StrCat(keys[0], ":runs");
  keys[2] = absl::StrCat(keys[0], ":receipts");
  return keys;
}

std::string Describe(const Parameters& parameters) {
  const auto per = [](const algorithm::Rate& rate) {
    return absl::StrCat(rate.permits, " per ",
                        absl::FormatDuration(absl::Nanoseconds(rate.period_ns)));
  };
  switch (parameters.kind) {
    case Kind::kTokenBucket: {
      const algorithm::TokenBucket& p = parameters.token_bucket;
      return absl::StrCat("token_bucket ", per(p.rate), ", burst ", p.burst,
                          p.debt > 0 ? absl::StrCat(", debt ", p.debt) : "");
    }
    case Kind::kSlidingLog:
      return absl::StrCat("sliding_log ", per(parameters.sliding_log.rate));
    case Kind::kSlidingWindow: {
      const algorithm::SlidingWindow& p = parameters.sliding_window;
      return absl::StrCat("sliding_window ", per(p.rate), " in ", p.sub_windows, " parts");
    }
    case Kind::kFixedWindow: {
      const algorithm::FixedWindow& p = parameters.fixed_window;
      return absl::StrCat("fixed_window ", per(p.rate), ", offset ",
                          absl::FormatDuration(absl::Nanoseconds(p.utc_offset_ns)));
    }
  }
  return "";
}

std::string EncodeParameters(const Parameters& parameters) {
  switch (parameters.kind) {
    case Kind::kTokenBucket: {
      const algorithm::TokenBucket& p = parameters.token_bucket;
      return absl::StrCat("t:", p.rate.permits, ":", p.rate.period_ns, ":", p.burst, ":", p.debt);
    }
    case Kind::kSlidingLog: {
      const algorithm::Rate& rate = parameters.sliding_log.rate;
      return absl::StrCat("l:", rate.permits, ":", rate.period_ns);
    }
    case Kind::kSlidingWindow: {
      const algorithm::SlidingWindow& p = parameters.sliding_window;
      return absl::StrCat("w:", p.rate.permits, ":", p.rate.period_ns, ":", p.sub_windows);
    }
    case Kind::kFixedWindow: {
      const algorithm::FixedWindow& p = parameters.fixed_window;
      return absl::StrCat("f:", p.rate.permits, ":", p.rate.period_ns, ":", p.utc_offset_ns);
    }
  }
  return "";
}

absl::StatusOr<Parameters> ParseParameters(std::string_view encoded_parameters) {
  const std::vector<absl::string_view> words = absl::StrSplit(ToAbsl(encoded_parameters), ':');
  algorithm::Rate rate;
  if (words.size() < 3 || !absl::SimpleAtoi(words[1], &rate.permits) ||
      !absl::SimpleAtoi(words[2], &rate.period_ns)) {
    return NotOurs("parameters", ToAbsl(encoded_parameters));
  }
  if (words[0] == "t" && words.size() == 5) {
    uint64_t burst, debt;
    if (ParseAll(words, 3, {&burst, &debt})) return algorithm::MakeTokenBucket(rate, burst, debt);
  } else if (words[0] == "l" && words.size() == 3) {
    return algorithm::MakeSlidingLog(rate);
  } else if (words[0] == "w" && words.size() == 4) {
    uint32_t sub_windows;
    if (ParseAll(words, 3, {&sub_windows})) return algorithm::MakeSlidingWindow(rate, sub_windows);
  } else if (words[0] == "f" && words.size() == 4) {
    int64_t utc_offset_ns;
    if (ParseAll(words, 3, {&utc_offset_ns})) {
      return algorithm::MakeFixedWindow(rate, utc_offset_ns);
    }
  }
  return NotOurs("parameters", ToAbsl(encoded_parameters));
}

std::string TestTime(int64_t now_ns) {
  const Pair now = PairOfNs(now_ns);
  return absl::StrCat(now.us, " ", now.parts);
}

void AppendBucket(const Parameters& parameters, std::string_view encoded_parameters,
                  std::string_view writer, bool shadow, int64_t floor_us,
                  std::vector<std::string>* arguments) {
  static constexpr const char* kLetters[] = {"t", "l", "w", "f"};
  arguments->emplace_back(kLetters[static_cast<size_t>(parameters.kind)]);
  arguments->emplace_back(encoded_parameters);
  arguments->emplace_back(writer);
  arguments->emplace_back(shadow ? "1" : "0");
  switch (parameters.kind) {
    case Kind::kTokenBucket:
      Append(arguments, {PartsOf(parameters.token_bucket), 0, 0, 0, 0, 0});
      break;
    case Kind::kSlidingLog: {
      const algorithm::SlidingLog& p = parameters.sliding_log;
      const Pair period = PairOfNs(p.rate.period_ns);
      Append(arguments, {static_cast<int64_t>(Capped(p.rate.permits)), period.us, period.parts,
                         p.quantum_ns, 0, 0});
      break;
    }
    case Kind::kSlidingWindow: {
      const algorithm::SlidingWindow& p = parameters.sliding_window;
      const Pair period = PairOfNs(p.rate.period_ns);
      Append(arguments, {static_cast<int64_t>(Capped(p.rate.permits)), period.us, period.parts,
                         p.sub_windows, 0, 0});
      break;
    }
    case Kind::kFixedWindow: {
      const algorithm::FixedWindow& p = parameters.fixed_window;
      const Pair period = PairOfNs(p.rate.period_ns);
      const Pair offset = PairOfNs(p.utc_offset_ns);
      Append(arguments, {static_cast<int64_t>(Capped(p.rate.permits)), period.us, period.parts,
                         offset.us, offset.parts, 0});
      break;
    }
  }
  AppendFloor(parameters, floor_us, arguments);
}

int64_t UsedUpUntilNs(const Parameters& parameters, int64_t floor_us) {
  if (floor_us == 0) return 0;
  const int64_t floor_ns = floor_us * kNsPerUs;
  switch (parameters.kind) {
    case Kind::kTokenBucket:
      return 0;
    case Kind::kSlidingLog:
      return floor_ns + parameters.sliding_log.rate.period_ns;
    case Kind::kSlidingWindow:
      return floor_ns + parameters.sliding_window.rate.period_ns;
    case Kind::kFixedWindow: {
      const algorithm::FixedWindow& p = parameters.fixed_window;
      const int64_t since_begin = (floor_ns + p.utc_offset_ns) % p.rate.period_ns;
      return since_begin == 0 ? floor_ns : floor_ns + p.rate.period_ns - since_begin;
    }
  }
  return 0;
}

void CloseLevel(int64_t closed_ns, algorithm::Level* level) {
  if (closed_ns <= 0) return;
  level->remaining = std::min<int64_t>(level->remaining, 0);
  level->reset_after_ns = std::max(level->reset_after_ns, closed_ns);
  level->next_permit_after_ns = std::max(level->next_permit_after_ns, closed_ns);
}

void AppendFloor(const Parameters& parameters, int64_t floor_us,
                 std::vector<std::string>* arguments) {
  const Pair floor = FloorOf(parameters, floor_us);
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

std::string PackTokenBucket(const Parameters& parameters, int64_t floor_us, int64_t test_now_ns) {
  const Pair floor = FloorOf(parameters, floor_us);
  const Pair now = test_now_ns < 0 ? Pair{-1, 0} : PairOfNs(test_now_ns);
  std::string numbers;
  numbers.reserve(10 * kPackedNumberBytes);
  PackNumbers({PartsOf(parameters.token_bucket), floor.us, floor.parts, now.us, now.parts},
              &numbers);
  return numbers;
}

void PackRun(const Parameters& parameters, uint64_t permits, int64_t callers,
             std::string* numbers) {
  const Cost cost = CostOf(parameters.token_bucket, permits);
  PackNumbers({cost.costs.us, cost.costs.parts, cost.room.us, cost.room.parts, callers}, numbers);
}

uint64_t TicksOf(const algorithm::TokenBucket& parameters, int64_t us, int64_t ticks) {
  const Uint128 sum = static_cast<Uint128>(us) * PartsOf(parameters) + ticks;
  return static_cast<uint64_t>(std::min<Uint128>(sum, algorithm::kMaxTat));
}

algorithm::Level LevelOf(const Parameters& parameters, const Report& report, int64_t now_ns,
                         int64_t floor_us) {
  algorithm::Level level;
  const auto counted = static_cast<uint64_t>(report[0]);
  switch (parameters.kind) {
    case Kind::kTokenBucket: {
      const algorithm::TokenBucket& p = parameters.token_bucket;
      // Seen from now: a bucket that is full again in so many ticks.
      return algorithm::LevelAt(p, TicksOf(p, report[0], report[1]), 0);
    }
    case Kind::kSlidingLog:
      level.capacity = Capped(parameters.sliding_log.rate.permits);
      level.reset_after_ns = NsOf(report[1], report[2]);
      level.next_permit_after_ns = report[5] < 0 ? kNeverNs : NsOf(report[5], report[6]);
      break;
    case Kind::kSlidingWindow: {
      const auto until = [&](int64_t index) -> int64_t {
        if (index <= 0) return index == 0 ? 0 : kNeverNs;
        return algorithm::SubWindowStartNs(parameters.sliding_window,
                                           static_cast<uint64_t>(index)) -
               now_ns;
      };
      level.capacity = Capped(parameters.sliding_window.rate.permits);
      level.reset_after_ns = until(report[1]);
      level.next_permit_after_ns = until(report[3]);
      break;
    }
    case Kind::kFixedWindow:
      level.capacity = Capped(parameters.fixed_window.rate.permits);
      level.reset_after_ns = NsOf(report[1], report[2]);
      if (counted >= level.capacity) level.next_permit_after_ns = level.reset_after_ns;
      break;
  }
  level.remaining = algorithm::RemainingOf(level.capacity, counted);
  CloseLevel(UsedUpUntilNs(parameters, floor_us) - now_ns, &level);
  return level;
}

namespace {

int64_t WaitOfStateNs(const Parameters& parameters, uint64_t permits, const Report& report,
                      int64_t now_ns) {
  switch (parameters.kind) {
    case Kind::kTokenBucket: {
      const algorithm::TokenBucket& p = parameters.token_bucket;
      return algorithm::EarliestNs(p, permits, TicksOf(p, report[0], report[1]), 0);
    }
    case Kind::kSlidingLog:
      return report[3] < 0 ? kNeverNs : NsOf(report[3], report[4]);
    case Kind::kSlidingWindow:
      if (report[2] < 0) return kNeverNs;
      if (report[2] == 0) return 0;
      return algorithm::SubWindowStartNs(parameters.sliding_window,
                                         static_cast<uint64_t>(report[2])) -
             now_ns;
    case Kind::kFixedWindow: {
      const uint64_t capacity = Capped(parameters.fixed_window.rate.permits);
      const auto counted = static_cast<uint64_t>(report[0]);
      if (permits > capacity) return kNeverNs;
      if (counted <= capacity && permits <= capacity - counted) return 0;
      return NsOf(report[1], report[2]);
    }
  }
  return kNeverNs;
}

}  // namespace

int64_t WaitNs(const Parameters& parameters, uint64_t permits, const Report& report, int64_t now_ns,
               int64_t floor_us) {
  return std::max(WaitOfStateNs(parameters, permits, report, now_ns),
                  UsedUpUntilNs(parameters, floor_us) - now_ns);
}

absl::StatusOr<StoredBucket> ParseBucket(std::string_view state, absl::Span<const std::string> runs,
                                         std::string_view receipts, int64_t now_ns) {
  const std::vector<absl::string_view> words = absl::StrSplit(ToAbsl(state), ' ');
  if (words.size() < 4) return NotOurs("state", ToAbsl(state));
  auto parameters = ParseParameters(common::ToStd(words[0]));
  if (!parameters.ok()) return parameters.status();
  StoredBucket bucket;
  bucket.parameters = *parameters;
  bucket.writer = std::string(words[1]);
  algorithm::BucketImage& image = bucket.image;
  bool good = false;
  switch (parameters->kind) {
    case Kind::kTokenBucket: {
      const algorithm::TokenBucket& p = parameters->token_bucket;
      int64_t us, ticks;
      good = words.size() == 5 && ParseAll(words, 2, {&us, &ticks});
      if (!good) break;
      const Pair now = PairOfNs(now_ns);
      const algorithm::Int128 lacking =
          static_cast<algorithm::Int128>(us - now.us) * PartsOf(p) + ticks - (now.parts << p.shift);
      image.tat = static_cast<uint64_t>(std::clamp<algorithm::Int128>(
          lacking, 0, static_cast<algorithm::Int128>(algorithm::kMaxTat)));
      break;
    }
    case Kind::kSlidingLog: {
      const algorithm::SlidingLog& p = parameters->sliding_log;
      uint64_t total, last_permits;
      int64_t last_us, last_ns, seen_us, seen_ns;
      good = words.size() == 9 && ParseAll(words, 2, {&total}) &&
             ParseAll(words, 3, {&last_us, &last_ns}) && ParseAll(words, 5, {&last_permits}) &&
             ParseAll(words, 6, {&seen_us, &seen_ns});
      for (size_t i = 0; good && i < runs.size(); ++i) {
        const std::vector<absl::string_view> run = absl::StrSplit(runs[i], ' ');
        int64_t us, ns;
        uint64_t permits;
        good = run.size() == 3 && ParseAll(run, 0, {&us, &ns}) && ParseAll(run, 2, {&permits});
        if (good) image.counts.push_back({QuantumOf(p, NsOf(us, ns)), permits});
      }
      if (!good) break;
      if (total != 0) image.counts.push_back({QuantumOf(p, NsOf(last_us, last_ns)), last_permits});
      image.seen_ns = NsOf(seen_us, seen_ns);
      break;
    }
    case Kind::kSlidingWindow:
      good = words.size() == 5 && ParseAll(words, 2, {&image.last});
      if (!good || words[3] == "-") break;
      for (const absl::string_view one : absl::StrSplit(words[3], ',', absl::SkipEmpty())) {
        const std::vector<absl::string_view> parts = absl::StrSplit(one, ':');
        uint64_t index, permits;
        good = good && parts.size() == 2 && ParseAll(parts, 0, {&index, &permits});
        if (good) image.counts.push_back({index, permits});
      }
      break;
    case Kind::kFixedWindow: {
      int64_t opened_us, opened_ns, ends_us, ends_ns;
      good = words.size() == 10 && ParseAll(words, 2, {&image.index}) &&
             ParseAll(words, 3, {&opened_us, &opened_ns, &ends_us, &ends_ns}) &&
             ParseAll(words, 7, {&image.count, &image.serial});
      if (!good) break;
      image.used = true;
      image.opened_ns = NsOf(opened_us, opened_ns);
      image.ends_ns = NsOf(ends_us, ends_ns);
      break;
    }
  }
  if (!good) return NotOurs("state", ToAbsl(state));
  if (absl::Status status = ParseReceipts(*parameters, ToAbsl(receipts), &image.receipts);
      !status.ok()) {
    return status;
  }
  return bucket;
}

std::vector<std::string> FormatFullBucket() { return {"1", "", ""}; }

std::vector<std::string> FormatBucket(const StoredBucket& bucket, int64_t now_ns) {
  const Parameters& parameters = bucket.parameters;
  const algorithm::BucketImage& image = bucket.image;
  std::string state = absl::StrCat(EncodeParameters(parameters), " ", bucket.writer);
  std::vector<std::string> runs;
  algorithm::Int128 ttl_ns = 0;
  switch (parameters.kind) {
    case Kind::kTokenBucket: {
      const algorithm::TokenBucket& p = parameters.token_bucket;
      const auto parts = static_cast<Uint128>(PartsOf(p));
      const Uint128 tat = (static_cast<Uint128>(now_ns) << p.shift) + image.tat;
      absl::StrAppend(&state, " ", static_cast<uint64_t>(tat / parts), " ",
                      static_cast<uint64_t>(tat % parts));
      ttl_ns = static_cast<algorithm::Int128>(image.tat >> p.shift);
      break;
    }
    case Kind::kSlidingLog: {
      const algorithm::SlidingLog& p = parameters.sliding_log;
      uint64_t total = 0;
      for (const auto& [quantum, permits] : image.counts) {
        total += Capped(permits);
        runs.push_back(absl::StrCat(PairText(PairOfQuantum(p, quantum)), " ", Capped(permits)));
      }
      // The last run is part of the state.
      const std::string last = runs.back();
      runs.pop_back();
      absl::StrAppend(&state, " ", total, " ", last, " ", PairText(PairOfNs(image.seen_ns)));
      const auto last_ns = static_cast<int64_t>(image.counts.back().when) * p.quantum_ns;
      ttl_ns = static_cast<algorithm::Int128>(std::max(last_ns, image.seen_ns)) + p.rate.period_ns -
               now_ns;
      break;
    }
    case Kind::kSlidingWindow:
      absl::StrAppend(&state, " ", image.last, " ");
      for (const auto& [index, permits] : image.counts) {
        absl::StrAppend(&state, index, ":", Capped(permits), ",");
      }
      ttl_ns = static_cast<algorithm::Int128>(parameters.sliding_window.rate.period_ns) * 2;
      break;
    case Kind::kFixedWindow:
      absl::StrAppend(&state, " ", image.index, " ", PairText(PairOfNs(image.opened_ns)), " ",
                      PairText(PairOfNs(image.ends_ns)), " ", Capped(image.count), " ",
                      image.serial);
      ttl_ns = static_cast<algorithm::Int128>(std::max(image.opened_ns, now_ns)) +
               parameters.fixed_window.rate.period_ns - now_ns;
      break;
  }
  std::string receipts = FormatReceipts(bucket);
  absl::StrAppend(&state, receipts.empty() ? " 0" : " 1");
  constexpr int64_t kNsPerMs = 1'000'000;
  std::vector<std::string> formatted = {absl::StrCat(static_cast<int64_t>(ttl_ns / kNsPerMs + 2)),
                                        std::move(state), std::move(receipts)};
  formatted.insert(formatted.end(), runs.begin(), runs.end());
  return formatted;
}

}  // namespace sluice::store::redis
