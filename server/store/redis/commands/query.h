#ifndef SLUICE_SERVER_STORE_REDIS_COMMANDS_QUERY_H_
#define SLUICE_SERVER_STORE_REDIS_COMMANDS_QUERY_H_

#include <array>
#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "server/store/redis/commands/script_command.h"
#include "server/store/redis/wire/rule_entry.h"
#include "server/store/store.h"

namespace sluice::store::redis {

// A query under way, and how many of its items are.
struct QueryJob {
  QueryOperation* operation;
  size_t open;
};

// One item of a query. The last one of its job completes the operation and deletes the job.
class QueryCommand final : public ScriptCommand {
 public:
  QueryCommand(Shard& shard, QueryJob* job, QueryItem* item);

 protected:
  absl::Span<const Bucket> buckets() const override { return bucket_; }
  bool BuildScript(const FencingToken& term, std::vector<std::string>* words) override;
  bool Handle(const Reply& reply) override;
  void AnswerUnavailable() override;
  bool Stale(size_t bucket, const std::shared_ptr<const RuleEntry>& newer) override;

  void DecideOpen(absl::Span<OpenBucket> open, int64_t now_ns) override;
  bool Writes() const override { return false; }
  void AnswerOpen() override { Answered(); }

 private:
  void Answered();

  QueryJob* const job_;
  QueryItem* const item_;
  std::array<Bucket, 1> bucket_;
};

}  // namespace sluice::store::redis

#endif  // SLUICE_SERVER_STORE_REDIS_COMMANDS_QUERY_H_
