// Starts the operations on buckets of one slot, other than acquisitions (acquire.h). Each is
// executed by a command of its own (bucket_operation.h) and then answered. Each function is in
// the file of its name; StartHolds is in renew.cc.
#ifndef SLUICE_SERVER_STORE_REDIS_COMMANDS_OPERATIONS_H_
#define SLUICE_SERVER_STORE_REDIS_COMMANDS_OPERATIONS_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/types/span.h"
#include "server/store/redis/commands/command_context.h"
#include "server/store/redis/wire/rule_entry.h"
#include "server/store/store.h"

namespace sluice::store::redis {

// ---- Query: changes nothing ----

struct QueriedBucket {
  BucketLevel level;
  bool exists = false;
  // Until the permits fit if no other caller takes any; kNeverNs: never.
  int64_t wait_ns = 0;
  // Bookings, and the time until the next one; 0: none.
  uint64_t bookings = 0;
  int64_t next_grant_after_ns = 0;
  algorithm::Refundable refundable;
  // As QueryItem's.
  uint64_t holds = 0;
  int64_t next_end_after_ns = 0;
};

// `permits` of each bucket. Not sent after deadline_ns. `done` gets as many as buckets; none: Redis
// did not answer.
void StartQuery(CommandContext& context, std::vector<Bucket> buckets, std::vector<uint64_t> permits,
                int64_t deadline_ns,
                absl::AnyInvocable<void(absl::Span<const QueriedBucket>)> done);

// ---- Refund: gives back, by its receipt, what an acquisition took ----

// `buckets`: of the operation's charges. `remembered`: a second refund of the receipt is answered
// kAlreadyRefunded.
void StartRefund(CommandContext& context, RefundOperation* operation, std::vector<Bucket> buckets,
                 bool remembered = true);

// Some charges of a refund, refunded by themselves. Deletes itself when it is done.
class RefundPart final : public RefundOperation {
 public:
  // `done` gets the part's outcome, after the permits that it gave back were written to `whole`.
  RefundPart(RefundOperation& whole, std::vector<size_t> places,
             absl::AnyInvocable<void(RefundOutcome)> done)
      : whole_(whole),
        places_(std::move(places)),
        permits_(places_.size()),
        done_(std::move(done)) {
    for (const size_t place : places_) charges_.push_back(whole.charges[place]);
    receipt_id = whole.receipt_id;
    grant_time_ns = whole.grant_time_ns;
    deadline_ns = whole.deadline_ns;
    charges = charges_;
    refunded = permits_.data();
  }
  void Done() override {
    const std::unique_ptr<RefundPart> self(this);
    for (size_t i = 0; i < places_.size(); ++i) whole_.refunded[places_[i]] = permits_[i];
    done_(outcome);
  }

 private:
  RefundOperation& whole_;
  const std::vector<size_t> places_;
  std::vector<Charge> charges_;
  std::vector<uint64_t> permits_;
  absl::AnyInvocable<void(RefundOutcome)> done_;
};

// ---- Settle: says how many permits the work of an acquisition took, and ends its slots ----

// `closes_rates`: the charges are rates of an acquisition whose slots are elsewhere in the Cluster,
// and can no longer be refunded.
void StartSettle(CommandContext& context, SettleOperation* operation, bool closes_rates = false);

// ---- Renew: holds slots for longer; and the holds of a bucket ----

// Renewals of the same buckets one after the other are one command. Those of several slots of a
// Cluster are renewed slot by slot.
void StartRenew(CommandContext& context, RenewOperation* operation);

void StartHolds(CommandContext& context, HoldsOperation* operation);

// ---- Move: moves a booking up to the earliest moment at which it fits ----

void StartMove(CommandContext& context, MoveOperation* operation);

// ---- Rebook ----

// One script reads all buckets of a part, which keeps Redis busy for some 2 ms.
inline constexpr size_t kMaxRebookedBuckets = 512;

// Reservations that share no bucket are independent: they are rebooked in parts, each in one
// optimistic update (store/rebook.h). kUnsupported, and nothing is changed, if one part has more
// than kMaxRebookedBuckets. The items of a part that Redis does not answer stay kPending. A part
// with a bucket of a newer rule of this process leaves its items as they are (kGone): they are to
// be booked by that rule.
void StartRebook(CommandContext& context, RebookOperation* operation);

// ---- Reset: makes a bucket full. Bookings stand ----

void StartReset(CommandContext& context, Bucket bucket,
                absl::AnyInvocable<void(ResetOutcome)> done);

// ---- Debit: takes what a node granted without Redis, whether or not it fits ----

struct DebitResult {
  // It was executed. False: it may have been, or not.
  bool known = false;
  // Permits that the bucket did not hold.
  uint64_t over = 0;
  BucketLevel level;  // afterwards
};

void StartDebit(CommandContext& context, std::shared_ptr<const RuleEntry> rule,
                std::string_view key, uint64_t permits,
                absl::AnyInvocable<void(const DebitResult&)> done);

}  // namespace sluice::store::redis

#endif  // SLUICE_SERVER_STORE_REDIS_COMMANDS_OPERATIONS_H_
