// Acquisitions and refunds whose buckets are in several slots of a Cluster, where no script sees
// all of them.
//
// The buckets of one slot are a group, decided by one script. The groups are taken one after the
// other, in an order that is the same for all callers; when one denies, what was taken is given
// back by its receipt. So nothing is granted that a single server would not grant, permits that may
// have been spent stay spent, and of two callers that want the last permits of the same buckets one
// gets them. But another caller may be denied by permits that are given back a moment later
// (docs/adr/0100).
//
// Groups with a limit's shared bucket come last. Callers are usually denied by a bucket of their
// own, and then nothing has to be given back to the bucket that all callers need.
#ifndef SLUICE_SERVER_STORE_REDIS_SHARD_CROSS_SLOT_H_
#define SLUICE_SERVER_STORE_REDIS_SHARD_CROSS_SLOT_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "server/store/redis/commands/command_context.h"
#include "server/store/redis/wire/rule_entry.h"
#include "server/store/store.h"

namespace sluice::store::redis {

class Shard;

// The charges of one slot.
struct ChargeGroup {
  uint16_t slot = 0;
  bool shared = false;         // has a limit's shared bucket
  std::vector<size_t> places;  // among the charges
  std::vector<Bucket> buckets;
};

// In the order in which they are taken. One: all are in the same slot.
std::vector<ChargeGroup> GroupsOf(CommandContext& context, absl::Span<const Charge> charges);

// The first charge that is not in the group of charge 0. REQUIRES: more than one group.
size_t OtherSlotCharge(absl::Span<const ChargeGroup> groups);

// REQUIRES: more than one group. Answers the caller, by its deadline if that comes first.
void StartCrossSlot(Shard& shard, std::vector<ChargeGroup> groups, const Caller& caller);
// Completes the operation.
void StartCrossSlot(Shard& shard, std::vector<ChargeGroup> groups, RefundOperation* operation);
// The same. kSeveralSlots if it had settle_within or names actuals: only slots are ended across
// slots of a Cluster.
void StartCrossSlot(Shard& shard, const std::vector<ChargeGroup>& groups,
                    SettleOperation* operation);

}  // namespace sluice::store::redis

#endif  // SLUICE_SERVER_STORE_REDIS_SHARD_CROSS_SLOT_H_
