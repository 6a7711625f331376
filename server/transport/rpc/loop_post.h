// OnLoop: runs a function on an event loop; at once if the caller is on its thread.
#ifndef SLUICE_SERVER_TRANSPORT_RPC_LOOP_POST_H_
#define SLUICE_SERVER_TRANSPORT_RPC_LOOP_POST_H_

#include <utility>

#include "common/net/event_loop.h"

namespace sluice::transport {

// A memory store decides on the loop's own thread, where this must cost nothing. A shared store may
// decide on another.
template <typename Fn>
void OnLoop(net::EventLoop& loop, Fn&& fn) {
  if (loop.InLoopThread()) {
    fn();
  } else {
    loop.Post(std::forward<Fn>(fn));
  }
}

}  // namespace sluice::transport

#endif  // SLUICE_SERVER_TRANSPORT_RPC_LOOP_POST_H_
