// LimitChange: the held callers whose limits changed, while the store books them again under the
// new parameters.
#ifndef SLUICE_SERVER_WAITING_LIMIT_CHANGE_H_
#define SLUICE_SERVER_WAITING_LIMIT_CHANGE_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/types/span.h"
#include "common/random.h"
#include "server/store/bucket_hash.h"
#include "server/store/store.h"
#include "server/waiting/pending_operation.h"

namespace sluice::waiting {

// Hashes of a bucket and of a set of buckets, which stand for them: callers of buckets that collide
// stand in one line and are moved together. So the seed is random: peers choose the keys, and must
// not know which of them collide.
inline uint64_t BucketId(const store::Charge& charge) {
  static const store::BucketHash hash(common::RandomWord());
  return hash(charge.rule->limit_id, charge.key);
}

// Independent of the order of the charges.
inline uint64_t BucketSetId(absl::Span<const store::Charge> charges) {
  uint64_t set = 0;
  for (const store::Charge& charge : charges) set += BucketId(charge);
  return set;
}

// A store that supports Rebook does all of it in one step. For any other store HeldCallers refunds
// every reservation, and then reserves again: sets of buckets in parallel, the callers of one set
// one after the other, in the order of their arrival.
//
// Guarded by the mutex of HeldCallers, except the parts that a running operation uses.
class LimitChange final : public store::RebookOperation {
 public:
  enum class Step : uint8_t { kRebook, kRefund, kReserve };

  explicit LimitChange(HeldCallers& owner) : owner_(owner) {}

  void Done() override;

  void Add(PendingOperation* operation) { operations_.push_back(operation); }
  // Prepares the rebooking in one step. Call it after the last Add.
  void Prepare();

  Step step() const { return step_; }
  // In the order of arrival, after Prepare.
  const std::vector<PendingOperation*>& operations() const { return operations_; }
  const store::Rebooking& rebooking(size_t i) const { return rebookings_[i]; }

  // The store does not support Rebook: starts with the refunds.
  void RefundAll() { step_ = Step::kRefund; }
  // The store did not answer: the outcome of each reservation is unknown.
  void SetAllUnknown();

  // The next operation to refund or to reserve, as step() says; null: none can be started now.
  PendingOperation* Next(size_t max_pending);
  void OnRefunded(PendingOperation* operation);
  void OnReserved(PendingOperation* operation);
  bool all_reserved() const { return step_ == Step::kReserve && left_ == 0; }

  // True while a thread starts operations; other threads leave that to it.
  bool pumping = false;

 private:
  store::Rebooking& RebookingOf(const PendingOperation& operation) {
    return rebookings_[operation.number];
  }

  HeldCallers& owner_;
  std::vector<PendingOperation*> operations_;
  std::vector<store::Rebooking> rebookings_;  // one for each operation
  Step step_ = Step::kRebook;
  size_t next_refund_ = 0;
  size_t pending_ = 0;  // operations under way
  size_t left_ = 0;     // operations that this step has not finished
  // The callers of each set of buckets that are not reserved yet.
  absl::flat_hash_map<uint64_t, std::deque<PendingOperation*>> sets_;
  std::deque<uint64_t> ready_;  // sets without an operation under way
};

}  // namespace sluice::waiting

#endif  // SLUICE_SERVER_WAITING_LIMIT_CHANGE_H_
