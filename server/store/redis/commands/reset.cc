#include <utility>

#include "server/store/redis/commands/bucket_operation.h"
#include "server/store/redis/commands/operations.h"

namespace sluice::store::redis {
namespace {

class ResetCommand final : public BucketOperation {
 public:
  using Done = absl::AnyInvocable<void(ResetOutcome)>;

  ResetCommand(CommandContext& context, Bucket bucket, Done done)
      : BucketOperation(context, std::vector<Bucket>{std::move(bucket)}), done_(std::move(done)) {}

 private:
  bool BuildScript(const FencingToken& token, std::vector<std::string>* words) override {
    *words = KeyWords(Script::kReset, token);
    return true;
  }
  Handled OnScriptReply(const Reply& reply, const FencingToken&) override {
    if (reply.type != Reply::Type::kInteger) return Handled::kMalformed;
    existed_ = reply.integer == 1;
    OnDecided();
    return Handled::kDone;
  }
  void Decide(absl::Span<OpenBucket> open, int64_t now_ns) override {
    existed_ = open[0].exists();
    if (existed_) open[0].Reset(now_ns);
  }
  void OnDecided() override { done_(existed_ ? ResetOutcome::kReset : ResetOutcome::kNotInUse); }
  void OnUnavailable(bool may_be_executed) override {
    done_(may_be_executed ? ResetOutcome::kUnknown : ResetOutcome::kUnavailable);
  }

  Done done_;
  bool existed_ = false;
};

}  // namespace

void StartReset(CommandContext& context, Bucket bucket, ResetCommand::Done done) {
  BucketOperation::Start(
      std::make_unique<ResetCommand>(context, std::move(bucket), std::move(done)));
}

}  // namespace sluice::store::redis
