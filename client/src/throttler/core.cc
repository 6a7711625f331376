#include "client/src/throttler/core.h"

#include <algorithm>
#include <optional>
#include <stop_token>
#include <vector>

namespace sluice::throttler_internal {

using common::MutexLock;
using std::chrono::nanoseconds;

namespace {

// The throttler whose function this thread runs.
thread_local const Core* running_core = nullptr;
// The throttler whose tasks this thread hands to the executor.
thread_local const Core* dispatching_core = nullptr;

// Sets a thread_local for the time of a scope.
class ScopedCore {
 public:
  ScopedCore(const Core*& slot, const Core* core)
      : slot_(slot), before_(std::exchange(slot, core)) {}
  ~ScopedCore() { slot_ = before_; }
  ScopedCore(const ScopedCore&) = delete;
  ScopedCore& operator=(const ScopedCore&) = delete;

 private:
  const Core*& slot_;
  const Core* const before_;
};

// A caller that is blocked in Start.
class BlockedCaller final : public Work {
 public:
  std::future<Status> future() { return started_.get_future(); }
  void Run() override { started_.set_value(Status()); }
  void Fail(Status status) override { started_.set_value(std::move(status)); }

 private:
  std::promise<Status> started_;
};

Status Cancelled(const char* why) { return Status(StatusCode::kCancelled, why); }

}  // namespace

class Core::Task final : public std::enable_shared_from_this<Task> {
 public:
  enum class State : uint8_t { kBooking, kWaiting, kStarted, kOver };

  Task(std::shared_ptr<ChannelState> in_channel, std::unique_ptr<Work> to_do, bool is_blocked,
       const StartOptions& options, nanoseconds now)
      : channel(std::move(in_channel)),
        blocked(is_blocked),
        permits(options.permits),
        latest(now + options.max_wait),
        cancel(options.cancel),
        work(std::move(to_do)) {}

  // The function is destroyed with the task, under no lock.
  void Fail(Status status) { work->Fail(std::move(status)); }

  struct OnCancel {
    std::weak_ptr<Core> core;
    std::weak_ptr<Task> task;
    void operator()() const {
      const std::shared_ptr<Core> live_core = core.lock();
      const TaskPtr live_task = task.lock();
      if (live_core != nullptr && live_task != nullptr) live_core->Cancel(live_task);
    }
  };

  const std::shared_ptr<ChannelState> channel;
  const bool blocked;  // a caller blocked in Start, which the executor does not run
  const uint64_t permits;
  const nanoseconds latest;
  const std::stop_token cancel;
  // Used only by the thread that moved the state to kStarted or kOver.
  std::unique_ptr<Work> work;

  // Guarded by Core::mu_.
  State state = State::kBooking;
  uint64_t serial = 0;
  Booking booking;

  Queue::Position position() const { return {booking.grant_time.count(), serial}; }

  // Its destructor waits for a running callback, so a task is never destroyed under a lock.
  std::optional<std::stop_callback<OnCancel>> on_cancel;
};

// A task in the hands of the executor. If the executor drops it, the task fails.
class Core::StartedTask {
 public:
  StartedTask(std::shared_ptr<Core> core, TaskPtr task)
      : core_(std::move(core)), task_(std::move(task)) {}
  ~StartedTask() { Finish(/*dropped=*/true); }
  StartedTask(const StartedTask&) = delete;
  StartedTask& operator=(const StartedTask&) = delete;

  void Finish(bool dropped) {
    if (task_ != nullptr) core_->Run(std::exchange(task_, nullptr), dropped);
  }

 private:
  const std::shared_ptr<Core> core_;
  TaskPtr task_;
};

Result<Throttler> Core::MakeThrottler(std::unique_ptr<GateSource> source,
                                      ThrottlerOptions options) {
  if (options.max_waiting == 0) {
    return Status(StatusCode::kInvalidArgument,
                  "ThrottlerOptions::max_waiting is 0; it must be at least 1");
  }
  const AtShutdown at_destruction = options.at_destruction;
  std::string limit = options.limit;
  std::string key = options.key;
  auto core = std::make_shared<Core>(std::move(source), std::move(options));
  Result<std::shared_ptr<ChannelState>> main = core->Open(std::move(limit), std::move(key));
  if (!main.ok()) return main.status();
  return Throttler(std::move(core), *std::move(main), at_destruction);
}

Core::Core(std::unique_ptr<GateSource> source, ThrottlerOptions options)
    : source_(std::move(source)),
      clock_(source_->clock()),
      in_process_(source_->in_process()),
      max_waiting_(options.max_waiting),
      executor_(options.executor != nullptr ? std::move(options.executor)
                                            : std::make_shared<ThreadExecutor>(1)) {}

// Tasks still wait here only if one of the throttler's own functions destroyed it.
Core::~Core() {
  CloseSource();
  std::vector<TaskPtr> dropped;
  {
    MutexLock lock(&mu_);
    dropped = queue_.TakeLaterThan(INT64_MIN);
    CancelTimer();
  }
  for (auto task = dropped.rbegin(); task != dropped.rend(); ++task) {
    (*task)->channel->gate->Refund((*task)->booking);
    (*task)->Fail(Cancelled("dropped: a function of the throttler destroyed the throttler"));
  }
}

void Core::CloseSource() {
  MutexLock lock(&booking_mu_);
  if (!closed_) source_->Close();
  closed_ = true;
}

Result<std::shared_ptr<ChannelState>> Core::Open(std::string limit, std::string key) {
  Result<std::unique_ptr<Gate>> gate = source_->Open(std::move(limit), std::move(key));
  if (!gate.ok()) return gate.status();
  auto channel = std::make_shared<ChannelState>();
  channel->gate = *std::move(gate);
  return channel;
}

Status Core::ShutDownError() {
  return Status(StatusCode::kFailedPrecondition, "the throttler is shut down");
}

Status Core::CheckOptions(const StartOptions& options) {
  if (options.permits == 0) {
    return Status(StatusCode::kInvalidArgument, "permits is 0; it must be at least 1");
  }
  if (options.max_wait < nanoseconds(0) || options.max_wait > kMaxThrottlerWait) {
    return Status(StatusCode::kInvalidArgument,
                  "max_wait is " + std::to_string(options.max_wait.count()) +
                      " ns; it must be from 0 to 24 h (" +
                      std::to_string(kMaxThrottlerWait.count()) + " ns)");
  }
  return Status();
}

Status Core::Start(const std::shared_ptr<ChannelState>& channel, const StartOptions& options) {
  if (Status status = CheckOptions(options); !status.ok()) return status;
  // In this process, permits that are available cost no lock. A server is asked only once.
  if (in_process_ || options.max_wait == nanoseconds(0)) {
    if (options.cancel.stop_requested()) return Cancelled("cancelled by its token");
    const Result<nanoseconds> wait = TryStart(*channel, options.permits);
    if (!wait.ok()) return wait.status();
    if (wait->count() == 0) return Status();
    if (options.max_wait == nanoseconds(0)) {
      denied_.fetch_add(1, std::memory_order_relaxed);
      return Status(StatusCode::kDeadlineExceeded, "there are no permits now, and max_wait is 0");
    }
  }
  if (dispatching_core == this) {
    return Status(StatusCode::kFailedPrecondition,
                  "a function that InlineExecutor runs cannot wait for its own throttler, which "
                  "starts nothing else meanwhile; use another executor, or TryStart");
  }
  auto caller = std::make_unique<BlockedCaller>();
  std::future<Status> started = caller->future();
  Enter(std::make_shared<Task>(channel, std::move(caller), /*is_blocked=*/true, options,
                               clock_->Now()));
  return started.get();
}

Result<nanoseconds> Core::TryStart(ChannelState& channel, uint64_t permits) {
  if (stopping_.load(std::memory_order_acquire)) return ShutDownError();
  Status error;
  const nanoseconds wait = channel.gate->Try(permits, &error);
  if (wait.count() < 0) return error;
  return wait;
}

void Core::Submit(const std::shared_ptr<ChannelState>& channel, std::unique_ptr<Work> work,
                  const StartOptions& options) {
  if (Status status = CheckOptions(options); !status.ok()) return work->Fail(std::move(status));
  Enter(std::make_shared<Task>(channel, std::move(work), /*is_blocked=*/false, options,
                               clock_->Now()));
}

Status Core::Admit(Task& task) {
  MutexLock lock(&mu_);
  if (stopping_.load(std::memory_order_relaxed)) return ShutDownError();
  if (waiting_ >= max_waiting_) {
    ++refused_;
    return Status(StatusCode::kResourceExhausted,
                  std::to_string(waiting_) +
                      " functions and callers wait already; the bound is max_waiting = " +
                      std::to_string(max_waiting_));
  }
  ++waiting_;
  task.channel->waiting.fetch_add(1, std::memory_order_relaxed);
  task.serial = ++last_serial_;
  return Status();
}

void Core::Enter(const TaskPtr& task) {
  Status refusal;
  {
    MutexLock booking_lock(&booking_mu_);
    refusal = Admit(*task);
    if (refusal.ok()) {
      if (task->cancel.stop_possible()) {
        task->on_cancel.emplace(task->cancel, Task::OnCancel{weak_from_this(), task});
      }
      Book(task, task->latest - clock_->Now());
    }
  }
  if (!refusal.ok()) return task->Fail(std::move(refusal));
  Dispatch();
}

void Core::Book(const TaskPtr& task, nanoseconds max_wait) {
  {
    MutexLock lock(&mu_);
    if (task->state != Task::State::kBooking) return;  // cancelled
  }
  task->channel->gate->Book(task->permits, std::clamp(max_wait, nanoseconds(0), kMaxThrottlerWait),
                            [this, task](Booking booking) { Booked(task, std::move(booking)); });
}

// Shutdown waits for the answer to every booking, so `this` still exists.
void Core::Booked(const TaskPtr& task, Booking booking) {
  Status failure;
  bool refund = false;
  bool answered = false;
  {
    MutexLock lock(&mu_);
    if (task->state != Task::State::kBooking) {
      answered = true;  // cancelled meanwhile
      refund = booking.status.ok();
    } else if (!booking.status.ok()) {
      denied_.fetch_add(1, std::memory_order_relaxed);
      failure = std::move(booking.status);
      task->state = Task::State::kOver;
    } else if (dropping_.load(std::memory_order_relaxed)) {
      ++cancelled_;
      refund = true;
      failure = Cancelled("dropped: the throttler is shutting down");
      task->state = Task::State::kOver;
    } else {
      if (!in_process_) {
        // A grant time counts from the arrival of its answer, and the delays of answers differ.
        booking.grant_time = std::max(booking.grant_time, task->channel->last_grant_time);
        task->channel->last_grant_time = booking.grant_time;
      }
      task->booking = std::move(booking);
      task->state = Task::State::kWaiting;
      queue_.Insert(task->position(), task);
      // In this process the caller dispatches. After a server's answer the clock does, so that no
      // function runs on the client's threads.
      if (!in_process_) SetTimer(/*move_after=*/kStepInterval);
      return;
    }
  }
  if (refund && task->channel->gate->Refund(booking)) {
    MutexLock lock(&mu_);
    queue_.NoteGap({booking.grant_time.count(), task->serial});
  }
  if (!answered) {
    task->Fail(std::move(failure));
    MutexLock lock(&mu_);
    EndWait(*task);
  }
}

void Core::EndWait(Task& task) {
  task.channel->waiting.fetch_sub(1, std::memory_order_relaxed);
  if (--waiting_ == 0) idle_.SignalAll();
}

void Core::Cancel(const TaskPtr& task) {
  bool booked = false;
  {
    MutexLock lock(&mu_);
    if (task->state == Task::State::kWaiting) {
      queue_.Erase(task->position());
      booked = true;
    } else if (task->state != Task::State::kBooking) {
      return;
    }
    task->state = Task::State::kOver;
    ++cancelled_;
  }
  if (booked) task->channel->gate->Refund(task->booking);
  task->Fail(Cancelled("cancelled by its token"));
  MutexLock lock(&mu_);
  if (booked && in_process_) queue_.NoteGap(task->position());
  // The timer moves the others up, once for many tasks that are cancelled one after the other.
  SetTimer(/*move_after=*/nanoseconds(0));
  EndWait(*task);
}

void Core::MoveUp() {
  for (size_t moves = 0; moves < kMovesPerStep; ++moves) {
    const auto* const next = queue_.NextBehindGap();
    if (next == nullptr) return;
    const Queue::Position from = next->first;
    Task& task = *next->second;
    if (task.channel->gate->MoveUp(&task.booking)) queue_.Move(from, task.position());
  }
}

void Core::Dispatch() {
  mu_.Lock();
  if (dispatching_) {
    mu_.Unlock();
    return;
  }
  dispatching_ = true;
  const ScopedCore dispatching(dispatching_core, this);
  MoveUp();
  while (std::optional<TaskPtr> due = queue_.PopDue(clock_->Now().count())) {
    const TaskPtr& task = *due;
    task->state = Task::State::kStarted;
    ++running_;
    EndWait(*task);
    mu_.Unlock();
    if (task->blocked) {
      Run(task, /*dropped=*/false);
    } else {
      auto started = std::make_shared<StartedTask>(shared_from_this(), task);
      executor_->Execute([started] { started->Finish(/*dropped=*/false); });
    }
    due.reset();  // not under the lock: see Task::on_cancel
    mu_.Lock();
  }
  dispatching_ = false;
  SetTimer(/*move_after=*/kStepInterval);
  mu_.Unlock();
}

void Core::Run(const TaskPtr& task, bool dropped) {
  const bool run = task->blocked || (!dropped && !dropping_.load(std::memory_order_acquire) &&
                                     !task->cancel.stop_requested());
  if (run) {
    const ScopedCore running(running_core, this);
    task->work->Run();
    // Destroy the function before it counts as finished.
    task->work.reset();
  } else {
    task->Fail(Cancelled(dropped ? "the executor dropped it" : "cancelled before it started"));
  }
  MutexLock lock(&mu_);
  if (!run) {
    ++cancelled_;
  } else if (!task->blocked) {
    ++finished_;
  }
  if (--running_ == 0) idle_.SignalAll();
}

void Core::OnTimer(uint64_t timer_serial) {
  {
    MutexLock lock(&mu_);
    if (timer_serial == timer_serial_) timer_ = 0;
  }
  Dispatch();
}

void Core::SetTimer(nanoseconds move_after) {
  if (queue_.empty()) {
    queue_.ForgetGap();
    CancelTimer();
    return;
  }
  const nanoseconds next(queue_.NextWakeNs((clock_->Now() + move_after).count()));
  if (timer_ != 0 && timer_time_ <= next) return;
  CancelTimer();
  timer_time_ = next;
  timer_ = clock_->RunAt(next, [weak = weak_from_this(), serial = ++timer_serial_] {
    if (const std::shared_ptr<Core> core = weak.lock(); core != nullptr) core->OnTimer(serial);
  });
}

void Core::CancelTimer() {
  if (timer_ != 0) clock_->Cancel(timer_);
  timer_ = 0;
}

void Core::Rebook(std::vector<std::shared_ptr<Core>> throttlers,
                  const std::function<void(std::vector<Rebooking>*)>& rebook) {
  struct Waiting {
    Core* core;
    TaskPtr task;
  };
  std::sort(throttlers.begin(), throttlers.end());
  std::vector<Waiting> waiting;
  for (const std::shared_ptr<Core>& core : throttlers) core->booking_mu_.Lock();
  for (const std::shared_ptr<Core>& core : throttlers) {
    MutexLock lock(&core->mu_);
    // A grant time that has come stands.
    for (TaskPtr& task : core->queue_.TakeLaterThan(core->clock_->Now().count())) {
      task->state = Task::State::kBooking;
      waiting.push_back({core.get(), std::move(task)});
    }
  }
  // Receipt ids grow in the order of booking, over all throttlers.
  std::sort(waiting.begin(), waiting.end(), [](const Waiting& a, const Waiting& b) {
    return a.task->booking.receipt_id < b.task->booking.receipt_id;
  });
  std::vector<Rebooking> rebookings;
  rebookings.reserve(waiting.size());
  for (const Waiting& one : waiting) {
    rebookings.push_back({one.task->channel->gate.get(), one.task->latest, one.task->booking});
  }
  rebook(&rebookings);
  for (size_t i = 0; i < waiting.size(); ++i) {
    waiting[i].core->Booked(waiting[i].task, std::move(rebookings[i].booking));
  }
  for (const std::shared_ptr<Core>& core : throttlers) core->booking_mu_.Unlock();
  for (const std::shared_ptr<Core>& core : throttlers) core->Dispatch();
}

void Core::Shutdown(AtShutdown what_waits) {
  std::vector<TaskPtr> dropped;
  {
    MutexLock lock(&mu_);
    stopping_.store(true, std::memory_order_release);
    if (what_waits == AtShutdown::kDrop) {
      dropping_.store(true, std::memory_order_release);
      dropped = queue_.TakeLaterThan(INT64_MIN);
      for (const TaskPtr& task : dropped) task->state = Task::State::kOver;
      cancelled_ += dropped.size();
      CancelTimer();
    }
  }
  // Last to first: no booking that remains depends on the one that is refunded.
  for (size_t i = dropped.size(); i-- > 0;) {
    dropped[i]->channel->gate->Refund(dropped[i]->booking);
  }
  for (const TaskPtr& task : dropped) {
    task->Fail(Cancelled("dropped: the throttler is shutting down"));
    MutexLock lock(&mu_);
    EndWait(*task);
  }
  // Called by one of its own functions, it would wait for itself.
  if (running_core == this || dispatching_core == this) return;
  {
    MutexLock lock(&mu_);
    while (waiting_ != 0 || running_ != 0) idle_.Wait(&mu_);
  }
  CloseSource();
}

ThrottlerStats Core::stats() const {
  ThrottlerStats stats;
  MutexLock lock(&mu_);
  stats.waiting = waiting_;
  stats.running = running_;
  if (!queue_.empty()) {
    const nanoseconds first(queue_.entries().begin()->first.grant_time_ns);
    stats.next_grant_after = std::max(first - clock_->Now(), nanoseconds(0));
  }
  stats.finished = finished_;
  stats.refused = refused_;
  stats.denied = denied_.load(std::memory_order_relaxed);
  stats.cancelled = cancelled_;
  return stats;
}

}  // namespace sluice::throttler_internal
