#include "server/store/redis/shard/batch_queue.h"

#include <algorithm>
#include <utility>

namespace sluice::store::redis {
namespace {

// Charges that the script for all algorithms looks at, one by one: few at once, so that Redis gets
// to others soon.
constexpr size_t kMaxGeneral = 64;
// Reservations are decided on this loop, at up to a few microseconds each.
constexpr size_t kMaxReservations = 256;
constexpr size_t kMaxFree = 4096;
// How many queues that cannot go along a script's queues may be taken from behind. They keep their
// places.
constexpr size_t kMaxPassed = 32;
// A look for late callers in flight of a queue visits all of them, which takes up to 100
// microseconds. So after each look the queue has a pause, and callers in flight are answered up to
// this time after their deadline. A reply comes, or the breaker opens, soon anyway.
constexpr int64_t kPauseNs = 4'000'000;

}  // namespace

void BatchQueues::Queue::OnUndecided(bool decide_here) {
  std::vector<Caller> callers = TakeCallers();
  // The script for token buckets takes any number of them.
  for (; !decide_here && callers.size() > kMaxGeneral; callers.pop_back()) {
    gathered.PushFront(callers.back());
    deadlines.Await(callers.back().pending->deadline_ns);
  }
  owner.SendByItself(*this, std::move(callers), decide_here);
}

Caller BatchQueues::Queue::TakeFirst() {
  const Caller caller = gathered.front();
  gathered.PopFront();
  look_at_sent_ns = std::min(look_at_sent_ns, caller.pending->deadline_ns);
  return caller;
}

void BatchQueues::Add(const Caller& caller) {
  Queue& queue = QueueOf(*caller.acquisition);
  const Endpoint* const endpoint = router_.EndpointOf(queue.routing_key());
  if (endpoint == nullptr || (endpoint->unavailable() && !endpoint->starting())) {
    DropIfIdle(queue);
    Caller unavailable = caller;
    return acquires_.AnswerUnavailable(unavailable);
  }
  queue.gathered.PushBack(caller);
  Ready(queue);
  queue.deadlines.Await(caller.pending->deadline_ns);
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
  if (queue.state != Queue::State::kIdle) return;
  queue.state = Queue::State::kWaits;
  ready_.push_back(&queue);
  context_.loop().BeforeSleep(*this);
}

void BatchQueues::LineUp() {
  std::vector<Queue*> ready;
  ready.swap(ready_);
  for (Queue* queue : ready) PutInLine(*queue);
}

void BatchQueues::OnIterationEnd() {
  LineUp();
  // By index: what is answered without Redis may lead to a line for another server.
  for (size_t i = 0; i < lines_.size(); ++i) Serve(*lines_[i]);
}

void BatchQueues::PutInLine(Queue& queue) {
  Endpoint* const endpoint = router_.EndpointOf(queue.routing_key());
  // Its command answers the callers.
  if (endpoint == nullptr) return SendByItself(queue);
  auto line = std::find_if(lines_.begin(), lines_.end(),
                           [&](const auto& one) { return &one->endpoint == endpoint; });
  if (line == lines_.end()) {
    line = lines_.insert(line, std::make_unique<Line>(*this, *endpoint));
  }
  (*line)->queues.push_back(&queue);
}

void BatchQueues::Serve(Line& line) {
  while (!line.queues.empty() && !line.awaits_room) {
    if (line.endpoint.full()) {
      line.awaits_room = true;
      line.endpoint.AwaitRoom(line);
    } else {
      SendFirst(line);
    }
  }
}

void BatchQueues::SendFirst(Line& line) {
  std::vector<TokenBucketBatch*> batches;
  std::vector<Queue*> passed;
  size_t units = line.endpoint.script_units();
  while (!line.queues.empty() && units > 0 && passed.size() < kMaxPassed) {
    Queue& queue = *line.queues.front();
    line.queues.pop_front();
    if (router_.EndpointOf(queue.routing_key()) != &line.endpoint) {
      // Its slot has moved meanwhile.
      PutInLine(queue);
      context_.loop().BeforeSleep(*this);
      continue;
    }
    if (!GoesTogether(queue)) {
      if (batches.empty()) return SendByItself(queue);
      passed.push_back(&queue);
      continue;
    }
    if (std::any_of(batches.begin(), batches.end(),
                    [&](const TokenBucketBatch* batch) { return queue.IsOfSameBucket(*batch); })) {
      passed.push_back(&queue);
      continue;
    }
    FillBatch(queue, units);
    if (queue.callers() == 0) {
      OnAnswered(queue);
      continue;
    }
    queue.state = Queue::State::kInFlight;
    queue.in_flight = &queue;
    units -= queue.runs();
    batches.push_back(&queue);
  }
  line.queues.insert(line.queues.begin(), passed.begin(), passed.end());
  if (!batches.empty()) TokenBucketsCommand::StartInTurn(context_, std::move(batches));
}

bool BatchQueues::GoesTogether(const Queue& queue) const {
  if (queue.buckets.size() > 1 ||
      queue.buckets[0].rule->rule->parameters.kind != algorithm::Kind::kTokenBucket) {
    return false;
  }
  // Of callers that need the script for all algorithms, so many go with one command; and a bucket
  // with bookings, as far as this shard knows, is not worth a script.
  return queue.gathered.AllOfFirst(kMaxGeneral, TokenBucketBatch::Takes) &&
         !context_.open_buckets().Has(queue.routing_key());
}

const Caller* BatchQueues::FirstInTime(Queue& queue, int64_t now_ns) {
  while (!queue.gathered.empty()) {
    if (queue.gathered.front().pending->deadline_ns >= now_ns) return &queue.gathered.front();
    Caller late = queue.gathered.front();
    queue.gathered.PopFront();
    late.acquisition->now_ns = now_ns;
    acquires_.Answer(late, Outcome::kDeadlineExceeded);
  }
  return nullptr;
}

void BatchQueues::FillBatch(Queue& queue, size_t runs) {
  const int64_t now_ns = context_.clock().NowNs();
  size_t most = max_gathered_;
  while (const Caller* const caller = FirstInTime(queue, now_ns)) {
    const Acquisition& acquisition = *caller->acquisition;
    if (acquisition.max_wait_ns > 0) most = std::min(most, kMaxReservations);
    if (queue.callers() >= most || !TokenBucketBatch::Takes(acquisition) ||
        (queue.runs() == runs && queue.BeginsRun(acquisition))) {
      return;
    }
    queue.TokenBucketBatch::Add(queue.TakeFirst());
  }
}

void BatchQueues::SendByItself(Queue& queue) {
  const int64_t now_ns = context_.clock().NowNs();
  size_t most = max_gathered_;
  const size_t most_general = std::max<size_t>(kMaxGeneral / queue.buckets.size(), 1);
  if (queue.buckets.size() > 1 ||
      queue.buckets[0].rule->rule->parameters.kind != algorithm::Kind::kTokenBucket) {
    most = std::min(most, most_general);
  }
  std::vector<Caller> callers;
  while (const Caller* const caller = FirstInTime(queue, now_ns)) {
    const Acquisition& acquisition = *caller->acquisition;
    if (!TokenBucketBatch::Takes(acquisition)) most = std::min(most, most_general);
    if (acquisition.max_wait_ns > 0) most = std::min(most, kMaxReservations);
    if (callers.size() >= most) break;
    callers.push_back(queue.TakeFirst());
  }
  if (callers.empty()) return OnAnswered(queue);
  SendByItself(queue, std::move(callers), /*decide_here=*/false);
}

void BatchQueues::SendByItself(Queue& queue, std::vector<Caller> callers, bool decide_here) {
  auto command = std::make_unique<AcquireCommand>(context_, queue.buckets, queue.set,
                                                  std::move(callers), queue);
  if (decide_here) command->DecideHere();
  queue.state = Queue::State::kInFlight;
  queue.in_flight = command.get();
  BucketOperation::StartInTurn(std::move(command));
}

void BatchQueues::OnAnswered(Queue& queue) {
  queue.in_flight = nullptr;
  queue.look_at_sent_ns = kNoDeadline;
  queue.state = Queue::State::kIdle;
  if (queue.gathered.empty()) return DropIfIdle(queue);
  Ready(queue);
}

void BatchQueues::DropIfIdle(Queue& queue) {
  if (!queue.idle()) return;
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
    const std::vector<Caller> of_queue = queue->gathered.TakeAll();
    gathered.insert(gathered.end(), of_queue.begin(), of_queue.end());
  }
  for (Caller& caller : gathered) acquires_.AnswerUnavailable(caller);
}

void BatchQueues::AnswerLate(Queue& queue, int64_t now_ns) {
  // Collected first: answers may start operations, which change the queue.
  std::vector<Caller> sent;
  if (queue.in_flight != nullptr && queue.look_at_sent_ns < now_ns) {
    int64_t next_ns = kNoDeadline;
    queue.in_flight->CollectLate(now_ns, &sent, &next_ns);
    queue.look_at_sent_ns = std::max(next_ns, now_ns + kPauseNs);
  }
  std::vector<Caller> gathered = queue.gathered.TakeLate(now_ns);
  queue.deadlines.Await(std::min(queue.look_at_sent_ns, queue.gathered.EarliestNs()));
  for (Caller& caller : sent) {
    acquires_.Answer(caller, caller.acquisition->may_be_debited ? Outcome::kUnavailable
                                                                : Outcome::kDeadlineExceeded);
  }
  for (Caller& caller : gathered) {
    caller.acquisition->now_ns = now_ns;
    acquires_.Answer(caller, Outcome::kDeadlineExceeded);
  }
}

}  // namespace sluice::store::redis
