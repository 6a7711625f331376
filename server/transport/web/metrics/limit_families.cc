#include "server/transport/web/metrics/limit_families.h"

#include <algorithm>
#include <iterator>
#include <string>
#include <tuple>
#include <utility>

#include "absl/types/span.h"

namespace sluice::metrics {
namespace {

// Which limits have a sample. The rare counters would double the number of series, nearly all 0.
enum class Shown : uint8_t { kAlways, kIfCounted, kInShadowMode };

struct Sample {
  const char* outcome;  // null: the family has no such label
  double (*value)(const LimitRow& row);
  Shown shown = Shown::kIfCounted;
};

struct Family {
  const char* name;
  const char* help;
  prometheus::MetricType type;
  absl::Span<const Sample> samples;
};

template <auto Count>
double ValueOf(const LimitRow& row) {
  return static_cast<double>(row.*Count);
}

double PermitsPerSecond(const LimitRow& row) {
  if (row.limit == nullptr) return 0;
  if (algorithm::IsConcurrency(row.limit->rule().parameters)) return 0;
  const algorithm::Rate& rate = row.limit->spec().rate;
  return static_cast<double>(rate.permits) * 1e9 / static_cast<double>(rate.period_ns);
}

constexpr Sample kCharges[] = {{"granted", &ValueOf<&LimitRow::granted>, Shown::kAlways},
                               {"denied", &ValueOf<&LimitRow::denied>, Shown::kAlways}};
constexpr Sample kPermits[] = {{nullptr, &ValueOf<&LimitRow::permits_granted>, Shown::kAlways}};
constexpr Sample kRates[] = {{nullptr, &PermitsPerSecond}};
// The slots of a limit with algorithm concurrency.
double PermitsAtOnce(const LimitRow& row) {
  if (row.limit == nullptr || !algorithm::IsConcurrency(row.limit->rule().parameters)) return 0;
  return static_cast<double>(algorithm::Capacity(row.limit->rule().parameters));
}

constexpr Sample kSlots[] = {{nullptr, &PermitsAtOnce}};
constexpr Sample kShadow[] = {{nullptr, &ValueOf<&LimitRow::shadow_denied>, Shown::kInShadowMode}};
constexpr Sample kRefunded[] = {{nullptr, &ValueOf<&LimitRow::refunded_permits>}};
constexpr Sample kOverflow[] = {{"allowed", &ValueOf<&LimitRow::overflow_allowed>},
                                {"denied", &ValueOf<&LimitRow::overflow_denied>}};
constexpr Sample kUnavailable[] = {{"allowed", &ValueOf<&LimitRow::allowed_while_unavailable>},
                                   {"denied", &ValueOf<&LimitRow::denied_while_unavailable>}};
constexpr Sample kOvershoot[] = {{nullptr, &ValueOf<&LimitRow::overshoot_permits>}};
constexpr Sample kBookings[] = {{nullptr, &ValueOf<&LimitRow::bookings_denied>}};

constexpr auto kCounter = prometheus::MetricType::Counter;
constexpr auto kGauge = prometheus::MetricType::Gauge;

const Family kFamilies[] = {
    {"sluice_limit_charges_total",
     "Charges on the limit, also by other limits, by outcome of the acquisition.", kCounter,
     kCharges},
    {"sluice_limit_permits_granted_total", "Permits granted.", kCounter, kPermits},
    {"sluice_limit_permits_per_second",
     "The limit's rate; each key of the limit has as much, unless it has its own.", kGauge, kRates},
    {"sluice_limit_permits_at_once",
     "algorithm: concurrency. The permits that each key may have in use at the same time.", kGauge,
     kSlots},
    {"sluice_limit_shadow_denied_total",
     "Charges that mode: shadow granted although the limit would have denied them.", kCounter,
     kShadow},
    {"sluice_limit_permits_refunded_total", "Permits given back by Refund.", kCounter, kRefunded},
    {"sluice_limit_overflow_charges_total",
     "Charges decided by --overflow, for keys that found no room.", kCounter, kOverflow},
    {"sluice_limit_unavailable_charges_total",
     "Charges decided by on_store_failure while the store was unavailable.", kCounter,
     kUnavailable},
    {"sluice_limit_overshoot_permits_total",
     "Permits granted beyond the bucket by sharing: relaxed.", kCounter, kOvershoot},
    {"sluice_limit_bookings_denied_total",
     "Charges denied since too many reservations were waiting.", kCounter, kBookings},
};

bool IsShown(const Sample& sample, const LimitRow& row, double value) {
  switch (sample.shown) {
    case Shown::kAlways:
      return true;
    case Shown::kInShadowMode:
      if (row.limit != nullptr && row.limit->spec().mode == limits::Mode::kShadow) return true;
      break;
    case Shown::kIfCounted:
      break;
  }
  return value > 0;
}

void AddSamples(const Family& family, const LimitRow& row,
                std::vector<prometheus::ClientMetric>* out) {
  for (const Sample& sample : family.samples) {
    const double value = sample.value(row);
    if (!IsShown(sample, row, value)) continue;
    prometheus::ClientMetric& metric = out->emplace_back();
    metric.label.reserve(2);
    metric.label.push_back(
        {"limit", row.limit != nullptr ? std::string(row.limit->name()) : kOtherLimits});
    if (sample.outcome != nullptr) metric.label.push_back({"outcome", sample.outcome});
    (family.type == kCounter ? metric.counter.value : metric.gauge.value) = value;
  }
}

void AddTotals(common::LimitTotals from, common::LimitTotals* to) {
  std::apply(
      [&](auto&... more) { std::apply([&](auto&... sums) { ((sums += more), ...); }, to->Tie()); },
      from.Tie());
}

}  // namespace

LimitFamilies::LimitFamilies(const service::LimitAdmin& admin, uint32_t max_shown)
    : admin_(admin), table_(admin.List()), shown_(std::min(max_shown, table_->limit_id_end())) {
  rows_.reserve(shown_.size() + 1);
}

void LimitFamilies::PlacePiece() {
  const absl::Span<const limits::Limit* const> piece =
      table_->limits().subspan(placed_, kQuickPiece);
  placed_ += piece.size();
  for (const limits::Limit* limit : piece) {
    const uint32_t id = limit->limit_id();
    if (limit->name() == kOtherLimits) {
      named_other_ = id;
    } else if (id < shown_.size()) {
      shown_[id] = limit;
    }
  }
}

bool LimitFamilies::ReadPiece() {
  if (placed_ < table_->limits().size()) {
    PlacePiece();
    return true;
  }
  const uint32_t end = table_->limit_id_end();
  const uint32_t first = read_;
  read_ = std::min(end, first + kPiece);
  const std::vector<common::LimitTotals> totals = admin_.GetLimitTotals(first, read_);
  for (uint32_t id = first; id < read_; ++id) {
    LimitRow row{totals[id - first], id < shown_.size() ? shown_[id] : nullptr,
                 admin_.OvershootPermits(id)};
    AddTotals(row, &all_);
    if (row.limit != nullptr) {
      rows_.push_back(row);
    } else if (id >= shown_.size() || id == named_other_) {
      AddTotals(row, &others_);
      others_.overshoot_permits += row.overshoot_permits;
      has_others_ = true;
    }
  }
  if (read_ < end) return true;
  if (has_others_) rows_.push_back(others_);
  return false;
}

bool LimitFamilies::NextPiece(prometheus::MetricFamily* family, bool* continued) {
  if (family_ == std::size(kFamilies)) return false;
  std::vector<prometheus::ClientMetric> samples;
  for (size_t seen = 0; family_ < std::size(kFamilies) && samples.empty() && seen < kQuickPiece;
       seen += kPiece) {
    const Family& from = kFamilies[family_];
    *family = {from.name, from.help, from.type, {}};
    *continued = begun_;
    const size_t end = std::min(row_ + kPiece, rows_.size());
    for (; row_ < end; ++row_) AddSamples(from, rows_[row_], &samples);
    begun_ = begun_ || !samples.empty();
    if (row_ < rows_.size()) continue;
    ++family_;
    row_ = 0;
    begun_ = false;
  }
  family->metric = std::move(samples);
  return true;
}

}  // namespace sluice::metrics
