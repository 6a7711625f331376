// FamilyList: builds metric families of prometheus-cpp, with fewer words.
//
//   FamilyList list;
//   list.Counter("sluice_acquisitions_total", "Acquisitions that were decided.")
//       .Value(granted, {{"outcome", "granted"}})
//       .Value(denied, {{"outcome", "denied"}});
#ifndef SLUICE_SERVER_TRANSPORT_WEB_METRICS_FAMILY_LIST_H_
#define SLUICE_SERVER_TRANSPORT_WEB_METRICS_FAMILY_LIST_H_

#include <cstdint>
#include <utility>
#include <vector>

#include "common/histogram.h"
#include "prometheus/metric_family.h"

namespace sluice::metrics {

using Labels = std::vector<prometheus::ClientMetric::Label>;

// Not thread-safe.
class FamilyList {
 public:
  // Each begins a family, to which the calls that follow add samples. `help` needs no escapes: the
  // serializer writes it as it is.
  FamilyList& Counter(const char* name, const char* help) {
    return Begin(name, help, prometheus::MetricType::Counter);
  }
  FamilyList& Gauge(const char* name, const char* help) {
    return Begin(name, help, prometheus::MetricType::Gauge);
  }
  FamilyList& Histogram(const char* name, const char* help) {
    return Begin(name, help, prometheus::MetricType::Histogram);
  }

  FamilyList& Value(double value, Labels labels = {});
  // With one bucket for each doubling from 1 us to 17 s: `le` is 1.024e-06, 2.048e-06, ...
  FamilyList& Samples(const common::HistogramTotals& samples, Labels labels = {});

  // Without families that have no samples.
  std::vector<prometheus::MetricFamily> Take();

 private:
  FamilyList& Begin(const char* name, const char* help, prometheus::MetricType type) {
    families_.push_back({name, help, type, {}});
    return *this;
  }

  std::vector<prometheus::MetricFamily> families_;
};

}  // namespace sluice::metrics

#endif  // SLUICE_SERVER_TRANSPORT_WEB_METRICS_FAMILY_LIST_H_
