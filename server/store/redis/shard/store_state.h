// StoreState: what all shards of a store share. Each member synchronizes itself.
#ifndef SLUICE_SERVER_STORE_REDIS_SHARD_STORE_STATE_H_
#define SLUICE_SERVER_STORE_REDIS_SHARD_STORE_STATE_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "common/clock.h"
#include "common/log.h"
#include "common/mutex.h"
#include "server/store/redis/commands/id_source.h"
#include "server/store/redis/fencing/fence_check.h"
#include "server/store/redis/shard/redis_store_options.h"
#include "server/store/redis/sharing/config_mismatch.h"
#include "server/store/redis/sharing/sharing_state.h"
#include "server/store/redis/wire/rule_entry.h"
#include "server/store/used_receipts.h"

namespace sluice::store::redis {

// The rules that were registered with a store, as commands name them. Thread-safe.
class RuleTable {
 public:
  // `instance`: names this process in what it writes to Redis.
  explicit RuleTable(std::string instance) : instance_(std::move(instance)) {}

  const std::string& instance() const { return instance_; }
  // `now_ns`: on common::Clock::NowNs(). Returns whether the limit was `sharing: split` until now.
  bool Register(std::shared_ptr<const Rule> rule, int64_t now_ns);
  // Null: not registered, or not used any longer.
  std::shared_ptr<const RuleEntry> Find(uint32_t rule_id) const;
  bool WroteAs(std::string_view writer) const {
    return writer.substr(0, writer.find('.')) == instance_;
  }
  // The rule by which this process wrote what `writer` wrote, if it is newer than `entry`; else
  // null.
  std::shared_ptr<const RuleEntry> NewerThan(const RuleEntry& entry, std::string_view writer) const;
  // Drops rules that nothing else refers to: of limits that changed.
  void DropUnused();

 private:
  const std::string instance_;
  mutable common::Mutex mu_;
  absl::flat_hash_map<uint32_t, std::shared_ptr<const RuleEntry>> rules_ ABSL_GUARDED_BY(mu_);
  // By limit id. As RuleEntry::split_since_ns; nullopt: it is not split.
  absl::flat_hash_map<uint32_t, std::optional<int64_t>> split_since_ns_ ABSL_GUARDED_BY(mu_);
};

struct StoreState {
  StoreState(const common::Clock& its_clock, RedisStoreOptions its_options, common::Log* its_log,
             std::string instance);

  const common::Clock& clock;
  const RedisStoreOptions options;
  common::Log* const log;  // may be null
  const FenceCheckOptions fence_options;
  RuleTable rules;
  IdSource ids;
  UsedReceipts used_receipts;
  ConfigMismatchDetector mismatches;
  KnownFences fences;
  SharingState sharing;
};

}  // namespace sluice::store::redis

#endif  // SLUICE_SERVER_STORE_REDIS_SHARD_STORE_STATE_H_
