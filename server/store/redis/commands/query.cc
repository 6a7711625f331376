#include <algorithm>
#include <utility>

#include "server/store/redis/commands/bucket_operation.h"
#include "server/store/redis/commands/operations.h"

namespace sluice::store::redis {
namespace {

class QueryCommand final : public BucketOperation {
 public:
  using Done = absl::AnyInvocable<void(absl::Span<const QueriedBucket>)>;

  QueryCommand(CommandContext& context, std::vector<Bucket> buckets, std::vector<uint64_t> permits,
               int64_t deadline_ns, Done done)
      : BucketOperation(context, std::move(buckets)),
        permits_(std::move(permits)),
        deadline_ns_(deadline_ns),
        done_(std::move(done)) {}

 private:
  bool BuildScript(const FencingToken& token, std::vector<std::string>* words) override {
    // It may have waited for room.
    if (deadline_ns_ < context_.clock().NowNs()) {
      done_({});
      return false;
    }
    *words = ScriptWords(Script::kQuery, token);
    for (size_t i = 0; i < buckets_.size(); ++i) AppendCost(parameters_of(i), permits_[i], words);
    return true;
  }

  Handled OnScriptReply(const Reply& reply, const FencingToken& token) override {
    ReplyNumbers numbers(reply);
    const int64_t now_ns = numbers.NextTime();
    found_.resize(buckets_.size());
    for (size_t i = 0; i < buckets_.size(); ++i) {
      found_[i].exists = numbers.Next() == 1;
      const BucketNumbers bucket = NextBucket(&numbers);
      const int64_t floor_us = FloorOf(token, i);
      found_[i].level = LevelOf(parameters_of(i), bucket, now_ns, floor_us);
      found_[i].wait_ns = WaitNs(parameters_of(i), permits_[i], bucket, now_ns, floor_us);
      found_[i].refundable = NextRefundable(parameters_of(i), &numbers);
    }
    if (!numbers.Good()) return Handled::kMalformed;
    done_(found_);
    return Handled::kDone;
  }

  void Decide(absl::Span<OpenBucket> open, int64_t now_ns) override {
    found_.assign(open.size(), {});
    for (size_t i = 0; i < open.size(); ++i) {
      const int64_t earliest_ns = open[i].EarliestNs(permits_[i], now_ns, /*set=*/0, now_ns);
      QueriedBucket& found = found_[i];
      found.exists = open[i].exists();
      found.level = open[i].LevelAt(now_ns);
      found.refundable = open[i].RefundableAt(now_ns);
      found.wait_ns = earliest_ns == algorithm::kNeverNs ? earliest_ns : earliest_ns - now_ns;
      found.bookings = open[i].bookings();
      if (open[i].slots() != nullptr) {
        found.holds = open[i].slots()->HoldsAt(now_ns);
        if (found.holds != 0) {
          found.next_end_after_ns = open[i].slots()->NextEndNs(now_ns) - now_ns;
        }
      }
      if (found.bookings != 0) {
        found.next_grant_after_ns = std::max<int64_t>(open[i].NextGrantTimeNs() - now_ns, 0);
      }
    }
  }

  bool Writes() const override { return false; }
  void OnDecided() override { done_(found_); }
  void OnUnavailable(bool) override { done_({}); }

  const std::vector<uint64_t> permits_;
  const int64_t deadline_ns_;
  Done done_;
  std::vector<QueriedBucket> found_;
};

}  // namespace

void StartQuery(CommandContext& context, std::vector<Bucket> buckets, std::vector<uint64_t> permits,
                int64_t deadline_ns, QueryCommand::Done done) {
  BucketOperation::Start(std::make_unique<QueryCommand>(
      context, std::move(buckets), std::move(permits), deadline_ns, std::move(done)));
}

}  // namespace sluice::store::redis
