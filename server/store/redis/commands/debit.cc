#include <algorithm>
#include <limits>
#include <utility>

#include "server/store/redis/commands/bucket_operation.h"
#include "server/store/redis/commands/operations.h"

namespace sluice::store::redis {
namespace {

class DebitCommand final : public BucketOperation {
 public:
  using Done = absl::AnyInvocable<void(const DebitResult&)>;

  DebitCommand(CommandContext& context, Bucket bucket, uint64_t permits, Done done)
      : BucketOperation(context, std::vector<Bucket>{std::move(bucket)}),
        permits_(permits),
        done_(std::move(done)) {}

 private:
  bool BuildScript(const FencingToken& token, std::vector<std::string>* words) override {
    *words = ScriptWords(Script::kDebit, token);
    AppendCost(parameters_of(0), permits_, words);
    return true;
  }

  Handled OnScriptReply(const Reply& reply, const FencingToken& token) override {
    ReplyNumbers numbers(reply);
    const int64_t now_ns = numbers.NextTime();
    const BucketNumbers after = NextBucket(&numbers);
    if (!numbers.Good()) return Handled::kMalformed;
    OnTaken(LevelOf(parameters_of(0), after, now_ns, FloorOf(token, 0)));
    done_(result_);
    return Handled::kDone;
  }

  // The script refused the bucket. Does the same; but of a bucket that got bookings before its
  // limit was given its sharing, takes what fits beside the bookings, which stand.
  void Decide(absl::Span<OpenBucket> open, int64_t now_ns) override {
    if (open[0].bookings() == 0) {
      constexpr uint64_t kAnyOwed = std::numeric_limits<uint64_t>::max();
      open[0].Force(permits_, kAnyOwed, now_ns, /*receipt_id=*/0);
      return OnTaken(open[0].LevelAt(now_ns));
    }
    result_.known = true;
    const int64_t holds = open[0].LevelAt(now_ns).remaining;
    uint64_t fits = holds <= 0 ? 0 : std::min(static_cast<uint64_t>(holds), permits_);
    if (fits > 0 && !open[0].CanTake(fits, now_ns, /*set=*/0)) fits = 0;
    if (fits > 0) open[0].Take(fits, now_ns, /*receipt_id=*/0, /*set=*/0);
    result_.over = permits_ - fits;
    result_.level = open[0].LevelAt(now_ns);
  }
  void OnDecided() override { done_(result_); }
  void OnUnavailable(bool) override { done_({}); }

  // All permits were taken, and left this level.
  void OnTaken(const BucketLevel& level) {
    result_.known = true;
    result_.level = level;
    const int64_t owed = -level.remaining - static_cast<int64_t>(algorithm::Debt(parameters_of(0)));
    result_.over = owed <= 0 ? 0 : std::min(static_cast<uint64_t>(owed), permits_);
  }

  const uint64_t permits_;
  Done done_;
  DebitResult result_;
};

}  // namespace

void StartDebit(CommandContext& context, std::shared_ptr<const RuleEntry> rule,
                std::string_view key, uint64_t permits, DebitCommand::Done done) {
  Bucket bucket = context.BucketOf(*rule->rule, key);
  // The limit may have been deleted meanwhile.
  bucket.rule = std::move(rule);
  BucketOperation::Start(
      std::make_unique<DebitCommand>(context, std::move(bucket), permits, std::move(done)));
}

}  // namespace sluice::store::redis
