// BatchQueues: the acquisitions of one event loop that wait to be sent to Redis, or for its reply.
//
// Each set of buckets has a queue, first come, first served, with at most one command in flight.
// While it is, callers gather; the next command decides all of them.
#ifndef SLUICE_SERVER_STORE_REDIS_SHARD_BATCH_QUEUE_H_
#define SLUICE_SERVER_STORE_REDIS_SHARD_BATCH_QUEUE_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/string_view.h"
#include "common/net/event_loop.h"
#include "server/store/redis/commands/acquire.h"
#include "server/store/redis/commands/command_context.h"
#include "server/store/redis/connection/endpoint.h"
#include "server/store/redis/wire/rule_entry.h"
#include "server/store/store.h"

namespace sluice::store::redis {

// Belongs to its loop.
class BatchQueues final : private net::IterationHook {
 public:
  // At most max_gathered callers go with one command. `context` has a router already.
  BatchQueues(CommandContext& context, size_t max_gathered)
      : context_(context),
        router_(context.router()),
        acquires_(context.acquires()),
        max_gathered_(max_gathered) {}

  // Answers the caller, or queues it to be sent at the end of this iteration.
  void Add(const Caller& caller);
  // Callers that wait to be sent to this server are answered without it.
  void OnUnavailable(Endpoint& endpoint);

 private:
  struct Queue final : Endpoint::RoomWaiter, AcquireCommand::Owner {
    explicit Queue(BatchQueues& its_owner) : owner(its_owner) {}
    void OnRoom(Endpoint& endpoint) override { owner.OnRoom(*this, endpoint); }
    void OnAcquired() override { owner.OnAcquired(*this); }

    const std::string& routing_key() const { return buckets[0].keys[0]; }

    BatchQueues& owner;
    std::string name;
    std::vector<Bucket> buckets;
    uint64_t set = 0;  // see SetIdOf
    std::deque<Caller> gathered;
    AcquireCommand* in_flight = nullptr;
    bool queued = false;  // in ready_, or waits for room
  };

  Queue& QueueOf(const Acquisition& acquisition);
  // To be sent at the end of the iteration.
  void Ready(Queue& queue);
  void OnIterationEnd() override;
  // Sends it, or waits for room.
  void SendTo(Endpoint* endpoint, Queue& queue);
  void Send(Queue& queue);
  void OnRoom(Queue& queue, Endpoint& endpoint);
  void OnAcquired(Queue& queue);
  // Drops the queue if it is idle.
  void DropIfIdle(Queue& queue);

  void AnswerLate();
  void ArmDeadline();
  void OnDeadline();

  CommandContext& context_;
  Router& router_;
  PendingAcquires& acquires_;
  const size_t max_gathered_;
  absl::flat_hash_map<absl::string_view, std::unique_ptr<Queue>> queues_;  // by their own names
  std::vector<std::unique_ptr<Queue>> free_;                               // kept for their memory
  std::vector<Queue*> ready_;
  std::string name_;  // of QueueOf, kept for its memory
  int64_t next_deadline_ns_ = kNoDeadline;
  int64_t armed_for_ns_ = 0;  // on the loop's clock
  net::Timer deadline_{net::Timer::To<&BatchQueues::OnDeadline>, this};
};

}  // namespace sluice::store::redis

#endif  // SLUICE_SERVER_STORE_REDIS_SHARD_BATCH_QUEUE_H_
