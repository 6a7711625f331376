#include "common/net/event_loop.h"

#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"

namespace sluice::net {
namespace {

// A wait that took longer began without ready events: those that ended it are new.
constexpr int64_t kIdleNs = 50'000;

// The CPU time of a step that is shorter is not told from its wall-clock time.
constexpr int64_t kCpuReadNs = 200'000;

int64_t ThreadCpuNs() {
  timespec ts;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &ts);
  return int64_t{ts.tv_sec} * 1'000'000'000 + ts.tv_nsec;
}

// Rounds of hooks that hooks schedule: TLS encrypts, the socket sends, a handler that may write
// again writes, and that is sent.
constexpr int kHookRounds = 8;

// Rounds of OnLoopStop. A bound, since a handler may reconnect whenever it is closed.
constexpr int kEndRounds = 16;

class FunctionTask final : public Task {
 public:
  explicit FunctionTask(absl::AnyInvocable<void()> function) : function_(std::move(function)) {}
  void Run() override {
    std::unique_ptr<FunctionTask> self(this);
    function_();
  }
  void Drop() override { delete this; }

 private:
  absl::AnyInvocable<void()> function_;
};

}  // namespace

LoopResident::~LoopResident() {
  if (residence_ == nullptr) return;
  (previous_resident_ != nullptr ? previous_resident_->next_resident_ : residence_->residents_) =
      next_resident_;
  if (next_resident_ != nullptr) next_resident_->previous_resident_ = previous_resident_;
}

absl::StatusOr<std::unique_ptr<EventLoop>> EventLoop::Create(const common::Clock& clock,
                                                             const Options& options) {
  const int epoll_fd = epoll_create1(EPOLL_CLOEXEC);
  const int event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  epoll_event event = {};
  event.events = EPOLLIN | EPOLLET;  // every write is an edge, so it is never read
  if (epoll_fd < 0 || event_fd < 0 || epoll_ctl(epoll_fd, EPOLL_CTL_ADD, event_fd, &event) != 0) {
    const int error = errno;
    if (epoll_fd >= 0) close(epoll_fd);
    if (event_fd >= 0) close(event_fd);
    return absl::ResourceExhaustedError(
        absl::StrCat("cannot make an event loop: ", std::strerror(error)));
  }
  return std::unique_ptr<EventLoop>(new EventLoop(clock, options, epoll_fd, event_fd));
}

EventLoop::EventLoop(const common::Clock& clock, const Options& options, int epoll_fd, int event_fd)
    : clock_(clock),
      options_(options),
      epoll_fd_(epoll_fd),
      event_fd_(event_fd),
      now_ns_(clock.NowNs()),
      ready_since_ns_(now_ns_),
      idle_from_ns_(now_ns_),
      wheel_(now_ns_),
      events_(std::max(options.max_events, 1)),
      read_buffer_(new uint8_t[options.read_buffer_bytes]) {}

EventLoop::~EventLoop() {
  stop_.store(true, std::memory_order_release);
  EndResidents();
  DropTasks();  // also tasks posted after Run had ended
  close(epoll_fd_);
  close(event_fd_);
}

void EventLoop::Run() {
  thread_.store(std::this_thread::get_id(), std::memory_order_relaxed);
  if (options_.metrics != nullptr) metrics_ = &options_.metrics->Local();
  while (!stopping()) Iterate(-1);
  EndResidents();
}

void EventLoop::RunOnce(int64_t max_wait_ns) {
  thread_.store(std::this_thread::get_id(), std::memory_order_relaxed);
  Iterate(max_wait_ns);
}

void EventLoop::Stop() {
  stop_.store(true, std::memory_order_release);
  Wake();
}

void EventLoop::Wake() {
  const uint64_t one = 1;
  // Fails only if the count is at its maximum, which also wakes the loop.
  [[maybe_unused]] const ssize_t written = write(event_fd_, &one, sizeof(one));
}

void EventLoop::Post(Task& task) {
  Task* head = tasks_.load(std::memory_order_relaxed);
  do {
    task.next_task_ = head;
  } while (!tasks_.compare_exchange_weak(head, &task, std::memory_order_release,
                                         std::memory_order_relaxed));
  // The thread that finds the stack empty wakes the loop. The loop checks before it sleeps.
  if (head == nullptr && !InLoopThread()) Wake();
}

void EventLoop::Post(absl::AnyInvocable<void()> task) { Post(*new FunctionTask(std::move(task))); }

int EventLoop::Wait(int64_t wait_ns) {
  const int max_events = static_cast<int>(events_.size());
  if (!no_pwait2_) {
    timespec timeout = {};
    if (wait_ns > 0) {
      timeout.tv_sec = wait_ns / 1'000'000'000;
      timeout.tv_nsec = wait_ns % 1'000'000'000;
    }
    const int count = epoll_pwait2(epoll_fd_, events_.data(), max_events,
                                   wait_ns < 0 ? nullptr : &timeout, nullptr);
    if (count >= 0 || errno != ENOSYS) return std::max(count, 0);
    no_pwait2_ = true;  // Linux before 5.11
  }
  // Rounded up to milliseconds: never early.
  const int64_t wait_ms =
      wait_ns < 0 ? -1 : std::min<int64_t>((wait_ns + 999'999) / 1'000'000, 3'600'000);
  return std::max(epoll_wait(epoll_fd_, events_.data(), max_events, static_cast<int>(wait_ms)), 0);
}

void EventLoop::Iterate(int64_t max_wait_ns) {
  int64_t wait_ns = max_wait_ns;
  idle_from_ns_ = clock_.NowNs();
  if (tasks_.load(std::memory_order_relaxed) != nullptr || queue_ != nullptr || !work_.empty() ||
      end_hooks_.first != nullptr || sleep_hooks_.first != nullptr || endings_.first != nullptr ||
      stopping()) {
    wait_ns = 0;
  } else if (const int64_t next_ns = wheel_.NextNs(); next_ns != TimerWheel::kNever) {
    const int64_t until_ns = std::max<int64_t>(next_ns - idle_from_ns_, 0);
    wait_ns = wait_ns < 0 ? until_ns : std::min(wait_ns, until_ns);
  }
  event_count_ = Wait(wait_ns);
  const int64_t now_ns = clock_.NowNs();
  ready_since_ns_ = now_ns - idle_from_ns_ > kIdleNs ? now_ns : std::min(now_ns_, now_ns);
  counters_.iterations.Add();
  counters_.busy_ns.Add(std::max<int64_t>(idle_from_ns_ - now_ns_, 0));
  now_ns_ = now_ns;
  step_from_ns_ = now_ns;
  work_.BeginIteration();

  for (int i = 0; i < event_count_; ++i) {
    auto* const watcher = static_cast<IoWatcher*>(events_[i].data.ptr);
    if (watcher != nullptr) {
      watcher->OnIo(events_[i].events);
      EndStep(common::Step::kInput);
    }
    if (read_since_hooks_ >= kWarmBytes) RunHooks(kHookRounds);
  }
  const bool quiet = std::exchange(event_count_, 0) == 0;
  RunTasks();
  RunTimers();
  work_.RunTurns([this] { EndStep(common::Step::kTurn); });
  RunHooks(kHookRounds);
  RunEndings();
  if (sleep_hooks_.first != nullptr && (quiet || now_ns_ - sleep_hooks_since_ns_ >= kMostBusyNs)) {
    sleep_hooks_.Run(*this);
    RunHooks(kHookRounds);
  }
}

void EventLoop::RunTimers() {
  if (wheel_.NextNs() > now_ns_) {
    wheel_.Advance(now_ns_, kTimersPerStep * kTimerSteps);
    return;
  }
  const int64_t until_ns = clock_.NowNs() + kMostNs;
  for (size_t steps = 0; steps < kTimerSteps && wheel_.NextNs() <= now_ns_; ++steps) {
    counters_.timers.Add(wheel_.Advance(now_ns_, kTimersPerStep));
    EndStep(common::Step::kTimer);
    if (clock_.NowNs() > until_ns) return;
  }
}

void EventLoop::TakeTasks() {
  Task* stack = tasks_.exchange(nullptr, std::memory_order_acquire);
  if (stack == nullptr) return;
  Task** const end = &stack->next_task_;  // the last posted is the last of the queue
  Task* queue = nullptr;
  while (stack != nullptr) {
    Task* const next = stack->next_task_;
    stack->next_task_ = queue;
    queue = stack;
    stack = next;
  }
  *queue_end_ = queue;
  queue_end_ = end;
}

void EventLoop::RunTasks() {
  if (tasks_.load(std::memory_order_relaxed) != nullptr) TakeTasks();
  if (queue_ == nullptr) return;
  const int64_t until_ns = clock_.NowNs() + kMostNs;
  bool late = false;
  for (int ran = 0; queue_ != nullptr && ran < kTasksPerIteration && !late;) {
    Task* const task = queue_;
    queue_ = task->next_task_;
    if (queue_ == nullptr) queue_end_ = &queue_;
    task->Run();  // may delete or post it
    counters_.tasks.Add();
    late = clock_.NowNs() > until_ns;
    if (++ran % kPerStep == 0 || queue_ == nullptr || late) EndStep(common::Step::kTask);
  }
}

void EventLoop::CountStep(common::Step step) {
  const int64_t now_ns = clock_.NowNs();
  int64_t took_ns = now_ns - step_from_ns_;
  // A thread's CPU time costs a system call to read. It is read often enough to tell the time of a
  // long step from the time in which the thread did not run.
  if (now_ns - cpu_read_ns_ >= kCpuReadNs) {
    const int64_t cpu_ns = ThreadCpuNs();
    took_ns = std::min(took_ns, cpu_ns - cpu_ns_);
    cpu_ns_ = cpu_ns;
    cpu_read_ns_ = now_ns;
  }
  step_from_ns_ = now_ns;
  metrics_->OfStep(step).Record(static_cast<uint64_t>(std::max<int64_t>(took_ns, 0)));
}

void EventLoop::Hooks::Add(IterationHook& hook) {
  hook.scheduled_ = true;
  hook.next_hook_ = nullptr;
  *end = &hook;
  end = &hook.next_hook_;
}

IterationHook& EventLoop::Hooks::Pop() {
  IterationHook& hook = *first;
  first = hook.next_hook_;
  if (first == nullptr) end = &first;
  hook.scheduled_ = false;
  return hook;
}

void EventLoop::Hooks::Run(EventLoop& loop) {
  IterationHook* hook = std::exchange(first, nullptr);
  end = &first;
  for (int ran = 0; hook != nullptr;) {
    IterationHook* const next = hook->next_hook_;
    hook->scheduled_ = false;
    hook->OnIterationEnd();  // may destroy it
    hook = next;
    if (++ran % kPerStep == 0 || hook == nullptr) loop.EndStep(common::Step::kOutput);
  }
}

void EventLoop::AtIterationEnd(IterationHook& hook) {
  if (!hook.scheduled_) end_hooks_.Add(hook);
}

void EventLoop::BeforeSleep(IterationHook& hook) {
  if (hook.scheduled_) return;
  if (sleep_hooks_.first == nullptr) sleep_hooks_since_ns_ = now_ns_;
  sleep_hooks_.Add(hook);
}

void EventLoop::RunHooks(int rounds) {
  read_since_hooks_ = 0;
  for (int round = 0; round < rounds && end_hooks_.first != nullptr; ++round) {
    end_hooks_.Run(*this);
  }
}

void EventLoop::EndInTurn(EndingHook& hook) {
  if (!hook.scheduled_) endings_.Add(hook);
}

void EventLoop::RunEndings() {
  if (endings_.first == nullptr) return;
  const int64_t until_ns = clock_.NowNs() + kMostNs;
  do {
    static_cast<EndingHook&>(endings_.Pop()).OnTurnToEnd();  // may destroy it
    EndStep(common::Step::kOutput);
  } while (endings_.first != nullptr && (ended_ || clock_.NowNs() < until_ns));
  RunHooks(kHookRounds);
}

absl::Status EventLoop::Watch(int fd, uint32_t events, IoWatcher* watcher) {
  epoll_event event = {};
  event.events = events;
  event.data.ptr = watcher;
  if (epoll_ctl(epoll_fd_, EPOLL_CTL_ADD, fd, &event) == 0) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat("cannot watch a descriptor: ", std::strerror(errno)));
}

void EventLoop::Rewatch(int fd, uint32_t events, IoWatcher* watcher) {
  epoll_event event = {};
  event.events = events;
  event.data.ptr = watcher;
  epoll_ctl(epoll_fd_, EPOLL_CTL_MOD, fd, &event);
}

void EventLoop::Unwatch(int fd, IoWatcher* watcher) {
  epoll_event event = {};
  epoll_ctl(epoll_fd_, EPOLL_CTL_DEL, fd, &event);
  // Events of this iteration that are not handled yet.
  for (int i = 0; i < event_count_; ++i) {
    if (events_[i].data.ptr == watcher) events_[i].data.ptr = nullptr;
  }
}

void EventLoop::AddResident(LoopResident& resident) {
  resident.residence_ = this;
  resident.next_resident_ = residents_;
  if (residents_ != nullptr) residents_->previous_resident_ = &resident;
  residents_ = &resident;
}

absl::Span<uint8_t> EventLoop::plaintext_buffer() {
  if (plaintext_buffer_ == nullptr) {
    plaintext_buffer_.reset(new uint8_t[options_.read_buffer_bytes]);
  }
  return {plaintext_buffer_.get(), options_.read_buffer_bytes};
}

void EventLoop::EndResidents() {
  if (ended_) return;
  ended_ = true;
  for (int round = 0; round < kEndRounds && residents_ != nullptr; ++round) {
    // OnLoopStop may destroy its own resident, and no other.
    for (LoopResident* resident = residents_; resident != nullptr;) {
      LoopResident* const next = resident->next_resident_;
      resident->OnLoopStop();
      resident = next;
    }
    sleep_hooks_.Run(*this);
    RunHooks(kHookRounds);
    RunEndings();
  }
  DropTasks();
}

void EventLoop::DropTasks() {
  TakeTasks();
  Task* task = std::exchange(queue_, nullptr);
  queue_end_ = &queue_;
  while (task != nullptr) {
    Task* const next = task->next_task_;
    task->Drop();
    task = next;
  }
}

}  // namespace sluice::net
