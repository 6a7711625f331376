// PendingOperation: an operation on the reservation of one held caller that the store may answer
// later, from another thread, after the caller has left. RuleSource: the current parameters of the
// limits that callers wait for.
#ifndef SLUICE_SERVER_WAITING_PENDING_OPERATION_H_
#define SLUICE_SERVER_WAITING_PENDING_OPERATION_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "server/store/store.h"
#include "server/waiting/held_caller.h"

namespace sluice::waiting {

class HeldCallers;

// What Refresh did to the charges.
enum class Refreshed : uint8_t {
  kSame = 0,
  kChanged,
  // At least one limit was deleted. Its charges keep their rules; the others have current ones.
  kGone,
};

// Thread-safe. Never blocks.
class RuleSource {
 public:
  virtual ~RuleSource() = default;

  // The generation of the current snapshot of limits; grows with each change. The owner calls
  // HeldCallers::LimitsChanged after each change.
  virtual uint64_t Generation() = 0;

  // Replaces the rules of `charges` by the current ones. `*keep` owns the old rules. Unless the
  // result is kSame, it is replaced by the owner of the rules that `charges` have afterwards.
  virtual Refreshed Refresh(absl::Span<store::Charge> charges,
                            std::shared_ptr<const void>* keep) = 0;
};

// Has a copy of everything that the store reads. HeldCallers creates and deletes it, and guards its
// public members by its mutex; the store owns them while an operation is under way.
class PendingOperation {
 public:
  enum class Purpose : uint8_t { kRefund, kMove, kRebook, kSlots };

  // The store's answers go to `owner`, on any thread, maybe within the call that started the
  // operation.
  PendingOperation(HeldCallers& owner, HeldCaller& of, Purpose why);
  PendingOperation(const PendingOperation&) = delete;
  PendingOperation& operator=(const PendingOperation&) = delete;

  const std::shared_ptr<const void>& rules() const { return rules_; }
  // Sets the rules of the charges, which are of the same buckets.
  void SetRules(absl::Span<const store::Charge> from, std::shared_ptr<const void> keep);

  // Bytes of memory, with what the store needs.
  size_t memory() const {
    return sizeof(*this) + keys_.capacity() +
           charges.capacity() * (sizeof(store::Charge) + sizeof(uint64_t)) +
           next.capacity() * sizeof(store::QueuePlace::Next);
  }

  // Each of these starts an operation. Refund and Reserve retry with current rules if limits
  // change meanwhile. After `most_work` (store::Operation) the store may leave a refund undecided;
  // Refund then goes on with it.
  void Refund(int64_t most_work);
  void Move();
  void Reserve(int64_t max_wait_ns);

  // The store's answers.
  store::RefundOutcome refund_outcome() const { return refunding_.outcome; }
  store::MoveOutcome move_outcome() const { return moving_.outcome; }
  int64_t moved_to_ns() const { return moving_.grant_time_ns; }
  const store::Acquisition& reserved() const { return reserved_; }

  Purpose purpose;
  HeldCaller* caller;         // null: already answered
  bool refund_after = false;  // the caller left early: refund when this operation is done
  bool again = false;         // of a move, or for slots: try again when it is answered
  size_t number = 0;          // of a rebooking: index in the LimitChange
  uint64_t receipt_id;
  int64_t grant_time_ns;
  int64_t until_ns;
  int64_t settle_within_ns;            // not 0: it is an estimate
  std::vector<store::Charge> charges;  // their keys are views of keys_
  std::vector<store::ChargeResult> results;
  // Of a caller in line, in a shared store; node 0: none.
  store::QueuePlace place;
  std::vector<store::QueuePlace::Next> next;  // of place

 private:
  // The store's operation, as a part of this.
  template <typename StoreOperation>
  struct Part final : StoreOperation {
    explicit Part(PendingOperation& of) : operation(of) {}
    void Done() override { operation.Answered(*this); }
    PendingOperation& operation;
  };
  void Answered(const store::RefundOperation& refunding);
  void Answered(const store::MoveOperation& moving);
  void Answered(const store::AcquireOperation& reserving);

  // Returns whether to repeat the operation, with current rules. `stale`: the store refused the old
  // ones.
  bool RetryWithCurrentRules(bool stale);

  HeldCallers& owner_;
  std::string keys_;
  std::shared_ptr<const void> rules_;  // owns the rules of the charges
  int retries_ = 0;
  std::vector<uint64_t> refunded_;
  store::Acquisition reserved_;
  Part<store::RefundOperation> refunding_{*this};
  Part<store::MoveOperation> moving_{*this};
  Part<store::AcquireOperation> reserving_{*this};
};

}  // namespace sluice::waiting

#endif  // SLUICE_SERVER_WAITING_PENDING_OPERATION_H_
