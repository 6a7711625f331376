#include "server/store/redis/commands/query.h"

#include <algorithm>

#include "server/store/redis/scripts/scripts.h"
#include "server/store/redis/shard/shard.h"
#include "server/store/redis/wire/reply_numbers.h"
#include "server/store/redis/wire/stored_bucket.h"

namespace sluice::store::redis {

QueryCommand::QueryCommand(Shard& shard, QueryJob* job, QueryItem* item)
    : ScriptCommand(shard), job_(job), item_(item) {
  bucket_[0] = shard.BucketOf(*item->rule, item->key);
  if (KnownAsBooked()) DecideHere();
}

bool QueryCommand::BuildScript(const FencingToken& term, std::vector<std::string>* words) {
  // It may have waited for room.
  if (job_->operation->deadline_ns < shard_.NowNs()) {
    Abandon();
    return false;
  }
  *words = shard_.ScriptWords(Script::kQuery, bucket_, term);
  AppendCost(bucket_[0].rule->rule->parameters, 1, words);
  return true;
}

bool QueryCommand::Handle(const Reply& reply) {
  ReplyNumbers numbers(reply);
  const int64_t now_ns = numbers.NextTime();
  const bool exists = numbers.Next() == 1;
  const Report report = numbers.NextReport();
  if (!numbers.Good()) return false;
  item_->exists = exists;
  item_->level = LevelOf(bucket_[0].rule->rule->parameters, report, now_ns, floor_us());
  Answered();
  return true;
}

void QueryCommand::DecideOpen(absl::Span<OpenBucket> open, int64_t now_ns) {
  const OpenBucket& bucket = open[0];
  item_->exists = bucket.exists();
  item_->level = bucket.LevelAt(now_ns);
  item_->waiting = bucket.bookings();
  if (item_->waiting != 0) {
    item_->next_grant_after_ns = std::max<int64_t>(bucket.NextGrantTimeNs() - now_ns, 0);
  }
}

void QueryCommand::AnswerUnavailable() {
  item_->unavailable = true;
  item_->source = Source::kStoreUnavailable;
  Answered();
}

// The newer parameters are the ones that hold.
bool QueryCommand::Stale(size_t, const std::shared_ptr<const RuleEntry>& newer) {
  bucket_[0].rule = newer;
  return true;
}

void QueryCommand::Answered() {
  if (--job_->open != 0) return;
  QueryOperation* const operation = job_->operation;
  delete job_;
  operation->Done();
}

}  // namespace sluice::store::redis
