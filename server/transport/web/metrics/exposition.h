// Exposition: the answer to one scrape, in Prometheus' text format, made in short steps.
#ifndef SLUICE_SERVER_TRANSPORT_WEB_METRICS_EXPOSITION_H_
#define SLUICE_SERVER_TRANSPORT_WEB_METRICS_EXPOSITION_H_

#include <cstdint>
#include <memory>
#include <string>

#include "common/bounds.h"
#include "server/transport/web/metrics/envoy_families.h"
#include "server/transport/web/metrics/limit_families.h"
#include "server/transport/web/metrics/open_files.h"
#include "server/transport/web/metrics/server_families.h"

namespace sluice::metrics {

// Not thread-safe. The sources outlive it.
class Exposition {
 public:
  explicit Exposition(const Sources& sources,
                      uint32_t max_limits = common::bounds::kMaxMetricLimits)
      : sources_(sources), limits_(sources.admin, max_limits) {}

  // Takes one step, of well under a millisecond, and appends the text that it made to `*text`.
  // Returns false once the text is complete.
  bool Step(std::string* text);

 private:
  enum class Stage : uint8_t {
    kCountFiles,
    kReadLimits,
    kWriteServer,
    kWriteLimits,
    kWriteEnvoyCalls,
    kReadEnvoy,
    kWriteEnvoy,
    kDone
  };

  const Sources sources_;
  Stage stage_ = Stage::kCountFiles;
  OpenFiles files_;
  LimitFamilies limits_;
  // Of Envoy's limits.
  std::unique_ptr<envoy::HitCounters::Reader> reader_;  // null before kReadEnvoy
  std::unique_ptr<EnvoyHitFamilies> hits_;              // null before kWriteEnvoy
};

}  // namespace sluice::metrics

#endif  // SLUICE_SERVER_TRANSPORT_WEB_METRICS_EXPOSITION_H_
