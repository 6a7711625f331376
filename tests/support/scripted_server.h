// ScriptedServer: an HTTP/2 server that does what the test's script says, byte by byte. Its frames
// and headers are written by hand: it shares no code with what it tests. Its users link OpenSSL.
#ifndef SLUICE_TESTS_SUPPORT_SCRIPTED_SERVER_H_
#define SLUICE_TESTS_SUPPORT_SCRIPTED_SERVER_H_

#include <openssl/ssl.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

namespace sluice::testing {

// ---- Bytes

inline constexpr char kData = 0;
inline constexpr char kHeaders = 1;
inline constexpr char kRstStream = 3;
inline constexpr char kSettings = 4;
inline constexpr char kPushPromise = 5;
inline constexpr char kPing = 6;
inline constexpr char kGoaway = 7;
inline constexpr char kWindowUpdate = 8;
inline constexpr char kContinuation = 9;
inline constexpr char kEndStream = 1;
inline constexpr char kAck = 1;
inline constexpr char kEndHeaders = 4;
inline constexpr char kPadded = 8;

inline std::string Number(uint64_t value, int bytes) {
  std::string out;
  for (int i = bytes - 1; i >= 0; --i) out.push_back(static_cast<char>(value >> (8 * i)));
  return out;
}
inline std::string Frame(char type, char flags, uint32_t stream, std::string_view payload) {
  return Number(payload.size(), 3) + type + flags + Number(stream, 4) + std::string(payload);
}
// A header field as a literal that does not enter the table.
inline std::string Field(std::string_view name, std::string_view value) {
  const auto text = [](std::string_view s) {
    std::string out;
    if (s.size() < 127) {
      out.push_back(static_cast<char>(s.size()));
    } else {
      out.push_back(127);
      size_t rest = s.size() - 127;
      for (; rest >= 128; rest /= 128) out.push_back(static_cast<char>(rest % 128 + 128));
      out.push_back(static_cast<char>(rest));
    }
    return out + std::string(s);
  };
  return std::string(1, '\0') + text(name) + text(value);
}
inline std::string Setting(uint16_t id, uint32_t value) { return Number(id, 2) + Number(value, 4); }
// A message of gRPC.
inline std::string Message(std::string_view bytes) {
  return std::string(1, '\0') + Number(bytes.size(), 4) + std::string(bytes);
}

inline std::string AnswerHead() {
  return Field(":status", "200") + Field("content-type", "application/grpc");
}
// A whole answer of a unary call: `message` is a message of sluice.v1.
inline std::string Answer(uint32_t stream, std::string_view message) {
  return Frame(kHeaders, kEndHeaders, stream, AnswerHead()) +
         Frame(kData, 0, stream, Message(message)) +
         Frame(kHeaders, kEndHeaders | kEndStream, stream, Field("grpc-status", "0"));
}
// An AcquireResponse: granted.
inline constexpr std::string_view kGranted{"\x08\x01\x28\x01", 4};
inline std::string Refusal(uint32_t stream, std::string_view status, std::string_view message,
                           std::string_view more = {}) {
  return Frame(kHeaders, kEndHeaders | kEndStream, stream,
               AnswerHead() + Field("grpc-status", status) + Field("grpc-message", message) +
                   std::string(more));
}

// ---- The server

struct ReceivedFrame {
  char type = 0;
  char flags = 0;
  uint32_t stream = 0;
  std::string payload;
};

// One connection. Its functions return false, or nothing, once the client or the test has closed
// it.
class Peer {
 public:
  // `tls` is null for a plain connection.
  Peer(int fd, SSL_CTX* tls, const std::atomic<bool>& stop)
      : fd_(fd), tls_(tls == nullptr ? nullptr : SSL_new(tls)), stop_(stop) {
    if (tls_ != nullptr) SSL_set_fd(tls_, fd);
  }
  ~Peer() { SSL_free(tls_); }
  Peer(const Peer&) = delete;
  Peer& operator=(const Peer&) = delete;

  // TLS's handshake, if there is TLS. Returns whether it succeeded.
  bool Accept() {
    if (tls_ == nullptr) return true;
    int result = 0;
    while ((result = SSL_accept(tls_)) != 1) {
      if (!AwaitTls(result)) return false;
    }
    return true;
  }

  bool Send(std::string_view bytes) {
    while (!bytes.empty()) {
      ssize_t n = 0;
      if (tls_ != nullptr) {
        n = SSL_write(tls_, bytes.data(), static_cast<int>(bytes.size()));
        if (n <= 0 && AwaitTls(static_cast<int>(n))) continue;
      } else {
        if (!Await(POLLOUT)) return false;
        n = send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
        if (n < 0 && errno == EAGAIN) continue;
      }
      if (n <= 0) return false;
      bytes.remove_prefix(static_cast<size_t>(n));
    }
    return true;
  }

  std::optional<ReceivedFrame> Read() {
    std::string head;
    if (!Take(9, &head)) return std::nullopt;
    const auto byte = [&](size_t i) { return static_cast<uint8_t>(head[i]); };
    ReceivedFrame frame;
    frame.type = head[3];
    frame.flags = head[4];
    frame.stream = static_cast<uint32_t>(byte(5) << 24 | byte(6) << 16 | byte(7) << 8 | byte(8));
    if (!Take(static_cast<size_t>(byte(0) << 16 | byte(1) << 8 | byte(2)), &frame.payload)) {
      return std::nullopt;
    }
    return frame;
  }

  // Exchanges prefaces.
  bool Greet(std::string_view settings = {}) {
    std::string preface;
    if (!Take(24, &preface)) return false;
    return Send(Frame(kSettings, 0, 0, settings) + Frame(kSettings, kAck, 0, ""));
  }

  // Reads until a request is complete and returns its stream; 0: there are no more.
  uint32_t AwaitRequest() {
    while (const auto frame = Read()) {
      const bool request = frame->type == kData || frame->type == kHeaders;
      if (request && (frame->flags & kEndStream) != 0) return frame->stream;
      if (frame->type == kPing && (frame->flags & kAck) == 0) {
        Send(Frame(kPing, kAck, 0, frame->payload));
      }
    }
    return 0;
  }

  // Grants every further request.
  void Serve() {
    while (const uint32_t stream = AwaitRequest()) Send(Answer(stream, kGranted));
  }

  // Waits until the client closes the connection.
  void AwaitEnd() {
    while (Read().has_value()) {
    }
  }

 private:
  bool Await(short events) {
    while (!stop_) {
      pollfd polled = {fd_, events, 0};
      if (poll(&polled, 1, 20) > 0) return true;
    }
    return false;
  }
  // Waits for what the last call of OpenSSL needs. Returns false if it failed for another reason.
  bool AwaitTls(int result) {
    const int error = SSL_get_error(tls_, result);
    if (error == SSL_ERROR_WANT_READ) return Await(POLLIN);
    return error == SSL_ERROR_WANT_WRITE && Await(POLLOUT);
  }
  bool Take(size_t size, std::string* to) {
    while (input_.size() < size) {
      char bytes[4096];
      ssize_t n = 0;
      if (tls_ != nullptr) {
        n = SSL_read(tls_, bytes, sizeof(bytes));
        if (n <= 0 && AwaitTls(static_cast<int>(n))) continue;
      } else {
        if (!Await(POLLIN)) return false;
        n = recv(fd_, bytes, sizeof(bytes), 0);
      }
      if (n <= 0) return false;
      input_.append(bytes, static_cast<size_t>(n));
    }
    *to = input_.substr(0, size);
    input_.erase(0, size);
    return true;
  }

  const int fd_;
  SSL* const tls_;
  const std::atomic<bool>& stop_;
  std::string input_;
};

// Listens on a Unix socket. Each connection has a thread, which runs the script and then closes it.
class ScriptedServer {
 public:
  // `connection` counts from 0.
  using Script = std::function<void(Peer& peer, int connection)>;

  // `tls` is null for plain connections, and outlives the server.
  explicit ScriptedServer(Script script, SSL_CTX* tls = nullptr)
      : script_(std::move(script)), tls_(tls) {
    static std::atomic<int> count{0};
    name_ = "sluice-test-" + std::to_string(getpid()) + "-" + std::to_string(count++);
    listener_ = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_un address = {};
    address.sun_family = AF_UNIX;
    std::memcpy(address.sun_path + 1, name_.data(), name_.size());
    const auto size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name_.size());
    if (bind(listener_, reinterpret_cast<sockaddr*>(&address), size) != 0 ||
        listen(listener_, 64) != 0) {
      std::abort();
    }
    acceptor_ = std::thread([this] { Accept(); });
  }
  ~ScriptedServer() {
    stop_ = true;
    acceptor_.join();
    for (std::thread& thread : threads_) thread.join();
    close(listener_);
  }
  ScriptedServer(const ScriptedServer&) = delete;
  ScriptedServer& operator=(const ScriptedServer&) = delete;

  std::string address() const { return "unix:@" + name_; }
  int connections() const { return connections_; }
  bool has_tls() const { return tls_ != nullptr; }

 private:
  void Accept() {
    while (!stop_) {
      pollfd polled = {listener_, POLLIN, 0};
      if (poll(&polled, 1, 20) <= 0) continue;
      const int fd = accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
      if (fd < 0) continue;
      threads_.emplace_back([this, fd, connection = connections_++] {
        // OpenSSL writes to sockets that the client has closed.
        sigset_t broken_pipe;
        sigemptyset(&broken_pipe);
        sigaddset(&broken_pipe, SIGPIPE);
        pthread_sigmask(SIG_BLOCK, &broken_pipe, nullptr);
        Peer peer(fd, tls_, stop_);
        if (peer.Accept()) script_(peer, connection);
        shutdown(fd, SHUT_RDWR);
        close(fd);
      });
    }
  }

  const Script script_;
  SSL_CTX* const tls_;
  std::string name_;
  int listener_ = -1;
  std::atomic<bool> stop_{false};
  std::atomic<int> connections_{0};
  std::vector<std::thread> threads_;  // used by the acceptor, then by the destructor
  std::thread acceptor_;
};

}  // namespace sluice::testing

#endif  // SLUICE_TESTS_SUPPORT_SCRIPTED_SERVER_H_
