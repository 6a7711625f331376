#include "server/transport/web/metrics/exposition.h"

#include <sstream>
#include <vector>

#include "prometheus/text_serializer.h"

namespace sluice::metrics {
namespace {

// `continued`: without the two lines (HELP and TYPE) that may stand only once for each family.
void Append(const std::vector<prometheus::MetricFamily>& families, bool continued,
            std::string* text) {
  std::ostringstream out;
  prometheus::TextSerializer().Serialize(out, families);
  const std::string made = std::move(out).str();
  size_t start = 0;
  for (int line = 0; continued && line < 2; ++line) start = made.find('\n', start) + 1;
  text->append(made, start);
}

}  // namespace

bool Exposition::Step(std::string* text) {
  switch (stage_) {
    case Stage::kCountFiles:
      if (!files_.CountPiece()) stage_ = Stage::kReadLimits;
      return true;
    case Stage::kReadLimits:
      if (!limits_.ReadPiece()) stage_ = Stage::kWriteServer;
      return true;
    case Stage::kWriteServer: {
      const Gathered gathered{files_.count(), limits_.all().allowed_while_unavailable,
                              limits_.all().denied_while_unavailable};
      Append(ServerFamilies(sources_, gathered), false, text);
      stage_ = Stage::kWriteLimits;
      return true;
    }
    case Stage::kWriteLimits: {
      std::vector<prometheus::MetricFamily> piece(1);
      bool continued = false;
      if (limits_.NextPiece(&piece[0], &continued)) {
        if (!piece[0].metric.empty()) Append(piece, continued, text);
        return true;
      }
      stage_ = sources_.envoy != nullptr ? Stage::kWriteEnvoyCalls : Stage::kDone;
      return stage_ != Stage::kDone;
    }
    case Stage::kWriteEnvoyCalls:
      Append(EnvoyCallFamilies(sources_.envoy->Calls(),
                               sources_.admin.GetStatsWithoutLimits().totals.methods),
             false, text);
      reader_ =
          std::make_unique<envoy::HitCounters::Reader>(*sources_.envoy, sources_.admin.List());
      stage_ = Stage::kReadEnvoy;
      return true;
    case Stage::kReadEnvoy:
      if (reader_->ReadPiece()) return true;
      hits_ = std::make_unique<EnvoyHitFamilies>(reader_->Take(), common::bounds::kMaxMetricLimits);
      stage_ = Stage::kWriteEnvoy;
      return true;
    case Stage::kWriteEnvoy: {
      std::vector<prometheus::MetricFamily> piece(1);
      bool continued = false;
      if (hits_->NextPiece(&piece[0], &continued)) {
        if (!piece[0].metric.empty()) Append(piece, continued, text);
        return true;
      }
      stage_ = Stage::kDone;
      return false;
    }
    case Stage::kDone:
      return false;
  }
  return false;
}

}  // namespace sluice::metrics
