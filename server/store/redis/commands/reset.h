// ResetCommand: makes a bucket full. Bookings stand.
#ifndef SLUICE_SERVER_STORE_REDIS_COMMANDS_RESET_H_
#define SLUICE_SERVER_STORE_REDIS_COMMANDS_RESET_H_

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/types/span.h"
#include "server/store/redis/commands/optimistic_command.h"
#include "server/store/store.h"

namespace sluice::store::redis {

class ResetCommand final : public BucketOperation {
 public:
  using Done = absl::AnyInvocable<void(ResetOutcome)>;

  ResetCommand(CommandContext& context, Bucket bucket, Done done)
      : BucketOperation(context, std::vector<Bucket>{std::move(bucket)}), done_(std::move(done)) {}

 private:
  bool BuildScript(const FencingToken& token, std::vector<std::string>* words) override {
    const auto& keys = buckets_[0].keys;
    *words = {"EVALSHA", TextOf(Script::kReset).sha, "4", keys[0], keys[1],
              keys[2],   token.WordFor(buckets_[0])};
    return true;
  }
  Handled OnScriptReply(const Reply& reply, int64_t) override {
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

}  // namespace sluice::store::redis

#endif  // SLUICE_SERVER_STORE_REDIS_COMMANDS_RESET_H_
