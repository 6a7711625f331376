// The thread that runs callbacks. It starts with the first call that has one, runs timers, ends
// calls at their deadlines, and leads the links on which only such calls wait.
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <ctime>
#include <utility>

#include "client/src/transport/http2_core.h"
#include "client/src/transport/own_thread.h"
#include "client/src/transport/time_after.h"

namespace sluice::client_internal {

using std::chrono::steady_clock;

bool Http2Core::StartThread() {
  if (thread_.joinable()) return true;
  return StartOwnThread([core = shared_from_this()] { core->RunThread(); }, "sluice-client",
                        &thread_);
}

bool Http2Core::OnCallbackThread() const {
  return thread_id_.load(std::memory_order_relaxed) == std::this_thread::get_id();
}

Status Http2Core::Begin(std::unique_ptr<CallbackCall>* call) {
  const TimePoint now = steady_clock::now();
  Lock();
  Status status;
  if (!StartThread()) {
    status = Status(StatusCode::kUnavailable, "the system starts no more threads");
  } else {
    status = Start(**call, now);
  }
  if (!status.ok()) {
    Unlock();
    return status;
  }
  ++pending_;
  const CallStream& begun = *call->release();
  Link* const link = begun.link;
  const TimePoint deadline = begun.deadline;
  first_deadline_ = std::min(first_deadline_, deadline);
  if (link == nullptr && current_ != nullptr) HandOver(*current_);
  if (link == nullptr || OnCallbackThread()) {
    WakeThread(deadline);
  } else {
    Flush(*link);
    WakeThread(link->leader ? deadline : TimePoint::min());
  }
  Unlock();
  return status;
}

void Http2Core::Schedule(CallbackCall& call) ABSL_NO_THREAD_SAFETY_ANALYSIS {
  if (std::exchange(call.due_, true)) return;
  due_.PushBack(call);
  WakeThread();
}

void Http2Core::Unschedule(CallbackCall& call) ABSL_NO_THREAD_SAFETY_ANALYSIS {
  if (std::exchange(call.due_, false)) due_.Remove(call);
}

void Http2Core::WakeThread(TimePoint until) {
  if (!asleep_ || until >= sleeps_until_) return;
  asleep_ = false;
  wake_thread_ = true;
}

void Http2Core::RunAfter(std::chrono::nanoseconds delay, std::function<void()> fn) {
  const TimePoint at = After(steady_clock::now(), delay);
  Lock();
  if (closed_ || !StartThread()) {
    Unlock();
    return fn();
  }
  timers_.emplace(at, std::move(fn));
  ++pending_;
  WakeThread(at);
  Unlock();
}

void Http2Core::Stop() {
  std::thread thread;
  Lock();
  stop_ = true;
  WakeThread();
  // The thread that connects ends at once, unless it looks up a name, which can take long.
  const TimePoint limit = steady_clock::now() + std::chrono::milliseconds(200);
  while (dialing_ == Dialing::kRunning && steady_clock::now() < limit) {
    changed_.WaitFor(&mu_, limit - steady_clock::now());
  }
  thread = std::move(thread_);
  Unlock();
  if (!thread.joinable()) return;
  // A callback destroys the client: its thread continues until all callbacks have run.
  if (OnCallbackThread()) {
    thread.detach();
  } else {
    thread.join();
  }
}

void Http2Core::RunThread() {
  thread_id_.store(std::this_thread::get_id(), std::memory_order_relaxed);
  Lock();
  while (!stop_ || pending_ > 0) {
    if (!DeliverDue() && !FlushAll()) SleepThread();
  }
  Unlock();
}

bool Http2Core::DeliverDue() {
  const TimePoint now = steady_clock::now();
  if (first_deadline_ <= now) ExpireCallbacks(now);
  std::vector<std::function<void()>> timers;
  while (!timers_.empty() && (closed_ || timers_.begin()->first <= now)) {
    timers.push_back(std::move(timers_.begin()->second));
    timers_.erase(timers_.begin());
  }
  if (due_.empty() && timers.empty()) return false;
  while (!due_.empty()) {
    auto& call = static_cast<CallbackCall&>(due_.PopFront());
    call.due_ = false;
    delivered_.push_back(&call);
  }
  delivering_ = true;
  for (const std::unique_ptr<Link>& link : links_) HandOver(*link);
  Unlock();
  size_t over = timers.size();
  for (CallbackCall* const call : delivered_) {
    if (!call->Deliver()) continue;
    delete call;
    ++over;
  }
  delivered_.clear();
  for (const std::function<void()>& fn : timers) fn();
  timers.clear();
  Lock();
  delivering_ = false;
  pending_ -= over;
  if (closed_ && pending_ == 0) changed_.SignalAll();
  return true;
}

void Http2Core::ExpireCallbacks(TimePoint now) {
  TimePoint first = TimePoint::max();
  std::vector<CallStream*> late;
  const auto look = [&](const Calls& calls) {
    for (CallStream* call = calls.front(); call != nullptr; call = Calls::Next(*call)) {
      if (call->blocking || call->failed()) continue;
      if (call->deadline <= now) {
        late.push_back(call);
      } else {
        first = std::min(first, call->deadline);
      }
    }
  };
  look(waiting_);
  for (const std::unique_ptr<Link>& link : links_) look(link->calls(/*blocking=*/false));
  first_deadline_ = first;
  // An earlier one may break a link, which ends others; Expire leaves those alone.
  for (CallStream* const call : late) Expire(*call, now);
}

bool Http2Core::FlushAll() {
  for (const std::unique_ptr<Link>& link : links_) {
    if (!link->has_output()) continue;
    Flush(*link);  // may release the lock: the list may have changed
    return true;
  }
  return false;
}

void Http2Core::SleepThread() {
  polled_.assign(1, {thread_wake_fd_, POLLIN, 0});
  turns_.clear();
  sleeps_until_ = first_deadline_;
  for (const std::unique_ptr<Link>& link : links_) {
    if (link->broken() || link->leader || !CallbackThreadLeads(*link)) continue;
    polled_.resize(polled_.size() + 2);
    PrepareTurn(*link, &polled_[polled_.size() - 2]);
    turns_.push_back({link.get()});
    sleeps_until_ = std::min(sleeps_until_, link->keepalive_at());
  }
  if (!timers_.empty()) sleeps_until_ = std::min(sleeps_until_, timers_.begin()->first);
  asleep_ = true;
  timespec limit = {};
  const bool timed = sleeps_until_ != TimePoint::max();
  if (timed) {
    const int64_t ns =
        std::max<int64_t>(0, std::chrono::nanoseconds(sleeps_until_ - steady_clock::now()).count());
    limit = {static_cast<time_t>(ns / 1'000'000'000), static_cast<long>(ns % 1'000'000'000)};
  }
  Unlock();
  const int ready = ppoll(polled_.data(), polled_.size(), timed ? &limit : nullptr, nullptr);
  if (ready > 0 && polled_[0].revents != 0) {
    uint64_t count = 0;
    [[maybe_unused]] const ssize_t n = read(thread_wake_fd_, &count, sizeof(count));
  }
  if (ready > 0) {
    for (size_t i = 0; i < turns_.size(); ++i) ReadTurn(&polled_[1 + 2 * i], &turns_[i]);
  }
  Lock();
  asleep_ = false;
  // FinishTurn may release the lock; a link without a leader may be destroyed then.
  for (const Turn& turn : turns_) FinishTurn(turn);
  for (const Turn& turn : turns_) {
    turn.link->leader = false;
    HandOver(*turn.link);
  }
  Sweep();
}

}  // namespace sluice::client_internal
