#include "client/src/settlements.h"

#include <algorithm>
#include <utility>

namespace sluice::client_internal {
namespace {

using std::chrono::nanoseconds;

// Servers keep an estimate for so long after its end, and charge what it took beyond.
constexpr std::chrono::minutes kKeptAfterEnd{10};
// Pauses between the attempts of a dropped estimate. They grow to more than those of a call, since
// a program may have dropped thousands when its server became unavailable.
constexpr nanoseconds kFirstPause = std::chrono::milliseconds(100);
constexpr nanoseconds kLongestPause = std::chrono::seconds(10);
constexpr int kDoublings = 7;
// For one of them, also if calls have no deadline.
constexpr nanoseconds kLongestAttempt = std::chrono::seconds(10);

bool SameBucket(const Charge& a, const Charge& b) { return a.limit == b.limit && a.key == b.key; }

const Charge* Find(const std::vector<Charge>& charges, const Charge& bucket) {
  const auto found = std::find_if(charges.begin(), charges.end(),
                                  [&](const Charge& one) { return SameBucket(one, bucket); });
  return found == charges.end() ? nullptr : &*found;
}

// The newer numbers, and those of buckets that only the older name.
std::vector<Charge> Joined(const std::vector<Charge>& older, std::vector<Charge> newer) {
  for (const Charge& one : older) {
    if (Find(newer, one) == nullptr) newer.push_back(one);
  }
  return newer;
}

// A server refuses charges that are named twice, so the sum is the acquisition's.
uint64_t AskedOf(const std::vector<Charge>& asked, const Charge& bucket) {
  uint64_t sum = 0;
  for (const Charge& one : asked) sum += SameBucket(one, bucket) ? one.permits : 0;
  return sum;
}

// Charges of slots have no actual. The requested charges come first in the decision.
std::vector<Charge> Unused(const std::vector<Charge>& asked, const Decision& decision) {
  std::vector<Charge> unused;
  for (size_t i = 0; i < asked.size(); ++i) {
    const bool slots = i < decision.charges.size() && decision.charges[i].held_for.count() != 0;
    if (!slots) unused.push_back({asked[i].limit, asked[i].key, 0});
  }
  return unused;
}

Status Falls(const Charge& actual, uint64_t before) {
  return Status(StatusCode::kInvalidArgument,
                "actual of limit \"" + actual.limit + "\" is " + std::to_string(actual.permits) +
                    ", below the " + std::to_string(before) +
                    " of before; valid is all that the work took, which never falls");
}
Status SettledBefore(const char* how) {
  return Status(StatusCode::kFailedPrecondition, std::string("the estimate ") + how);
}

// The server has decided that it is wrong, and changed nothing.
bool Refused(const Result<SettleResult>& result) {
  const StatusCode code = result.status().code();
  return code == StatusCode::kInvalidArgument || code == StatusCode::kFailedPrecondition;
}

Result<SettleResult> AsSettled(const Result<RefundResult>& refunded) {
  if (!refunded.ok()) return refunded.status();
  SettleResult result;
  switch (refunded->outcome) {
    case RefundOutcome::kRefunded:
      result.outcome = SettleOutcome::kSettled;
      break;
    case RefundOutcome::kAlreadyRefunded:
      result.outcome = SettleOutcome::kAlreadySettled;
      break;
    case RefundOutcome::kExpired:
      result.outcome = SettleOutcome::kLate;
      break;
  }
  for (const RefundedCharge& charge : refunded->charges) {
    result.charges.push_back({charge.limit, charge.key, charge.permits});
  }
  return result;
}

}  // namespace

Settlements::Settlements(std::shared_ptr<ClientCore> core, Acquisition acquisition,
                         const Decision& decision, EstimateOptions options)
    : core_(std::move(core)),
      asked_(std::move(acquisition.charges)),
      unused_(Unused(asked_, decision)),
      settle_within_(acquisition.settle_within),
      receipt_(decision.receipt),
      server_(decision.server),
      granted_at_(core_->connection().BootNow() + decision.wait),
      options_(std::move(options)),
      until_(granted_at_ + settle_within_ + kKeptAfterEnd) {}

void Settlements::Send(Kind kind, std::vector<Charge> actual, const CallOptions& options,
                       Callback<SettleResult> done, const std::function<void()>& accepted) {
  CallOptions at_server = options;
  at_server.server = server_;
  Status refused;
  Callback<SettleResult> not_sent;
  std::optional<Task> first;
  {
    common::MutexLock lock(&mu_);
    refused = Check(kind, actual);
    if (refused.ok()) {
      reported_ = Joined(reported_, std::move(actual));
      Task task;
      task.kind = kind;
      task.actual = reported_;
      task.call = core_->MakeCall(at_server);
      if (done != nullptr) task.done.push_back(std::move(done));
      if (kind != Kind::kMore) {
        state_ = State::kEnding;
        ending_ = kind;
      }
      first = Enqueue(std::move(task));
    } else {
      not_sent = std::move(done);
    }
  }
  if (!refused.ok()) {
    if (not_sent != nullptr) not_sent(std::move(refused));
    return;
  }
  accepted();
  if (first.has_value()) Go(std::make_shared<Task>(*std::move(first)));
}

Status Settlements::Check(Kind kind, const std::vector<Charge>& actual) const {
  if (state_ != State::kOpen && kind != ending_) {
    return SettledBefore(ending_ == Kind::kRefund ? "was refunded" : "is settled");
  }
  if (kind == Kind::kRefund && !reported_.empty()) {
    return SettledBefore("has reported what it took: settle it instead");
  }
  // The server decides on another number after the last one, which it may not know.
  if (state_ != State::kOpen) return Status();
  for (const Charge& charge : actual) {
    const Charge* const before = Find(reported_, charge);
    if (before != nullptr && charge.permits < before->permits)
      return Falls(charge, before->permits);
  }
  return Status();
}

std::optional<Settlements::Task> Settlements::Enqueue(Task task) {
  if (!std::exchange(under_way_, true)) return task;
  if (next_.has_value()) {
    // Its number is in the new one.
    task.call.deadline = std::max(task.call.deadline, next_->call.deadline);
    task.done.insert(task.done.begin(), next_->done.begin(), next_->done.end());
  }
  next_ = std::move(task);
  return std::nullopt;
}

void Settlements::Drop() {
  std::optional<Task> first;
  {
    common::MutexLock lock(&mu_);
    if (state_ == State::kEnded) return;
    Task last = Last();
    last.dropped = true;
    if (options_.on_settled != nullptr) last.done.push_back(options_.on_settled);
    state_ = State::kEnding;
    ending_ = last.kind;
    first = Enqueue(std::move(last));
  }
  if (first.has_value()) Go(std::make_shared<Task>(*std::move(first)));
}

Settlements::Task Settlements::Last() {
  Task task;
  task.kind = Kind::kLast;
  task.actual = reported_;
  if (state_ == State::kEnding) {
    task.kind = ending_;
    return task;
  }
  if (Now() < granted_at_ || (options_.if_dropped == IfDropped::kRefund && reported_.empty())) {
    task.kind = Kind::kRefund;
    return task;
  }
  switch (options_.if_dropped) {
    case IfDropped::kCharge:
      for (Charge& one : task.actual) one.permits = std::max(one.permits, AskedOf(asked_, one));
      break;
    case IfDropped::kRefund:
      task.actual = Joined(unused_, std::move(task.actual));
      break;
    case IfDropped::kActual:
      task.actual = options_.actual;
      for (Charge& one : task.actual) {
        const Charge* const before = Find(reported_, one);
        if (before != nullptr) one.permits = std::max(one.permits, before->permits);
      }
      task.actual = Joined(reported_, std::move(task.actual));
      break;
  }
  return task;
}

void Settlements::Go(const std::shared_ptr<Task>& task) {
  if (task->dropped) {
    CallOptions options = {.deadline = std::min(core_->options().deadline, kLongestAttempt)};
    if (!Anywhere(*task)) options.server = server_;
    task->call = core_->MakeCall(options);
  }
  if (task->kind == Kind::kRefund) {
    return RunAttempts<RefundResult>(
        core_, Operation::kRefund, task->call,
        [core = core_.get(), receipt = receipt_](const Call& call, Callback<RefundResult> ended) {
          core->connection().Refund(receipt, call, std::move(ended));
        },
        [self = shared_from_this(), task](const Result<RefundResult>& result, int attempts) {
          Result<SettleResult> settled = AsSettled(result);
          if (settled.ok()) settled->attempts = attempts;
          self->Ended(task, std::move(settled));
        });
  }
  const Settlement settlement = {receipt_, task->actual, task->kind == Kind::kMore};
  RunAttempts<SettleResult>(
      core_, Operation::kSettle, task->call,
      [core = core_.get(), settlement](const Call& call, Callback<SettleResult> ended) {
        core->connection().Settle(settlement, call, std::move(ended));
      },
      [self = shared_from_this(), task](Result<SettleResult> result, int attempts) {
        if (result.ok()) result->attempts = attempts;
        self->Ended(task, std::move(result));
      });
}

void Settlements::Ended(const std::shared_ptr<Task>& task, Result<SettleResult> result) {
  // Another server may have another store: what it says of the receipt proves nothing.
  if (Anywhere(*task) && result.status().code() == StatusCode::kInvalidArgument) {
    result = Status(StatusCode::kUnavailable, result.status().message());
  }
  const bool unknown = !result.ok() && IsUnavailable(result.status());
  std::shared_ptr<Task> next;
  {
    common::MutexLock lock(&mu_);
    if (!task->dropped || !unknown || Now() >= until_) {
      Note(*task, result);
      under_way_ = false;
      if (next_.has_value() && next_->dropped && state_ == State::kEnded) {
        // The guard was destroyed while its last settlement was under way.
        task->done.insert(task->done.end(), next_->done.begin(), next_->done.end());
        next_.reset();
      }
      if (next_.has_value()) {
        under_way_ = true;
        next = std::make_shared<Task>(*std::move(next_));
        next_.reset();
      }
    } else {
      next = task;
    }
  }
  if (next == task) return Retry(task);
  for (const Callback<SettleResult>& done : task->done) done(result);
  if (next != nullptr) Go(next);
}

void Settlements::Retry(const std::shared_ptr<Task>& task) {
  const nanoseconds pause =
      std::min(kFirstPause * (1 << std::min(task->failures, kDoublings)), kLongestPause);
  ++task->failures;
  // If the client is destroyed before, it is called at once, and the attempt ends with CANCELLED.
  core_->connection().RunAfter(std::chrono::duration_cast<nanoseconds>(pause * (0.5 + Random())),
                               [self = shared_from_this(), task] { self->Go(task); });
}

void Settlements::Note(const Task& task, const Result<SettleResult>& result) {
  if (Refused(result)) {
    reported_ = accepted_;
    if (task.kind != Kind::kMore) state_ = State::kOpen;
    return;
  }
  accepted_ = task.actual;
  if (!result.ok()) return;
  if (task.kind != Kind::kMore) state_ = State::kEnded;
  if (task.kind == Kind::kMore) {
    until_ = std::max(until_, Now() + settle_within_ + kKeptAfterEnd);
  }
}

}  // namespace sluice::client_internal
