// Carry-over of stored buckets, as server/algorithm/carry_over.h says.
#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/strings.h"
#include "server/algorithm/carry_over.h"
#include "server/algorithm/wide.h"
#include "server/store/redis/wire/stored_bucket.h"

namespace sluice::store::redis {
namespace {

using algorithm::CeilDiv;
using algorithm::Int128;
using algorithm::Kind;
using algorithm::Parameters;
using algorithm::Uint128;

constexpr int64_t kNsPerUs = 1000;
constexpr int64_t kNsPerMs = 1'000'000;

int64_t IndexAt(const algorithm::FixedWindow& parameters, int64_t now_ns) {
  const Int128 local = static_cast<Int128>(now_ns) + parameters.utc_offset_ns;
  Int128 index = local / parameters.rate.period_ns;
  if (local % parameters.rate.period_ns < 0) --index;
  return static_cast<int64_t>(index);
}

bool IsOver(const StoredBucket& bucket, int64_t now_ns) {
  const algorithm::FixedWindow& parameters = bucket.parameters.fixed_window;
  if (now_ns < bucket.ends_ns) return false;
  return IndexAt(parameters, now_ns) > bucket.index ||
         now_ns >= bucket.opened_ns + parameters.rate.period_ns;
}

int64_t SeenNs(const StoredBucket& bucket, int64_t now_ns) {
  return std::max(bucket.seen_ns, now_ns);
}

bool RunCounts(const algorithm::SlidingLog& parameters, int64_t at_ns, int64_t seen_ns) {
  return at_ns + parameters.rate.period_ns > seen_ns;
}

uint64_t SubWindowNow(const StoredBucket& bucket, int64_t now_ns) {
  return std::max(algorithm::SubWindowAt(bucket.parameters.sliding_window, now_ns), bucket.last);
}

bool WindowCounts(const algorithm::SlidingWindow& parameters, uint64_t index, uint64_t current) {
  return index + parameters.sub_windows >= current;
}

uint64_t Counted(const StoredBucket& bucket, int64_t now_ns) {
  uint64_t counted = 0;
  switch (bucket.parameters.kind) {
    case Kind::kTokenBucket:
      break;
    case Kind::kSlidingLog:
      for (const StoredBucket::Run& run : bucket.runs) {
        if (RunCounts(bucket.parameters.sliding_log, run.at_ns, SeenNs(bucket, now_ns))) {
          counted += run.permits;
        }
      }
      break;
    case Kind::kSlidingWindow:
      for (const auto& [index, permits] : bucket.counts) {
        if (WindowCounts(bucket.parameters.sliding_window, index, SubWindowNow(bucket, now_ns))) {
          counted += permits;
        }
      }
      break;
    case Kind::kFixedWindow:
      if (!IsOver(bucket, now_ns)) counted = bucket.count;
      break;
  }
  return counted;
}

// The oldest receipts that are worth nothing are closed, as before every take and refund.
void CloseWorthless(StoredBucket* bucket, int64_t now_ns) {
  const Parameters& parameters = bucket->parameters;
  std::vector<StoredBucket::Receipt>& receipts = bucket->receipts;
  if (parameters.kind == Kind::kTokenBucket) {
    for (StoredBucket::Receipt& receipt : receipts) {
      receipt.shortfall_or_permits = std::min(receipt.shortfall_or_permits, bucket->lacking_ticks);
    }
  }
  const bool nothing = parameters.kind != Kind::kTokenBucket && Counted(*bucket, now_ns) == 0 &&
                       parameters.kind != Kind::kFixedWindow;
  const auto worth = [&](const StoredBucket::Receipt& receipt) {
    switch (parameters.kind) {
      case Kind::kTokenBucket:
        return receipt.shortfall_or_permits != 0;
      case Kind::kSlidingLog:
        return !nothing &&
               RunCounts(parameters.sliding_log, static_cast<int64_t>(receipt.cost_or_when),
                         SeenNs(*bucket, now_ns));
      case Kind::kSlidingWindow:
        return WindowCounts(parameters.sliding_window, receipt.cost_or_when,
                            SubWindowNow(*bucket, now_ns));
      case Kind::kFixedWindow:
        return receipt.cost_or_when == bucket->serial && !IsOver(*bucket, now_ns);
    }
    return false;
  };
  receipts.erase(receipts.begin(), std::find_if(receipts.begin(), receipts.end(), worth));
}

void ConvertTokenBucket(const StoredBucket& from, StoredBucket* to) {
  const algorithm::TokenBucket& old_parameters = from.parameters.token_bucket;
  const algorithm::TokenBucket& parameters = to->parameters.token_bucket;
  // Seen from now, so that the moments of 1970 need no room.
  to->lacking_ticks = algorithm::ConvertTat(old_parameters, parameters, from.lacking_ticks, 0);
  if (to->lacking_ticks == algorithm::kMaxTat) return;
  const bool less = parameters.burst < old_parameters.burst;
  const uint64_t numerator = less ? parameters.burst_ticks : parameters.unit_ticks;
  const uint64_t denominator = less ? old_parameters.burst_ticks : old_parameters.unit_ticks;
  const auto scaled = [&](uint64_t ticks) {
    const Uint128 product = static_cast<Uint128>(ticks) * numerator / denominator;
    return static_cast<uint64_t>(std::min<Uint128>(product, to->lacking_ticks));
  };
  for (const StoredBucket::Receipt& receipt : from.receipts) {
    to->receipts.push_back(
        {receipt.id, scaled(receipt.cost_or_when), scaled(receipt.shortfall_or_permits)});
  }
}

void ConvertSlidingLog(const StoredBucket& from, int64_t now_ns, StoredBucket* to) {
  const algorithm::SlidingLog& old_parameters = from.parameters.sliding_log;
  const algorithm::SlidingLog& parameters = to->parameters.sliding_log;
  const auto moment = [&](int64_t at_ns) {
    if (old_parameters.quantum_ns == parameters.quantum_ns) return at_ns;
    return static_cast<int64_t>(
        CeilDiv(static_cast<Uint128>(at_ns), static_cast<Uint128>(parameters.quantum_ns)) *
        static_cast<Uint128>(parameters.quantum_ns));
  };
  to->seen_ns = SeenNs(from, now_ns);
  for (const StoredBucket::Run& run : from.runs) {
    if (!RunCounts(old_parameters, run.at_ns, to->seen_ns)) continue;
    const int64_t at_ns = moment(run.at_ns);
    if (!RunCounts(parameters, at_ns, to->seen_ns)) continue;
    if (!to->runs.empty() && to->runs.back().at_ns == at_ns) {
      to->runs.back().permits += run.permits;
    } else {
      to->runs.push_back({at_ns, run.permits});
    }
  }
  for (const StoredBucket::Receipt& receipt : from.receipts) {
    to->receipts.push_back(
        {receipt.id, static_cast<uint64_t>(moment(static_cast<int64_t>(receipt.cost_or_when))),
         receipt.shortfall_or_permits});
  }
}

void ConvertSlidingWindow(const StoredBucket& from, int64_t now_ns, StoredBucket* to) {
  const algorithm::SlidingWindow& old_parameters = from.parameters.sliding_window;
  const algorithm::SlidingWindow& parameters = to->parameters.sliding_window;
  if (old_parameters.rate.period_ns == parameters.rate.period_ns &&
      old_parameters.sub_windows == parameters.sub_windows) {
    to->last = from.last;
    to->counts = from.counts;
    to->receipts = from.receipts;
    return;
  }
  now_ns = std::max(now_ns, algorithm::SubWindowStartNs(old_parameters, from.last));
  const uint64_t current = algorithm::SubWindowAt(old_parameters, now_ns);
  to->last = algorithm::SubWindowAt(parameters, now_ns);
  for (const auto& [index, permits] : from.counts) {
    if (!WindowCounts(old_parameters, index, current)) continue;
    const uint64_t at =
        algorithm::SlidingWindowState::ConvertIndex(old_parameters, parameters, index, now_ns);
    if (!WindowCounts(parameters, at, to->last)) continue;
    if (!to->counts.empty() && to->counts.back().first == at) {
      to->counts.back().second += permits;
    } else {
      to->counts.push_back({at, permits});
    }
  }
  for (const StoredBucket::Receipt& receipt : from.receipts) {
    to->receipts.push_back({receipt.id,
                            algorithm::SlidingWindowState::ConvertIndex(
                                old_parameters, parameters, receipt.cost_or_when, now_ns),
                            receipt.shortfall_or_permits});
  }
}

// Counts so many permits in a window that opens now.
void OpenFixedWindow(uint64_t permits, int64_t now_ns, StoredBucket* to) {
  const algorithm::FixedWindow& parameters = to->parameters.fixed_window;
  to->index = IndexAt(parameters, now_ns);
  const Int128 end =
      (static_cast<Int128>(to->index) + 1) * parameters.rate.period_ns - parameters.utc_offset_ns;
  to->opened_ns = now_ns;
  to->ends_ns = static_cast<int64_t>(
      std::min<Int128>(end, static_cast<Int128>(now_ns) + parameters.rate.period_ns));
  to->count = permits;
}

void ConvertFixedWindow(const StoredBucket& from, int64_t now_ns, StoredBucket* to) {
  const algorithm::FixedWindow& old_parameters = from.parameters.fixed_window;
  const algorithm::FixedWindow& parameters = to->parameters.fixed_window;
  to->serial = from.serial;
  to->receipts = from.receipts;
  if (old_parameters.rate.period_ns == parameters.rate.period_ns &&
      old_parameters.utc_offset_ns == parameters.utc_offset_ns) {
    to->index = from.index;
    to->opened_ns = from.opened_ns;
    to->ends_ns = from.ends_ns;
    to->count = from.count;
    return;
  }
  const uint64_t counted = Counted(from, now_ns);
  if (counted != 0) OpenFixedWindow(counted, now_ns, to);
}

// Of another algorithm: the used fraction, rounded up, counts as used now. Receipts are closed.
void ConvertAlgorithm(const StoredBucket& from, int64_t now_ns, StoredBucket* to) {
  uint64_t used = 0;
  uint64_t of = 1;
  if (from.parameters.kind == Kind::kTokenBucket) {
    const uint64_t burst_ticks = from.parameters.token_bucket.burst_ticks;
    of = burst_ticks != 0 ? burst_ticks : 1;
    used = std::min(from.lacking_ticks, of);
  } else {
    of = algorithm::Capacity(from.parameters);
    used = std::min(Counted(from, now_ns), of);
  }
  if (used == 0) return;
  const auto share = [&](uint64_t capacity) {
    return static_cast<uint64_t>(CeilDiv(static_cast<Uint128>(used) * capacity, of));
  };
  switch (to->parameters.kind) {
    case Kind::kTokenBucket: {
      const algorithm::TokenBucket& parameters = to->parameters.token_bucket;
      to->lacking_ticks =
          share(parameters.burst != 0 ? parameters.burst_ticks : parameters.debt_ticks);
      return;
    }
    case Kind::kSlidingLog: {
      const algorithm::SlidingLog& parameters = to->parameters.sliding_log;
      const auto quantum = static_cast<Uint128>(parameters.quantum_ns);
      to->seen_ns = now_ns;
      to->runs.push_back(
          {static_cast<int64_t>(CeilDiv(static_cast<Uint128>(now_ns), quantum) * quantum),
           share(parameters.rate.permits)});
      return;
    }
    case Kind::kSlidingWindow: {
      const algorithm::SlidingWindow& parameters = to->parameters.sliding_window;
      to->last = algorithm::SubWindowAt(parameters, now_ns);
      to->counts.push_back({to->last, share(parameters.rate.permits)});
      return;
    }
    case Kind::kFixedWindow:
      to->serial = 1;
      OpenFixedWindow(share(to->parameters.fixed_window.rate.permits), now_ns, to);
      return;
  }
}

// Rounds towards the past.
std::string PairText(int64_t ns) { return absl::StrCat(ns / kNsPerUs, " ", ns % kNsPerUs); }

uint64_t Capped(uint64_t permits) { return std::min(permits, kMaxCounted); }

}  // namespace

void ApplyFloor(int64_t floor_us, int64_t now_ns, StoredBucket* bucket) {
  if (floor_us == 0 || bucket->parameters.kind != Kind::kTokenBucket) return;
  const algorithm::TokenBucket& p = bucket->parameters.token_bucket;
  const algorithm::Int128 lacking =
      ((static_cast<algorithm::Int128>(floor_us) * 1000 - now_ns) << p.shift) + p.burst_ticks +
      p.debt_ticks;
  if (lacking <= bucket->lacking_ticks) return;
  bucket->lacking_ticks =
      static_cast<uint64_t>(std::min<algorithm::Int128>(lacking, algorithm::kMaxTat));
  // Not known is how full it was meanwhile.
  bucket->receipts.clear();
}

StoredBucket Convert(const StoredBucket& from, const Parameters& to, int64_t now_ns) {
  StoredBucket open = from;
  CloseWorthless(&open, now_ns);
  StoredBucket converted;
  converted.parameters = to;
  if (from.parameters.kind != to.kind) {
    ConvertAlgorithm(open, now_ns, &converted);
    return converted;
  }
  switch (to.kind) {
    case Kind::kTokenBucket:
      ConvertTokenBucket(open, &converted);
      break;
    case Kind::kSlidingLog:
      ConvertSlidingLog(open, now_ns, &converted);
      break;
    case Kind::kSlidingWindow:
      ConvertSlidingWindow(open, now_ns, &converted);
      break;
    case Kind::kFixedWindow:
      ConvertFixedWindow(open, now_ns, &converted);
      break;
  }
  CloseWorthless(&converted, now_ns);
  return converted;
}

std::vector<std::string> FormatBucket(const StoredBucket& bucket, std::string_view writer,
                                      int64_t now_ns) {
  const Parameters& parameters = bucket.parameters;
  const bool full = parameters.kind == Kind::kTokenBucket ? bucket.lacking_ticks == 0
                                                          : Counted(bucket, now_ns) == 0;
  if (full) return {"1", "", ""};
  std::string state = absl::StrCat(EncodeParameters(parameters), " ", common::ToAbsl(writer));
  std::vector<std::string> runs;
  Int128 ttl_ns = 0;
  switch (parameters.kind) {
    case Kind::kTokenBucket: {
      const algorithm::TokenBucket& p = parameters.token_bucket;
      const Uint128 parts = static_cast<Uint128>(kNsPerUs) << p.shift;
      const Uint128 tat =
          (static_cast<Uint128>(now_ns) << p.shift) + static_cast<Uint128>(bucket.lacking_ticks);
      absl::StrAppend(&state, " ", static_cast<uint64_t>(tat / parts), " ",
                      static_cast<uint64_t>(tat % parts));
      ttl_ns = static_cast<Int128>(bucket.lacking_ticks >> p.shift);
      break;
    }
    case Kind::kSlidingLog: {
      uint64_t total = 0;
      for (const StoredBucket::Run& run : bucket.runs) {
        total += Capped(run.permits);
        runs.push_back(absl::StrCat(PairText(run.at_ns), " ", Capped(run.permits)));
      }
      runs.pop_back();
      const StoredBucket::Run& last = bucket.runs.back();
      absl::StrAppend(&state, " ", total, " ", PairText(last.at_ns), " ", Capped(last.permits), " ",
                      PairText(bucket.seen_ns));
      ttl_ns = static_cast<Int128>(std::max(last.at_ns, bucket.seen_ns)) +
               parameters.sliding_log.rate.period_ns - now_ns;
      break;
    }
    case Kind::kSlidingWindow:
      absl::StrAppend(&state, " ", bucket.last, " ");
      for (const auto& [index, permits] : bucket.counts) {
        absl::StrAppend(&state, index, ":", Capped(permits), ",");
      }
      ttl_ns = static_cast<Int128>(parameters.sliding_window.rate.period_ns) * 2;
      break;
    case Kind::kFixedWindow:
      absl::StrAppend(&state, " ", bucket.index, " ", PairText(bucket.opened_ns), " ",
                      PairText(bucket.ends_ns), " ", Capped(bucket.count), " ", bucket.serial);
      ttl_ns = static_cast<Int128>(std::max(bucket.opened_ns, now_ns)) +
               parameters.fixed_window.rate.period_ns - now_ns;
      break;
  }
  std::string receipts;
  for (const StoredBucket::Receipt& receipt : bucket.receipts) {
    const uint64_t a = receipt.cost_or_when;
    const uint64_t b = receipt.shortfall_or_permits;
    uint64_t words[4] = {a, 0, b, 0};
    if (parameters.kind == Kind::kTokenBucket) {
      const uint64_t parts = static_cast<uint64_t>(kNsPerUs) << parameters.token_bucket.shift;
      words[0] = a / parts;
      words[1] = a % parts;
      words[2] = b / parts;
      words[3] = b % parts;
    } else if (parameters.kind == Kind::kSlidingLog) {
      words[0] = a / kNsPerUs;
      words[1] = a % kNsPerUs;
    }
    absl::StrAppend(&receipts, receipt.id, ",", words[0], ",", words[1], ",", words[2], ",");
    absl::StrAppend(&receipts, words[3], ";");
  }
  absl::StrAppend(&state, receipts.empty() ? " 0" : " 1");
  std::vector<std::string> formatted = {absl::StrCat(static_cast<int64_t>(ttl_ns / kNsPerMs + 2)),
                                        std::move(state), std::move(receipts)};
  formatted.insert(formatted.end(), runs.begin(), runs.end());
  return formatted;
}

}  // namespace sluice::store::redis
