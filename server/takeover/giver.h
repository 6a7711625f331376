// Giver: the side of a serving process in a takeover: another process asks for its sockets and its
// state.
//
// One process at a time: others wait in the socket's queue.
#ifndef SLUICE_SERVER_TAKEOVER_GIVER_H_
#define SLUICE_SERVER_TAKEOVER_GIVER_H_

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "common/log.h"
#include "common/net/descriptor.h"
#include "server/takeover/link.h"
#include "server/takeover/port_sockets.h"

namespace sluice::takeover {

// Used by the main thread. `ports`, with the socket of --takeover, and `log` outlive it.
class Giver {
 public:
  struct Options {
    std::string version;    // of the program, for the log
    bool in_redis = false;  // where the buckets are
    // The longest time for calls to end, which the other process adds to its own time limit.
    std::chrono::milliseconds drain_limit{0};
  };
  Giver(Options options, const PortSockets& ports, common::Log& log)
      : options_(std::move(options)), ports_(ports), log_(log) {}
  Giver(const Giver&) = delete;
  Giver& operator=(const Giver&) = delete;

  enum class State : uint8_t {
    kListening,  // no other process is there
    kOffered,    // another one has the sockets, and prepares itself; this one serves
    kAsked,      // it asks for the state: end all calls, and SendState
    kShared,     // it decides too, in Redis: confirm with SendYours, then leave
  };
  State state() const { return state_; }

  // What to poll for input, and for how long; -1: without end. Then call Proceed. In kListening and
  // kOffered.
  int fd() const;
  int timeout_ms() const;
  // Does what can be done; takes a few seconds if the other process is slow. What goes wrong is
  // logged, and ends the attempt.
  State Proceed();

  // In kAsked, once nothing is decided any more. `lock`: of the folder of the state; may be none.
  void SendState(net::Descriptor state, net::Descriptor lock);
  // Waits until the other process has the state, and gives it the sockets for good. Returns false
  // if this process must go on; an error if it is not known which one does, and this one must not.
  absl::StatusOr<bool> AwaitLoaded();
  // In kShared. Returns false if the other process is gone; then this one goes on.
  bool SendYours();

 private:
  absl::Status Offer();
  absl::Status OnMessage();
  void End(const absl::Status& why);

  const Options options_;
  const PortSockets& ports_;
  common::Log& log_;
  State state_ = State::kListening;
  std::unique_ptr<Link> link_;  // null: kListening
  std::chrono::steady_clock::time_point offer_end_;
  absl::Status sent_;  // the state
};

}  // namespace sluice::takeover

#endif  // SLUICE_SERVER_TAKEOVER_GIVER_H_
