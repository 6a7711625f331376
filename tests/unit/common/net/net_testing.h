// Helpers for tests of common/net: raw sockets, a handler that records its calls, functions that
// run a loop.
#ifndef SLUICE_TESTS_UNIT_COMMON_NET_NET_TESTING_H_
#define SLUICE_TESTS_UNIT_COMMON_NET_NET_TESTING_H_

#include <arpa/inet.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "common/net/event_loop.h"
#include "common/net/socket_stream.h"
#include "common/net/stream.h"

namespace sluice::net {

inline absl::Span<const uint8_t> Bytes(std::string_view text) {
  return {reinterpret_cast<const uint8_t*>(text.data()), text.size()};
}

// Iterates until `done`. Returns false after too many iterations.
inline bool RunUntil(EventLoop& loop, const std::function<bool()>& done,
                     int max_iterations = 20'000) {
  for (int i = 0; i < max_iterations; ++i) {
    if (done()) return true;
    loop.RunOnce(1'000'000);
  }
  return done();
}

// Iterates until the loop has nothing to do.
inline void Settle(EventLoop& loop) {
  for (int i = 0; i < 20; ++i) loop.RunOnce(0);
}

class RecordingHandler : public StreamHandler {
 public:
  void OnOpen() override {
    ++opens;
    if (on_open) on_open();
  }
  void OnData(absl::Span<const uint8_t> data) override {
    EXPECT_FALSE(closed);
    received.append(reinterpret_cast<const char*>(data.data()), data.size());
    if (on_data) on_data(data);
  }
  void OnReadsDone() override {
    ++reads_done;
    if (on_reads_done) on_reads_done();
  }
  void OnEnd() override {
    ++ends;
    if (on_end) on_end();
  }
  void OnWritable() override {
    ++writables;
    if (on_writable) on_writable();
  }
  void OnClosed(const absl::Status& why) override {
    EXPECT_FALSE(closed) << "told twice";
    closed = why;
    if (on_closed) on_closed();
  }

  std::string received;
  int opens = 0;
  int reads_done = 0;
  int ends = 0;
  int writables = 0;
  std::optional<absl::Status> closed;
  std::function<void()> on_open, on_reads_done, on_end, on_writable, on_closed;
  std::function<void(absl::Span<const uint8_t>)> on_data;
};

// A socket of the test itself.
class RawSocket {
 public:
  RawSocket() = default;
  explicit RawSocket(int fd) : fd_(fd) {}
  RawSocket(RawSocket&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  RawSocket& operator=(RawSocket&& other) noexcept {
    Close();
    fd_ = std::exchange(other.fd_, -1);
    return *this;
  }
  ~RawSocket() { Close(); }

  int fd() const { return fd_; }
  int Release() { return std::exchange(fd_, -1); }
  void Close() {
    if (fd_ >= 0) close(std::exchange(fd_, -1));
  }
  // Closes with a reset.
  void Reset() {
    const linger reset = {.l_onoff = 1, .l_linger = 0};
    setsockopt(fd_, SOL_SOCKET, SO_LINGER, &reset, sizeof(reset));
    Close();
  }
  void Nonblocking() { fcntl(fd_, F_SETFL, fcntl(fd_, F_GETFL) | O_NONBLOCK); }
  // Sends as many bytes as the kernel takes.
  size_t Send(std::string_view data) {
    const ssize_t n = send(fd_, data.data(), data.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    return n < 0 ? 0 : n;
  }
  // Reads the available bytes, at most `max`; sets at_end and error.
  std::string Receive(size_t max = 1 << 20) {
    std::string data(max, '\0');
    const ssize_t n = recv(fd_, data.data(), max, MSG_DONTWAIT);
    at_end = n == 0;
    error = n < 0 ? errno : 0;
    data.resize(n < 0 ? 0 : n);
    return data;
  }

  // Whether the other side has closed. Drops bytes that arrived.
  bool Closed() {
    Receive();
    return at_end || (error != 0 && error != EAGAIN);
  }

  bool at_end = false;
  int error = 0;

 private:
  int fd_ = -1;
};

struct SocketPair {
  RawSocket ours;  // non-blocking, for a stream
  RawSocket peer;
  SocketAddress peer_address;
};

inline SocketPair TcpPair() {
  RawSocket listener(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  SocketAddress address;
  auto* const in = reinterpret_cast<sockaddr_in*>(address.get());
  in->sin_family = AF_INET;
  in->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof(sockaddr_in);
  EXPECT_EQ(bind(listener.fd(), address.get(), length), 0);
  EXPECT_EQ(listen(listener.fd(), 1), 0);
  getsockname(listener.fd(), address.get(), &length);
  SocketPair pair;
  pair.peer = RawSocket(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  EXPECT_EQ(connect(pair.peer.fd(), address.get(), length), 0);
  pair.peer_address.length = sizeof(pair.peer_address.storage);
  pair.ours = RawSocket(accept4(listener.fd(), pair.peer_address.get(), &pair.peer_address.length,
                                SOCK_NONBLOCK | SOCK_CLOEXEC));
  return pair;
}

inline SocketPair UnixPair() {
  int fds[2];
  EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
  SocketPair pair;
  pair.ours = RawSocket(fds[0]);
  pair.ours.Nonblocking();
  pair.peer = RawSocket(fds[1]);
  pair.peer_address.storage.ss_family = AF_UNIX;
  return pair;
}

// Opens a blocking connection; fd() < 0 if it is refused.
// `from`: the client's IPv4 address; null: any.
inline RawSocket ConnectTo(const SocketAddress& address, const char* from = nullptr) {
  RawSocket raw(socket(address.family(), SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (from != nullptr) {
    const SocketAddress local = *SocketAddress::FromNumeric({.host = from, .unix_path = ""});
    EXPECT_EQ(bind(raw.fd(), local.get(), local.length), 0);
  }
  if (connect(raw.fd(), address.get(), address.length) != 0) raw.Close();
  return raw;
}

}  // namespace sluice::net

#endif  // SLUICE_TESTS_UNIT_COMMON_NET_NET_TESTING_H_
