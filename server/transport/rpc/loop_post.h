// Runs something on an event loop: at once, when this is its thread.
#ifndef SLUICE_SERVER_TRANSPORT_RPC_LOOP_POST_H_
#define SLUICE_SERVER_TRANSPORT_RPC_LOOP_POST_H_

#include <utility>

#include "common/net/event_loop.h"

namespace sluice::transport {

// A decision of a store in memory comes on the loop's own thread, which must cost nothing; that of
// a shared one may come from elsewhere.
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
