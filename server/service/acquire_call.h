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
#include <string_view>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "server/service/types.h"
#include "server/store/store.h"

namespace sluice::service {

class RateLimiter;

// What one acquisition asks for beside its charges.
struct AcquisitionOptions {
  WireDuration max_wait;
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

  AcquireCall();
  ~AcquireCall();
  AcquireCall(const AcquireCall&) = delete;
  AcquireCall& operator=(const AcquireCall&) = delete;

  // Forgets the last request, keeps the memory. REQUIRES: no Acquire under way.
  void Reset(Form form, Utf8 utf8 = Utf8::kChecked);

  // Starts the next acquisition; AddCharge adds to it.
  void BeginAcquisition(const AcquisitionOptions& options);
  void AddCharge(std::string_view limit, std::string_view key, uint64_t permits);

  // For a decoder that meets `hold`, `max_wait` or `want_receipt` after the charges.
  AcquisitionOptions& options_of_last();

  // After completion: why the call as a whole failed (too many acquisitions, past its deadline,
  // the server drains); then no acquisition was decided.
  const absl::Status& status() const;

  // Acquisitions of the request, in its order. REQUIRES for result and charge: status() is OK.
  size_t size() const;
  AcquisitionResult result(size_t acquisition) const;
  ChargeStatus charge(size_t acquisition, size_t charge) const;

 private:
  friend class RateLimiter;
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace sluice::service

#endif  // SLUICE_SERVER_SERVICE_ACQUIRE_CALL_H_
