// SettleCall: one Settle or SettleBatch. Its settlements are carried out one after the other.
//
//   call->Reset(SettleCall::Form::kUnary);
//   call->BeginSettlement();
//   call->SetReceipt(receipt);                       // views into the transport's own buffer
//   call->AddActual("tokens", "user:42", 813);
//   limiter->Settle(call, deadline_ns, &OnDone, context);
//   ... in OnDone: call->status(), call->result(0) ...
#ifndef SLUICE_SERVER_SERVICE_SETTLE_CALL_H_
#define SLUICE_SERVER_SERVICE_SETTLE_CALL_H_

#include <atomic>
#include <cstddef>
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
#include "server/service/validation.h"
#include "server/store/store.h"

namespace sluice::service {

// What all settlements of an acquisition changed in one bucket. Views belong to the call's receipt.
struct SettledCharge {
  std::string_view limit;
  std::string_view key;
  store::SettledPermits permits;
};

// Thread-compatible. The bytes of all views stay unchanged until the results were read.
class SettleCall {
 public:
  // As AcquireCall's.
  enum class Form : uint8_t { kUnary, kBatch };
  using DoneFn = void (*)(void* context, SettleCall* call);

  struct Result {
    // Not OK: the settlement failed, and changed nothing unless it is UNAVAILABLE.
    absl::Status status;
    // kSettled, kAlreadySettled, kLate or kUnknown.
    store::SettleOutcome outcome = store::SettleOutcome::kPending;
    // In charge().
    size_t first_charge = 0;
    size_t charges = 0;
  };

  SettleCall() = default;
  SettleCall(const SettleCall&) = delete;
  SettleCall& operator=(const SettleCall&) = delete;

  void Reset(Form form);
  // The caller. Null: it may do everything. REQUIRES: after Reset, which forgets it.
  void UseCaller(access::CallerPtr caller) { caller_ = std::move(caller); }
  // Starts the next settlement; the other functions add to it.
  void BeginSettlement();
  void SetReceipt(std::string_view receipt) {
    if (begun_ <= common::bounds::kMaxBatch) items_.back().receipt = receipt;
  }
  void SetMore(bool more) {
    if (begun_ <= common::bounds::kMaxBatch) items_.back().more = more;
  }
  void AddActual(std::string_view limit, std::string_view key, uint64_t permits);
  // Settlements begun, also those over the bound.
  size_t begun() const { return begun_; }

  // As AcquireCall's. A slice has the results of [first, end). A store that answers later ends no
  // slice by that.
  void DecideInSlices() { sliced_ = true; }
  bool more() const { return next_ < items_.size() && status_.ok(); }
  size_t slice_cost() const { return slice_cost_; }
  size_t first() const { return first_; }
  size_t end() const { return next_; }

  // After completion: why the call as a whole failed.
  const absl::Status& status() const { return status_; }
  size_t size() const { return items_.size(); }
  const Result& result(size_t i) const { return items_[i].result; }
  const SettledCharge& charge(size_t i) const { return charges_[i]; }

  // Bytes of memory, with that of former requests. Not while the store decides.
  size_t memory() const {
    return sizeof(*this) + items_.capacity() * sizeof(Item) + actuals_.capacity() * sizeof(Actual) +
           charges_.capacity() * sizeof(SettledCharge) + error_bytes_;
  }
  // About the bytes that this request takes. Does not change while another thread answers it.
  size_t request_memory() const {
    return sizeof(*this) + items_.size() * (sizeof(Item) + sizeof(SettledCharge)) +
           actuals_.size() * sizeof(Actual);
  }

  // RateLimiter::Settle and Continue.
  void Start(const Collaborators& with, int64_t deadline_ns, DoneFn done, void* context);
  void Continue();

 private:
  struct Actual {
    std::string_view limit;
    std::string_view key;
    uint64_t permits;
  };
  struct Item {
    std::string_view receipt;
    bool more = false;
    uint32_t first_actual = 0;
    uint32_t actuals = 0;  // those over kMaxCharges are not kept
    Result result;
  };
  struct Operation final : public store::SettleOperation {
    explicit Operation(SettleCall* call) : call(call) {}
    void Done() override { call->Decided(); }
    SettleCall* const call;
  };
  enum class Step : uint8_t {
    kPrepare,  // settlement next_ is to be checked
    kAsk,      // the store is to be asked
    kAsking,   // inside of the store's function
    kWaiting,  // the store answers later: its thread goes on, and this one leaves the call alone
    kDecided,
  };

  FieldPath PathOf(const Item& item) const;
  // Goes on until the store answers later, the slice has ended, or all are settled.
  void Run();
  void Decided();
  // Reads the receipt and maps the actuals to its charges.
  absl::Status Prepare(const Item& item);
  absl::Status MapActuals(const Item& item);
  // Finds the current rules of the charges. Returns false if all of their limits were deleted.
  bool Resolve();
  // Handles the store's answer. Returns false if the store is to be asked again.
  bool Complete(Item* item);
  absl::Status StatusOf(const Item& item) const;
  void KeepResults(Item* item);

  Form form_ = Form::kUnary;
  bool sliced_ = false;
  size_t begun_ = 0;
  access::CallerPtr caller_;
  std::vector<Item> items_;
  std::vector<Actual> actuals_;
  std::vector<SettledCharge> charges_;
  size_t error_bytes_ = 0;  // of the errors of items_

  // The settlement under way: items_[next_]. The slice began with first_.
  size_t first_ = 0;
  size_t next_ = 0;
  // While the store is asked, the asking thread and that of the answer both change it: the second
  // one goes on, and sees what the first one wrote.
  std::atomic<Step> step_ = Step::kPrepare;
  size_t attempts_ = 0;
  Receipt decoded_;
  // By charge of the receipt.
  uint64_t actual_[common::bounds::kMaxCharges];
  size_t actual_of_[common::bounds::kMaxCharges];  // the Actual that named it, of the item
  // What the store is asked: first the charges whose limits exist, then those of deleted limits.
  std::vector<store::Charge> asked_;
  size_t place_[common::bounds::kMaxCharges];  // in the receipt
  uint64_t deleted_[common::bounds::kMaxCharges];
  uint16_t charged_by_[common::bounds::kMaxCharges];
  uint64_t asked_actual_[common::bounds::kMaxCharges];
  store::SettledPermits settled_[common::bounds::kMaxCharges];
  Operation operation_{this};
  std::shared_ptr<const limits::LimitTable> table_;

  absl::Status status_;
  size_t slice_cost_ = 0;
  const Collaborators* with_ = nullptr;
  DoneFn done_ = nullptr;
  void* context_ = nullptr;
};

}  // namespace sluice::service

#endif  // SLUICE_SERVER_SERVICE_SETTLE_CALL_H_
