// Shard: what a RedisStore does on one event loop. See redis_store.h.
//
// Its callers stand in lines, one for each set of buckets; what a line gathered goes as one
// command, to the server that the router says.
#ifndef SLUICE_SERVER_STORE_REDIS_SHARD_SHARD_H_
#define SLUICE_SERVER_STORE_REDIS_SHARD_SHARD_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "common/mutex.h"
#include "common/net/event_loop.h"
#include "server/store/redis/commands/debit.h"
#include "server/store/redis/commands/heartbeat.h"
#include "server/store/redis/commands/open_cache.h"
#include "server/store/redis/commands/raw_command.h"
#include "server/store/redis/commands/reset.h"
#include "server/store/redis/connection/counters.h"
#include "server/store/redis/connection/endpoint.h"
#include "server/store/redis/scripts/scripts.h"
#include "server/store/redis/shard/batch_queue.h"
#include "server/store/redis/shard/receipt_closer.h"
#include "server/store/redis/sharing/node_registry.h"
#include "server/store/redis/sharing/relaxed_buckets.h"
#include "server/store/redis/topology/router.h"
#include "server/store/redis/wire/rule_entry.h"
#include "server/store/redis/wire/stored_bucket.h"
#include "server/store/store.h"

namespace sluice::store {
class RedisStore;
}

namespace sluice::store::redis {

// What is to become of a bucket that a script would not decide (load_buckets' answer).
struct Mismatch {
  enum class What : uint8_t { kStale, kConvert, kForeign };
  What what = What::kForeign;
  size_t bucket = 0;
  std::shared_ptr<const RuleEntry> newer;  // kStale
  std::vector<std::string> convert_words;
};

// Belongs to its loop, but for Connect, Start and counters.
class Shard final : private Router::Host,
                    private net::IterationHook,
                    private net::LoopResident,
                    private net::Task {
 public:
  Shard(RedisStore& store, net::EventLoop& loop, net::Resolver& resolver,
        const EndpointOptions& options);
  // REQUIRES: the loop has ended.
  ~Shard() override;

  // Begins to connect.
  void Connect();

  // From any thread; on the loop itself, started at once.
  void Start(AcquireOperation* operation);
  void Start(QueryOperation* operation);
  void Start(RefundOperation* operation);
  void Start(MoveOperation* operation);
  void Start(RebookOperation* operation);
  void Start(ResetCall call);
  void Start(Call call);
  void Start(HeartbeatCall call);  // on the loop
  void Start(ReportCall call);

  net::EventLoop& loop() { return loop_; }
  const ShardCounters& counters() const { return counters_; }

  // ---- For the commands (shard_commands.cc) ----

  ShardCounters& counters() { return counters_; }
  // On the clock of the operations' deadlines.
  int64_t NowNs() const;
  Router& router() { return *router_; }
  // After which something not executed is sent again: often enough within the budget.
  int64_t retry_ns() const { return endpoint_options_.budget_ns / 8; }
  Bucket BucketOf(const Rule& rule, std::string_view key);
  // The sum over a set of buckets names it in calendars: the same on every node, whatever their
  // order.
  static uint64_t SetOf(const Bucket& bucket);
  // Answers a caller, if it was not yet; the last one of an operation completes it.
  void Answer(Caller& caller, Outcome outcome);
  void AnswerUnavailable(Caller& caller);
  // One more may, where so many wait. False: too many do, which the log says.
  bool MayWait(size_t waiting);
  // The line's command is done.
  void LineDone(Line& line);
  // The line has waited for room at this server.
  void LineHasRoom(Line& line, Endpoint& endpoint);
  ReceiptCloser& closer() { return closer_; }
  // One part of an acquisition with several (cross_slot.h), whose receipt, if it wants one, is
  // this; and gives one back.
  void Take(AcquireOperation* part, uint64_t receipt_id) { Begin(part, receipt_id); }
  void GiveBack(RefundOperation* part);
  // What stands before a script's own arguments.
  std::vector<std::string> ScriptWords(Script script, absl::Span<const Bucket> buckets,
                                       const FencingToken& term) const;
  std::string TimeArgument() const;
  // A test's time; negative: there is none, and the server's counts.
  int64_t TestNowNs() const;
  bool has_test_time() const;
  uint64_t NewReceipt();
  // Completes a refund that was executed; `open`: there was something to give back, and it was.
  void AnswerRefund(RefundOperation* operation, bool open);
  // Ids of bookings made at now_ns of the server's clock, whose order is the order of the bookings,
  // whichever node made them. Greater than `after`.
  uint64_t NewBooking(int64_t now_ns, uint64_t after);
  // Never the same again, by any node.
  std::string NewVersion();
  // A test's time has nothing to do with the server's.
  void AdjustTtl(std::string* ttl_ms) const;
  OpenCache& open_buckets() { return open_buckets_; }
  // The rule by which this process wrote what `writer` wrote, if it is newer; else null.
  std::shared_ptr<const RuleEntry> NewerThan(const RuleEntry& entry, std::string_view writer) const;
  // The bucket is converted from parameters that `writer` gave it, perhaps another node.
  void TakesOver(const Bucket& bucket, std::string_view writer, const algorithm::Parameters& from);
  // The bucket's key is not one of ours, which `why` says.
  void Foreign(const Bucket& bucket, const absl::Status& why);
  Mismatch Judge(absl::Span<const Bucket> buckets, int64_t floor_us, const Reply& reply);
  void LogError(std::string_view event, std::string_view what);
  // Where a command is built, to be sent at once.
  std::vector<std::string>& words() { return words_; }
  // Commands that wait for a timer or for room, dropped when the loop ends.
  void SendsLater(Command* command) { later_.insert(command); }
  void SendsNow(Command* command) { later_.erase(command); }

 private:
  struct Inbox {
    std::vector<AcquireOperation*> acquires;
    std::vector<QueryOperation*> queries;
    std::vector<RefundOperation*> refunds;
    std::vector<MoveOperation*> moves;
    std::vector<RebookOperation*> rebooks;
    std::vector<ResetCall> resets;
    std::vector<Call> calls;
    std::vector<ReportCall> reports;
    bool posted = false;
  };

  // As net::Task: takes what other threads put into the inbox.
  void Run() override;
  // The loop ends: answers them as if Redis were away.
  void Drop() override;
  template <typename Item>
  void Put(std::vector<Item> Inbox::* list, Item item);
  // At the end of an iteration: sends what has gathered.
  void OnIterationEnd() override;
  void OnLoopStop() override;

  void OnUnavailable(Endpoint& endpoint) override;
  void OnConnected(const absl::Status& status) override;

  void Begin(AcquireOperation* operation, uint64_t receipt_id = 0);
  // All of it is decided at once, as nobody can be asked.
  void DecideUnavailable(AcquireOperation* operation);
  // As the limits say for that case.
  Outcome DecideUnavailable(Acquisition& acquisition);
  void Begin(QueryOperation* operation);
  void Begin(RefundOperation* operation);
  void Begin(MoveOperation* operation);
  void Begin(RebookOperation* operation);
  void Begin(ResetCall call);
  void Begin(Call call);
  void Begin(ReportCall call);

  // ---- Decided by this node (local_decisions.cc) ----

  // True: it was, or will be, answered, in part or as a whole without Redis.
  bool StartLocally(Caller caller);
  // Of limits with sharing: split, of which `places` are charges. Opens a receipt if it is not 0.
  Outcome DecideSplit(Acquisition& acquisition, absl::Span<const size_t> places,
                      const Nodes::View& view, uint64_t receipt_id);
  // Of limits with on_store_failure: split, while Redis is away.
  Outcome DecideLocal(Acquisition& acquisition, absl::Span<const size_t> places,
                      const Nodes::View& view);
  // Gives back what DecideSplit took.
  void GiveBackSplit(const Acquisition& acquisition, absl::Span<const size_t> places,
                     uint64_t receipt_id);
  bool QueryLocally(QueryItem& item);
  bool RefundLocally(RefundOperation* operation);
  algorithm::Moment LocalMoment() const;
  // Of a limit with sharing: relaxed. True: granted, and answered.
  bool TakeRelaxed(Caller& caller);
  void ReportRelaxed(RelaxedBuckets::Key& key);
  friend class PartlyLocal;

  Line& LineOf(const Acquisition& acquisition);
  std::shared_ptr<const RuleEntry> EntryOf(const Rule& rule);
  bool Away(const Line& line);
  void QueueLine(Line& line);
  // When there is room.
  void QueueAt(Endpoint* endpoint, Line& line, int64_t now_ns);
  void SendLine(Line& line, int64_t now_ns);
  void Forget(Line& line);
  void CheckDeadlines();
  void WatchDeadlines();
  void OnWatch();

  RedisStore& store_;
  net::EventLoop& loop_;
  const EndpointOptions endpoint_options_;
  ShardCounters counters_;
  const std::unique_ptr<Router> router_;

  bool ended_ = false;  // the loop is at its end
  ReceiptCloser closer_{*this};
  absl::flat_hash_map<absl::string_view, std::unique_ptr<Line>> lines_;  // by their own names
  // Kept for their memory.
  std::vector<std::unique_ptr<Line>> free_lines_;
  std::vector<std::unique_ptr<Job>> free_jobs_;
  std::vector<std::string> words_;
  std::vector<Line*> ready_lines_;
  absl::flat_hash_set<Command*> later_;
  OpenCache open_buckets_;
  RelaxedBuckets relaxed_;
  absl::flat_hash_map<uint32_t, std::weak_ptr<const RuleEntry>> entries_;
  size_t prune_entries_at_ = 1024;
  size_t waiting_ = 0;
  int64_t log_busy_from_ns_ = 0;
  int64_t next_deadline_ns_ = kNoDeadline;
  std::string line_name_;    // of LineOf, kept for its memory
  int64_t watch_at_ns_ = 0;  // when watch_ fires, if armed
  net::Timer watch_{net::Timer::To<&Shard::OnWatch>, this};

  common::Mutex mu_;
  Inbox inbox_ ABSL_GUARDED_BY(mu_);
};

}  // namespace sluice::store::redis

#endif  // SLUICE_SERVER_STORE_REDIS_SHARD_SHARD_H_
