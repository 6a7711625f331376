#include "server/store/redis/shard/batch_queue.h"

#include <algorithm>
#include <utility>

namespace sluice::store::redis {
namespace {

// The script for all algorithms looks at each charge: fewer callers at once, so that Redis gets to
// others soon.
constexpr size_t kMaxGeneral = 64;
// Reservations are decided on this loop, at up to a few microseconds each.
constexpr size_t kMaxReservations = 256;
constexpr size_t kMaxFree = 4096;

}  // namespace

void BatchQueues::Add(const Caller& caller) {
  Queue& queue = QueueOf(*caller.acquisition);
  const Endpoint* const endpoint = router_.EndpointOf(queue.routing_key());
  if (endpoint == nullptr || (endpoint->unavailable() && !endpoint->starting())) {
    DropIfIdle(queue);
    Caller unavailable = caller;
    return acquires_.AnswerUnavailable(unavailable);
  }
  queue.gathered.push_back(caller);
  Ready(queue);
  if (caller.pending->deadline_ns < next_deadline_ns_) {
    next_deadline_ns_ = caller.pending->deadline_ns;
    ArmDeadline();
  }
}

BatchQueues::Queue& BatchQueues::QueueOf(const Acquisition& acquisition) {
  name_.clear();
  for (const Charge& charge : acquisition.charges) {
    const auto size = static_cast<uint32_t>(charge.key.size());
    name_.append(reinterpret_cast<const char*>(&charge.rule->id), sizeof(charge.rule->id));
    name_.append(reinterpret_cast<const char*>(&size), sizeof(size));
    name_.append(charge.key);
  }
  const auto found = queues_.find(absl::string_view(name_));
  if (found != queues_.end()) return *found->second;
  if (free_.empty()) free_.push_back(std::make_unique<Queue>(*this));
  std::unique_ptr<Queue> queue = std::move(free_.back());
  free_.pop_back();
  queue->name = name_;
  for (const Charge& charge : acquisition.charges) {
    queue->buckets.push_back(context_.BucketOf(*charge.rule, charge.key));
    queue->set += SetIdOf(queue->buckets.back());
  }
  Queue& made = *queue;
  queues_.emplace(made.name, std::move(queue));
  return made;
}

void BatchQueues::Ready(Queue& queue) {
  if (queue.in_flight != nullptr || queue.queued) return;
  queue.queued = true;
  ready_.push_back(&queue);
  context_.loop().BeforeSleep(*this);
}

void BatchQueues::OnIterationEnd() {
  std::vector<Queue*> ready;
  ready.swap(ready_);
  for (Queue* queue : ready) {
    queue->queued = false;
    SendTo(router_.EndpointOf(queue->routing_key()), *queue);
  }
}

void BatchQueues::SendTo(Endpoint* endpoint, Queue& queue) {
  if (endpoint == nullptr || !endpoint->full()) return Send(queue);
  queue.queued = true;
  endpoint->AwaitRoom(queue);
}

void BatchQueues::OnRoom(Queue& queue, Endpoint& endpoint) {
  queue.queued = false;
  // Its slot may have moved meanwhile.
  Endpoint* const now_at = router_.EndpointOf(queue.routing_key());
  if (now_at != &endpoint) return SendTo(now_at, queue);
  Send(queue);
}

void BatchQueues::Send(Queue& queue) {
  const int64_t now_ns = context_.clock().NowNs();
  size_t most = max_gathered_;
  if (queue.buckets.size() > 1 ||
      queue.buckets[0].rule->rule->parameters.kind != algorithm::Kind::kTokenBucket) {
    most = std::min(most, kMaxGeneral);
  }
  std::vector<Caller> callers;
  while (!queue.gathered.empty() && callers.size() < most) {
    Caller caller = queue.gathered.front();
    queue.gathered.pop_front();
    if (caller.pending->deadline_ns < now_ns) {
      caller.acquisition->now_ns = now_ns;
      acquires_.Answer(caller, Outcome::kDeadlineExceeded);
      continue;
    }
    if (caller.acquisition->want_receipt || caller.acquisition->debit != Debit::kIfAllowed) {
      most = std::min(most, kMaxGeneral);
    }
    if (caller.acquisition->max_wait_ns > 0) most = std::min(most, kMaxReservations);
    callers.push_back(caller);
  }
  if (callers.empty()) return DropIfIdle(queue);
  auto command = std::make_unique<AcquireCommand>(context_, queue.buckets, queue.set,
                                                  std::move(callers), queue);
  queue.in_flight = command.get();
  BucketOperation::StartInTurn(std::move(command));
}

void BatchQueues::OnAcquired(Queue& queue) {
  queue.in_flight = nullptr;
  if (queue.gathered.empty()) return DropIfIdle(queue);
  Ready(queue);
}

void BatchQueues::DropIfIdle(Queue& queue) {
  if (queue.in_flight != nullptr || queue.queued || !queue.gathered.empty()) return;
  const auto found = queues_.find(absl::string_view(queue.name));
  std::unique_ptr<Queue> dropped = std::move(found->second);
  queues_.erase(found);
  if (free_.size() >= kMaxFree) return;
  dropped->buckets.clear();
  dropped->set = 0;
  free_.push_back(std::move(dropped));
}

void BatchQueues::OnUnavailable(Endpoint& endpoint) {
  // Collected first: answers may start operations, which change the queues.
  std::vector<Caller> gathered;
  for (auto& [name, queue] : queues_) {
    if (queue->gathered.empty() || router_.EndpointOf(queue->routing_key()) != &endpoint) {
      continue;
    }
    gathered.insert(gathered.end(), queue->gathered.begin(), queue->gathered.end());
    queue->gathered.clear();
  }
  for (Caller& caller : gathered) acquires_.AnswerUnavailable(caller);
}

void BatchQueues::AnswerLate() {
  const int64_t now_ns = context_.clock().NowNs();
  next_deadline_ns_ = kNoDeadline;
  std::vector<Caller> sent;
  std::vector<Caller> gathered;
  for (auto& [name, queue] : queues_) {
    if (queue->in_flight != nullptr) {
      queue->in_flight->CollectLate(now_ns, &sent, &next_deadline_ns_);
    }
    std::erase_if(queue->gathered, [&](const Caller& caller) {
      const bool late = caller.pending->deadline_ns < now_ns;
      if (late) {
        gathered.push_back(caller);
      } else {
        next_deadline_ns_ = std::min(next_deadline_ns_, caller.pending->deadline_ns);
      }
      return late;
    });
  }
  for (Caller& caller : sent) {
    acquires_.Answer(caller, caller.acquisition->may_be_debited ? Outcome::kUnavailable
                                                                : Outcome::kDeadlineExceeded);
  }
  for (Caller& caller : gathered) {
    caller.acquisition->now_ns = now_ns;
    acquires_.Answer(caller, Outcome::kDeadlineExceeded);
  }
}

void BatchQueues::ArmDeadline() {
  if (next_deadline_ns_ == kNoDeadline) return;
  net::EventLoop& loop = context_.loop();
  const int64_t left_ns = std::max<int64_t>(next_deadline_ns_ - context_.clock().NowNs(), 0);
  if (left_ns >= net::TimerWheel::kNever - loop.now_ns()) return;
  const int64_t at_ns = loop.now_ns() + left_ns;
  if (deadline_.armed() && armed_for_ns_ <= at_ns) return;
  armed_for_ns_ = at_ns;
  loop.Arm(deadline_, at_ns);
}

void BatchQueues::OnDeadline() {
  if (next_deadline_ns_ != kNoDeadline && context_.clock().NowNs() > next_deadline_ns_) {
    AnswerLate();
  }
  ArmDeadline();
}

}  // namespace sluice::store::redis
