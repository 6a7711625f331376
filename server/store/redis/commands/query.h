// QueryCommand: the levels of buckets of one slot, and when permits of theirs fit. Changes nothing.
#ifndef SLUICE_SERVER_STORE_REDIS_COMMANDS_QUERY_H_
#define SLUICE_SERVER_STORE_REDIS_COMMANDS_QUERY_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/types/span.h"
#include "server/store/redis/commands/optimistic_command.h"
#include "server/store/store.h"

namespace sluice::store::redis {

struct QueriedBucket {
  BucketLevel level;
  bool exists = false;
  // Until the permits fit if no other caller takes any; kNeverNs: never.
  int64_t wait_ns = 0;
  // Bookings, and the time until the next one; 0: none.
  uint64_t bookings = 0;
  int64_t next_grant_after_ns = 0;
};

class QueryCommand final : public BucketOperation {
 public:
  // As many as buckets; none: Redis did not answer.
  using Done = absl::AnyInvocable<void(absl::Span<const QueriedBucket>)>;

  // `permits` of each bucket. Not sent after deadline_ns.
  QueryCommand(CommandContext& context, std::vector<Bucket> buckets, std::vector<uint64_t> permits,
               int64_t deadline_ns, Done done)
      : BucketOperation(context, std::move(buckets)),
        permits_(std::move(permits)),
        deadline_ns_(deadline_ns),
        done_(std::move(done)) {}

 private:
  bool BuildScript(const FencingToken& token, std::vector<std::string>* words) override;
  Handled OnScriptReply(const Reply& reply, int64_t floor_us) override;
  void Decide(absl::Span<OpenBucket> open, int64_t now_ns) override;
  bool Writes() const override { return false; }
  void OnDecided() override { done_(found_); }
  void OnUnavailable(bool) override { done_({}); }

  const std::vector<uint64_t> permits_;
  const int64_t deadline_ns_;
  Done done_;
  std::vector<QueriedBucket> found_;
};

}  // namespace sluice::store::redis

#endif  // SLUICE_SERVER_STORE_REDIS_COMMANDS_QUERY_H_
