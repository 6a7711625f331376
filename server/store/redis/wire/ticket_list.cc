#include "server/store/redis/wire/ticket_list.h"

#include <algorithm>
#include <limits>

#include "common/bounds.h"

namespace sluice::store::redis {
namespace {

// One that would live for longer is from before the clock was set back.
bool IsLive(const Ticket& ticket, int64_t now_ns) {
  return ticket.until_ns > now_ns && ticket.until_ns - now_ns <= common::bounds::kMaxTicketNs;
}

bool IsBefore(const Ticket& ticket, int64_t number, uint64_t node) {
  return std::pair(ticket.number, ticket.node) < std::pair(number, node);
}

}  // namespace

bool TicketList::AnyAt(int64_t now_ns) const {
  return std::any_of(tickets_.begin(), tickets_.end(),
                     [&](const Ticket& ticket) { return IsLive(ticket, now_ns); });
}

uint64_t TicketList::PermitsBefore(int64_t number, uint64_t node, int64_t now_ns) const {
  uint64_t permits = 0;
  for (const Ticket& ticket : tickets_) {
    if (!IsBefore(ticket, number, node)) break;
    if (!IsLive(ticket, now_ns)) continue;
    permits += std::min(ticket.permits, std::numeric_limits<uint64_t>::max() - permits);
  }
  return permits;
}

int64_t TicketList::LastUntilNs() const {
  int64_t last_ns = 0;
  for (const Ticket& ticket : tickets_) last_ns = std::max(last_ns, ticket.until_ns);
  return last_ns;
}

bool TicketList::Leave(const Ticket& ticket, int64_t now_ns) {
  std::vector<Ticket> left;
  left.reserve(tickets_.size() + 1);
  Ticket kept = ticket;
  for (const Ticket& one : tickets_) {
    if (!IsLive(one, now_ns)) continue;
    if (one.node == ticket.node && one.number < ticket.number) continue;
    if (one.node != ticket.node || one.number != ticket.number) {
      left.push_back(one);
      continue;
    }
    const bool young = one.until_ns - now_ns > (ticket.until_ns - now_ns) / 2;
    if (young) kept.until_ns = one.until_ns;
  }
  left.insert(
      std::find_if(left.begin(), left.end(),
                   [&](const Ticket& one) { return !IsBefore(one, ticket.number, ticket.node); }),
      kept);
  if (left.size() > common::bounds::kMaxTicketsPerBucketInRedis) left.pop_back();
  if (left == tickets_) return false;
  tickets_ = std::move(left);
  return true;
}

bool TicketList::Drop(int64_t number, uint64_t node) {
  return std::erase_if(tickets_, [&](const Ticket& one) {
           return one.number == number && one.node == node;
         }) > 0;
}

}  // namespace sluice::store::redis
