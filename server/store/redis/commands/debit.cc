#include "server/store/redis/commands/debit.h"

#include <algorithm>
#include <utility>

#include "server/store/redis/scripts/scripts.h"
#include "server/store/redis/shard/shard.h"
#include "server/store/redis/wire/reply_numbers.h"
#include "server/store/redis/wire/stored_bucket.h"

namespace sluice::store::redis {

ReportCommand::ReportCommand(Shard& shard, ReportCall call)
    : ScriptCommand(shard), call_(std::move(call)) {
  bucket_[0] = shard.BucketOf(*call_.rule->rule, call_.key);
  // Its limit may be gone from the table meanwhile.
  bucket_[0].rule = call_.rule;
  if (KnownAsBooked()) DecideHere();
}

bool ReportCommand::BuildScript(const FencingToken& term, std::vector<std::string>* words) {
  *words = shard_.ScriptWords(Script::kReport, bucket_, term);
  AppendCost(bucket_[0].rule->rule->parameters, call_.permits, words);
  return true;
}

bool ReportCommand::Handle(const Reply& reply) {
  ReplyNumbers numbers(reply);
  const int64_t now_ns = numbers.NextTime();
  const Report report = numbers.NextReport();
  if (!numbers.Good()) return false;
  const algorithm::Parameters& parameters = bucket_[0].rule->rule->parameters;
  reported_.known = true;
  reported_.level = LevelOf(parameters, report, now_ns, floor_us());
  int64_t owed = -reported_.level.remaining;
  if (parameters.kind == algorithm::Kind::kTokenBucket) {
    owed -= static_cast<int64_t>(parameters.token_bucket.debt);
  } else {
    owed = report[0] - static_cast<int64_t>(algorithm::Capacity(parameters));
  }
  reported_.over = owed <= 0 ? 0 : std::min(static_cast<uint64_t>(owed), call_.permits);
  call_.done(reported_);
  return true;
}

// It was granted by parameters that do not hold any more.
bool ReportCommand::Stale(size_t, const std::shared_ptr<const RuleEntry>& newer) {
  bucket_[0].rule = newer;
  return true;
}

// A bucket that was booked in before its limit was given its sharing: what fits beside the bookings
// is taken; they stand.
void ReportCommand::DecideOpen(absl::Span<OpenBucket> open, int64_t now_ns) {
  reported_.known = true;
  const int64_t holds = open[0].LevelAt(now_ns).remaining;
  uint64_t fits = holds <= 0 ? 0 : std::min(static_cast<uint64_t>(holds), call_.permits);
  if (fits > 0 && !open[0].CanTake(fits, now_ns, /*set=*/0)) fits = 0;
  if (fits > 0) open[0].Take(fits, now_ns, /*receipt_id=*/0, /*set=*/0);
  reported_.over = call_.permits - fits;
  reported_.level = open[0].LevelAt(now_ns);
}

}  // namespace sluice::store::redis
