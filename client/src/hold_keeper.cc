#include "client/src/hold_keeper.h"

#include <algorithm>
#include <utility>

namespace sluice::client_internal {
namespace {

using std::chrono::nanoseconds;

// What is due so soon is renewed with the first.
constexpr nanoseconds kTogether = std::chrono::milliseconds(100);
// A call is full with so many receipts, or with so many bytes of them: servers take 4 MiB.
constexpr size_t kMostInCall = 4096;
constexpr size_t kFullBytes = size_t{1} << 20;
// Renewals in the time for which slots are held, and pauses after one that failed.
constexpr int kRenewalsInHold = 3;
constexpr int kRetriesInHold = 12;
constexpr nanoseconds kLeastPause = std::chrono::milliseconds(1);

// How long a permit counts slots as held that the server holds for `held_for`.
nanoseconds Counted(nanoseconds held_for) { return held_for - held_for / 1000; }

Status Ended() {
  return Status(StatusCode::kFailedPrecondition,
                "the server has taken the slots back: they were ended, or not renewed in time");
}
Status NotRenewed(const Status& last) {
  std::string message = "the slots were not renewed in time: ";
  message += last.ok() ? "this program did not run, or got no answer" : last.ToString();
  return Status(StatusCode::kDeadlineExceeded, std::move(message));
}

}  // namespace

bool HeldSlots::HeldAt(TimePoint now) {
  TimePoint::rep count = until_count.load();
  // A renewal may be first with a later end.
  while (count != 0 && now.time_since_epoch().count() >= count) {
    if (until_count.compare_exchange_weak(count, 0)) return false;
  }
  return count != 0;
}

bool HeldSlots::Extend(TimePoint now, TimePoint until) {
  TimePoint::rep count = until_count.load();
  while (count != 0 && now.time_since_epoch().count() < count) {
    const TimePoint::rep later = std::max(count, until.time_since_epoch().count());
    if (until_count.compare_exchange_weak(count, later)) return true;
  }
  return false;
}

std::shared_ptr<HeldSlots> HoldKeeper::Keep(const Decision& decision, TimePoint sent,
                                            nanoseconds held_for,
                                            std::function<void(const Status&)> on_lost) {
  auto slots = std::make_shared<HeldSlots>();
  slots->receipt = decision.receipt;
  slots->server = decision.server;
  slots->on_lost = std::move(on_lost);
  slots->until_count = (sent + Counted(held_for)).time_since_epoch().count();
  std::optional<TimePoint> timer;
  {
    common::MutexLock lock(&mu_);
    Plan(slots, sent + held_for / kRenewalsInHold);
    timer = NextTimer();
  }
  StartTimer(timer);
  return slots;
}

void HoldKeeper::KeepRenewed(Decision decision, std::function<void(const Status&)> on_lost,
                             Callback<Permit> done) {
  const TimePoint sent = Now();
  const Call call = core_->MakeCall({.server = decision.server});
  std::vector<std::string> receipts = {decision.receipt};
  RunAttempts<std::vector<Renewal>>(
      core_, Operation::kRenew, call,
      [core = core_.get(), receipts = std::move(receipts)](const Call& call,
                                                           Callback<std::vector<Renewal>> ended) {
        core->connection().Renew(receipts, call, std::move(ended));
      },
      [self = shared_from_this(), decision = std::move(decision), sent,
       on_lost = std::move(on_lost),
       done = std::move(done)](const Result<std::vector<Renewal>>& result, int) {
        Status failed = result.status();
        if (result.ok()) {
          failed = result->empty() ? Status(StatusCode::kInternal, "no outcome of this receipt")
                                   : result->front().status;
        }
        if (failed.ok() && result->front().outcome != RenewOutcome::kRenewed) failed = Ended();
        if (!failed.ok()) {
          // The server may hold them.
          self->GiveBack(decision);
          return done(std::move(failed));
        }
        Slots slots = self->Keep(decision, sent, result->front().held_for, on_lost);
        done(Permit(decision, self, std::move(slots)));
      });
}

void HoldKeeper::Drop(const Slots& slots, bool waits) {
  common::MutexLock lock(&mu_);
  Unplan(*slots);
  if (slots->until_count.exchange(0) == 0 && slots->state == HeldSlots::State::kHeld) {
    // HeldAt has told the program, and the timer has not come yet.
    slots->state = HeldSlots::State::kLost;
    slots->why = NotRenewed(slots->why);
  }
  const bool lost =
      slots->state == HeldSlots::State::kLost || slots->state == HeldSlots::State::kLostAndDropped;
  slots->state = lost ? HeldSlots::State::kLostAndDropped : HeldSlots::State::kDropped;
  while (waits && slots->reporting != std::thread::id() &&
         slots->reporting != std::this_thread::get_id()) {
    reported_.Wait(&mu_);
  }
}

Status HoldKeeper::WhyLost(const Slots& slots) {
  const bool held = slots->HeldAt(Now());
  common::MutexLock lock(&mu_);
  switch (slots->state) {
    case HeldSlots::State::kHeld:
      return held ? Status() : NotRenewed(slots->why);
    case HeldSlots::State::kDropped:
      return Status();
    case HeldSlots::State::kLost:
    case HeldSlots::State::kLostAndDropped:
      return slots->why;
  }
  return Status();
}

void HoldKeeper::End(const HeldSlots& slots, const CallOptions& options,
                     std::function<void(Status)> done) {
  CallOptions at_server = options;
  at_server.server = slots.server;
  Settlement settlement;
  settlement.receipt = slots.receipt;
  RunAttempts<SettleResult>(
      core_, Operation::kSettle, core_->MakeCall(at_server),
      [core = core_.get(), settlement = std::move(settlement)](const Call& call,
                                                               Callback<SettleResult> ended) {
        core->connection().Settle(settlement, call, std::move(ended));
      },
      [done = std::move(done)](const Result<SettleResult>& result, int) {
        if (done != nullptr) done(result.status());
      });
}

void HoldKeeper::GiveBack(const Decision& decision) {
  RunAttempts<RefundResult>(
      core_, Operation::kRefund, core_->MakeCall({.server = decision.server}),
      [core = core_.get(), receipt = decision.receipt](const Call& call,
                                                       Callback<RefundResult> ended) {
        core->connection().Refund(receipt, call, std::move(ended));
      },
      [](const Result<RefundResult>&, int) {});
}

void HoldKeeper::Close() {
  {
    common::MutexLock lock(&mu_);
    closed_ = true;
    for (auto& [at, slots] : agenda_) slots->planned.reset();
    agenda_.clear();
  }
  timer_.Close(alarm_);
}

void HoldKeeper::Plan(const Slots& slots, TimePoint at) {
  Unplan(*slots);
  if (!closed_) slots->planned = agenda_.emplace(at, slots);
}

void HoldKeeper::Unplan(HeldSlots& slots) {
  if (const auto planned = std::exchange(slots.planned, std::nullopt)) agenda_.erase(*planned);
}

std::optional<TimePoint> HoldKeeper::NextTimer() {
  if (agenda_.empty()) return std::nullopt;
  const TimePoint now = Now();
  const TimePoint next = std::max(agenda_.begin()->first, now + kLeastPause);
  // A timer whose time has passed may be late by as long as the machine was suspended.
  if (armed_for_ > now && armed_for_ <= next) return std::nullopt;
  return armed_for_ = next;
}

void HoldKeeper::StartTimer(std::optional<TimePoint> end) {
  if (!end.has_value()) return;
  const nanoseconds delay = std::max(nanoseconds(*end - Now()), kLeastPause);
  Connection& connection = core_->connection();
  // The alarm keeps only the earliest function, so what it runs is that of all timers. The
  // callbacks run on the client's thread: those that take long delay no other client.
  if (connection.on_system_clock() &&
      timer_.RunAfter(alarm_, delay, [&connection, self = shared_from_this()] {
        connection.RunAfter(nanoseconds(0), [self] { self->OnTimer(TimePoint::max()); });
      })) {
    return;
  }
  // If the client is destroyed before, it is called at once, and the keeper is closed.
  connection.RunAfter(delay, [self = shared_from_this(), at = *end] { self->OnTimer(at); });
}

void HoldKeeper::OnTimer(TimePoint armed_for) {
  std::vector<Batch> batches;
  std::vector<Lost> lost;
  std::optional<TimePoint> timer;
  {
    common::MutexLock lock(&mu_);
    if (closed_) return;
    // Else an earlier timer was started meanwhile.
    if (armed_for >= armed_for_) armed_for_ = TimePoint::max();
    TakeDue(Now(), &batches, &lost);
    timer = NextTimer();
  }
  StartTimer(timer);
  for (Batch& batch : batches) Renew(std::move(batch));
  Report(lost);
}

void HoldKeeper::TakeDue(TimePoint now, std::vector<Batch>* batches, std::vector<Lost>* lost) {
  std::map<std::optional<uint32_t>, Batch> open;
  for (auto next = agenda_.begin(); next != agenda_.end() && next->first <= now + kTogether;) {
    const Slots slots = (next++)->second;
    if (!slots->HeldAt(now)) {
      Lose(slots, NotRenewed(slots->why), lost);
      continue;
    }
    if (slots->renewing) continue;
    slots->renewing = true;
    // Its end, unless an answer comes first. It is planned behind `next`, or is passed over there.
    Plan(slots, slots->until());
    const auto server = slots->anywhere ? std::nullopt : std::optional<uint32_t>(slots->server);
    Batch& batch = open[server];
    batch.server = server;
    batch.slots.push_back(slots);
    batch.receipt_bytes += slots->receipt.size();
    if (batch.slots.size() < kMostInCall && batch.receipt_bytes < kFullBytes) continue;
    batches->push_back(std::exchange(batch, Batch()));
  }
  for (auto& [server, batch] : open) {
    if (!batch.slots.empty()) batches->push_back(std::move(batch));
  }
}

void HoldKeeper::Renew(Batch batch) {
  const TimePoint sent = Now();
  // An attempt that takes longer than half of the least time that is left leaves none for another.
  nanoseconds deadline = core_->options().deadline;
  std::vector<std::string> receipts;
  receipts.reserve(batch.slots.size());
  for (const Slots& slots : batch.slots) {
    receipts.push_back(slots->receipt);
    // None: they were released, or found lost, since they were taken out of the agenda.
    const TimePoint until = slots->until();
    if (until != TimePoint()) deadline = std::min(deadline, nanoseconds(until - sent) / 2);
  }
  const CallOptions options = {.deadline = std::max(deadline, kLeastPause), .server = batch.server};
  RunAttempts<std::vector<Renewal>>(
      core_, Operation::kRenew, core_->MakeCall(options),
      [core = core_.get(), receipts = std::move(receipts)](const Call& call,
                                                           Callback<std::vector<Renewal>> ended) {
        core->connection().Renew(receipts, call, std::move(ended));
      },
      [self = shared_from_this(), batch = std::move(batch), sent](
          const Result<std::vector<Renewal>>& result, int) {
        self->OnRenewed(batch, sent, result);
      });
}

void HoldKeeper::OnRenewed(const Batch& batch, TimePoint sent,
                           const Result<std::vector<Renewal>>& result) {
  std::vector<Lost> lost;
  std::optional<TimePoint> timer;
  {
    common::MutexLock lock(&mu_);
    if (closed_) return;
    const TimePoint now = Now();
    for (size_t i = 0; i < batch.slots.size(); ++i) {
      const Slots& slots = batch.slots[i];
      slots->renewing = false;
      if (slots->state != HeldSlots::State::kHeld) continue;
      Renewal renewal;
      if (result.ok() && i < result->size()) {
        renewal = (*result)[i];
      } else {
        renewal.status = result.ok() ? Status(StatusCode::kInternal, "no outcome of this receipt")
                                     : result.status();
      }
      // Another server may have another store: what it says of the receipt proves nothing.
      if (batch.server == std::nullopt && core_->connection().servers() > 1 &&
          renewal.status.code() == StatusCode::kInvalidArgument) {
        renewal.status = Status(StatusCode::kUnavailable, renewal.status.message());
      }
      if (std::optional<Status> why = Take(slots, renewal, sent, now)) {
        Lose(slots, *std::move(why), &lost);
      }
    }
    timer = NextTimer();
  }
  StartTimer(timer);
  Report(lost);
}

std::optional<Status> HoldKeeper::Take(const Slots& slots, const Renewal& renewal, TimePoint sent,
                                       TimePoint now) {
  if (renewal.status.ok()) {
    if (renewal.outcome != RenewOutcome::kRenewed) return Ended();
    slots->why = Status();
    slots->anywhere = false;
    if (!slots->Extend(now, sent + Counted(renewal.held_for))) return NotRenewed(Status());
    Plan(slots, sent + renewal.held_for / kRenewalsInHold);
    return std::nullopt;
  }
  // The server that issued the receipt does not know it any more, and so holds no slots under it.
  if (renewal.status.code() == StatusCode::kInvalidArgument) return renewal.status;
  slots->why = renewal.status;
  if (!slots->HeldAt(now)) return NotRenewed(slots->why);
  slots->anywhere = !slots->anywhere && core_->connection().servers() > 1;
  const nanoseconds left = slots->until() - now;
  Plan(slots, std::min(now + std::max(left / kRetriesInHold, kLeastPause), slots->until()));
  return std::nullopt;
}

void HoldKeeper::Lose(const Slots& slots, Status why, std::vector<Lost>* lost) {
  Unplan(*slots);
  slots->state = HeldSlots::State::kLost;
  slots->until_count = 0;
  slots->why = why;
  if (slots->on_lost == nullptr) return;
  lost->push_back({slots, std::move(why)});
}

void HoldKeeper::Report(const std::vector<Lost>& lost) {
  for (const auto& [slots, why] : lost) {
    {
      common::MutexLock lock(&mu_);
      if (slots->state != HeldSlots::State::kLost) continue;
      slots->reporting = std::this_thread::get_id();
    }
    slots->on_lost(why);
    common::MutexLock lock(&mu_);
    slots->reporting = std::thread::id();
    reported_.SignalAll();
  }
}

}  // namespace sluice::client_internal
