// Listener: accepts connections on one loop.
#ifndef SLUICE_COMMON_NET_LISTENER_H_
#define SLUICE_COMMON_NET_LISTENER_H_

#include <cstdint>
#include <memory>

#include "common/net/event_loop.h"
#include "common/net/socket_stream.h"
#include "common/net/stream.h"
#include "common/net/tls_context.h"

namespace sluice::net {

// Decides what is to be done with a connection. One that serves several loops is called on each
// loop's thread, at the same time.
class Acceptor {
 public:
  virtual ~Acceptor() = default;
  // A stream is ready for use (with TLS: the handshake is done, peer() is known). Its handler;
  // OnOpen is called on it at once. Null refuses: the stream is closed.
  virtual StreamHandler* Accept(Stream& stream) = 0;
  // A connection was closed before it came to Accept, for a bound of the listener. On the loop's
  // thread.
  virtual void OnRefused(EventLoop&) {}
};

struct ListenerOptions {
  StreamOptions stream;
  std::shared_ptr<const TlsContext> tls;  // null: plaintext
  // How long a TLS handshake may take, and how many may be under way on a loop: each holds some
  // 50 KiB, and costs its sender nothing.
  int64_t handshake_timeout_ns = int64_t{10} * 1'000'000'000;
  int max_handshakes = 1024;
  // Connections accepted in an iteration, at most: those that are served have their turn, too.
  int accept_burst = 64;
  // Shared by listeners and loops; null: no bound but the process's descriptors. Connections
  // beyond are closed at once. Outlives the streams.
  ConnectionBudget* budget = nullptr;
};

// Used and destroyed on the loop's thread (or while the loop does not run).
class Listener final : private IoWatcher, private LoopResident {
 public:
  // Takes over the listening `fd`. `acceptor` outlives the listener and its handshakes.
  Listener(EventLoop& loop, int fd, Acceptor& acceptor, const ListenerOptions& options);
  ~Listener() override;

  // Accepts what has already been queued by the kernel, then closes the socket. Open streams
  // stay.
  void Stop();
  bool stopped() const { return fd_ < 0; }

 private:
  void OnIo(uint32_t events) override;
  void OnLoopStop() override;
  void OnRetry();
  // False when nothing (more) can be accepted now.
  bool AcceptOne();
  void Start(int fd, const SocketAddress& peer);
  void OutOfDescriptors();

  EventLoop& loop_;
  Acceptor& acceptor_;
  const ListenerOptions options_;
  int fd_;
  // Given up for a moment to accept and close a connection when there are no descriptors left;
  // else the kernel would report the listener as ready for ever.
  int reserve_fd_;
  // Shared with the handshakes, which may outlast the listener.
  std::shared_ptr<int> handshakes_;
  Timer retry_{Timer::To<&Listener::OnRetry>, this};
};

}  // namespace sluice::net

#endif  // SLUICE_COMMON_NET_LISTENER_H_
