// BatchQueues: the acquisitions of one event loop that wait to be sent to Redis, or for its reply.
//
// Each set of buckets has a queue, first come, first served, with at most one command in flight.
// While it is, callers gather; the next command decides all of them. Queues that are to be sent to
// the same server form a line. Those of one token bucket each, of any slots, go together, in one
// script (acquire_token_buckets.h), those of several buckets or other algorithms by themselves.
//
// A caller is answered when its deadline passes. More than 100,000 may wait, and in each tick of
// the loop the deadlines of a few may pass. So each queue has its own timer: a passed deadline
// costs no look at other queues, nor at the others that have gathered in its queue.
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
#include "server/store/redis/commands/acquire_token_buckets.h"
#include "server/store/redis/commands/command_context.h"
#include "server/store/redis/connection/endpoint.h"
#include "server/store/redis/shard/deadline_timer.h"
#include "server/store/redis/shard/gathered_callers.h"
#include "server/store/redis/wire/rule_entry.h"
#include "server/store/store.h"

namespace sluice::store::redis {

// Belongs to its loop.
class BatchQueues final : private net::IterationHook {
 public:
  // At most max_gathered callers of a queue go with one command. `context` has a router already.
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
  struct Queue final : TokenBucketBatch, AcquireCommand::Owner {
    explicit Queue(BatchQueues& its_owner)
        : owner(its_owner),
          deadlines(owner.context_.loop(), owner.context_.clock(),
                    [this](int64_t now_ns) { owner.AnswerLate(*this, now_ns); }) {}
    const Bucket& bucket() const override { return buckets[0]; }
    void OnAnswered() override { owner.OnAnswered(*this); }
    void OnUndecided(bool decide_here) override;
    void OnAcquired() override { owner.OnAnswered(*this); }

    const std::string& routing_key() const { return buckets[0].keys[0]; }
    bool idle() const { return state == State::kIdle && gathered.empty(); }
    // The first of the gathered, to be sent. REQUIRES: there is one.
    Caller TakeFirst();

    BatchQueues& owner;
    std::string name;
    std::vector<Bucket> buckets;
    uint64_t set = 0;  // see SetIdOf
    GatheredCallers gathered;
    enum class State : uint8_t {
      kIdle,
      kWaits,     // to be sent: in ready_, or in a line
      kInFlight,  // in_flight has its callers
    };
    State state = State::kIdle;
    SentCallers* in_flight = nullptr;
    // When to look for late callers in flight next: their earliest deadline, or later.
    int64_t look_at_sent_ns = kNoDeadline;
    // Stays armed when the queue is empty or dropped: a needless look at it costs less than to arm
    // the timer for each caller.
    DeadlineTimer deadlines;
  };

  // Queues that wait to be sent to one server, first come, first served.
  struct Line final : Endpoint::RoomWaiter {
    Line(BatchQueues& its_owner, Endpoint& its_endpoint)
        : owner(its_owner), endpoint(its_endpoint) {}
    void OnRoom(Endpoint&) override {
      awaits_room = false;
      // What came in this iteration may go along.
      owner.LineUp();
      owner.SendFirst(*this);
      owner.Serve(*this);
    }

    BatchQueues& owner;
    Endpoint& endpoint;  // alive as long as queues wait
    std::deque<Queue*> queues;
    bool awaits_room = false;
  };

  Queue& QueueOf(const Acquisition& acquisition);
  // To be sent at the end of the iteration.
  void Ready(Queue& queue);
  void OnIterationEnd() override;
  // Puts those that are ready into the lines of their servers.
  void LineUp();
  void PutInLine(Queue& queue);
  // Sends while there is room, then waits for it.
  void Serve(Line& line);
  // Sends one command, with the first queue of the line and those that can go with it.
  void SendFirst(Line& line);
  bool GoesTogether(const Queue& queue) const;
  // Moves its first callers to its batch, at most `runs` runs of them.
  void FillBatch(Queue& queue, size_t runs);
  // By a command of its own.
  void SendByItself(Queue& queue);
  void SendByItself(Queue& queue, std::vector<Caller> callers, bool decide_here);
  // None of its callers is in flight: it is to be sent again if others have gathered.
  void OnAnswered(Queue& queue);
  // The first caller in time; the others before it are answered. Null: there is none.
  const Caller* FirstInTime(Queue& queue, int64_t now_ns);
  // It neither waits nor is in flight. Drops the queue if no caller gathered meanwhile.
  void DropIfIdle(Queue& queue);

  void AnswerLate(Queue& queue, int64_t now_ns);

  CommandContext& context_;
  Router& router_;
  PendingAcquires& acquires_;
  const size_t max_gathered_;
  absl::flat_hash_map<absl::string_view, std::unique_ptr<Queue>> queues_;  // by their own names
  std::vector<std::unique_ptr<Queue>> free_;                               // kept for their memory
  std::vector<Queue*> ready_;
  std::vector<std::unique_ptr<Line>> lines_;
  std::string name_;  // of QueueOf, kept for its memory
};

}  // namespace sluice::store::redis

#endif  // SLUICE_SERVER_STORE_REDIS_SHARD_BATCH_QUEUE_H_
