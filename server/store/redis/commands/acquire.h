// AcquireCommand: the callers of one line, decided by one script in their order.
#ifndef SLUICE_SERVER_STORE_REDIS_COMMANDS_ACQUIRE_H_
#define SLUICE_SERVER_STORE_REDIS_COMMANDS_ACQUIRE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "server/store/redis/commands/script_command.h"
#include "server/store/redis/shard/batch_queue.h"

namespace sluice::store::redis {

// A line has at most one in flight; when it is done it tells the shard (LineDone).
class AcquireCommand final : public ScriptCommand {
 public:
  AcquireCommand(Shard& shard, Line& line, std::vector<Caller> callers);

  // Moves those whose deadline has passed (on the store's clock) to `late`, and lowers *next_ns to
  // the earliest of the others'.
  void CollectLate(int64_t now_ns, std::vector<Caller>* late, int64_t* next_ns);

 protected:
  absl::Span<const Bucket> buckets() const override { return line_.buckets; }
  bool BuildScript(const FencingToken& term, std::vector<std::string>* words) override;
  bool Handle(const Reply& reply) override;
  bool MismatchOfUnknown() override;
  bool Stale(size_t bucket, const std::shared_ptr<const RuleEntry>& newer) override;
  void AnswerUnavailable() override;
  void Finish() override;
  bool StillWaits() override;
  void DecideOpen(absl::Span<OpenBucket> open, int64_t now_ns) override;
  void AnswerOpen() override;
  void AnswerContended() override;

 private:
  struct RunOfCallers {
    uint64_t permits;
    bool waits;  // who does not fit would wait: then nobody behind is decided by the script
    size_t callers;
  };

  void BuildRuns(const FencingToken& term, std::vector<std::string>* words);
  bool HandleRuns(const Reply& reply);
  void BuildGeneral(const FencingToken& term, std::vector<std::string>* words);
  bool HandleGeneral(const Reply& reply);

  Line& line_;
  std::vector<Caller> callers_;
  bool general_ = false;            // by the script for all kinds
  std::vector<RunOfCallers> runs_;  // as they were sent
  std::vector<uint64_t> ids_;       // receipts, as they were sent
  std::vector<Outcome> outcomes_;   // as decided here
};

}  // namespace sluice::store::redis

#endif  // SLUICE_SERVER_STORE_REDIS_COMMANDS_ACQUIRE_H_
