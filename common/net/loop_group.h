// LoopGroup: the event loops of a server, each with a thread, and their shared listeners.
#ifndef SLUICE_COMMON_NET_LOOP_GROUP_H_
#define SLUICE_COMMON_NET_LOOP_GROUP_H_

#include <memory>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "common/clock.h"
#include "common/net/event_loop.h"
#include "common/net/listener.h"
#include "common/net/listening_socket.h"

namespace sluice::net {

// Used by one thread (main).
class LoopGroup {
 public:
  struct Options {
    int threads = 1;
    EventLoop::Options loop;
  };

  // Creates the loops; Start runs them. INVALID_ARGUMENT unless 1 <= threads <= 1024.
  static absl::StatusOr<std::unique_ptr<LoopGroup>> Create(const common::Clock& clock,
                                                           const Options& options);
  // Stops and joins.
  ~LoopGroup();
  LoopGroup(const LoopGroup&) = delete;
  LoopGroup& operator=(const LoopGroup&) = delete;

  // Listens with each loop. Call before or after Start. Returns the address with the actual port.
  // Errors: as ListeningSockets::Open; then no loop listens. `acceptor` outlives the group's loops,
  // and is called on their threads.
  absl::StatusOr<SocketAddress> Listen(const Address& address, Acceptor& acceptor,
                                       const ListenerOptions& options,
                                       const ListeningSockets::Options& sockets = {});

  // The same on sockets that listen already. All their queues are served, also if they are more
  // than the loops.
  absl::Status Listen(std::shared_ptr<ListeningSockets> sockets, Acceptor& acceptor,
                      const ListenerOptions& options);

  // Starts the threads. Block signals first, so that main receives them.
  void Start();
  // Stops accepting on all loops (drain); open streams stay. Does not wait. Idempotent.
  void StopAccepting();
  // The same, but leaves the queued connections in the kernel: another process has the sockets, or
  // will. REQUIRES: the sockets were given to Listen, and their owner keeps them.
  void LeaveSockets();
  // Stops the loops, which closes all streams, and joins their threads. Idempotent.
  void Stop();

  size_t size() const { return loops_.size(); }
  EventLoop& loop(size_t index) { return *loops_[index]; }

 private:
  LoopGroup() = default;

  std::vector<std::unique_ptr<EventLoop>> loops_;
  // While a loop runs, only its thread uses its listeners.
  std::vector<std::vector<std::unique_ptr<Listener>>> listeners_;  // by loop
  std::vector<std::shared_ptr<ListeningSockets>> sockets_;         // own the files of Unix sockets
  std::vector<std::thread> threads_;
  bool started_ = false;
  bool stopped_ = false;
};

}  // namespace sluice::net

#endif  // SLUICE_COMMON_NET_LOOP_GROUP_H_
