#include "server/service/history.h"

#include <algorithm>
#include <limits>
#include <string_view>

namespace sluice::service {
namespace {

constexpr int64_t kSecondNs = 1'000'000'000;

// The share of `count` that falls on the i-th of `seconds` seconds. The shares add up to `count`.
uint64_t ShareOf(uint64_t count, int64_t i, int64_t seconds) {
  const auto parts = static_cast<uint64_t>(seconds);
  return count / parts + (static_cast<uint64_t>(i) < count % parts ? 1 : 0);
}

uint32_t Saturated(uint64_t count) {
  return static_cast<uint32_t>(std::min<uint64_t>(count, std::numeric_limits<uint32_t>::max()));
}

History::Counts CountsOf(const common::LimitTotals& from) {
  return {from.granted, from.denied, from.shadow_denied,
          from.allowed_while_unavailable + from.denied_while_unavailable};
}

// The calls of the data plane that answer at once, or at their grant time.
bool IsDecision(std::string_view method) {
  return method.starts_with("/sluice.v1.RateLimiter/Acquire") || method.ends_with("/v1/check");
}

common::HistogramTotals LatencyOf(const common::MetricsSnapshot& totals) {
  common::HistogramTotals sum;
  for (const common::MethodTotals& method : totals.methods) {
    if (!IsDecision(method.method)) continue;
    sum.count += method.latency.count;
    for (size_t i = 0; i < sum.counts.size(); ++i) sum.counts[i] += method.latency.counts[i];
  }
  return sum;
}

// The 99th percentile of the samples that `now` has and `before` has not, in microseconds.
uint64_t P99Us(const common::HistogramTotals& now, const common::HistogramTotals& before) {
  const uint64_t count = now.count - before.count;
  if (count == 0) return 0;
  const uint64_t rank = count - count / 100;
  uint64_t seen = 0;
  for (size_t i = 0; i < now.counts.size(); ++i) {
    seen += now.counts[i] - before.counts[i];
    if (seen >= rank) return (common::HistogramUpperNs(i) + 999) / 1000;
  }
  return 0;
}

}  // namespace

// ---- Series ----

std::vector<uint32_t> History::Series::Seconds(Outcome outcome, size_t seconds) const {
  std::vector<uint32_t> counts(seconds);
  for (size_t i = 0; i < seconds; ++i) {
    counts[i] = At(outcome, second_ - static_cast<int64_t>(seconds - 1 - i));
  }
  return counts;
}

std::array<uint64_t, History::kMinutes> History::Series::Minutes(Outcome outcome) const {
  std::array<uint64_t, kMinutes> sums{};
  for (size_t i = 0; i < kMinutes; ++i) {
    const int64_t second = second_ - 60 * static_cast<int64_t>(kMinutes - 1 - i);
    if (second < 0) continue;
    const Minute* const minute = columns_[outcome][Block(second)].get();
    if (minute != nullptr) sums[i] = minute->sum;
  }
  return sums;
}

History::Counts History::Series::LastMinute() const {
  Counts sums{};
  for (size_t outcome = 0; outcome < kOutcomes; ++outcome) {
    for (int64_t i = 0; i < std::min<int64_t>(60, second_ + 1); ++i) {
      sums[outcome] += At(outcome, second_ - i);
    }
  }
  return sums;
}

History::Counts History::Series::LastSecond() const {
  Counts counts{};
  for (size_t outcome = 0; outcome < kOutcomes; ++outcome) counts[outcome] = At(outcome, second_);
  return counts;
}

void History::Series::Add(size_t outcome, int64_t second, uint64_t count) {
  if (count == 0) return;
  std::unique_ptr<Minute>& minute = columns_[outcome][Block(second)];
  if (minute == nullptr) minute = std::make_unique<Minute>();
  uint32_t& cell = minute->counts[static_cast<size_t>(second % 60)];
  minute->sum += count;
  cell = Saturated(cell + count);
}

void History::Series::BeginMinute(int64_t second) {
  for (Column& column : columns_) column[Block(second)].reset();
}

bool History::Series::empty() const {
  return std::all_of(columns_.begin(), columns_.end(), [](const Column& column) {
    return std::all_of(column.begin(), column.end(),
                       [](const auto& one) { return one == nullptr; });
  });
}

// ---- History ----

bool History::Sample(int64_t now_ns, const common::MetricsSnapshot& totals, uint64_t waiting) {
  const int64_t second = now_ns / kSecondNs;
  if (second <= second_) return false;
  const int64_t seconds =
      second_ < 0 ? 1 : std::min<int64_t>(second - second_, static_cast<int64_t>(kSeconds));
  if (second_ < 0) {
    totals_.resize(kSeconds);
    second_ = second - 1;
  }
  Advance(second - second_);
  size_ = std::min(size_ + static_cast<size_t>(seconds), kSeconds);
  SampleLimits(totals, seconds);
  SampleTotals(totals, waiting, seconds);
  return true;
}

const History::TotalRow& History::total(size_t i) const {
  const int64_t second = second_ - static_cast<int64_t>(size_ - 1 - i);
  return totals_[static_cast<size_t>(second) % kSeconds];
}

const History::Series* History::Find(uint32_t limit_id) const {
  const auto it = series_.find(limit_id);
  return it == series_.end() ? nullptr : it->second.get();
}

// Moves on by `seconds`: the oldest minutes make room, and limits that were idle for an hour lose
// their series.
void History::Advance(int64_t seconds) {
  const int64_t from = second_ / 60;
  second_ += seconds;
  const int64_t to = second_ / 60;
  const int64_t first = std::max(from + 1, to - static_cast<int64_t>(Series::kBlocks) + 1);
  for (int64_t minute = first; minute <= to; ++minute) {
    for (auto& [limit_id, series] : series_) series->BeginMinute(60 * minute);
    if (other_ != nullptr) other_->BeginMinute(60 * minute);
  }
  if (from != to) {
    absl::erase_if(series_, [](const auto& one) { return one.second->empty(); });
    if (other_ != nullptr && other_->empty()) other_.reset();
  }
  for (auto& [limit_id, series] : series_) series->second_ = second_;
  if (other_ != nullptr) other_->second_ = second_;
}

void History::SampleLimits(const common::MetricsSnapshot& totals, int64_t seconds) {
  if (counted_.size() < totals.limits.size()) counted_.resize(totals.limits.size());
  for (uint32_t limit_id = 0; limit_id < totals.limits.size(); ++limit_id) {
    const Counts now = CountsOf(totals.limits[limit_id]);
    Counts& before = counted_[limit_id];
    if (now == before) continue;
    Series& series = SeriesOf(limit_id);
    for (size_t outcome = 0; outcome < kOutcomes; ++outcome) {
      const uint64_t count = now[outcome] - before[outcome];
      if (count == 0) continue;
      for (int64_t i = 0; i < seconds; ++i) {
        series.Add(outcome, second_ - i, ShareOf(count, i, seconds));
      }
    }
    before = now;
  }
}

void History::SampleTotals(const common::MetricsSnapshot& totals, uint64_t waiting,
                           int64_t seconds) {
  std::array<uint64_t, kWaiting> now{};
  now[kAllGranted] = totals.granted;
  now[kAllDenied] = totals.denied;
  for (const common::LimitTotals& limit : totals.limits) {
    now[kAllShadowDenied] += limit.shadow_denied;
    now[kAllowedWithoutStore] += limit.allowed_while_unavailable;
    now[kDeniedWithoutStore] += limit.denied_while_unavailable;
  }
  for (const common::TransportTotals& transport : totals.transports) now[kShed] += transport.sheds;
  const common::HistogramTotals latency = LatencyOf(totals);
  const uint64_t p99_us = P99Us(latency, latency_);
  for (int64_t i = 0; i < seconds; ++i) {
    TotalRow& row = totals_[static_cast<size_t>(second_ - i) % kSeconds];
    for (size_t column = 0; column < now.size(); ++column) {
      row[column] = Saturated(ShareOf(now[column] - counted_totals_[column], i, seconds));
    }
    row[kWaiting] = Saturated(waiting);
    row[kP99Us] = Saturated(p99_us);
  }
  counted_totals_ = now;
  latency_ = latency;
}

History::Series& History::SeriesOf(uint32_t limit_id) {
  const auto it = series_.find(limit_id);
  if (it != series_.end()) return *it->second;
  const bool own = series_.size() < common::bounds::kMaxLimitHistories;
  std::unique_ptr<Series>& series = own ? series_[limit_id] : other_;
  if (series == nullptr) series = std::make_unique<Series>();
  series->second_ = second_;
  return *series;
}

}  // namespace sluice::service
