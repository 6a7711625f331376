// RefundCall: one Refund by receipt. A receipt is redeemed once.
#ifndef SLUICE_SERVER_SERVICE_REFUND_CALL_H_
#define SLUICE_SERVER_SERVICE_REFUND_CALL_H_

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "server/access/caller.h"
#include "server/limits/limit_table.h"
#include "server/service/collaborators.h"
#include "server/service/connection_bookings.h"
#include "server/service/receipt.h"
#include "server/store/store.h"

namespace sluice::service {

// The permits given back to one bucket. Views belong to the call.
struct RefundedCharge {
  std::string_view limit;
  std::string_view key;
  uint64_t permits = 0;
};

// Thread-compatible. Copies the receipt.
class RefundCall {
 public:
  // As AcquireCall::DoneFn.
  using DoneFn = void (*)(void* context, RefundCall* call);

  RefundCall() = default;
  RefundCall(const RefundCall&) = delete;
  RefundCall& operator=(const RefundCall&) = delete;

  void Reset(std::string_view receipt);
  // As AcquireCall::UseConnection; Start copies it if the receipt is of a reservation.
  void UseConnection(ConnectionBookings* connection) { connection_ = connection; }

  // The caller. Null: it may do everything. REQUIRES: after Reset, which forgets it.
  void UseCaller(access::CallerPtr caller) { caller_ = std::move(caller); }
  // As AcquireCall's: DoneFn is called after each slice, and only the last has results.
  void DecideInSlices() { operation_.most_work = kSliceWork; }
  bool more() const { return operation_.undecided > 0; }
  size_t slice_cost() const { return operation_.work_in_decisions(); }

  // After completion. INVALID_ARGUMENT: the receipt was changed or cut, or was issued by another
  // server or before a restart. PERMISSION_DENIED: the caller may not use its limits.
  // DEADLINE_EXCEEDED, UNAVAILABLE.
  const absl::Status& status() const { return status_; }
  // REQUIRES: status() is OK. kRefunded, kAlreadyRefunded or kExpired.
  store::RefundOutcome outcome() const { return operation_.outcome; }
  // One for each bucket that was debited; all 0 unless kRefunded.
  size_t size() const { return decoded_.charges.size(); }
  RefundedCharge charge(size_t i) const {
    const ReceiptCharge& of = decoded_.charges[i];
    return {of.limit, of.key, refunded_[i]};
  }

  // Bytes of memory, with that of former requests.
  size_t memory() const {
    return sizeof(*this) + receipt_.capacity() + charges_.capacity() * sizeof(store::Charge) +
           decoded_.charges.capacity() * sizeof(ReceiptCharge) +
           place_.capacity() * sizeof(size_t) +
           (given_.capacity() + refunded_.capacity()) * sizeof(uint64_t);
  }
  // About the bytes that this request takes; a charge takes about as many in the receipt. Does not
  // change while another thread answers it.
  size_t request_memory() const { return sizeof(*this) + 4 * receipt_.size(); }

  // RateLimiter::Refund.
  void Start(const Collaborators& with, int64_t deadline_ns, DoneFn done, void* context);
  void Continue() { with_->store.Refund(&operation_); }

 private:
  struct Operation final : public store::RefundOperation {
    explicit Operation(RefundCall* call) : call(call) {}
    void Done() override { call->Decided(); }
    RefundCall* const call;
  };

  void Try();
  void Decided();
  void Finish() {
    bookings_.reset();
    done_(context_, this);
  }

  std::string receipt_;  // decoded_ has views into it
  Receipt decoded_;
  std::vector<store::Charge> charges_;  // those whose limits exist
  std::vector<size_t> place_;           // of each in the receipt
  std::vector<uint64_t> given_;         // of each
  std::vector<uint64_t> refunded_;      // of each charge of the receipt
  Operation operation_{this};
  std::shared_ptr<const limits::LimitTable> table_;
  access::CallerPtr caller_;
  absl::Status status_;
  size_t attempts_ = 0;

  ConnectionBookings* connection_ = nullptr;
  std::shared_ptr<ConnectionBookings> bookings_;  // null: there is no booking to remove

  // Of the Refund under way.
  const Collaborators* with_ = nullptr;
  DoneFn done_ = nullptr;
  void* context_ = nullptr;
};

}  // namespace sluice::service

#endif  // SLUICE_SERVER_SERVICE_REFUND_CALL_H_
