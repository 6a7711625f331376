#include "server/transport/web/metrics/family_list.h"

#include <algorithm>

namespace sluice::metrics {
namespace {

// The doublings that have a bucket. Finer ones of common::Histogram would be 241 series for each
// method; below and above are calls that no quantile of interest separates.
constexpr int kFirstBit = 10;
constexpr int kLastBit = 34;
static_assert(kFirstBit >= common::kHistogramFirstBit);
static_assert(kLastBit < common::kHistogramFirstBit + common::kHistogramDoublings);

}  // namespace

FamilyList& FamilyList::Value(double value, Labels labels) {
  prometheus::MetricFamily& family = families_.back();
  prometheus::ClientMetric& sample = family.metric.emplace_back();
  sample.label = std::move(labels);
  (family.type == prometheus::MetricType::Counter ? sample.counter.value : sample.gauge.value) =
      value;
  return *this;
}

FamilyList& FamilyList::Samples(const common::HistogramTotals& samples, Labels labels) {
  prometheus::ClientMetric& metric = families_.back().metric.emplace_back();
  metric.label = std::move(labels);
  metric.histogram.sample_count = samples.count;
  metric.histogram.sample_sum = static_cast<double>(samples.sum_ns) * 1e-9;
  uint64_t below = 0;
  size_t next = 0;
  for (int bit = kFirstBit; bit <= kLastBit; ++bit) {
    const uint64_t upper_ns = uint64_t{1} << bit;
    while (next < common::kHistogramBuckets && common::HistogramUpperNs(next) <= upper_ns) {
      below += samples.counts[next++];
    }
    // Divided, not multiplied by 1e-9, which would print 1.024e-06 with more digits.
    metric.histogram.bucket.push_back({below, static_cast<double>(upper_ns) / 1e9});
  }
  return *this;
}

std::vector<prometheus::MetricFamily> FamilyList::Take() {
  std::erase_if(families_, [](const auto& family) { return family.metric.empty(); });
  return std::exchange(families_, {});
}

}  // namespace sluice::metrics
