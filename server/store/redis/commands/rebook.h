// Store::Rebook over Redis. Reservations that share no bucket are independent: they are rebooked in
// parts, each in one optimistic update (optimistic_command.h, store/rebook.h).
#ifndef SLUICE_SERVER_STORE_REDIS_COMMANDS_REBOOK_H_
#define SLUICE_SERVER_STORE_REDIS_COMMANDS_REBOOK_H_

#include "server/store/store.h"

namespace sluice::store::redis {

class CommandContext;

// Completes the operation. kUnsupported, and nothing is changed, if one part has more than
// kMaxRebookedBuckets. The items of a part that Redis does not answer stay kPending. A part with a
// bucket of a newer rule of this process leaves its items as they are (kGone): they are to be
// booked by that rule.
void StartRebook(CommandContext& context, RebookOperation* operation);

// One script reads all buckets of a part, which keeps Redis busy for some 2 ms.
inline constexpr size_t kMaxRebookedBuckets = 512;

}  // namespace sluice::store::redis

#endif  // SLUICE_SERVER_STORE_REDIS_COMMANDS_REBOOK_H_
