// HoldKeeper: renews the slots of all permits of a client, with few calls.
//
// A permit is renewed a third of its hold_for after the last renewal. Those that are due within the
// next 100 ms are renewed with them, by one call for up to 4096, or 1 MiB of receipts (of each
// server). A renewal that fails is tried again until the slots end.
//
// The end of slots counts from just before the call was sent that granted or renewed them, less
// 0.1 %, since clocks differ. So a permit is lost before the server takes its slots back.
#ifndef SLUICE_CLIENT_SRC_HOLD_KEEPER_H_
#define SLUICE_CLIENT_SRC_HOLD_KEEPER_H_

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "client/src/client_core.h"
#include "client/src/renewal_timer.h"
#include "common/mutex.h"
#include "sluice/connection.h"
#include "sluice/permit.h"

namespace sluice::client_internal {

// The slots of one permit.
struct HeldSlots {
  enum class State : uint8_t { kHeld, kLost, kDropped, kLostAndDropped };
  // By the time at which there is something to do: a renewal, or the end.
  using Agenda = std::multimap<TimePoint, std::shared_ptr<HeldSlots>>;

  // Whether they are held at `now`. Once this is false it stays false: the program has been told.
  bool HeldAt(TimePoint now);
  // Returns false if they were not held until now.
  bool Extend(TimePoint now, TimePoint until);
  TimePoint until() const { return TimePoint(TimePoint::duration(until_count.load())); }

  std::string receipt;
  uint32_t server = 0;
  std::function<void(const Status&)> on_lost;
  // The count of their end on Connection::BootNow's clock; 0: lost or released.
  std::atomic<TimePoint::rep> until_count{0};

  // Guarded by the keeper's mutex.
  State state = State::kHeld;
  Status why;
  std::optional<Agenda::iterator> planned;
  bool renewing = false;
  // Renewals go to the server that granted, and after a failure to any, in turn: servers may have
  // one store or several.
  bool anywhere = false;
  std::thread::id reporting;  // runs on_lost
};

// Thread-safe.
class HoldKeeper : public std::enable_shared_from_this<HoldKeeper> {
 public:
  explicit HoldKeeper(std::shared_ptr<ClientCore> core) : core_(std::move(core)) {}

  // Slots that are held for `held_for` from `sent` on, or longer.
  std::shared_ptr<HeldSlots> Keep(const Decision& decision, TimePoint sent,
                                  std::chrono::nanoseconds held_for,
                                  std::function<void(const Status&)> on_lost);
  // Slots of a call that waited: renews them first, since it is not known since when they are held.
  void KeepRenewed(Decision decision, std::function<void(const Status&)> on_lost,
                   Callback<Permit> done);
  // Renews them no more. on_lost is not called after it, unless it does not wait for one that is
  // being called.
  void Drop(const std::shared_ptr<HeldSlots>& slots, bool waits = true);
  Status WhyLost(const std::shared_ptr<HeldSlots>& slots);

  // Ends the slots at the server: the work is done. `done` may be null.
  void End(const HeldSlots& slots, const CallOptions& options, std::function<void(Status)> done);

  TimePoint Now() const { return core_->connection().BootNow(); }

  // The client is destroyed: nothing is renewed any more.
  void Close();

 private:
  using Slots = std::shared_ptr<HeldSlots>;
  // Slots that are renewed by one call.
  struct Batch {
    std::optional<uint32_t> server;
    std::vector<Slots> slots;
    size_t receipt_bytes = 0;
  };
  struct Lost {
    Slots slots;
    Status why;
  };

  // Refunds an acquisition whose work will not run.
  void GiveBack(const Decision& decision);
  void Plan(const Slots& slots, TimePoint at) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Unplan(HeldSlots& slots) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // When the timer that is to be started ends, if one is.
  std::optional<TimePoint> NextTimer() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void StartTimer(std::optional<TimePoint> end);
  // Of the timer that was started for that moment; max: of all that were started.
  void OnTimer(TimePoint armed_for);
  // Takes what is due out of the agenda.
  void TakeDue(TimePoint now, std::vector<Batch>* batches, std::vector<Lost>* lost)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Renew(Batch batch);
  void OnRenewed(const Batch& batch, TimePoint sent, const Result<std::vector<Renewal>>& result);
  // Returns why the slots are lost, if they are.
  std::optional<Status> Take(const Slots& slots, const Renewal& renewal, TimePoint sent,
                             TimePoint now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Marks them lost.
  void Lose(const Slots& slots, Status why, std::vector<Lost>* lost)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Calls on_lost.
  void Report(const std::vector<Lost>& lost);

  const std::shared_ptr<ClientCore> core_;
  RenewalTimer& timer_ = RenewalTimer::OfProgram();
  const std::shared_ptr<RenewalTimer::Alarm> alarm_ = std::make_shared<RenewalTimer::Alarm>();
  common::Mutex mu_;
  common::CondVar reported_;
  HeldSlots::Agenda agenda_ ABSL_GUARDED_BY(mu_);
  TimePoint armed_for_ ABSL_GUARDED_BY(mu_) = TimePoint::max();  // the timer; max: none
  bool closed_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace sluice::client_internal

#endif  // SLUICE_CLIENT_SRC_HOLD_KEEPER_H_
