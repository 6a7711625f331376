// ReceiptCloser: closes receipts that nobody will redeem, and gives nothing back: of acquisitions
// that had to be able to give back what they took (cross_slot.h) and were granted. They would push
// out receipts that somebody will redeem, and keep buckets from the quick script.
#ifndef SLUICE_SERVER_STORE_REDIS_SHARD_RECEIPT_CLOSER_H_
#define SLUICE_SERVER_STORE_REDIS_SHARD_RECEIPT_CLOSER_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/types/span.h"
#include "server/store/redis/wire/rule_entry.h"

namespace sluice::store::redis {

class Shard;

// Belongs to its shard's loop.
class ReceiptCloser {
 public:
  explicit ReceiptCloser(Shard& shard) : shard_(shard) {}

  // Of buckets of one slot. While some of theirs are being closed, more gather. One that is lost
  // on the way stays open, until it is worth nothing.
  void Close(absl::Span<const Bucket> buckets, uint64_t receipt_id);

 private:
  struct Line {
    std::vector<std::string> keys;
    std::vector<std::string> ids;
    bool in_flight = false;
  };

  void Send(const std::string& name);
  void OnAnswer(const std::string& name);

  Shard& shard_;
  absl::flat_hash_map<std::string, Line> lines_;  // by their keys
};

}  // namespace sluice::store::redis

#endif  // SLUICE_SERVER_STORE_REDIS_SHARD_RECEIPT_CLOSER_H_
