#include "common/net/listener.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <memory>
#include <string>
#include <utility>

#include "common/net/tls_stream.h"

namespace sluice::net {
namespace {

constexpr int64_t kRetryNs = 100'000'000;
constexpr int64_t kLogIntervalNs = int64_t{60} * 1'000'000'000;

int OpenReserve() { return open("/dev/null", O_RDONLY | O_CLOEXEC); }

}  // namespace

Listener::Listener(EventLoop& loop, int fd, Acceptor& acceptor, const ListenerOptions& options)
    : loop_(loop),
      acceptor_(acceptor),
      options_(options),
      fd_(fd),
      reserve_fd_(OpenReserve()),
      handshakes_(std::make_shared<HandshakeSlots>(loop, options.max_handshakes, options.memory)) {
  loop_.AddResident(*this);
  OnRetry();
}

Listener::~Listener() { OnLoopStop(); }

void Listener::OnLoopStop() {
  retry_.Cancel();
  if (fd_ >= 0) {
    loop_.Unwatch(fd_, this);
    close(fd_);
    fd_ = -1;
  }
  if (reserve_fd_ >= 0) {
    close(reserve_fd_);
    reserve_fd_ = -1;
  }
}

void Listener::OnRetry() {
  if (fd_ < 0) return;
  // EPOLLEXCLUSIVE: the loops share a Unix socket, and one connection must not wake them all.
  if (!loop_.Watch(fd_, EPOLLIN | EPOLLEXCLUSIVE, this).ok()) loop_.ArmIn(retry_, kRetryNs);
}

void Listener::Stop() {
  if (fd_ < 0) return;
  // From now on the kernel wakes others that have the socket, if there are any.
  loop_.Unwatch(fd_, this);
  // The peers of queued connections believe that they are connected.
  for (int i = 0; i < 65536 && fd_ >= 0 && AcceptOne(); ++i) {
  }
  OnLoopStop();
}

void Listener::OnIo(uint32_t) {
  for (int i = 0; i < options_.accept_burst && fd_ >= 0 && AcceptOne(); ++i) {
  }
}

bool Listener::AcceptOne() {
  SocketAddress peer;
  peer.length = sizeof(peer.storage);
  const int fd = accept4(fd_, peer.get(), &peer.length, SOCK_CLOEXEC | SOCK_NONBLOCK);
  if (fd >= 0) {
    Start(fd, peer);
    return true;
  }
  switch (errno) {
    case EAGAIN:
      return false;
    case EMFILE:
    case ENFILE:
    case ENOBUFS:
    case ENOMEM:
      loop_.counters().accept_errors.Add();
      OutOfDescriptors();
      return false;
    default:  // the connection failed before it was accepted; there may be others
      loop_.counters().accept_errors.Add();
      return true;
  }
}

void Listener::OutOfDescriptors() {
  // Close one connection at once, so that its peer is not left waiting. Without a reserve the
  // listener pauses, to avoid a busy loop.
  if (reserve_fd_ >= 0) {
    close(reserve_fd_);
    const int fd = accept4(fd_, nullptr, nullptr, SOCK_CLOEXEC);
    if (fd >= 0) {
      close(fd);
      loop_.counters().refused.Add();
    }
    reserve_fd_ = OpenReserve();
    if (fd >= 0 && reserve_fd_ >= 0) return;  // the next iteration continues
  } else {
    reserve_fd_ = OpenReserve();
  }
  loop_.Unwatch(fd_, this);
  loop_.ArmIn(retry_, kRetryNs);
}

void Listener::Start(int fd, const SocketAddress& peer) {
  LoopCounters& counters = loop_.counters();
  const uint64_t network = PeerOf(fd, peer);
  std::unique_ptr<Admission> admission;
  if (options_.budget != nullptr) {
    bool displaced = false;
    admission = options_.budget->Admit(loop_, network, &displaced);
    if (admission == nullptr) {
      counters.refused.Add();
      close(fd);
      acceptor_.OnRefused(loop_);
      return;
    }
    if (displaced) acceptor_.OnDisplaced(loop_);
  }
  counters.accepted.Add();
  auto* const socket = SocketStream::FromConnected(
      loop_, fd, peer, options_.tls == nullptr ? options_.stream : TlsStream::SocketOptions(),
      std::move(admission));
  if (options_.tls == nullptr) {
    StreamHandler* const handler = acceptor_.Accept(*socket);
    if (handler == nullptr) {
      counters.refused.Add();
      return socket->Abort(absl::UnavailableError("refused"));
    }
    socket->SetHandler(handler);
    return socket->Open();
  }
  MakeRoom();
  const HandshakeSlots::Slot slot = handshakes_->Take(network);
  slot->stream =
      TlsStream::Serve(socket, *options_.tls, options_.handshake_timeout_ns, options_.stream,
                       [&acceptor = acceptor_](Stream& stream) { return acceptor.Accept(stream); },
                       {.input = [handshakes = handshakes_, slot] { handshakes->OnInput(slot); },
                        .done = [handshakes = handshakes_, slot] { handshakes->GiveBack(slot); }});
}

void Listener::MakeRoom() {
  if (!handshakes_->full()) return;
  TlsStream& displaced = handshakes_->Displaced();
  const std::string peer = displaced.peer_address();
  displaced.Abort(absl::ResourceExhaustedError("another TLS handshake took its place"));
  loop_.counters().handshakes_displaced.Add();
  acceptor_.OnHandshakeDisplaced(loop_);
  ++displaced_;
  if (options_.log == nullptr || loop_.now_ns() < log_displaced_ns_) return;
  log_displaced_ns_ = loop_.now_ns() + kLogIntervalNs;
  options_.log->Warning("tls_handshakes_displaced",
                        {{"peer", peer}, {"handshakes", std::exchange(displaced_, 0)}});
}

}  // namespace sluice::net
