#include "common/net/listening_socket.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <thread>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "common/net/resolver.h"

namespace sluice::net {
namespace {

absl::Status CannotListen(const Address& address, int error) {
  const std::string where = address.ToString();
  switch (error) {
    case EADDRINUSE:
      return absl::AlreadyExistsError(
          absl::StrCat("cannot listen on ", where,
                       ": it is in use by another server; stop it or choose "
                       "another address"));
    case EACCES:
    case EPERM:
    case EROFS:
      return absl::PermissionDeniedError(
          absl::StrCat("cannot listen on ", where, ": ", std::strerror(error)));
    case EADDRNOTAVAIL:
      return absl::InvalidArgumentError(
          absl::StrCat("cannot listen on ", where, ": this machine has no such address"));
    default:
      return absl::UnavailableError(
          absl::StrCat("cannot listen on ", where, ": ", std::strerror(error)));
  }
}

// Locks the folder of a Unix socket while a server checks whether the socket is stale and replaces
// it. Otherwise two servers could find it stale, and the second remove the new socket of the first.
// Returns a descriptor, whose closing unlocks; -1: errno says why.
int LockFolder(const std::string& path) {
  const size_t slash = path.rfind('/');
  const std::string folder = slash == std::string::npos ? "."
                             : slash == 0               ? "/"
                                                        : path.substr(0, slash);
  const int fd = open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return -1;
  // Servers hold the lock only briefly. Bounded, since other programs may lock a shared folder.
  for (int attempt = 0; attempt < 100; ++attempt) {
    if (flock(fd, LOCK_EX | LOCK_NB) == 0) return fd;
    if (errno != EWOULDBLOCK && errno != EINTR) return fd;  // a file system without locks
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  close(fd);
  errno = EWOULDBLOCK;
  return -1;
}

// Whether a server accepts connections at this Unix address.
bool IsServed(const SocketAddress& address) {
  const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0) return true;
  const int result = connect(fd, address.get(), address.length);
  const int error = errno;
  close(fd);
  return result == 0 || error != ECONNREFUSED;
}

}  // namespace

ListeningSockets::ListeningSockets(ListeningSockets&& other) noexcept
    : address_(other.address_),
      fds_(std::exchange(other.fds_, {})),
      unix_file_(std::exchange(other.unix_file_, {})),
      unix_device_(other.unix_device_),
      unix_inode_(other.unix_inode_) {}

ListeningSockets::~ListeningSockets() {
  for (const int fd : fds_) {
    if (fd >= 0) close(fd);
  }
  if (unix_file_.empty()) return;
  const int lock = LockFolder(unix_file_);
  struct stat now;
  if (stat(unix_file_.c_str(), &now) == 0 && now.st_dev == unix_device_ &&
      now.st_ino == unix_inode_) {
    unlink(unix_file_.c_str());
  }
  if (lock >= 0) close(lock);
}

int ListeningSockets::Release(int index) { return std::exchange(fds_[index], -1); }

absl::StatusOr<ListeningSockets> ListeningSockets::Open(const Address& address, int count,
                                                        const Options& options) {
  ListeningSockets sockets;
  absl::Status opened = address.is_unix() ? sockets.OpenUnix(address, count, options)
                                          : sockets.OpenTcp(address, count, options);
  if (!opened.ok()) return opened;
  return sockets;
}

absl::Status ListeningSockets::OpenTcp(const Address& address, int count, const Options& options) {
  absl::StatusOr<SocketAddress> numeric = SocketAddress::FromNumeric(address);
  if (!numeric.ok()) {
    absl::StatusOr<std::vector<SocketAddress>> found = Resolver::GetAddrInfo(address);
    if (!found.ok()) {
      return absl::InvalidArgumentError(
          absl::StrCat("cannot listen on ", address.ToString(), ": ", found.status().message()));
    }
    numeric = found->front();
  }
  address_ = *numeric;
  const int on = 1;
  for (int i = 0; i < count; ++i) {
    const int fd = socket(address_.family(), SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0) return CannotListen(address, errno);
    fds_.push_back(fd);
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));  // despite TIME_WAIT
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));  // accepted sockets inherit it
    if (i > 0) setsockopt(fd, SOL_SOCKET, SO_REUSEPORT, &on, sizeof(on));
    if (bind(fd, address_.get(), address_.length) != 0 || listen(fd, options.backlog) != 0) {
      return CannotListen(address, errno);
    }
    if (i > 0) continue;
    socklen_t length = sizeof(address_.storage);
    getsockname(fd, address_.get(), &length);
    address_.length = length;
    // The first socket listens alone. From here on our other sockets may join, and those of another
    // server may not, as its first socket does not share.
    setsockopt(fd, SOL_SOCKET, SO_REUSEPORT, &on, sizeof(on));
  }
  return absl::OkStatus();
}

absl::Status ListeningSockets::OpenUnix(const Address& address, int count, const Options& options) {
  const absl::StatusOr<SocketAddress> numeric = SocketAddress::FromNumeric(address);
  if (!numeric.ok()) return numeric.status();
  address_ = *numeric;
  const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0) return CannotListen(address, errno);
  fds_.push_back(fd);
  const std::string& path = address.unix_path;
  const bool has_file = path[0] != '@';
  const int lock = has_file ? LockFolder(path) : -1;
  if (has_file && lock < 0) return CannotListen(address, errno);
  const absl::Cleanup unlock = [lock] { close(lock); };  // -1: no effect
  struct stat file;
  if (has_file && lstat(path.c_str(), &file) == 0) {
    if (!S_ISSOCK(file.st_mode)) {
      return absl::AlreadyExistsError(
          absl::StrCat("cannot listen on ", address.ToString(), ": the file is not a socket"));
    }
    if (IsServed(address_)) return CannotListen(address, EADDRINUSE);
    if (unlink(path.c_str()) != 0) return CannotListen(address, errno);
  }
  if (bind(fd, address_.get(), address_.length) != 0) return CannotListen(address, errno);
  if (has_file && lstat(path.c_str(), &file) == 0) {
    unix_file_ = path;
    unix_device_ = file.st_dev;
    unix_inode_ = file.st_ino;
  }
  // chmod first: no client may connect with other permissions.
  if ((has_file && chmod(path.c_str(), options.unix_mode) != 0) ||
      listen(fd, options.backlog) != 0) {
    return CannotListen(address, errno);
  }
  while (static_cast<int>(fds_.size()) < count) {
    const int copy = fcntl(fd, F_DUPFD_CLOEXEC, 0);
    if (copy < 0) return CannotListen(address, errno);
    fds_.push_back(copy);
  }
  return absl::OkStatus();
}

}  // namespace sluice::net
