// AcquireCall: one Acquire or AcquireBatch, from the request's charges to its answers.
//
// A transport keeps AcquireCalls and reuses them: once their vectors have grown, a call makes no
// heap allocation, except for the text of an error and for a receipt longer than any before.
//
//   call->Reset(AcquireCall::Form::kUnary);
//   call->BeginAcquisition({.want_receipt = true});
//   call->AddCharge("api", "user:42", 1);             // views into the transport's own buffer
//   limiter->Acquire(call, deadline_ns, &OnDone, context);
//   ... in OnDone: call->status(), call->result(0) ...
//
// Thread-compatible: one thread at a time. The bytes of all views stay unchanged from AddCharge
// until the results were read; results are valid until Reset.
#ifndef SLUICE_SERVER_SERVICE_ACQUIRE_CALL_H_
#define SLUICE_SERVER_SERVICE_ACQUIRE_CALL_H_

#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/base/attributes.h"
#include "absl/status/status.h"
#include "absl/types/span.h"
#include "common/bounds.h"
#include "server/access/caller.h"
#include "server/service/collaborators.h"
#include "server/service/connection_bookings.h"
#include "server/service/merged_acquisitions.h"
#include "server/service/validation.h"
#include "server/store/store.h"
#include "server/waiting/held_callers.h"

namespace sluice::service {

// A bucket after a decision, for one charge.
struct ChargeStatus {
  store::BucketLevel level;
  store::Reason reason = store::Reason::kNone;
  uint64_t forgiven = 0;
  // Granted slots: until they are taken back, counted from the grant time. 0: no slots.
  int64_t held_for_ns = 0;
  // Empty for a requested charge; the limit's name for one that `charges` added.
  std::string_view limit;
};

// One acquisition's answer. Views and spans belong to the call.
struct AcquisitionResult {
  // Not OK: the acquisition failed, and the other fields mean nothing.
  absl::Status status;
  bool granted = false;
  store::Source source = store::Source::kStore;
  int64_t wait_ns = 0;         // granted: until the grant time; 0: now
  int64_t retry_after_ns = 0;  // denied
  // Opaque bytes; empty: none.
  std::string_view receipt;
  // Requested charges in the order of the request, then those that the limits' `charges` added.
  size_t charges = 0;
  // Its request id was granted before, and this is that grant.
  bool repeated = false;
};

class AcquireCall final : private waiting::HeldCaller {
 public:
  // kUnary: one acquisition, whose fields are named `charges[0].key` in errors. kBatch: any
  // number, named `acquisitions[3].charges[0].key`; `hold` is refused.
  enum class Form : uint8_t { kUnary, kBatch };

  using Utf8 = service::Utf8;

  // Called exactly once for each RateLimiter::Acquire: by the memory store before Acquire
  // returns, by a shared store later on its event loop. `call` may be Reset and reused within.
  using DoneFn = void (*)(void* context, AcquireCall* call);

  AcquireCall() = default;
  AcquireCall(const AcquireCall&) = delete;
  AcquireCall& operator=(const AcquireCall&) = delete;

  // Forgets the last request, keeps the memory. REQUIRES: no Acquire is under way.
  void Reset(Form form, Utf8 utf8 = Utf8::kChecked);

  // The connection that the request came over, which bounds the bookings of the next slice. Null:
  // without a bound. Stays alive until RateLimiter::Acquire or Continue returns.
  void UseConnection(ConnectionBookings* connection) { places_.Use(connection); }
  // The caller. Null: it may do everything. `counted`: how many acquisitions are already
  // counted against the client's max_calls_per_second, as the transport does when a call begins.
  // REQUIRES: after Reset, which forgets it.
  void UseCaller(access::CallerPtr caller, size_t counted = 1) {
    caller_ = std::move(caller);
    counted_ = counted;
  }

  // Starts the next acquisition; AddCharge adds to it.
  void BeginAcquisition(const AcquisitionOptions& options);
  void AddCharge(std::string_view limit, std::string_view key, uint64_t permits);
  // The request id of the last acquisition, not checked. REQUIRES: its options were set.
  void SetRequestId(std::string_view bytes);
  // BeginAcquisition({}) and AddCharge. Inline, since a decoder calls it for each of thousands.
  ABSL_ATTRIBUTE_ALWAYS_INLINE void AddSingleCharge(std::string_view limit, std::string_view key,
                                                    uint64_t permits) {
    if (++begun_ > common::bounds::kMaxBatch) return;
    Item& item = items_.emplace_back();
    item.first = static_cast<uint32_t>(asked_.size());
    item.asked = 1;
    asked_.push_back({limit, key, permits});
  }
  // How many were begun; those over the bound are not kept.
  size_t begun() const { return begun_; }

  // Lets a call be decided in slices, so that it does not hold its event loop for long: the first
  // by RateLimiter::Acquire, each other one by RateLimiter::Continue, each with a call of DoneFn. A
  // slice changes no decision, as acquisitions do not depend on each other. A slice may have no
  // acquisition: then the store has work to do before it can decide one. A call that is dropped
  // between slices debits nothing further.
  void DecideInSlices() { sliced_ = true; }

  // For a decoder that meets one of them after the charges.
  AcquisitionOptions& options_of_last() { return items_.back().options; }

  // After completion: why the call as a whole failed (too many acquisitions); then no acquisition
  // was decided.
  const absl::Status& status() const { return status_; }

  // Acquisitions of the request, in its order. Those of the slice that was decided, by default all,
  // are [first(), end()); only they have results, until Continue. REQUIRES for result and charge:
  // status() is OK.
  size_t size() const { return items_.size(); }
  size_t first() const { return first_; }
  size_t end() const { return end_; }
  bool more() const { return end_ < items_.size(); }
  // The cost of the slice, in decisions on one bucket. Known once it was decided, also if the call
  // is held then.
  size_t slice_cost() const { return slice_cost_; }
  AcquisitionResult result(size_t acquisition) const;
  // A short cut for encoders: the decision of an acquisition whose one requested charge is its only
  // one, without error and receipt. Null: the acquisition is another; see result().
  const store::Acquisition* single(size_t acquisition) const {
    const Item& item = items_[acquisition];
    if (!item.status.ok() || item.asked != 1 || item.receipt_bytes != 0 || item.options.once ||
        was_held_) {
      return nullptr;
    }
    const Attempt& attempt = AttemptOf(item);
    return attempt.charges(item.index) == 1 ? &attempt.acquisition(item.index) : nullptr;
  }
  // REQUIRES: result(acquisition).status is OK, charge < result(acquisition).charges.
  ChargeStatus charge(size_t acquisition, size_t charge) const;
  // The rule by which the charge was decided. REQUIRES: as for charge.
  const store::Rule& rule(size_t acquisition, size_t charge) const {
    const Item& item = items_[acquisition];
    return AttemptOf(item).rule(item.index, charge);
  }

  // RateLimiter::Acquire.
  void Start(const Collaborators& with, int64_t deadline_ns, DoneFn done, void* context);
  // RateLimiter::Continue.
  void Continue();
  // Bytes of memory, with that of former requests. Not while the store decides.
  size_t memory() const {
    size_t bytes = sizeof(*this) + items_.capacity() * sizeof(Item) +
                   asked_.capacity() * sizeof(Asked) + receipts_.capacity() +
                   once_.capacity() * sizeof(OnceRequest) + error_bytes_;
    for (const auto& attempt : attempts_) bytes += sizeof(Attempt) + attempt->memory();
    return bytes;
  }

  // Bytes that this request takes of it until the decision.
  size_t request_memory() const {
    return items_.size() * (sizeof(Item) + sizeof(store::Acquisition)) +
           asked_.size() * (sizeof(Asked) + sizeof(store::Charge) + sizeof(store::ChargeResult)) +
           once_.size() * sizeof(OnceRequest);
  }

  // About the bytes that it takes until its grant time if it asks to be held; else 0. Does not
  // change while another thread answers it.
  size_t held_memory() const { return held_memory_; }

  // RateLimiter::CancelHeld.
  waiting::HeldCaller* as_held_caller() { return this; }

 private:
  // A charge as it was asked for.
  struct Asked {
    std::string_view limit;
    std::string_view key;
    uint64_t permits;
  };

  static constexpr uint32_t kUndecided = std::numeric_limits<uint32_t>::max();

  // An acquisition of the request, and where its decision is.
  struct Item {
    AcquisitionOptions options;
    uint32_t first = 0;    // in asked_
    uint32_t asked = 0;    // calls of AddCharge; those over kMaxCharges are not in asked_
    uint32_t index = 0;    // in its attempt; kUndecided: an error kept it out
    uint32_t receipt = 0;  // offset in receipts_
    uint32_t receipt_bytes = 0;
    uint8_t attempt = 0;             // index in attempts_
    bool store_unavailable = false;  // on_store_failure denied it
    bool connection_full = false;    // it may not book, since its connection has too many bookings
    absl::Status status;
  };

  // The request id of an item.
  struct OnceRequest {
    uint32_t item = 0;  // in items_
    std::string_view bytes;
    store::Once once;
    RememberedRoom::Owner owner;  // with the limit of its first charge
    // When its place in RememberedRoom was taken; negative: it has none.
    int64_t taken_ns = -1;
  };

  // One round of decisions. The first has all acquisitions; the next have those whose limits
  // changed meanwhile. Keeps its table, and thereby names and rules, until Reset.
  class Attempt final : public MergedAcquisitions {
   public:
    explicit Attempt(AcquireCall* call) : call_(call) {}
    void Done() override { call_->Decided(); }
    LimitFinder limits;

   private:
    AcquireCall* const call_;
  };

  const Attempt& AttemptOf(const Item& item) const { return *attempts_[item.attempt]; }
  const store::Acquisition& DecisionOf(const Item& item) const {
    return AttemptOf(item).acquisition(item.index);
  }
  FieldPath PathOf(const Item& item) const;
  absl::Span<Item> Slice() { return absl::MakeSpan(items_).subspan(first_, end_ - first_); }
  // Start, Continue -> DecideSlice -> the store -> Decided -> Finish -> DoneFn, where Decided goes
  //   - to DecideStale -> the store -> Decided, if limits changed meanwhile;
  //   - to Hold, OnAnswer -> Finish, if the caller is to be answered at its grant time.

  // Counts the acquisitions that are not counted yet, as calls of the client. Those beyond its
  // bound are refused.
  void CountForClient();

  // ---- A slice. Decides its acquisitions; then those again that the last attempt found stale.
  void DecideSlice();
  void DecideStale(const Attempt& last);
  Attempt& NewAttempt();
  // Tables are released early, so that a call does not keep old ones alive.
  void ReleaseAttempts();
  // Adds the item to the attempt if it is one charge for now, without parents and without errors.
  // Returns false, and does nothing, for any other item.
  bool AddUsual(const Item& item, Attempt& attempt);
  // Adds any item to the attempt, or keeps its error. Returns the cost.
  size_t AddAny(Item& item, Attempt& attempt);
  // On an error the attempt has nothing of the item.
  absl::Status Add(Item& item, Attempt& attempt);
  absl::Status AddCharges(const Item& item, Attempt& attempt);

  // ---- Request ids. REQUIRES: item.options.once.
  OnceRequest& OnceOf(const Item& item);
  // Of all that the caller asks for.
  uint64_t FingerprintOf(const Item& item, const store::RequestId& id) const;
  // Passes the id on to the last acquisition of the attempt.
  absl::Status AddOnce(const Item& item, Attempt& attempt);
  ConnectionGrants* GrantsOfConnection();
  // Whether the decision has left a new grant to remember.
  bool MayBeRemembered(const Item& item) const;
  // Gives back the places of what is not remembered.
  void ReturnRoom();

  // How far ahead the item may be booked: its own max_wait, cut to the limits' and, if it asks to
  // be held, to the deadline. 0 if the connection is full.
  int64_t CutMaxWaitNs(Item& item, absl::Span<const store::Charge> charges, int64_t max_wait_ns);

  // ---- The decision.
  void Decided();
  void SetError(Item& item, absl::Status error);
  // Takes the acquisitions that the store left undecided out of the slice.
  void EndSliceBefore(size_t undecided);
  // The item's status for an outcome that is final.
  absl::Status StatusOf(const Item& item) const;

  // ---- Held calls: a reservation, or slots are to be waited for. Returns false if the call is to
  // be answered now.
  bool Hold();
  void OnAnswer(waiting::HeldOutcome outcome) override;
  store::BucketMaker Maker() const override;
  // A held call was denied: if all of its max_wait had been enough, the reason is its deadline.
  void BlameDeadline();
  // A held call was denied when limits changed: the same request, made again, has all of its
  // max_wait before it.
  void CountRetryAfterFromNow();

  // ---- The answer.
  void Finish();
  // Replaces the places at the connection by the bookings that were made.
  void CountBookings();
  // Counters and key usage. Returns whether any acquisition has a receipt.
  bool Count();
  void AppendReceipts();

  // The request.
  Form form_ = Form::kUnary;
  Utf8 utf8_ = Utf8::kChecked;
  bool sliced_ = false;
  size_t begun_ = 0;  // acquisitions; those over the bound are not kept
  access::CallerPtr caller_;
  size_t counted_ = 1;
  // Acquisitions within max_calls_per_second, the first ones; and the error of the others.
  size_t within_calls_ = SIZE_MAX;
  absl::Status over_calls_;
  access::ClientPlace held_place_;  // if it asks to be held
  std::vector<Item> items_;
  std::vector<Asked> asked_;
  std::vector<OnceRequest> once_;  // in the order of their items

  // The slice.
  size_t first_ = 0;
  size_t end_ = 0;
  size_t slice_cost_ = 0;
  store::SearchBudget search_budget_;  // of all slices
  std::vector<std::unique_ptr<Attempt>> attempts_;
  size_t attempts_used_ = 0;
  BookingPlaces places_;
  std::shared_ptr<ConnectionBookings> once_connection_;  // null: no id was decided, or no bound

  // The answer.
  absl::Status status_;
  size_t error_bytes_ = 0;  // of the errors of items
  std::string receipts_;
  // It was held until the grant time: its wait is over.
  bool was_held_ = false;
  uint32_t held_memory_ = 0;
  // By how much the deadline shortened the max_wait of a call that asks to be held.
  int64_t max_wait_cut_ns_ = 0;

  // The Acquire under way.
  const Collaborators* with_ = nullptr;
  int64_t deadline_ns_ = store::kNoDeadline;
  DoneFn done_ = nullptr;
  void* context_ = nullptr;
};

// Inline, since an encoder calls them for each of thousands of results.
inline AcquisitionResult AcquireCall::result(size_t acquisition) const {
  const Item& item = items_[acquisition];
  AcquisitionResult result;
  result.status = item.status;
  if (!item.status.ok()) return result;
  const store::Acquisition& decided = DecisionOf(item);
  result.granted = decided.outcome == store::Outcome::kGranted;
  result.source = decided.source;
  result.wait_ns = result.granted && !was_held_ ? decided.wait_ns : 0;
  result.retry_after_ns = result.granted ? 0 : decided.retry_after_ns;
  result.receipt = std::string_view(receipts_).substr(item.receipt, item.receipt_bytes);
  result.charges = AttemptOf(item).charges(item.index);
  result.repeated = decided.once != nullptr && decided.once->repeated;
  return result;
}

inline ChargeStatus AcquireCall::charge(size_t acquisition, size_t charge) const {
  const Item& item = items_[acquisition];
  const Attempt& attempt = AttemptOf(item);
  const store::ChargeResult& decided = attempt.charge(item.index, charge);
  ChargeStatus status;
  status.level = decided.level;
  status.reason = decided.reason;
  status.forgiven = decided.forgiven;
  const store::Rule& rule = attempt.rule(item.index, charge);
  if (item.receipt_bytes != 0 && algorithm::IsConcurrency(rule.parameters)) {
    status.held_for_ns = rule.parameters.concurrency.hold_for_ns - decided.debited_before_ns;
  }
  if (charge >= item.asked) status.limit = rule.limit_name;
  return status;
}

}  // namespace sluice::service

#endif  // SLUICE_SERVER_SERVICE_ACQUIRE_CALL_H_
