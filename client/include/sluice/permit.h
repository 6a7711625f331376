// Permit: a guard that holds the slots of a grant, renews them, and ends them when it is destroyed.
//
//   auto permit = client.AcquirePermit(sluice::Acquisition("jobs", "tenant:7"),
//                                      {.on_lost = [&](const sluice::Status&) { stop = true; }});
//   if (!permit.ok()) { ... unknown limit, bad key ... }
//   if (!permit->held()) { ... denied: permit->decision().retry_after ... }
//   while (MoreToDo() && permit->held()) DoSome();
//
// Slots belong to limits with `algorithm: concurrency`. The server takes them back when they were
// not renewed for the limit's hold_for: this program was stopped, or the server was not reachable.
// Then the guard has lost them, for good, and the work that they allowed must end: another caller
// may have them. held() says so from that moment on, also in a program that was stopped meanwhile
// and goes on (SIGSTOP, a suspended machine), since it compares clocks and needs no answer.
#ifndef SLUICE_PERMIT_H_
#define SLUICE_PERMIT_H_

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>

#include "sluice/decision.h"
#include "sluice/options.h"
#include "sluice/status.h"

namespace sluice {

namespace client_internal {
class HoldKeeper;
struct HeldSlots;
}  // namespace client_internal

struct PermitOptions {
  // Called once if the slots are lost, with the cause, on a thread of the client: do not block
  // there. Not called any more when Release or the destructor has returned.
  std::function<void(const Status&)> on_lost = {};
};

// Made by Client::AcquirePermit. May outlive the client, but is not renewed any more then.
// Thread-compatible, and held(), lost() and left() may be called by several threads.
class Permit {
 public:
  // Holds nothing.
  Permit() = default;
  Permit(Permit&& other) noexcept;
  // Ends the slots that it holds.
  Permit& operator=(Permit&& other) noexcept;
  // Ends the slots in the background. A program that ends at once calls Release instead:
  // otherwise the server may not hear of the end, and holds the slots until hold_for has passed.
  ~Permit();

  // The answer to the acquisition. Not granted: nothing is held.
  const Decision& decision() const { return decision_; }

  // Whether it was granted, and the slots are neither lost nor released. A grant without slots (of
  // a rate, or of on_unavailable) cannot be lost. Takes some 30 ns.
  bool held() const;
  // The time for which the slots are held even if no renewal succeeds any more. 0: not held;
  // nanoseconds::max(): a grant without slots.
  std::chrono::nanoseconds left() const;
  // Why the slots were lost; OK: they were not.
  Status lost() const;

  // The work is done. Blocks until the server knows; OK if there is nothing to release. After an
  // error it may be called again; else the destructor tries again.
  Status Release(const CallOptions& options = {});

 private:
  friend class Client;
  friend class Estimate;
  friend class client_internal::HoldKeeper;
  Permit(Decision decision, std::shared_ptr<client_internal::HoldKeeper> keeper,
         std::shared_ptr<client_internal::HeldSlots> slots)
      : decision_(std::move(decision)), keeper_(std::move(keeper)), slots_(std::move(slots)) {}

  // Renews the slots no more, and leaves their end to another guard. kYes: on_lost is not called
  // after it.
  enum class Wait : bool { kNo = false, kYes = true };
  void Forget(Wait wait);

  Decision decision_;
  std::atomic<bool> released_ = false;  // the work is done
  bool ended_ = false;                  // the server knows, or another guard tells it
  // Null: it holds no slots.
  std::shared_ptr<client_internal::HoldKeeper> keeper_;
  std::shared_ptr<client_internal::HeldSlots> slots_;
};

}  // namespace sluice

#endif  // SLUICE_PERMIT_H_
