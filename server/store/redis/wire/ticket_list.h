// TicketList: the callers that wait for slots of one bucket in Redis, one or two of each node
// (store::QueuePlace), in the order in which they are served.
//
// A ticket lives until its end, unless its node renews it. So the tickets of a node that died keep
// slots from other callers for a moment only.
//
// Not thread-safe; never blocks. Times are the Redis server's, in nanoseconds since 1970.
#ifndef SLUICE_SERVER_STORE_REDIS_WIRE_TICKET_LIST_H_
#define SLUICE_SERVER_STORE_REDIS_WIRE_TICKET_LIST_H_

#include <compare>
#include <cstdint>
#include <utility>
#include <vector>

namespace sluice::store::redis {

struct Ticket {
  int64_t number = 0;
  uint64_t node = 0;
  uint64_t permits = 0;
  int64_t until_ns = 0;

  friend auto operator<=>(const Ticket&, const Ticket&) = default;
};

// At most bounds::kMaxTicketsPerBucketInRedis.
class TicketList {
 public:
  TicketList() = default;
  // REQUIRES: in order, and not too many.
  explicit TicketList(std::vector<Ticket> tickets) : tickets_(std::move(tickets)) {}

  bool empty() const { return tickets_.empty(); }
  // With those that have ended.
  const std::vector<Ticket>& tickets() const { return tickets_; }
  // Whether any ticket lives.
  bool AnyAt(int64_t now_ns) const;
  // What the callers with live tickets before this one wait for together, at most 2^64-1.
  uint64_t PermitsBefore(int64_t number, uint64_t node, int64_t now_ns) const;
  // 0: there are none.
  int64_t LastUntilNs() const;

  // Both return whether the list has changed.
  //
  // Adds the ticket, or renews it when half of its life is over. Removes those that have ended, and
  // those of earlier callers of the node: they have left its line. If there are too many, the last
  // one gets none, and leaves it again when there is room.
  bool Leave(const Ticket& ticket, int64_t now_ns);
  bool Drop(int64_t number, uint64_t node);

 private:
  std::vector<Ticket> tickets_;
};

}  // namespace sluice::store::redis

#endif  // SLUICE_SERVER_STORE_REDIS_WIRE_TICKET_LIST_H_
