// Shard: what a RedisStore does on one event loop. See redis_store.h.
#ifndef SLUICE_SERVER_STORE_REDIS_SHARD_H_
#define SLUICE_SERVER_STORE_REDIS_SHARD_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "server/common/mutex.h"
#include "server/net/counters.h"
#include "server/net/event_loop.h"
#include "server/store/redis/bucket_wire.h"
#include "server/store/redis/connection.h"
#include "server/store/store.h"

namespace sluice::store {
class RedisStore;
}

namespace sluice::store::redis {

// A registered rule, with what the scripts are told of it.
struct RuleEntry {
  std::shared_ptr<const Rule> rule;
  std::string figures;
  std::string writer;  // INSTANCE.RULE_ID
};

struct ShardCounters {
  net::Counter commands;
  net::Counter decisions;  // by Redis
  net::Counter allowed_away;
  net::Counter denied_away;
  net::Counter breaker_opened;
  net::Counter lost;  // sent and not answered in time, or ever
  net::Counter conversions;
  net::Counter errors;
};

// Belongs to its loop, but for Post* and counters.
class Shard final : private Connection::Owner,
                    private Connection::Waiter,
                    private net::IterationHook,
                    private net::Task {
 public:
  Shard(RedisStore& store, net::EventLoop& loop, net::Resolver& resolver,
        const ConnectionOptions& options);
  // REQUIRES: the loop has ended.
  ~Shard() override;

  struct ResetCall {
    std::shared_ptr<const RuleEntry> rule;
    std::string key;
    void (*done)(void*, bool existed);
    void* context;
  };

  // Begins to connect.
  void Connect();

  // From any thread; on the loop itself, started at once.
  void Start(AcquireOperation* operation);
  void Start(QueryOperation* operation);
  void Start(RefundOperation* operation);
  void Start(ResetCall call);

  net::EventLoop& loop() { return loop_; }
  const ShardCounters& counters() const { return counters_; }

 private:
  // An acquire operation under way, and how many of its acquisitions are.
  struct Job {
    AcquireOperation* operation;
    size_t open;
    int64_t deadline_ns;
  };
  // One acquisition that waits. `job` null: it was answered already.
  struct Caller {
    Job* job = nullptr;
    Acquisition* acquisition = nullptr;
  };
  // A bucket as a script is to see it; outlives the callers.
  struct Bucket {
    std::shared_ptr<const RuleEntry> rule;
    std::array<std::string, 3> keys;
  };
  // Those who ask for one set of buckets.
  struct Line {
    std::string name;
    std::vector<Bucket> buckets;
    std::deque<Caller> gathered;
    bool in_flight = false;
    bool queued = false;  // in ready_lines_
  };
  struct Inbox {
    std::vector<AcquireOperation*> acquires;
    std::vector<QueryOperation*> queries;
    std::vector<RefundOperation*> refunds;
    std::vector<ResetCall> resets;
    bool posted = false;
  };
  // A command in flight. Answered once, then destroyed.
  class Command;
  class AcquireCommand;
  class QueryCommand;
  class RefundCommand;
  class ResetCommand;
  struct QueryJob;

  // As net::Task: takes what other threads put into the inbox.
  void Run() override;
  // The loop ends: answers them as if Redis were away.
  void Drop() override;
  template <typename Item>
  void Put(std::vector<Item> Inbox::* list, Item item);
  // At the end of an iteration: sends what has gathered.
  void OnIterationEnd() override;

  void OnReady() override;
  void OnLost(const absl::Status& why) override;
  void OnFailed(const absl::Status& why) override;
  // The answer to a PING.
  void OnReply(Reply* reply) override;

  void Begin(AcquireOperation* operation);
  void Begin(QueryOperation* operation);
  void Begin(RefundOperation* operation);
  void Begin(ResetCall call);

  Line& LineOf(const Acquisition& acquisition);
  std::shared_ptr<const RuleEntry> EntryOf(const Rule& rule);
  Bucket BucketOf(const Rule& rule, std::string_view key);
  void QueueLine(Line& line);
  void SendLine(Line& line, int64_t now_ns);
  void Forget(Line& line);
  // The line's command is done.
  void LineDone(Line& line);

  // Answers a caller, if it was not yet; the last one of an operation completes it.
  void Answer(Caller& caller, Outcome outcome);
  void AnswerAway(Caller& caller);
  void CheckDeadlines();

  bool Away() const { return breaker_open_ || !connection_.ready(); }
  void OpenBreaker(std::string_view why);
  void CloseBreaker();
  void Watch();
  void OnWatch();
  void Probe();
  void LoadScripts();
  void OnErrorReply(const Reply& reply);

  std::vector<std::string> ScriptWords(Script script, absl::Span<const Bucket> buckets) const;
  std::string TimeArgument() const;
  uint64_t NewReceipt();
  RefundOutcome RefundOutcomeOf(uint64_t receipt_id, bool open);
  void LogError(std::string_view event, std::string_view what);

  // What is to become of a bucket that a script would not decide (load_buckets' answer).
  struct Mismatch {
    enum class What : uint8_t { kStale, kConvert, kForeign };
    What what = What::kForeign;
    size_t bucket = 0;
    std::shared_ptr<const RuleEntry> newer;  // kStale
    std::vector<std::string> convert_words;
  };
  Mismatch Judge(absl::Span<const Bucket> buckets, const Reply& reply);

  RedisStore& store_;
  net::EventLoop& loop_;
  Connection connection_;
  ShardCounters counters_;

  absl::flat_hash_map<std::string, std::unique_ptr<Line>> lines_;
  std::vector<Line*> ready_lines_;
  absl::flat_hash_map<uint32_t, std::weak_ptr<const RuleEntry>> entries_;
  size_t prune_entries_at_ = 1024;
  std::deque<Command*> in_flight_;  // oldest first
  size_t waiting_ = 0;
  int64_t next_deadline_ns_ = kNoDeadline;
  bool breaker_open_ = false;
  int64_t probe_sent_ns_ = 0;  // 0: none is under way
  std::string line_name_;      // of LineOf, kept for its memory
  int64_t watch_at_ns_ = 0;    // when watch_ fires, if armed
  net::Timer watch_{net::Timer::To<&Shard::OnWatch>, this};

  common::Mutex mu_;
  Inbox inbox_ ABSL_GUARDED_BY(mu_);
};

}  // namespace sluice::store::redis

#endif  // SLUICE_SERVER_STORE_REDIS_SHARD_H_
