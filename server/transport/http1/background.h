// BackgroundHandler: a handler whose answers take long to make. It makes them on another event
// loop, one after the other, so that no decision waits for them.
#ifndef SLUICE_SERVER_TRANSPORT_HTTP1_BACKGROUND_H_
#define SLUICE_SERVER_TRANSPORT_HTTP1_BACKGROUND_H_

#include "common/net/event_loop.h"
#include "server/transport/http1/answer.h"
#include "server/transport/http1/request.h"
#include "server/transport/http1/route.h"

namespace sluice::http1 {

// Thread-safe. Outlives the loops.
class BackgroundHandler : public Handler {
 public:
  // `loop` makes the answers. Outlives the handler's requests.
  explicit BackgroundHandler(net::EventLoop& loop) : loop_(loop) {}

  void OnRequest(Exchange& exchange) final;
  void OnCancelled(Exchange& exchange) final;

 protected:
  // Called on the thread of `loop`. Not called if the peer left, or ended its side of the
  // connection, meanwhile. At most one request of each connection waits for it.
  virtual Answer MakeAnswer(const Request& request) = 0;

 private:
  struct Job;

  net::EventLoop& loop_;
};

}  // namespace sluice::http1

#endif  // SLUICE_SERVER_TRANSPORT_HTTP1_BACKGROUND_H_
