// QueuePlace: the position of a caller that waits for slots of a store that several nodes share.
//
// The first caller of a node's queue has a ticket in each of its slot buckets. While the ticket
// lives, the store gives no later caller slots that this one needs.
#ifndef SLUICE_SERVER_STORE_QUEUE_PLACE_H_
#define SLUICE_SERVER_STORE_QUEUE_PLACE_H_

#include <cstdint>

#include "absl/types/span.h"

namespace sluice::store {

struct QueuePlace {
  // The caller behind it in the queue of one bucket. Its ticket replaces this caller's ticket when
  // this caller is served or leaves. number 0: there is none.
  struct Next {
    int64_t number = 0;
    uint64_t permits = 0;
  };

  // Of this process, random; not 0.
  uint64_t node = 0;
  // Callers are served in the order of their numbers: the time of their arrival on the store's
  // clock.
  int64_t number = 0;
  // How long a ticket lives unless it is renewed: at most bounds::kMaxTicketNs.
  int64_t ticket_for_ns = 0;
  // The caller does not try again, and leaves no ticket.
  bool last = false;
  // Owned by the caller, as many as charges; empty: no caller is behind it.
  absl::Span<const Next> next = {};
};

}  // namespace sluice::store

#endif  // SLUICE_SERVER_STORE_QUEUE_PLACE_H_
