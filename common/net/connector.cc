#include "common/net/connector.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/net/socket_stream.h"
#include "common/net/tls_stream.h"

namespace sluice::net {
namespace {

// Tries the addresses in turn until one accepts. Owned by its stream, which destroys it in Attach
// and Abort: do not use `this` after either.
class Attempt final : public std::enable_shared_from_this<Attempt>, private IoWatcher {
 public:
  Attempt(SocketStream& stream, const Address& address, int64_t timeout_ns, bool count_failure)
      : loop_(stream.loop()),
        stream_(stream),
        name_(address.ToString()),
        deadline_ns_(timeout_ns > TimerWheel::kNever - loop_.now_ns()
                         ? TimerWheel::kNever
                         : loop_.now_ns() + timeout_ns),
        count_failure_(count_failure) {
    loop_.Arm(timer_, deadline_ns_);
  }

  ~Attempt() override { CloseSocket(); }

  void Resolve(const Address& address, Resolver& resolver) {
    resolver.Resolve(address, loop_, [weak = weak_from_this()](Resolver::Addresses addresses) {
      const std::shared_ptr<Attempt> self = weak.lock();
      if (self == nullptr) return;  // the stream was aborted meanwhile
      addresses.ok() ? self->Try(*std::move(addresses)) : self->GiveUp(addresses.status());
    });
  }

  void Try(std::vector<SocketAddress> addresses) {
    addresses_ = std::move(addresses);
    Next();
  }

 private:
  void Next() {
    for (; next_ < addresses_.size(); ++next_) {
      if (Begin(addresses_[next_])) return;
    }
    GiveUp(last_error_);
  }

  // Returns false if it failed at once.
  bool Begin(const SocketAddress& address) {
    fd_ = socket(address.family(), SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd_ < 0) return Failed(errno);
    const int on = 1;
    if (address.family() != AF_UNIX) {
      setsockopt(fd_, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    }
    if (connect(fd_, address.get(), address.length) != 0 && errno != EINPROGRESS) {
      return Failed(errno);
    }
    // A connection that succeeded at once is also reported as writable.
    const absl::Status watched = loop_.Watch(fd_, EPOLLOUT, this);
    if (!watched.ok()) {
      last_error_ = watched;
      CloseSocket();
      return false;
    }
    watched_ = true;
    const int64_t left_ns = std::max<int64_t>(deadline_ns_ - loop_.now_ns(), 0);
    const auto tries = static_cast<int64_t>(addresses_.size() - next_);
    loop_.Arm(timer_, tries == 1 ? deadline_ns_ : loop_.now_ns() + left_ns / tries);
    return true;
  }

  bool Failed(int error) {
    last_error_ = absl::UnavailableError(
        absl::StrCat("cannot connect to ", name_, At(), ": ", std::strerror(error)));
    CloseSocket();
    return false;
  }

  // " (127.0.0.1:6379)", unless the name is that address.
  std::string At() const {
    if (next_ >= addresses_.size()) return "";
    const std::string at = addresses_[next_].ToString();
    return at == name_ ? "" : absl::StrCat(" (", at, ")");
  }

  void OnIo(uint32_t) override {
    int error = 0;
    socklen_t size = sizeof(error);
    if (getsockopt(fd_, SOL_SOCKET, SO_ERROR, &error, &size) != 0) error = errno;
    if (error != 0) {
      Failed(error);
      ++next_;
      return Next();
    }
    loop_.Unwatch(fd_, this);
    watched_ = false;
    loop_.counters().connected.Add();
    const SocketAddress peer = addresses_[next_];
    stream_.Attach(std::exchange(fd_, -1), peer);
  }

  void OnTimeout() {
    last_error_ = absl::DeadlineExceededError(
        absl::StrCat("cannot connect to ", name_, At(), ": it took too long"));
    CloseSocket();
    if (loop_.now_ns() >= deadline_ns_ || addresses_.empty()) return GiveUp(last_error_);
    ++next_;
    Next();
  }

  void GiveUp(absl::Status why) {
    if (count_failure_) loop_.counters().connect_failures.Add();
    stream_.Abort(std::move(why));
  }

  void CloseSocket() {
    if (fd_ < 0) return;
    if (watched_) loop_.Unwatch(fd_, this);
    watched_ = false;
    close(std::exchange(fd_, -1));
  }

  EventLoop& loop_;
  SocketStream& stream_;
  const std::string name_;
  const int64_t deadline_ns_;
  const bool count_failure_;
  Timer timer_{Timer::To<&Attempt::OnTimeout>, this};
  std::vector<SocketAddress> addresses_;
  size_t next_ = 0;
  absl::Status last_error_ = absl::UnavailableError("no address");
  int fd_ = -1;
  bool watched_ = false;
};

}  // namespace

Stream* Connect(EventLoop& loop, const Address& address, Resolver& resolver,
                const ConnectOptions& options, StreamHandler& handler) {
  const bool tls = options.tls != nullptr;
  SocketStream* const socket =
      SocketStream::Unconnected(loop, tls ? TlsStream::SocketOptions() : options.stream);
  Stream* stream = socket;
  if (tls) {
    const std::string& name = options.server_name.empty() ? address.host : options.server_name;
    stream = TlsStream::Connect(socket, *options.tls, name, options.timeout_ns, options.stream,
                                &handler);
    if (socket->closing()) return stream;
  } else {
    socket->SetHandler(&handler);
  }
  const auto attempt = std::make_shared<Attempt>(*socket, address, options.timeout_ns, !tls);
  socket->SetAttempt(attempt);
  absl::StatusOr<SocketAddress> numeric = SocketAddress::FromNumeric(address);
  if (numeric.ok()) {
    attempt->Try({*numeric});
  } else if (address.is_unix()) {
    socket->Abort(numeric.status());
  } else {
    attempt->Resolve(address, resolver);
  }
  return stream;
}

}  // namespace sluice::net
