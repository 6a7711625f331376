// LimitFamilies: the metrics of each limit, in pieces.
//
// The first bounds::kMaxMetricLimits limits that the process knew have series of their own, as long
// as they exist. All others, deleted or not, are summed under limit="other". Which limit is where
// never changes, so no counter falls. A limit that is itself named "other" counts in that sum.
#ifndef SLUICE_SERVER_TRANSPORT_WEB_METRICS_LIMIT_FAMILIES_H_
#define SLUICE_SERVER_TRANSPORT_WEB_METRICS_LIMIT_FAMILIES_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "common/metrics.h"
#include "prometheus/metric_family.h"
#include "server/limits/limit_table.h"
#include "server/service/limit_admin.h"

namespace sluice::metrics {

// The label of the sum.
inline constexpr char kOtherLimits[] = "other";

// The counters of one limit, or of the others.
struct LimitRow : common::LimitTotals {
  const limits::Limit* limit = nullptr;  // null: the others
  uint64_t overshoot_permits = 0;
};

// Not thread-safe. Keeps the table whose limits it shows.
class LimitFamilies {
 public:
  // Rows of a piece: with two samples each it takes about 0.4 ms.
  static constexpr uint32_t kPiece = 256;
  // Of work that makes no samples.
  static constexpr uint32_t kQuickPiece = 2048;

  // `max_shown`: the limits with ids below it are shown.
  LimitFamilies(const service::LimitAdmin& admin, uint32_t max_shown);

  // Finds the limits that are shown, then reads the counters; a piece at each call. Returns false
  // once all are read.
  bool ReadPiece();

  // REQUIRES: all are read. The families follow each other, each in pieces: `*continued` says that
  // the piece belongs to the same family as the one before. A piece may have no samples. Returns
  // false if no piece is left.
  bool NextPiece(prometheus::MetricFamily* family, bool* continued);

  // Sums over all limits that ever were. REQUIRES: all are read.
  const common::LimitTotals& all() const { return all_; }

 private:
  void PlacePiece();

  const service::LimitAdmin& admin_;
  const std::shared_ptr<const limits::LimitTable> table_;
  std::vector<const limits::Limit*> shown_;  // by id; null: deleted, or named "other"
  uint32_t named_other_ = UINT32_MAX;        // id of the limit with that name
  size_t placed_ = 0;                        // limits of the table that were put into shown_
  uint32_t read_ = 0;                        // ids
  std::vector<LimitRow> rows_;               // the sum of the others last
  LimitRow others_;
  bool has_others_ = false;
  common::LimitTotals all_;
  size_t family_ = 0;
  size_t row_ = 0;
  bool begun_ = false;  // a piece of the family was made
};

}  // namespace sluice::metrics

#endif  // SLUICE_SERVER_TRANSPORT_WEB_METRICS_LIMIT_FAMILIES_H_
