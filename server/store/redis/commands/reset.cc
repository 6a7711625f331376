#include "server/store/redis/commands/reset.h"

#include <utility>

#include "server/store/redis/scripts/scripts.h"
#include "server/store/redis/shard/shard.h"

namespace sluice::store::redis {

ResetCommand::ResetCommand(Shard& shard, ResetCall call)
    : ScriptCommand(shard), call_(std::move(call)) {
  bucket_[0] = shard.BucketOf(*call_.rule->rule, call_.key);
}

bool ResetCommand::BuildScript(const FencingToken& term, std::vector<std::string>* words) {
  *words = {
      "EVALSHA",          TextOf(Script::kReset).sha, "4", bucket_[0].keys[0], bucket_[0].keys[1],
      bucket_[0].keys[2], term.WordFor(bucket_[0])};
  return true;
}

bool ResetCommand::Handle(const Reply& reply) {
  if (reply.type != Reply::Type::kInteger) return false;
  AnswerExisted(reply.integer == 1);
  return true;
}

bool ResetCommand::Stale(size_t, const std::shared_ptr<const RuleEntry>& newer) {
  bucket_[0].rule = newer;
  return true;
}

void ResetCommand::DecideOpen(absl::Span<OpenBucket> open, int64_t now_ns) {
  existed_ = open[0].exists();
  if (existed_) open[0].Reset(now_ns);
}

}  // namespace sluice::store::redis
