// History: the decisions of the last hour, second by second, of the whole server and of each limit,
// so that a dashboard that is opened late shows what happened.
//
// It is sampled once a second from the counters; no decision touches it. A limit has a series from
// its first decision until it was idle for an hour. Up to bounds::kMaxLimitHistories limits have
// one each; the others share the series `other`. A series has a block for each minute and outcome,
// and none while that outcome does not occur: at most 64 MiB for 1,000 limits, 16 for 1,000 that
// only grant, and nothing for idle ones.
#ifndef SLUICE_SERVER_SERVICE_HISTORY_H_
#define SLUICE_SERVER_SERVICE_HISTORY_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "common/bounds.h"
#include "common/metrics.h"

namespace sluice::service {

// Not thread-safe: belongs to the thread that samples.
class History {
 public:
  static constexpr size_t kSeconds = 3600;
  static constexpr size_t kMinutes = kSeconds / 60;

  // What became of a limit's charges. kWithoutStore: on_store_failure decided, either way.
  enum Outcome : uint8_t { kGranted, kDenied, kShadowDenied, kWithoutStore };
  static constexpr size_t kOutcomes = 4;
  using Counts = std::array<uint64_t, kOutcomes>;

  // A second of the whole server. Acquisitions, except these: kShadowDenied and the two
  // WithoutStore are charges, kShed calls. kWaiting and kP99Us are as of the end of the second.
  enum Total : uint8_t {
    kAllGranted,
    kAllDenied,
    kAllShadowDenied,
    kAllowedWithoutStore,
    kDeniedWithoutStore,
    kShed,
    kWaiting,
    kP99Us,
  };
  static constexpr size_t kTotals = 8;
  using TotalRow = std::array<uint32_t, kTotals>;

  // One limit's last hour.
  class Series {
   public:
    // Oldest first: of the last `seconds` seconds; of the last kMinutes minutes, the running one
    // included.
    std::vector<uint32_t> Seconds(Outcome outcome, size_t seconds) const;
    std::array<uint64_t, kMinutes> Minutes(Outcome outcome) const;
    // Sum of the last 60 s.
    Counts LastMinute() const;
    // Of the last second.
    Counts LastSecond() const;

   private:
    friend class History;
    struct Minute {
      std::array<uint32_t, 60> counts{};
      uint64_t sum = 0;
    };
    // One more than an hour has, since the running minute is not complete.
    static constexpr size_t kBlocks = kMinutes + 1;
    using Column = std::array<std::unique_ptr<Minute>, kBlocks>;

    uint32_t At(size_t outcome, int64_t second) const {
      const Minute* const minute = columns_[outcome][Block(second)].get();
      return minute == nullptr ? 0 : minute->counts[static_cast<size_t>(second % 60)];
    }
    static size_t Block(int64_t second) { return static_cast<size_t>(second / 60) % kBlocks; }
    void Add(size_t outcome, int64_t second, uint64_t count);
    // Removes the block that the minute of `second` takes over.
    void BeginMinute(int64_t second);
    bool empty() const;

    std::array<Column, kOutcomes> columns_;
    int64_t second_ = 0;
  };

  // Takes a sample. `totals` has all limits by limit_id; `waiting`: callers held now. Decisions
  // since the last sample are spread over the seconds that have passed. Returns false, and does
  // nothing, if none has.
  bool Sample(int64_t now_ns, const common::MetricsSnapshot& totals, uint64_t waiting);

  // The second of the last sample, on the time line of Clock::NowNs.
  int64_t second() const { return second_; }
  // How many seconds are known, at most kSeconds.
  size_t size() const { return size_; }
  // One of the last size() seconds of the whole server; 0 is the oldest.
  const TotalRow& total(size_t i) const;

  // Null: the limit was not used in the last hour.
  const Series* Find(uint32_t limit_id) const;
  // The sum of the limits without a series of their own. Null: there are none.
  const Series* other() const { return other_.get(); }
  // Limits with a series of their own.
  size_t limits() const { return series_.size(); }
  // Calls visit(limit_id, series) for each of them.
  template <typename Visit>
  void ForEach(Visit visit) const {
    for (const auto& [limit_id, series] : series_) visit(limit_id, *series);
  }

 private:
  void Advance(int64_t seconds);
  void SampleLimits(const common::MetricsSnapshot& totals, int64_t seconds);
  void SampleTotals(const common::MetricsSnapshot& totals, uint64_t waiting, int64_t seconds);
  Series& SeriesOf(uint32_t limit_id);

  int64_t second_ = -1;  // -1: no sample yet
  size_t size_ = 0;
  std::vector<TotalRow> totals_;  // by second % kSeconds
  absl::flat_hash_map<uint32_t, std::unique_ptr<Series>> series_;
  std::unique_ptr<Series> other_;
  // As of the last sample.
  std::vector<Counts> counted_;  // by limit_id
  std::array<uint64_t, kWaiting> counted_totals_{};
  common::HistogramTotals latency_;
};

}  // namespace sluice::service

#endif  // SLUICE_SERVER_SERVICE_HISTORY_H_
