#include "client/src/stream_core.h"

#include <algorithm>
#include <utility>

namespace sluice::client_internal {

using common::MutexLock;

namespace {

// The longest single wait: a condition variable cannot wait until TimePoint::max().
constexpr std::chrono::hours kLongestWait{1};

template <typename Batches>
size_t SizeOf(const Batches& batches) {
  size_t size = 0;
  for (const auto& batch : batches) size += batch->callbacks.size();
  return size;
}

}  // namespace

StreamCore::StreamCore(std::shared_ptr<ClientCore> client, const StreamOptions& options)
    : client_(std::move(client)),
      options_([&] {
        StreamOptions checked = options;
        checked.max_batch = std::clamp<size_t>(checked.max_batch, 1, 4096);
        checked.max_in_flight = std::max<size_t>(checked.max_in_flight, 1);
        checked.max_queue = std::max<size_t>(checked.max_queue, 1);
        return checked;
      }()),
      deadline_(options.deadline.value_or(client_->options().deadline)),
      on_unavailable_(options.on_unavailable.value_or(client_->options().on_unavailable)) {}

void StreamCore::Submit(Acquisition acquisition, Callback<Decision> done) {
  // The lock may be held for ever.
  if (fork_mark_.forked()) return done(ForkedError());
  const TimePoint deadline = After(client_->connection().Now(), deadline_);
  bool pump = false;
  bool arm = false;
  Status refused;
  {
    MutexLock lock(&mu_);
    if (closed_) {
      refused = Status(StatusCode::kCancelled, "the stream is closed");
    } else if (queued_ >= options_.max_queue) {
      refused = Status(StatusCode::kResourceExhausted,
                       "the stream's queue is full: " + std::to_string(queued_) +
                           " acquisitions wait (StreamOptions::max_queue)");
    } else {
      if (queue_.empty() || queue_.back()->size() >= options_.max_batch) {
        queue_.push_back(std::make_shared<Batch>());
      }
      Batch& batch = *queue_.back();
      batch.acquisitions.push_back(std::move(acquisition));
      batch.callbacks.push_back(std::move(done));
      batch.deadlines.push_back(deadline);
      ++queued_;
      ++unanswered_;
      pump = !pumping_ && deliveries_ == 0 && !backing_off_ &&
             in_flight_.size() < options_.max_in_flight;
      arm = !timer_armed_;
      timer_armed_ = true;
    }
  }
  // NOLINTNEXTLINE(bugprone-use-after-move): if refused, `done` was not moved.
  if (!refused.ok()) return done(client_->Settle(std::move(refused), on_unavailable_));
  if (arm) ArmTimer(deadline);
  if (pump) Pump();
}

void StreamCore::Open() {
  const uint64_t generation = ++generation_;
  ++counts_.connections;
  mu_.Unlock();
  StreamEvents events;
  std::weak_ptr<StreamCore> weak = weak_from_this();
  events.on_answers = [weak, generation](BatchDecisions answers) {
    if (auto self = weak.lock()) self->OnAnswers(generation, std::move(answers));
  };
  events.on_closed = [weak, generation](Status status) {
    if (auto self = weak.lock()) self->OnClosed(generation, std::move(status));
  };
  std::shared_ptr<StreamCall> call = client_->connection().OpenStream(std::move(events));
  mu_.Lock();
  // The new stream may have ended already, or Close may have been called.
  if (generation == generation_ && !closed_) {
    call_ = std::move(call);
  } else {
    mu_.Unlock();
    call.reset();
    mu_.Lock();
  }
}

void StreamCore::Pump() {
  mu_.Lock();
  if (pumping_) return mu_.Unlock();
  pumping_ = true;
  while (!closed_ && !backing_off_ && !queue_.empty() &&
         in_flight_.size() < options_.max_in_flight) {
    if (call_ == nullptr) {
      Open();
      continue;
    }
    std::shared_ptr<Batch> batch = std::move(queue_.front());
    queue_.pop_front();
    queued_ -= batch->size();
    in_flight_.push_back(batch);
    ++counts_.messages;
    if (waiters_ > 0) changed_.SignalAll();
    std::shared_ptr<StreamCall> call = call_;
    mu_.Unlock();
    call->Send(batch->acquisitions);
    call.reset();
    mu_.Lock();
  }
  pumping_ = false;
  if (waiters_ > 0 || closed_) changed_.SignalAll();
  mu_.Unlock();
}

void StreamCore::OnAnswers(uint64_t generation, BatchDecisions answers) {
  std::shared_ptr<Batch> batch;
  bool more = false;
  bool broken = false;
  {
    MutexLock lock(&mu_);
    if (generation != generation_ || closed_ || in_flight_.empty()) return;
    broken = in_flight_.front()->size() != answers.size();
    if (!broken) {
      batch = std::move(in_flight_.front());
      in_flight_.pop_front();
      failures_ = 0;
      last_error_ = Status();
      counts_.acquisitions += batch->size();
      more = !queue_.empty();
      BeginDelivery();
    }
  }
  if (broken) {
    return OnClosed(generation, Status::MaybeExecuted(
                                    StatusCode::kInternal,
                                    "the server answered a different number of acquisitions"));
  }
  // Send first, so that the server works while the callbacks run.
  if (more) Pump();
  Deliver(*batch, &answers);
  EndDelivery(batch->size());
}

std::vector<std::shared_ptr<StreamCore::Batch>> StreamCore::BreakLocked(const Status& status) {
  ++generation_;
  last_error_ = status;
  std::vector<std::shared_ptr<Batch>> lost(in_flight_.begin(), in_flight_.end());
  in_flight_.clear();
  if (status.code() == StatusCode::kUnavailable && !status.may_have_executed()) {
    for (auto batch = lost.rbegin(); batch != lost.rend(); ++batch) {
      queued_ += (*batch)->size();
      queue_.push_front(std::move(*batch));
    }
    lost.clear();
  }
  return lost;
}

std::chrono::nanoseconds StreamCore::BackOffLocked() {
  ++failures_;
  backing_off_ = true;
  const int servers = static_cast<int>(client_->connection().servers());
  if (failures_ <= 1 || failures_ < servers) return std::chrono::nanoseconds(0);
  const auto pause = client_->policy().Backoff(failures_ - std::max(servers, 1));
  return std::chrono::nanoseconds(
      static_cast<int64_t>(static_cast<double>(pause.count()) * (0.5 + Random())));
}

void StreamCore::ReopenAfter(std::chrono::nanoseconds pause) {
  client_->connection().RunAfter(pause, [weak = weak_from_this()] {
    if (auto self = weak.lock()) {
      {
        MutexLock lock(&self->mu_);
        self->backing_off_ = false;
      }
      self->Pump();
    }
  });
}

void StreamCore::OnClosed(uint64_t generation, Status status) {
  std::vector<std::shared_ptr<Batch>> lost;
  std::shared_ptr<StreamCall> call;
  std::chrono::nanoseconds pause{0};
  if (status.ok()) {
    status = Status::MaybeExecuted(StatusCode::kUnavailable, "the server ended the stream");
  }
  // Not cancelled by Close, so the client shuts down, and nothing will be sent any more.
  const bool shut_down = status.code() == StatusCode::kCancelled;
  std::vector<std::shared_ptr<Batch>> unsent;
  {
    MutexLock lock(&mu_);
    if (generation != generation_ || closed_) return;
    call = std::move(call_);
    lost = BreakLocked(status);
    if (shut_down) {
      unsent.assign(queue_.begin(), queue_.end());
      queue_.clear();
      queued_ = 0;
    } else {
      pause = BackOffLocked();
    }
    BeginDelivery();
  }
  call.reset();
  Fail(lost, status);
  Fail(unsent, Status(status.code(), status.message()));
  EndDelivery(SizeOf(lost) + SizeOf(unsent));
  if (!shut_down) ReopenAfter(pause);
}

void StreamCore::ArmTimer(TimePoint at) {
  const auto delay = std::max(at - client_->connection().Now(), std::chrono::nanoseconds(0));
  client_->connection().RunAfter(delay, [weak = weak_from_this(), at] {
    if (auto self = weak.lock()) self->OnTimer(at);
  });
}

std::vector<std::shared_ptr<StreamCore::Batch>> StreamCore::TakeLate(TimePoint now) {
  std::vector<std::shared_ptr<Batch>> late;
  while (!queue_.empty() && queue_.front()->deadlines.front() <= now) {
    Batch& front = *queue_.front();
    const auto end = std::upper_bound(front.deadlines.begin(), front.deadlines.end(), now);
    const auto count = end - front.deadlines.begin();
    auto gone = std::make_shared<Batch>();
    gone->callbacks.assign(std::make_move_iterator(front.callbacks.begin()),
                           std::make_move_iterator(front.callbacks.begin() + count));
    queued_ -= static_cast<size_t>(count);
    late.push_back(std::move(gone));
    if (static_cast<size_t>(count) == front.size()) {
      queue_.pop_front();
      continue;
    }
    front.acquisitions.erase(front.acquisitions.begin(), front.acquisitions.begin() + count);
    front.callbacks.erase(front.callbacks.begin(), front.callbacks.begin() + count);
    front.deadlines.erase(front.deadlines.begin(), end);
  }
  return late;
}

void StreamCore::OnTimer(TimePoint at) {
  const TimePoint now = client_->connection().Now();
  if (now + std::chrono::milliseconds(2) < at) {
    // Called early: the client shuts down, which ends all acquisitions.
    MutexLock lock(&mu_);
    timer_armed_ = false;
    return;
  }
  std::vector<std::shared_ptr<Batch>> lost;
  std::vector<std::shared_ptr<Batch>> late;  // never sent
  std::shared_ptr<StreamCall> call;
  std::chrono::nanoseconds pause{0};
  bool stalled = false;
  Status late_status;
  const Status stalled_status =
      Status::MaybeExecuted(StatusCode::kDeadlineExceeded, "no answer in time");
  {
    MutexLock lock(&mu_);
    if (closed_) return;
    if (!in_flight_.empty() && in_flight_.front()->deadlines.front() <= now) {
      stalled = true;
      call = std::move(call_);
      lost = BreakLocked(stalled_status);
      pause = BackOffLocked();
    }
    late = TakeLate(now);
    late_status = last_error_.ok() ? Status(StatusCode::kDeadlineExceeded,
                                            "not sent in time: earlier messages are unanswered")
                                   : Status(StatusCode::kUnavailable,
                                            "not sent in time: " + last_error_.message());
    BeginDelivery();
  }
  if (call != nullptr) call->GiveUp();
  call.reset();
  Fail(lost, stalled_status);
  Fail(late, late_status);
  EndDelivery(SizeOf(lost) + SizeOf(late));
  if (stalled) ReopenAfter(pause);

  TimePoint next = TimePoint::max();
  {
    MutexLock lock(&mu_);
    if (!in_flight_.empty()) next = in_flight_.front()->deadlines.front();
    if (!queue_.empty()) next = std::min(next, queue_.front()->deadlines.front());
    timer_armed_ = next != TimePoint::max() && !closed_;
    if (!timer_armed_) return;
  }
  ArmTimer(next);
}

void StreamCore::BeginDelivery() {
  ++deliveries_;
  deliverer_ = std::this_thread::get_id();
}

void StreamCore::EndDelivery(size_t answered) {
  bool pump = false;
  {
    MutexLock lock(&mu_);
    --deliveries_;
    unanswered_ -= answered;
    pump = deliveries_ == 0 && !queue_.empty();
    if (waiters_ > 0 || closed_) changed_.SignalAll();
  }
  if (pump) Pump();
}

void StreamCore::Deliver(const Batch& batch, BatchDecisions* answers) {
  for (size_t i = 0; i < batch.size(); ++i) {
    Result<Decision>& answer = (*answers)[i];
    if (answer.ok()) {
      batch.callbacks[i](std::move(answer));
    } else {
      batch.callbacks[i](client_->Settle(std::move(answer), on_unavailable_));
    }
  }
}

void StreamCore::Fail(const std::vector<std::shared_ptr<Batch>>& batches, const Status& status) {
  for (const auto& batch : batches) {
    for (const Callback<Decision>& done : batch->callbacks)
      done(client_->Settle(status, on_unavailable_));
  }
}

bool StreamCore::Drain(std::chrono::nanoseconds timeout) {
  if (fork_mark_.forked()) return false;
  const TimePoint end = After(std::chrono::steady_clock::now(), timeout);
  MutexLock lock(&mu_);
  ++waiters_;
  while (unanswered_ > 0) {
    const auto left = end - std::chrono::steady_clock::now();
    if (left.count() <= 0) break;
    changed_.WaitFor(&mu_, std::min<std::chrono::nanoseconds>(left, kLongestWait));
  }
  --waiters_;
  return unanswered_ == 0;
}

bool StreamCore::WaitForRoom(std::chrono::nanoseconds timeout) {
  if (fork_mark_.forked()) return true;  // Submit fails at once
  const TimePoint end = After(std::chrono::steady_clock::now(), timeout);
  MutexLock lock(&mu_);
  ++waiters_;
  while (queued_ >= options_.max_queue) {
    const auto left = end - std::chrono::steady_clock::now();
    if (left.count() <= 0) break;
    changed_.WaitFor(&mu_, std::min<std::chrono::nanoseconds>(left, kLongestWait));
  }
  --waiters_;
  return queued_ < options_.max_queue;
}

StreamCounts StreamCore::counts() const {
  MutexLock lock(&mu_);
  return counts_;
}

void StreamCore::Close() {
  if (fork_mark_.forked()) return;
  std::vector<std::shared_ptr<Batch>> sent;
  std::vector<std::shared_ptr<Batch>> unsent;
  std::shared_ptr<StreamCall> call;
  {
    MutexLock lock(&mu_);
    if (closed_) return;
    closed_ = true;
    // Wait for callbacks on other threads, and for sends.
    while ((deliveries_ > 0 && deliverer_ != std::this_thread::get_id()) || pumping_) {
      if (deliveries_ > 0 && deliverer_ == std::this_thread::get_id()) break;
      changed_.Wait(&mu_);
    }
    call = std::move(call_);
    sent.assign(in_flight_.begin(), in_flight_.end());
    unsent.assign(queue_.begin(), queue_.end());
    in_flight_.clear();
    queue_.clear();
    queued_ = 0;
    unanswered_ = 0;
  }
  call.reset();
  Fail(sent, Status::MaybeExecuted(StatusCode::kCancelled, "the stream was destroyed"));
  Fail(unsent, Status(StatusCode::kCancelled, "the stream was destroyed before this was sent"));
}

}  // namespace sluice::client_internal

namespace sluice {

AcquireStream::AcquireStream(std::shared_ptr<client_internal::StreamCore> core)
    : core_(std::move(core)) {}

AcquireStream::AcquireStream(AcquireStream&&) noexcept = default;

AcquireStream& AcquireStream::operator=(AcquireStream&& other) noexcept {
  if (this != &other) {
    if (core_ != nullptr) core_->Close();
    core_ = std::move(other.core_);
  }
  return *this;
}

AcquireStream::~AcquireStream() {
  if (core_ != nullptr) core_->Close();
}

void AcquireStream::Submit(Acquisition acquisition, Callback<Decision> done) {
  core_->Submit(std::move(acquisition), std::move(done));
}

void AcquireStream::Submit(std::string_view limit, std::string_view key, uint64_t permits,
                           Callback<Decision> done) {
  core_->Submit(Acquisition(std::string(limit), std::string(key), permits), std::move(done));
}

std::future<Result<Decision>> AcquireStream::Submit(Acquisition acquisition) {
  auto answer = std::make_shared<std::promise<Result<Decision>>>();
  std::future<Result<Decision>> future = answer->get_future();
  core_->Submit(std::move(acquisition),
                [answer](Result<Decision> result) { answer->set_value(std::move(result)); });
  return future;
}

bool AcquireStream::Drain(std::chrono::nanoseconds timeout) { return core_->Drain(timeout); }

bool AcquireStream::WaitForRoom(std::chrono::nanoseconds timeout) {
  return core_->WaitForRoom(timeout);
}

StreamCounts AcquireStream::counts() const { return core_->counts(); }

}  // namespace sluice
