// ReceiptUse: what was done with a receipt that is in no bucket any more. All nodes can know it for
// some time, and answer a second refund or settlement by it.
#ifndef SLUICE_SERVER_STORE_REDIS_COMMANDS_RECEIPT_USE_H_
#define SLUICE_SERVER_STORE_REDIS_COMMANDS_RECEIPT_USE_H_

#include <cstdint>

#include "absl/functional/any_invocable.h"
#include "server/store/redis/commands/command_context.h"

namespace sluice::store::redis {

enum class ReceiptUse : uint8_t {
  kNone = 0,  // or it is not known
  kRefunded,  // for 10 minutes
  kSettled,   // the slots of an acquisition without settle_within; for a minute
};

// `done` runs once Redis has answered, or does not answer.
void WriteReceiptUse(CommandContext& context, uint64_t receipt_id, ReceiptUse use,
                     absl::AnyInvocable<void()> done);
void ReadReceiptUse(CommandContext& context, uint64_t receipt_id,
                    absl::AnyInvocable<void(ReceiptUse)> done);

}  // namespace sluice::store::redis

#endif  // SLUICE_SERVER_STORE_REDIS_COMMANDS_RECEIPT_USE_H_
