#include "client/src/throttler/core.h"

#include <algorithm>
#include <optional>
#include <stop_token>
#include <vector>

namespace sluice::throttler_internal {

using common::MutexLock;
using std::chrono::nanoseconds;

namespace {

// The throttler whose function, or whose starting of functions, this thread is in.
thread_local const Core* current_core = nullptr;

class CurrentCore {
 public:
  explicit CurrentCore(const Core* core) : before_(current_core) { current_core = core; }
  ~CurrentCore() { current_core = before_; }
  CurrentCore(const CurrentCore&) = delete;
  CurrentCore& operator=(const CurrentCore&) = delete;

 private:
  const Core* const before_;
};

// Whether this thread hands a throttler's tasks to its executor.
thread_local const Core* dispatching_core = nullptr;

// A caller that is blocked in Start.
class BlockedCaller final : public Work {
 public:
  std::future<Status> future() { return told_.get_future(); }
  void Run() override { told_.set_value(Status()); }
  void Fail(Status status) override { told_.set_value(std::move(status)); }

 private:
  std::promise<Status> told_;
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

  // Answers that it did not run. What the function holds goes with the task, under no lock.
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
  const bool blocked;  // a caller waits: woken where it is, not given to the executor
  const uint64_t permits;
  const nanoseconds latest;
  const std::stop_token cancel;
  // Whoever moved the state to kStarted or kOver has it alone.
  std::unique_ptr<Work> work;

  // Guarded by Core::mu_.
  State state = State::kBooking;
  uint64_t serial = 0;
  // Written under mu_, by who has it in kBooking.
  Booking booking;

  // Destroyed with the task, which is never under a lock: it waits for a callback that runs.
  std::optional<std::stop_callback<OnCancel>> on_cancel;
};

// What the executor is given. One that drops it answers for it all the same.
class Core::StartedTask {
 public:
  StartedTask(std::shared_ptr<Core> core, TaskPtr task)
      : core_(std::move(core)), task_(std::move(task)) {}
  ~StartedTask() { Finish(/*dropped=*/true); }
  StartedTask(const StartedTask&) = delete;
  StartedTask& operator=(const StartedTask&) = delete;

  void Finish(bool dropped) {
    if (task_ != nullptr) core_->Started(std::exchange(task_, nullptr), dropped);
  }

 private:
  const std::shared_ptr<Core> core_;
  TaskPtr task_;
};

Result<Throttler> Core::MakeThrottler(std::unique_ptr<GateSource> source,
                                      ThrottlerOptions options) {
  if (options.max_waiting == 0) {
    return Status(StatusCode::kInvalidArgument,
                  "ThrottlerOptions::max_waiting is 0; at least 1 has to be able to wait");
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

// Waiting tasks are found here only when the throttler was destroyed by one of its own functions.
Core::~Core() {
  std::map<Place, TaskPtr> line;
  {
    MutexLock booking_lock(&booking_mu_);
    if (!closed_) source_->Close();
    closed_ = true;
    MutexLock lock(&mu_);
    line.swap(line_);
    DisArm();
  }
  for (auto it = line.rbegin(); it != line.rend(); ++it) {
    it->second->channel->gate->GiveBack(it->second->booking);
    it->second->Fail(Cancelled("dropped: the throttler was destroyed by its own function"));
  }
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
    return Status(StatusCode::kInvalidArgument, "permits is 0; at least 1");
  }
  if (options.max_wait < nanoseconds(0) || options.max_wait > kMaxThrottlerWait) {
    return Status(StatusCode::kInvalidArgument,
                  "max_wait is " + std::to_string(options.max_wait.count()) +
                      " ns; from 0 to 24 h (" + std::to_string(kMaxThrottlerWait.count()) + ")");
  }
  return Status();
}

Status Core::Start(const std::shared_ptr<ChannelState>& channel, const StartOptions& options) {
  if (Status status = CheckOptions(options); !status.ok()) return status;
  // Permits that are there are had without a lock; a server is asked once, not twice.
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
                  "a function that InlineExecutor runs cannot wait for its own throttler: nobody "
                  "would start what comes before; use another executor, or TryStart");
  }
  auto caller = std::make_unique<BlockedCaller>();
  std::future<Status> told = caller->future();
  Enter(std::make_shared<Task>(channel, std::move(caller), /*is_blocked=*/true, options,
                               clock_->Now()));
  return told.get();
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

void Core::Enter(const TaskPtr& task) {
  Status refusal;
  {
    MutexLock booking_lock(&booking_mu_);
    {
      MutexLock lock(&mu_);
      if (stopping_.load(std::memory_order_relaxed)) {
        refusal = ShutDownError();
      } else if (waiting_ >= max_waiting_) {
        ++refused_;
        refusal = Status(StatusCode::kResourceExhausted,
                         std::to_string(waiting_) + " wait already; at most max_waiting = " +
                             std::to_string(max_waiting_));
      } else {
        ++waiting_;
        task->channel->waiting.fetch_add(1, std::memory_order_relaxed);
        task->serial = ++last_serial_;
      }
    }
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

// Shutdown waits until every booking was answered, so `this` is there when it is.
void Core::Booked(const TaskPtr& task, Booking booking) {
  Status failure;
  bool give_back = false;
  bool over = false;
  {
    MutexLock lock(&mu_);
    if (task->state != Task::State::kBooking) {
      over = true;
      give_back = booking.status.ok();
    } else if (!booking.status.ok()) {
      denied_.fetch_add(1, std::memory_order_relaxed);
      failure = std::move(booking.status);
      task->state = Task::State::kOver;
    } else if (dropping_.load(std::memory_order_relaxed)) {
      ++cancelled_;
      give_back = true;
      failure = Cancelled("dropped: the throttler is shutting down");
      task->state = Task::State::kOver;
    } else {
      if (!in_process_) {
        // Answers arrive in order, but not evenly.
        booking.moment = std::max(booking.moment, task->channel->last_moment);
        task->channel->last_moment = booking.moment;
      }
      task->booking = std::move(booking);
      task->state = Task::State::kWaiting;
      line_.emplace(Place(task->booking.moment, task->serial), task);
      // In this process who asked starts what is due; a server's answer leaves that to the clock,
      // so that no function runs on the client's threads.
      if (!in_process_) Arm(/*move_after=*/kBetweenSteps);
      return;
    }
  }
  if (give_back && task->channel->gate->GiveBack(booking)) {
    // Those behind move up when the line is looked at next.
    MutexLock lock(&mu_);
    move_next_ = std::min(move_next_, Place(booking.moment, task->serial));
  }
  if (!over) {
    task->Fail(std::move(failure));
    MutexLock lock(&mu_);
    LeaveLine(*task);
  }
}

void Core::LeaveLine(Task& task) {
  task.channel->waiting.fetch_sub(1, std::memory_order_relaxed);
  if (--waiting_ == 0) idle_.SignalAll();
}

void Core::Cancel(const TaskPtr& task) {
  bool booked = false;
  {
    MutexLock lock(&mu_);
    if (task->state == Task::State::kWaiting) {
      line_.erase(Place(task->booking.moment, task->serial));
      booked = true;
    } else if (task->state != Task::State::kBooking) {
      return;
    }
    task->state = Task::State::kOver;
    ++cancelled_;
  }
  if (booked) task->channel->gate->GiveBack(task->booking);
  task->Fail(Cancelled("cancelled by its token"));
  MutexLock lock(&mu_);
  if (booked && in_process_) {
    // By the clock, so that a crowd that is cancelled one by one moves the others once.
    move_next_ = std::min(move_next_, Place(task->booking.moment, task->serial));
  }
  Arm(/*move_after=*/nanoseconds(0));
  LeaveLine(*task);
}

void Core::MoveUp() {
  for (size_t moves = 0; moves < kMovesPerStep; ++moves) {
    const auto next = line_.lower_bound(move_next_);
    if (next == line_.end()) {
      move_next_ = kNobody;
      return;
    }
    Task& task = *next->second;
    move_next_ = Place(next->first.first, next->first.second + 1);
    if (!task.channel->gate->MoveUp(&task.booking)) continue;
    auto node = line_.extract(next);
    node.key() = Place(task.booking.moment, task.serial);
    line_.insert(std::move(node));
  }
}

void Core::Dispatch() {
  mu_.Lock();
  if (dispatching_) {
    // That thread looks again, under mu_, before it leaves.
    mu_.Unlock();
    return;
  }
  dispatching_ = true;
  const Core* const before = dispatching_core;
  dispatching_core = this;
  if (move_next_ != kNobody) MoveUp();
  while (!line_.empty() && line_.begin()->first.first <= clock_->Now()) {
    TaskPtr task = std::move(line_.begin()->second);
    line_.erase(line_.begin());
    task->state = Task::State::kStarted;
    ++running_;
    LeaveLine(*task);
    mu_.Unlock();
    if (task->blocked) {
      Started(task, /*dropped=*/false);
    } else {
      auto started = std::make_shared<StartedTask>(shared_from_this(), task);
      executor_->Execute([started] { started->Finish(/*dropped=*/false); });
    }
    task.reset();  // not under the lock: see Task::on_cancel
    mu_.Lock();
  }
  dispatching_core = before;
  dispatching_ = false;
  Arm(/*move_after=*/kBetweenSteps);
  mu_.Unlock();
}

void Core::Started(const TaskPtr& task, bool dropped) {
  const bool run = task->blocked || (!dropped && !dropping_.load(std::memory_order_acquire) &&
                                     !task->cancel.stop_requested());
  if (run) {
    const CurrentCore current(this);
    task->work->Run();
    // What the function holds goes before it counts as ended.
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

void Core::Arm(nanoseconds move_after) {
  if (line_.empty()) {
    move_next_ = kNobody;
    DisArm();
    return;
  }
  nanoseconds first = line_.begin()->first.first;
  if (move_next_ != kNobody) first = std::min(first, clock_->Now() + move_after);
  if (timer_ != 0 && timer_moment_ <= first) return;
  DisArm();
  timer_moment_ = first;
  timer_ = clock_->RunAt(first, [weak = weak_from_this(), serial = ++timer_serial_] {
    if (const std::shared_ptr<Core> core = weak.lock(); core != nullptr) core->OnTimer(serial);
  });
}

void Core::DisArm() {
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
    // Those whose moment has come have it.
    const auto first = core->line_.upper_bound(Place(core->clock_->Now(), UINT64_MAX));
    for (auto it = first; it != core->line_.end(); ++it) {
      it->second->state = Task::State::kBooking;
      waiting.push_back({core.get(), std::move(it->second)});
    }
    core->line_.erase(first, core->line_.end());
  }
  // Receipts are numbered in the order of asking, over all throttlers.
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
      for (auto& [place, task] : line_) {
        task->state = Task::State::kOver;
        ++cancelled_;
        dropped.push_back(std::move(task));
      }
      line_.clear();
      DisArm();
    }
  }
  // The last first: what is given back then was not counted on by another.
  for (size_t i = dropped.size(); i-- > 0;) {
    dropped[i]->channel->gate->GiveBack(dropped[i]->booking);
  }
  for (const TaskPtr& task : dropped) {
    task->Fail(Cancelled("dropped: the throttler is shutting down"));
    MutexLock lock(&mu_);
    LeaveLine(*task);
  }
  // One of our own functions: it would wait for itself.
  if (current_core == this || dispatching_core == this) return;
  {
    MutexLock lock(&mu_);
    while (waiting_ != 0 || running_ != 0) idle_.Wait(&mu_);
  }
  MutexLock booking_lock(&booking_mu_);
  if (!closed_) source_->Close();
  closed_ = true;
}

ThrottlerStats Core::stats() const {
  ThrottlerStats stats;
  MutexLock lock(&mu_);
  stats.waiting = waiting_;
  stats.running = running_;
  if (!line_.empty()) {
    stats.next_grant_after = std::max(line_.begin()->first.first - clock_->Now(), nanoseconds(0));
  }
  stats.finished = finished_;
  stats.refused = refused_;
  stats.denied = denied_.load(std::memory_order_relaxed);
  stats.cancelled = cancelled_;
  return stats;
}

}  // namespace sluice::throttler_internal
