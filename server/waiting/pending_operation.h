// PendingOperation: an operation on the store for one who waits, or waited: it may be answered
// later, from another thread, when its caller is long gone. So it has a copy of all that the store
// looks at.
#ifndef SLUICE_SERVER_WAITING_PENDING_OPERATION_H_
#define SLUICE_SERVER_WAITING_PENDING_OPERATION_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "server/store/store.h"
#include "server/waiting/held_callers.h"

namespace sluice::waiting {

// Made and ended by the line, for one caller. What is not constant is
// guarded by the line's mutex while no operation is under way, and the operation's otherwise.
class PendingOperation {
 public:
  PendingOperation(HeldCallers& line, HeldCaller& of)
      : line_(line),
        caller(&of),
        receipt_id(of.acquisition->receipt_id),
        grant_time_ns(of.grant_time_ns()),
        until_ns(of.until_ns) {
    const absl::Span<const store::Charge> from = of.acquisition->charges;
    size_t key_bytes = 0;
    for (const store::Charge& charge : from) key_bytes += charge.key.size();
    keys_.reserve(key_bytes);
    charges.assign(from.begin(), from.end());
    for (store::Charge& charge : charges) {
      const size_t at = keys_.size();
      keys_ += charge.key;
      charge.key = std::string_view(keys_).substr(at, charge.key.size());
    }
    rules_ = of.rules;
  }

  // Charges by the limits of now, as far as they still exist.
  Refreshed Refresh() { return line_.rules_.Refresh(absl::MakeSpan(charges), &rules_); }
  const std::shared_ptr<const void>& rules() const { return rules_; }
  // As many charges, of the same buckets.
  void SetRules(absl::Span<const store::Charge> of, std::shared_ptr<const void> keep) {
    for (size_t i = 0; i < charges.size(); ++i) charges[i].rule = of[i].rule;
    rules_ = std::move(keep);
  }

  // Each starts an operation. Its end is told to the line, maybe before this returns.
  void GiveBack() {
    refunded_.resize(charges.size());
    refunding_.receipt_id = receipt_id;
    refunding_.grant_time_ns = grant_time_ns;
    refunding_.charges = charges;
    refunding_.refunded = refunded_.data();
    refunding_.outcome = store::RefundOutcome::kPending;
    line_.store_.Refund(&refunding_);
  }
  void Move() {
    moving_.receipt_id = receipt_id;
    moving_.charges = charges;
    moving_.grant_time_ns = grant_time_ns;
    line_.store_.Move(&moving_);
  }
  void Reserve(int64_t max_wait_ns) {
    results.resize(charges.size());
    reserved = {};
    reserved.charges = charges;
    reserved.results = results.data();
    reserved.max_wait_ns = max_wait_ns;
    reserved.want_receipt = true;
    reserving_.acquisitions = absl::MakeSpan(&reserved, 1);
    line_.store_.Acquire(&reserving_);
  }

 private:
  struct Refunding final : store::RefundOperation {
    explicit Refunding(PendingOperation& of) : errand(of) {}
    void Done() override { errand.line_.GaveBack(&errand); }
    PendingOperation& errand;
  };
  struct Moving final : store::MoveOperation {
    explicit Moving(PendingOperation& of) : errand(of) {}
    void Done() override { errand.line_.Moved(&errand); }
    PendingOperation& errand;
  };
  struct Reserving final : store::AcquireOperation {
    explicit Reserving(PendingOperation& of) : errand(of) {}
    void Done() override { errand.line_.Reserved(&errand); }
    PendingOperation& errand;
  };

  HeldCallers& line_;
  std::string keys_;
  std::shared_ptr<const void> rules_;
  std::vector<uint64_t> refunded_;
  Refunding refunding_{*this};
  Moving moving_{*this};
  Reserving reserving_{*this};

 public:
  // Null: it was answered meanwhile.
  HeldCaller* caller;
  // It was answered without its moment having come: what it has is to be given back.
  bool give_back = false;
  // Its limits change: see Change.
  bool changes = false;
  // Of a move: to be tried once more if it stays.
  bool again = false;
  size_t number = 0;  // in the change
  int attempts = 0;

  uint64_t receipt_id;
  int64_t grant_time_ns;
  int64_t until_ns;
  std::vector<store::Charge> charges;  // with views into keys_

  // What the operations answered.
  store::RefundOutcome refund_outcome() const { return refunding_.outcome; }
  store::MoveOutcome move_outcome() const { return moving_.outcome; }
  int64_t moved_to_ns() const { return moving_.grant_time_ns; }
  store::Acquisition reserved;
  std::vector<store::ChargeResult> results;
};

}  // namespace sluice::waiting

#endif  // SLUICE_SERVER_WAITING_PENDING_OPERATION_H_
