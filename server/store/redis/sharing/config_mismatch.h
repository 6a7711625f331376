// ConfigMismatch: notices that another node has other parameters for a limit than this one.
//
// That a bucket is of other parameters is nothing special: a limit was changed, and its buckets are
// taken over one by one. But one that this node took over already, and that another node has taken
// back, tells that the two do not agree; for as long as a change is on its way to all nodes, or
// because two deployments share a name space by mistake.
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
class ConfigMismatch {
 public:
  // Buckets that are remembered; then it begins anew.
  static constexpr size_t kMostBuckets = 4096;
  // Limits that are told of.
  static constexpr size_t kMostLimits = 256;
  static constexpr int64_t kLogEveryNs = int64_t{60} * 1'000'000'000;

  // Both outlive it; `log` may be null.
  ConfigMismatch(const common::Clock& clock, common::Log* log) : clock_(clock), log_(log) {}

  // This node takes a bucket over from parameters that another wrote. `key`: its name in Redis.
  void TakesOver(std::string_view limit, std::string_view key, const std::string& ours,
                 const std::string& theirs) {
    const uint64_t bucket = absl::HashOf(common::ToAbsl(key), ours);
    common::MutexLock lock(&mu_);
    if (taken_over_.size() >= kMostBuckets) taken_over_.clear();
    if (taken_over_.insert(bucket).second) return;
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
  absl::flat_hash_set<uint64_t> taken_over_ ABSL_GUARDED_BY(mu_);
  std::map<std::string, DifferingLimit, std::less<>> limits_ ABSL_GUARDED_BY(mu_);
};

}  // namespace sluice::store::redis

#endif  // SLUICE_SERVER_STORE_REDIS_SHARING_CONFIG_MISMATCH_H_
