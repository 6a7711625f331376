#include "server/store/redis/commands/query.h"

#include <algorithm>

#include "server/store/redis/scripts/scripts.h"
#include "server/store/redis/wire/number_codec.h"
#include "server/store/redis/wire/script_arguments.h"

namespace sluice::store::redis {

bool QueryCommand::BuildScript(const FencingToken& token, std::vector<std::string>* words) {
  // It may have waited for room.
  if (deadline_ns_ < context_.clock().NowNs()) {
    done_({});
    return false;
  }
  *words = ScriptWords(Script::kQuery, token);
  for (size_t i = 0; i < buckets_.size(); ++i) AppendCost(parameters_of(i), permits_[i], words);
  return true;
}

BucketOperation::Handled QueryCommand::OnScriptReply(const Reply& reply, int64_t floor_us) {
  ReplyNumbers numbers(reply);
  const int64_t now_ns = numbers.NextTime();
  found_.resize(buckets_.size());
  for (size_t i = 0; i < buckets_.size(); ++i) {
    found_[i].exists = numbers.Next() == 1;
    const BucketNumbers bucket = NextBucket(&numbers);
    found_[i].level = LevelOf(parameters_of(i), bucket, now_ns, floor_us);
    found_[i].wait_ns = WaitNs(parameters_of(i), permits_[i], bucket, now_ns, floor_us);
  }
  if (!numbers.Good()) return Handled::kMalformed;
  done_(found_);
  return Handled::kDone;
}

void QueryCommand::Decide(absl::Span<OpenBucket> open, int64_t now_ns) {
  found_.assign(open.size(), {});
  for (size_t i = 0; i < open.size(); ++i) {
    const int64_t earliest_ns = open[i].EarliestNs(permits_[i], now_ns, /*set=*/0, now_ns);
    QueriedBucket& found = found_[i];
    found.exists = open[i].exists();
    found.level = open[i].LevelAt(now_ns);
    found.wait_ns = earliest_ns == algorithm::kNeverNs ? earliest_ns : earliest_ns - now_ns;
    found.bookings = open[i].bookings();
    if (found.bookings != 0) {
      found.next_grant_after_ns = std::max<int64_t>(open[i].NextGrantTimeNs() - now_ns, 0);
    }
  }
}

}  // namespace sluice::store::redis
