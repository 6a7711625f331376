// ReceiptCloser: closes receipts that will not be refunded, and gives nothing back. Acquisitions
// over several slots need receipts until they are granted (cross_slot.h). If these stayed open they
// would push out receipts of callers, and keep buckets from the fast script.
#ifndef SLUICE_SERVER_STORE_REDIS_SHARD_RECEIPT_CLOSER_H_
#define SLUICE_SERVER_STORE_REDIS_SHARD_RECEIPT_CLOSER_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/functional/any_invocable.h"
#include "absl/types/span.h"
#include "server/store/redis/wire/rule_entry.h"

namespace sluice::store::redis {

class CommandContext;

// Belongs to its shard's loop.
class ReceiptCloser {
 public:
  explicit ReceiptCloser(CommandContext& context) : context_(context) {}

  using Done = absl::AnyInvocable<void()>;

  // Buckets of one slot. Receipts gather while a command for the same buckets is in flight. A
  // receipt whose command is lost stays open until it is worthless, and so does one of a bucket
  // with bookings. `done` runs once Redis has answered, or does not answer.
  void Close(absl::Span<const Bucket> buckets, uint64_t receipt_id, Done done = [] {});

 private:
  struct Receipt {
    uint64_t id;
    Done done;
  };
  struct Queue {
    std::vector<std::string> keys;
    std::vector<Receipt> receipts;
    bool in_flight = false;
  };

  void Send(const std::string& name);
  void OnAnswer(const std::string& name);

  CommandContext& context_;
  absl::flat_hash_map<std::string, Queue> queues_;  // by their keys
};

}  // namespace sluice::store::redis

#endif  // SLUICE_SERVER_STORE_REDIS_SHARD_RECEIPT_CLOSER_H_
