// RenewCall: one Renew of up to bounds::kMaxRenewedReceipts receipts, each with its own outcome.
#ifndef SLUICE_SERVER_SERVICE_RENEW_CALL_H_
#define SLUICE_SERVER_SERVICE_RENEW_CALL_H_

#include <cstdint>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "common/bounds.h"
#include "server/access/caller.h"
#include "server/limits/limit_table.h"
#include "server/service/collaborators.h"
#include "server/service/receipt.h"
#include "server/store/store.h"

namespace sluice::service {

// Thread-compatible. The bytes of all receipts stay unchanged until the results were read.
class RenewCall {
 public:
  // As AcquireCall::DoneFn.
  using DoneFn = void (*)(void* context, RenewCall* call);

  // The outcome of one receipt.
  struct Result {
    // Not OK: it is not known whether its slots are held. INVALID_ARGUMENT: the receipt is not
    // valid. PERMISSION_DENIED: the caller may not use its limits. UNAVAILABLE.
    absl::Status status;
    bool renewed = false;  // false: gone
    int64_t held_for_ns = 0;
  };

  RenewCall() = default;
  RenewCall(const RenewCall&) = delete;
  RenewCall& operator=(const RenewCall&) = delete;

  void Reset();
  // The caller. Null: it may do everything. REQUIRES: after Reset, which forgets it.
  void UseCaller(access::CallerPtr caller) { caller_ = std::move(caller); }
  void AddReceipt(std::string_view receipt) {
    if (++added_ <= common::bounds::kMaxRenewedReceipts) receipts_.push_back(receipt);
  }

  // As AcquireCall's: DoneFn is called after each slice, and only the last has results.
  void DecideInSlices() { sliced_ = true; }
  bool more() const { return status_.ok() && (!again_.empty() || next_ < receipts_.size()); }
  size_t slice_cost() const { return slice_cost_; }

  // After completion. INVALID_ARGUMENT: no receipt, or too many. DEADLINE_EXCEEDED.
  const absl::Status& status() const { return status_; }
  // One for each receipt, in order. REQUIRES: status() is OK.
  size_t size() const { return receipts_.size(); }
  const Result& result(size_t i) const { return results_[i]; }

  // Bytes of memory, with that of former requests. Not while the store decides.
  size_t memory() const {
    return sizeof(*this) + receipts_.capacity() * sizeof(std::string_view) +
           results_.capacity() * sizeof(Result) + charges_.capacity() * sizeof(store::Charge) +
           asked_.capacity() * sizeof(Asked) + again_.capacity() * sizeof(size_t) +
           renewals_.capacity() * sizeof(store::Renewal) + error_bytes_;
  }
  // About the bytes that this request takes. Does not change while another thread answers it.
  size_t request_memory() const {
    return sizeof(*this) +
           receipts_.size() * (sizeof(std::string_view) + sizeof(Result) + sizeof(store::Charge) +
                               sizeof(Asked) + sizeof(size_t) + sizeof(store::Renewal));
  }

  // RateLimiter::Renew.
  void Start(const Collaborators& with, int64_t deadline_ns, DoneFn done, void* context);
  void Continue();

 private:
  struct Operation final : public store::RenewOperation {
    explicit Operation(RenewCall* call) : call(call) {}
    void Done() override { call->Decided(); }
    RenewCall* const call;
  };
  // A receipt of the slice that the store is asked about.
  struct Asked {
    size_t receipt = 0;
    size_t first_charge = 0;
    size_t charges = 0;
    uint64_t receipt_id = 0;
  };

  // Opens the next receipts, and asks the store about them.
  void DecideSlice();
  // Adds the receipt to the slice, unless its outcome is known already.
  void Open(size_t receipt);
  void SetError(size_t receipt, absl::Status error);
  void Ask();
  void Decided();

  std::vector<std::string_view> receipts_;
  std::vector<Result> results_;
  size_t error_bytes_ = 0;  // of the errors in results_
  access::CallerPtr caller_;
  size_t added_ = 0;  // receipts; those over the bound are not kept
  size_t next_ = 0;   // the first receipt that is in no slice yet
  // Receipts that the store left for the next slice, or whose limits changed meanwhile.
  std::vector<size_t> again_;
  bool sliced_ = false;
  size_t slice_cost_ = 0;
  absl::Status status_;

  // The slice.
  Receipt opened_;
  std::shared_ptr<const limits::LimitTable> table_;
  std::vector<store::Charge> charges_;
  std::vector<Asked> asked_;
  std::vector<store::Renewal> renewals_;  // of the last of asked_
  Operation operation_{this};
  size_t attempts_ = 0;

  // Of the Renew under way.
  const Collaborators* with_ = nullptr;
  DoneFn done_ = nullptr;
  void* context_ = nullptr;
};

}  // namespace sluice::service

#endif  // SLUICE_SERVER_SERVICE_RENEW_CALL_H_
