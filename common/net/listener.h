// Listener: accepts connections on one loop.
#ifndef SLUICE_COMMON_NET_LISTENER_H_
#define SLUICE_COMMON_NET_LISTENER_H_

#include <cstdint>
#include <memory>

#include "common/bounds.h"
#include "common/log.h"
#include "common/memory_account.h"
#include "common/net/connection_budget.h"
#include "common/net/event_loop.h"
#include "common/net/handshake_slots.h"
#include "common/net/socket_stream.h"
#include "common/net/stream.h"
#include "common/net/tls_context.h"

namespace sluice::net {

// Accepts or refuses connections. An acceptor of several loops is called on each loop's thread, at
// the same time.
class Acceptor {
 public:
  virtual ~Acceptor() = default;
  // A stream is ready for use (with TLS: the handshake is complete). Returns its handler, whose
  // OnOpen is called at once; null refuses and closes the stream.
  virtual StreamHandler* Accept(Stream& stream) = 0;
  // A connection was closed before Accept, because of a bound of the listener. Called on the loop's
  // thread.
  virtual void OnRefused(EventLoop&) {}
  // Another connection is about to be closed, to make room for one of this loop. Called on the
  // loop's thread.
  virtual void OnDisplaced(EventLoop&) {}
  // A TLS handshake was closed, to make room for another. Called on the loop's thread.
  virtual void OnHandshakeDisplaced(EventLoop&) {}
};

struct ListenerOptions {
  StreamOptions stream;
  std::shared_ptr<const TlsContext> tls;  // null: plaintext
  // How long a TLS handshake may take, and how many may run at once on a loop (HandshakeSlots).
  int64_t handshake_timeout_ns = int64_t{10} * 1'000'000'000;
  size_t max_handshakes = common::bounds::kMaxHandshakesPerLoop;
  // Counts what the handshakes hold; null: nothing does. Outlives the loops.
  common::MemoryBudget* memory = nullptr;
  // Where the displaced handshakes of a minute are reported; null: nowhere.
  common::Log* log = nullptr;
  // Connections accepted in an iteration, at most, so that open connections have their turn: each
  // may cost 50 us.
  int accept_burst = 4;
  // Shared by listeners and loops; null: only the process's descriptors bound the connections.
  // Refused connections are closed at once. Outlives the streams.
  ConnectionBudget* budget = nullptr;
};

// Used and destroyed on the loop's thread (or while the loop does not run).
class Listener final : private IoWatcher, private LoopResident {
 public:
  // Takes over the listening `fd`. `acceptor` outlives the listener and its handshakes.
  Listener(EventLoop& loop, int fd, Acceptor& acceptor, const ListenerOptions& options);
  ~Listener() override;

  // Accepts the connections that the kernel has queued, then closes the socket. Open streams stay.
  void Stop();
  // Closes the socket. The queued connections stay in the kernel, for others that have the socket.
  void Leave() { OnLoopStop(); }
  bool stopped() const { return fd_ < 0; }

 private:
  void OnIo(uint32_t events) override;
  void OnLoopStop() override;
  void OnRetry();
  // Returns false if no (more) connection can be accepted now.
  bool AcceptOne();
  void Start(int fd, const SocketAddress& peer);
  void OutOfDescriptors();
  // Closes a handshake if all slots are in use.
  void MakeRoom();

  EventLoop& loop_;
  Acceptor& acceptor_;
  const ListenerOptions options_;
  int fd_;
  // Closed for a moment, when there are no descriptors left, to accept and close a connection.
  // Otherwise epoll would report the listener as ready for ever.
  int reserve_fd_;
  std::shared_ptr<HandshakeSlots> handshakes_;
  uint64_t displaced_ = 0;        // handshakes, since the last line of the log
  int64_t log_displaced_ns_ = 0;  // the next line may follow then
  Timer retry_{Timer::To<&Listener::OnRetry>, this};
};

}  // namespace sluice::net

#endif  // SLUICE_COMMON_NET_LISTENER_H_
