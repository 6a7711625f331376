#include "client/src/transport/dialer.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <utility>

#include "client/src/transport/connect_advice.h"

namespace sluice::client_internal {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr milliseconds kNextAddressAfter{250};
constexpr size_t kMaxCauses = 4;

constexpr char kCancelled[] = "the client was shut down";
constexpr char kTooSlow[] = "no answer in time";

int MillisecondsUntil(TimePoint time) {
  const auto left = std::chrono::ceil<milliseconds>(time - steady_clock::now()).count();
  return static_cast<int>(std::clamp<int64_t>(left, 0, 60'000));
}

// The kernel finds a peer that has vanished: a dead connection is otherwise noticed only by the
// deadlines of its calls, and never by a watch, which has none.
void SetSocketOptions(int fd, int family) {
  if (family == AF_UNIX) return;
  const auto set = [fd](int level, int name, int value) {
    setsockopt(fd, level, name, &value, sizeof(value));
  };
  set(IPPROTO_TCP, TCP_NODELAY, 1);
  set(SOL_SOCKET, SO_KEEPALIVE, 1);
  set(IPPROTO_TCP, TCP_KEEPIDLE, 20);
  set(IPPROTO_TCP, TCP_KEEPINTVL, 5);
  set(IPPROTO_TCP, TCP_KEEPCNT, 4);
  set(IPPROTO_TCP, TCP_USER_TIMEOUT, 20'000);
}

// Until when an address may be tried if `others` follow. A second is enough for one that is far
// away or busy.
TimePoint EndOfTry(TimePoint deadline, size_t others) {
  const TimePoint now = steady_clock::now();
  const auto left = deadline - now;
  if (others == 0) return deadline;
  return now + std::max(left / static_cast<int>(others + 1),
                        std::min<TimePoint::duration>(left / 2, std::chrono::seconds(1)));
}

void AddCause(const std::string& address, const std::string& cause, std::string* causes) {
  const auto count = static_cast<size_t>(std::count(causes->begin(), causes->end(), ','));
  if (count + 1 >= kMaxCauses) return;
  if (!causes->empty()) *causes += ", ";
  *causes += address + ": " + cause;
}

}  // namespace

DialCancel::DialCancel() : fd_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {}
DialCancel::~DialCancel() { close(fd_); }

void DialCancel::Cancel() {
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t n = write(fd_, &one, sizeof(one));
}

bool AwaitSocket(int fd, bool write, TimePoint deadline, const DialCancel& cancel) {
  while (true) {
    pollfd polled[] = {{fd, static_cast<short>(write ? POLLOUT : POLLIN), 0},
                       {cancel.fd(), POLLIN, 0}};
    const int wait_ms = MillisecondsUntil(deadline);
    const int ready = poll(polled, 2, wait_ms);
    if (ready < 0 && errno == EINTR) continue;
    if (polled[1].revents != 0) return false;
    if (ready > 0) return true;
    if (wait_ms == 0) return false;
  }
}

// A connect that has not ended.
struct Dialer::Attempt {
  int fd = -1;
  SocketAddress address;
};

int Dialer::Connect(std::vector<SocketAddress>* addresses, std::string* address, TimePoint deadline,
                    const DialCancel& cancel, std::string* causes) const {
  std::vector<Attempt> attempts;
  int connected = -1;
  const auto end = [&](size_t i, const std::string& cause) {
    AddCause(attempts[i].address.text, cause, causes);
    close(attempts[i].fd);
    attempts.erase(attempts.begin() + static_cast<ptrdiff_t>(i));
  };
  TimePoint next_start = steady_clock::now();
  while (connected < 0) {
    const TimePoint now = steady_clock::now();
    if (!addresses->empty() && (attempts.empty() || now >= next_start) && now < deadline) {
      Attempt& attempt = attempts.emplace_back();
      attempt.address = addresses->front();
      addresses->erase(addresses->begin());
      next_start = now + kNextAddressAfter;
      const int family = attempt.address.storage.ss_family;
      attempt.fd = socket(family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
      if (attempt.fd >= 0) SetSocketOptions(attempt.fd, family);
      const auto* const to = reinterpret_cast<const sockaddr*>(&attempt.address.storage);
      if (attempt.fd < 0 || (connect(attempt.fd, to, attempt.address.size) != 0 &&
                             errno != EINPROGRESS && errno != EINTR)) {
        end(attempts.size() - 1, std::strerror(errno));
      }
      continue;
    }
    if (attempts.empty()) break;
    std::vector<pollfd> polled = {{cancel.fd(), POLLIN, 0}};
    for (const Attempt& attempt : attempts) polled.push_back({attempt.fd, POLLOUT, 0});
    const TimePoint until = addresses->empty() ? deadline : std::min(deadline, next_start);
    poll(polled.data(), polled.size(), MillisecondsUntil(until));
    const bool cancelled = polled[0].revents != 0;
    const bool late = steady_clock::now() >= deadline;
    for (size_t i = attempts.size(); i-- > 0 && connected < 0;) {
      if (polled[i + 1].revents == 0) {
        if (cancelled || late) end(i, cancelled ? kCancelled : kTooSlow);
        continue;
      }
      int error = 0;
      socklen_t size = sizeof(error);
      getsockopt(attempts[i].fd, SOL_SOCKET, SO_ERROR, &error, &size);
      if (error != 0) {
        end(i, std::strerror(error));
      } else {
        connected = attempts[i].fd;
        *address = attempts[i].address.text;
      }
    }
    if (cancelled) addresses->clear();
  }
  // The slower ones stay candidates, in case that the handshake with the first fails.
  for (const Attempt& attempt : attempts) {
    if (attempt.fd == connected) continue;
    close(attempt.fd);
    addresses->push_back(attempt.address);
  }
  return connected;
}

Status Dialer::Secure(int fd, TimePoint deadline, const DialCancel& cancel,
                      std::unique_ptr<Channel>* channel) const {
  std::unique_ptr<SSL, SslDeleter> ssl;
  Status status;
  if (tls_ != nullptr) {
    Result<std::unique_ptr<SSL, SslDeleter>> made = tls_->NewSsl();
    if (made.ok()) {
      ssl = *std::move(made);
    } else {
      status = made.status();
    }
  }
  *channel = std::make_unique<Channel>(fd, std::move(ssl));
  while (status.ok()) {
    const Channel::Io io = (*channel)->Handshake();
    if (io == Channel::Io::kDone) break;
    if (io == Channel::Io::kClosed) {
      status = Status(StatusCode::kUnavailable, (*channel)->error());
    } else if (!AwaitSocket(fd, (*channel)->handshake_writes(), deadline, cancel)) {
      status = Status(StatusCode::kUnavailable,
                      std::string("TLS handshake: ") +
                          (steady_clock::now() < deadline ? kCancelled : kTooSlow));
    }
  }
  return status;
}

Status Dialer::Dial(TimePoint deadline, const DialCancel& cancel, const Greet& greet) const {
  std::string causes;
  Result<std::vector<SocketAddress>> resolved = resolver_(server_);
  if (resolved.ok()) {
    std::vector<SocketAddress> addresses = *std::move(resolved);
    std::string address;
    for (int fd; (fd = Connect(&addresses, &address, deadline, cancel, &causes)) >= 0;) {
      const TimePoint until = EndOfTry(deadline, addresses.size());
      std::unique_ptr<Channel> channel;
      Status status = Secure(fd, until, cancel, &channel);
      if (status.ok()) status = greet(std::move(channel), until);
      if (status.ok()) return status;
      AddCause(address, status.message(), &causes);
    }
    if (causes.empty()) causes = kTooSlow;
  } else {
    causes = resolved.status().message();
  }
  return Status(StatusCode::kUnavailable, "cannot connect to " + server_.text + ": " +
                                              WithAdvice(causes, options_, kDataServerOption));
}

}  // namespace sluice::client_internal
