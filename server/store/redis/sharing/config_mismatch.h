// ConfigMismatchDetector: detects nodes that run different parameters for the same limit.
//
// A bucket with other parameters is normal: when a limit changes, its buckets are converted one by
// one. But if this node converted a bucket and another node converted it back, the two do not
// agree: a change has not reached all nodes yet, or two deployments share a name space by mistake.
#ifndef SLUICE_SERVER_STORE_REDIS_SHARING_CONFIG_MISMATCH_H_
#define SLUICE_SERVER_STORE_REDIS_SHARING_CONFIG_MISMATCH_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_set.h"
#include "absl/hash/hash.h"
#include "common/clock.h"
#include "common/log.h"
#include "common/mutex.h"
#include "common/strings.h"
#include "server/store/store.h"

namespace sluice::store::redis {

// Thread-safe. Takes a lock; conversions are rare.
class ConfigMismatchDetector {
 public:
  // Buckets that are remembered; then all are forgotten.
  static constexpr size_t kMostBuckets = 4096;
  // Limits that are reported.
  static constexpr size_t kMostLimits = 256;
  static constexpr int64_t kLogEveryNs = int64_t{60} * 1'000'000'000;

  // Both outlive it; `log` may be null.
  ConfigMismatchDetector(const common::Clock& clock, common::Log* log) : clock_(clock), log_(log) {}

  // This node converted a bucket from parameters that another node wrote. `key`: its name in Redis.
  void OnConverted(std::string_view limit, std::string_view key, const std::string& ours,
                   const std::string& theirs) {
    const uint64_t bucket = absl::HashOf(common::ToAbsl(key), ours);
    common::MutexLock lock(&mu_);
    if (converted_.size() >= kMostBuckets) converted_.clear();
    if (converted_.insert(bucket).second) return;
    const auto found = limits_.find(limit);
    if (found == limits_.end() && limits_.size() >= kMostLimits) return;
    DifferingLimit& one = found != limits_.end() ? found->second : limits_[std::string(limit)];
    if (one.ours != ours) one = {};
    const int64_t now_ns = clock_.WallNs();
    if (log_ != nullptr && (one.times == 0 || now_ns - one.last_wall_ns >= kLogEveryNs)) {
      log_->Warning(
          "redis_limit_differs",
          {{"limit", common::ToAbsl(limit)}, {"here", ours}, {"at_another_node", theirs}});
    }
    one.limit.assign(limit);
    one.ours = ours;
    one.theirs = theirs;
    ++one.times;
    one.last_wall_ns = now_ns;
  }

  // By name.
  std::vector<DifferingLimit> Differing() const {
    common::MutexLock lock(&mu_);
    std::vector<DifferingLimit> all;
    all.reserve(limits_.size());
    for (const auto& [name, one] : limits_) all.push_back(one);
    return all;
  }

 private:
  const common::Clock& clock_;
  common::Log* const log_;
  mutable common::Mutex mu_;
  absl::flat_hash_set<uint64_t> converted_ ABSL_GUARDED_BY(mu_);
  std::map<std::string, DifferingLimit, std::less<>> limits_ ABSL_GUARDED_BY(mu_);
};

}  // namespace sluice::store::redis

#endif  // SLUICE_SERVER_STORE_REDIS_SHARING_CONFIG_MISMATCH_H_
