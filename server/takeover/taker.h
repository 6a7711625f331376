// Taker: the side of a starting process in a takeover: it gets the sockets and the state of the one
// that serves.
#ifndef SLUICE_SERVER_TAKEOVER_TAKER_H_
#define SLUICE_SERVER_TAKEOVER_TAKER_H_

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/net/descriptor.h"
#include "server/takeover/link.h"
#include "server/takeover/port_sockets.h"

namespace sluice::takeover {

// Used by the main thread. Destroyed before ConfirmLoaded, it leaves the running process as it is,
// or lets it go on.
class Taker {
 public:
  // Connects to the process that listens at `path`, and gets its sockets. Null: there is none.
  //   FAILED_PRECONDITION: it refuses, and says why; PERMISSION_DENIED: it runs as another user;
  //   other errors of Link.
  static absl::StatusOr<std::unique_ptr<Taker>> Connect(const std::string& path,
                                                        const std::string& version, bool in_redis);
  Taker(const Taker&) = delete;
  Taker& operator=(const Taker&) = delete;

  // Of the process that serves.
  PortSockets& ports() { return ports_; }
  // Has input, or is closed by the peer, if the process that serves ends the takeover.
  int fd() const { return link_.fd(); }
  // After that: whether it goes on. Else it has ended.
  bool IsTakenBack();

  struct State {
    net::Descriptor file;
    net::Descriptor lock;  // of the folder of the state; may be none
  };
  // Lets the other process end its calls, and waits for its state. From here on this process must
  // confirm or end.
  absl::StatusOr<State> TakeState();

  // Says that this process can serve, and waits for permission. After an error it must not serve:
  // the other one does, or may. (With Redis both may.) If the other process died after it gave its
  // state, this one goes on.
  absl::Status ConfirmLoaded();

 private:
  explicit Taker(Link link) : link_(std::move(link)) {}
  absl::Status ReceivePorts();

  Link link_;
  PortSockets ports_;
  std::chrono::milliseconds drain_limit_{0};
};

}  // namespace sluice::takeover

#endif  // SLUICE_SERVER_TAKEOVER_TAKER_H_
