// CommandContext: what a command may use, and request, of the shard that sends it.
#ifndef SLUICE_SERVER_STORE_REDIS_COMMANDS_COMMAND_CONTEXT_H_
#define SLUICE_SERVER_STORE_REDIS_COMMANDS_COMMAND_CONTEXT_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/types/span.h"
#include "common/clock.h"
#include "common/net/event_loop.h"
#include "server/store/redis/commands/id_source.h"
#include "server/store/redis/commands/open_cache.h"
#include "server/store/redis/commands/pending_acquires.h"
#include "server/store/redis/connection/counters.h"
#include "server/store/redis/topology/router.h"
#include "server/store/redis/wire/key_names.h"
#include "server/store/redis/wire/rule_entry.h"
#include "server/store/redis/wire/script_arguments.h"
#include "server/store/used_receipts.h"

namespace sluice::store::redis {

class CommandSender;

// What the senders of one event loop share.
struct SendState {
  std::vector<std::string> words;  // kept for its memory: where a command is built
  // They wait for a timer or for room. The loop's end drops them.
  absl::flat_hash_set<CommandSender*> waiting;
};

struct CommandSettings {
  std::string name_space;
  // After which a command that was not executed is sent again: several times within the budget.
  int64_t retry_ns = 0;
  // For tests only: passed to the scripts instead of Redis' TIME.
  const common::Clock* test_time = nullptr;

  // Negative: the server's time counts.
  int64_t TestNowNs() const { return test_time == nullptr ? -1 : test_time->NowNs(); }
  // `token`: as the script is passed.
  std::string TimeArgument(const FencingToken& token) const {
    return test_time == nullptr ? ServerTime(token.clock) : TestTime(TestNowNs());
  }
};

// Used on the shard's loop.
class CommandContext {
 public:
  virtual const CommandSettings& settings() const = 0;
  virtual const common::Clock& clock() const = 0;  // of the operations' deadlines
  virtual net::EventLoop& loop() = 0;
  virtual Router& router() = 0;
  virtual ShardCounters& counters() = 0;
  virtual SendState& sends() = 0;
  virtual PendingAcquires& acquires() = 0;
  virtual OpenCache& open_buckets() = 0;
  virtual IdSource& ids() = 0;
  virtual UsedReceipts& used_receipts() = 0;

  // Null: the rule is not registered, or not used any longer.
  virtual std::shared_ptr<const RuleEntry> EntryOf(const Rule& rule) = 0;
  // The rule by which this process wrote what `writer` wrote, if it is newer than `entry`; else
  // null.
  virtual std::shared_ptr<const RuleEntry> NewerThan(const RuleEntry& entry,
                                                     std::string_view writer) = 0;
  // The bucket was converted from parameters that `writer` gave it, perhaps on another node.
  virtual void OnConverted(const Bucket& bucket, std::string_view writer,
                           const algorithm::Parameters& from) = 0;
  // Whether one more may wait when `waiting` do. False is logged.
  virtual bool MayWait(size_t waiting) = 0;
  virtual void LogError(std::string_view event, std::string_view what) = 0;

  Bucket BucketOf(const Rule& rule, std::string_view key) {
    return {EntryOf(rule), KeysOf(settings().name_space, rule.limit_name, key, rule.hash_tag)};
  }
  std::vector<Bucket> BucketsOf(absl::Span<const Charge> charges) {
    std::vector<Bucket> buckets;
    buckets.reserve(charges.size());
    for (const Charge& charge : charges) buckets.push_back(BucketOf(*charge.rule, charge.key));
    return buckets;
  }

 protected:
  ~CommandContext() = default;
};

}  // namespace sluice::store::redis

#endif  // SLUICE_SERVER_STORE_REDIS_COMMANDS_COMMAND_CONTEXT_H_
