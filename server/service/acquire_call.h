// AcquireCall: one Acquire or AcquireBatch, from the request's charges to its answers.
//
// A transport keeps AcquireCalls and reuses them: once their vectors have grown, a call makes no
// heap allocation (an error's text, and a receipt longer than any before, excepted).
//
//   call->Reset(AcquireCall::Form::kUnary);
//   call->BeginAcquisition({.want_receipt = true});
//   call->AddCharge("api", "user:42", 1);             // views into the transport's own buffer
//   limiter->Acquire(call, deadline_ns, &OnDone, context);
//   ... in OnDone: call->status(), call->result(0) ...
//
// Thread-compatible: one thread at a time. Everything that was passed as a view must stay as it
// is from AddCharge until the results were read; results are valid until Reset.
#ifndef SLUICE_SERVER_SERVICE_ACQUIRE_CALL_H_
#define SLUICE_SERVER_SERVICE_ACQUIRE_CALL_H_

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/base/attributes.h"
#include "absl/status/status.h"
#include "absl/types/span.h"
#include "common/bounds.h"
#include "common/strings.h"
#include "server/limits/limit_table.h"
#include "server/service/engine.h"
#include "server/service/types.h"
#include "server/store/store.h"
#include "server/waiting/held_callers.h"

namespace sluice::service {

class RateLimiter;

// What one acquisition asks for beside its charges.
struct AcquisitionOptions {
  WireDuration max_wait = {};
  bool hold = false;
  bool want_receipt = false;
};

// One acquisition's answer. Views and spans belong to the call.
struct AcquisitionResult {
  // Not OK: the acquisition had an error of its own, and the rest means nothing.
  absl::Status status;
  bool granted = false;
  store::Source source = store::Source::kStore;
  int64_t wait_ns = 0;         // granted: until the moment; 0: now
  int64_t retry_after_ns = 0;  // denied
  // Opaque bytes; empty: none.
  std::string_view receipt;
  // Requested charges in the order of the request, then those that the limits' `charges` added.
  size_t charges = 0;
};

class AcquireCall {
 public:
  // kUnary: one acquisition, whose fields are named `charges[0].key` in errors. kBatch: any
  // number, named `acquisitions[3].charges[0].key`; `hold` is refused.
  enum class Form : uint8_t { kUnary, kBatch };

  // Whether strings were checked to be UTF-8 by the transport's decoder. If not, the call does,
  // and says which field is not.
  enum class Utf8 : uint8_t { kChecked, kUnchecked };

  // Called exactly once for each RateLimiter::Acquire: by the memory store before Acquire
  // returns, by a shared store later on its event loop. `call` may be Reset and reused within.
  using DoneFn = void (*)(void* context, AcquireCall* call);

  AcquireCall() = default;
  AcquireCall(const AcquireCall&) = delete;
  AcquireCall& operator=(const AcquireCall&) = delete;

  // Forgets the last request, keeps the memory. REQUIRES: no Acquire under way.
  void Reset(Form form, Utf8 utf8 = Utf8::kChecked);

  // Starts the next acquisition; AddCharge adds to it.
  ABSL_ATTRIBUTE_ALWAYS_INLINE void BeginAcquisition(const AcquisitionOptions& options) {
    if (++begun_ > common::bounds::kMaxBatch) return;
    Item& item = items_.emplace_back();
    item.options = options;
    item.first = static_cast<uint32_t>(asked_.size());
  }
  ABSL_ATTRIBUTE_ALWAYS_INLINE void AddCharge(std::string_view limit, std::string_view key,
                                              uint64_t permits) {
    if (begun_ > common::bounds::kMaxBatch) return;
    // One more than may be is enough to refuse it; the count stays right for the message.
    if (++items_.back().asked > common::bounds::kMaxCharges) return;
    asked_.push_back({limit, key, permits});
  }

  // For a decoder that meets `hold`, `max_wait` or `want_receipt` after the charges.
  AcquisitionOptions& options_of_last() { return items_.back().options; }

  // After completion: why the call as a whole failed (too many acquisitions); then no acquisition
  // was decided.
  const absl::Status& status() const { return status_; }

  // Acquisitions of the request, in its order. REQUIRES for result and charge: status() is OK.
  size_t size() const { return items_.size(); }
  AcquisitionResult result(size_t acquisition) const;
  // The decision, for an encoder that is in a hurry: of an acquisition without an error or a
  // receipt whose one requested charge is its only one. Null: it is another, see result().
  const store::Acquisition* single(size_t acquisition) const {
    const Item& item = items_[acquisition];
    if (!item.status.ok() || item.asked != 1 || item.receipt_bytes != 0 || was_held_) {
      return nullptr;
    }
    const Attempt& attempt = AttemptOf(item);
    return attempt.charges(item.in_work) == 1 ? &attempt.acquisition(item.in_work) : nullptr;
  }
  // REQUIRES: result(acquisition).status is OK, charge < result(acquisition).charges.
  ChargeStatus charge(size_t acquisition, size_t charge) const;

 private:
  friend class RateLimiter;

  // A charge as it was asked for.
  struct Asked {
    std::string_view limit;
    std::string_view key;
    uint64_t permits;
  };

  // An acquisition of the request, and where its decision is.
  struct Item {
    AcquisitionOptions options;
    uint32_t first = 0;    // in asked_
    uint32_t asked = 0;    // as many as AddCharge; those over kMaxCharges are not in asked_
    uint32_t in_work = 0;  // index in its attempt's work
    uint32_t receipt = 0;  // offset in receipts_
    uint32_t receipt_bytes = 0;
    uint8_t attempt = 0;      // index in attempts_
    bool store_away = false;  // on_store_failure denied it
    absl::Status status;
  };

  // One round of decisions. The first has all acquisitions; one more comes for those whose limits
  // changed under way. Keeps its table, and thereby names and rules, until Reset.
  class Attempt final : public service::AcquireWork {
   public:
    explicit Attempt(AcquireCall* call) : call_(call) {}
    void Done() override;
    std::shared_ptr<const limits::LimitTable> table;
    // The limit that was found last: callers mostly name one again and again.
    std::string_view last_name;
    const limits::Limit* last_limit = nullptr;

    const limits::Limit* Find(std::string_view name) {
      if (last_limit == nullptr || !common::SameBytes(name, last_name)) {
        last_name = name;
        last_limit = table->Find(name);
      }
      return last_limit;
    }

   private:
    AcquireCall* const call_;
  };

  // The call while it is held.
  class Held final : public waiting::HeldCaller {
   public:
    explicit Held(AcquireCall* call) : call_(call) {}
    void OnAnswer(waiting::HeldOutcome outcome) override;

   private:
    AcquireCall* const call_;
  };

  const Attempt& AttemptOf(const Item& item) const { return *attempts_[item.attempt]; }

  Held held_{this};
  // The answer was held until the moment: there is nothing to wait for any more.
  bool was_held_ = false;
  // Of a call that asks to be held: by how much its deadline cuts its max_wait.
  int64_t cut_ns_ = 0;
  Form form_ = Form::kUnary;
  Utf8 utf8_ = Utf8::kChecked;
  size_t begun_ = 0;  // acquisitions, also those past the bound, which are not kept
  absl::Status status_;
  std::vector<Item> items_;
  std::vector<Asked> asked_;
  std::vector<std::unique_ptr<Attempt>> attempts_;
  size_t attempts_used_ = 0;
  std::string receipts_;

  // Of the Acquire under way.
  RateLimiter* limiter_ = nullptr;
  int64_t deadline_ns_ = store::kNoDeadline;
  DoneFn done_ = nullptr;
  void* context_ = nullptr;
};

// Here, since an encoder of thousands of results calls them for each.
inline AcquisitionResult AcquireCall::result(size_t acquisition) const {
  const Item& item = items_[acquisition];
  AcquisitionResult result;
  result.status = item.status;
  if (!item.status.ok()) return result;
  const Attempt& attempt = AttemptOf(item);
  const store::Acquisition& decided = attempt.acquisition(item.in_work);
  result.granted = decided.outcome == store::Outcome::kGranted;
  result.source = decided.source;
  result.wait_ns = result.granted && !was_held_ ? decided.wait_ns : 0;
  result.retry_after_ns = result.granted ? 0 : decided.retry_after_ns;
  result.receipt = std::string_view(receipts_).substr(item.receipt, item.receipt_bytes);
  result.charges = attempt.charges(item.in_work);
  return result;
}

inline ChargeStatus AcquireCall::charge(size_t acquisition, size_t charge) const {
  const Item& item = items_[acquisition];
  const Attempt& attempt = AttemptOf(item);
  const store::ChargeResult& decided = attempt.charge(item.in_work, charge);
  ChargeStatus status;
  status.level = decided.level;
  status.reason = decided.reason;
  if (charge >= item.asked) status.limit = attempt.rule(item.in_work, charge).limit_name;
  return status;
}

}  // namespace sluice::service

#endif  // SLUICE_SERVER_SERVICE_ACQUIRE_CALL_H_
