// LoopGroup: the event loops of a server, a thread each, and what they listen on together.
#ifndef SLUICE_COMMON_NET_LOOP_GROUP_H_
#define SLUICE_COMMON_NET_LOOP_GROUP_H_

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "common/clock.h"
#include "common/net/event_loop.h"
#include "common/net/listener.h"
#include "common/net/listening_socket.h"

namespace sluice::net {

// Used by one thread (main), but for what is said otherwise.
class LoopGroup {
 public:
  struct Options {
    int threads = 1;
    EventLoop::Options loop;
  };

  // INVALID_ARGUMENT unless 1 <= threads <= 1024. The loops are made, not yet run.
  static absl::StatusOr<std::unique_ptr<LoopGroup>> Create(const common::Clock& clock,
                                                           const Options& options);
  // Stops and joins.
  ~LoopGroup();
  LoopGroup(const LoopGroup&) = delete;
  LoopGroup& operator=(const LoopGroup&) = delete;

  // Listens with every loop. Before or after Start. Returns the address with the port picked, for
  // people and for clients. Errors: as ListeningSockets::Open; then nothing listens.
  // `acceptor` outlives the group's loops, and is called on their threads.
  absl::StatusOr<SocketAddress> Listen(const Address& address, Acceptor& acceptor,
                                       const ListenerOptions& options,
                                       const ListeningSockets::Options& sockets = {});

  // Starts the threads. Block signals before, so that they go to main.
  void Start();
  // Stops accepting on all loops (drain); open streams stay. Does not wait. Idempotent.
  void StopAccepting();
  // Stops the loops, which closes all streams, and joins their threads. Idempotent.
  void Stop();

  size_t size() const { return loops_.size(); }
  EventLoop& loop(size_t index) { return *loops_[index]; }
  const EventLoop& loop(size_t index) const { return *loops_[index]; }

 private:
  LoopGroup() = default;

  std::vector<std::unique_ptr<EventLoop>> loops_;
  // Each is touched on its loop only, while that runs.
  std::vector<std::vector<std::unique_ptr<Listener>>> listeners_;  // by loop
  std::vector<std::unique_ptr<ListeningSockets>> sockets_;         // own the Unix sockets' files
  std::vector<std::thread> threads_;
  bool started_ = false;
  bool stopped_ = false;
};

}  // namespace sluice::net

#endif  // SLUICE_COMMON_NET_LOOP_GROUP_H_
