#include "common/net/listening_socket.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
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
bool IsServed(const SocketAddress& address, int type) {
  const int fd = socket(AF_UNIX, type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0) return true;
  const int result = connect(fd, address.get(), address.length);
  const int error = errno;
  close(fd);
  return result == 0 || error != ECONNREFUSED;
}

// INVALID_ARGUMENT: what it is instead of a listening socket of `type`.
absl::Status CheckListens(int fd, int type) {
  const auto option = [fd](int name, int* value) {
    socklen_t size = sizeof(*value);
    return getsockopt(fd, SOL_SOCKET, name, value, &size) == 0;
  };
  int its_type = 0;
  int domain = 0;
  int listens = 0;
  if (!option(SO_TYPE, &its_type) || !option(SO_DOMAIN, &domain)) {
    return absl::InvalidArgumentError("it is not a socket; pass a listening socket");
  }
  if (domain != AF_INET && domain != AF_INET6 && domain != AF_UNIX) {
    return absl::InvalidArgumentError(
        absl::StrCat("it is a socket of family ", domain, "; pass one of TCP or a Unix socket"));
  }
  if (its_type != type) {
    return absl::InvalidArgumentError(absl::StrCat(
        "it is a socket of type ", its_type, "; pass a ",
        type == SOCK_STREAM ? "stream socket (ListenStream=)" : "socket of sequenced packets"));
  }
  if (!option(SO_ACCEPTCONN, &listens) || listens == 0) {
    return absl::InvalidArgumentError("it does not listen; pass a listening socket (Accept=no)");
  }
  return absl::OkStatus();
}

}  // namespace

ListeningSockets::ListeningSockets(ListeningSockets&& other) noexcept
    : address_(other.address_),
      sockets_(std::move(other.sockets_)),
      prepared_(std::move(other.prepared_)),
      unix_file_(std::exchange(other.unix_file_, {})),
      unix_device_(other.unix_device_),
      unix_inode_(other.unix_inode_) {}

ListeningSockets::~ListeningSockets() {
  sockets_.clear();
  prepared_.clear();
  if (unix_file_.empty()) return;
  const int lock = LockFolder(unix_file_);
  struct stat now;
  if (stat(unix_file_.c_str(), &now) == 0 && now.st_dev == unix_device_ &&
      now.st_ino == unix_inode_) {
    unlink(unix_file_.c_str());
  }
  if (lock >= 0) close(lock);
}

absl::StatusOr<ListeningSockets> ListeningSockets::Open(const Address& address, int count,
                                                        const Options& options) {
  ListeningSockets sockets;
  absl::Status opened = address.is_unix() ? sockets.OpenUnix(address, options)
                                          : sockets.OpenTcp(address, count, options);
  if (opened.ok()) opened = sockets.Prepare(count);
  if (!opened.ok()) return opened;
  return sockets;
}

absl::StatusOr<ListeningSockets> ListeningSockets::Adopt(std::vector<Descriptor> sockets,
                                                         int type) {
  ListeningSockets adopted;
  adopted.sockets_ = std::move(sockets);
  if (adopted.sockets_.empty()) return absl::InvalidArgumentError("there is no socket");
  for (size_t i = 0; i < adopted.sockets_.size(); ++i) {
    const int fd = adopted.sockets_[i].get();
    if (absl::Status status = CheckListens(fd, type); !status.ok()) return status;
    SocketAddress address;
    address.length = sizeof(address.storage);
    getsockname(fd, address.get(), &address.length);
    if (i == 0) adopted.address_ = address;
    if (address.ToString() != adopted.address_.ToString()) {
      return absl::InvalidArgumentError(
          absl::StrCat("it listens on ", address.ToString(), ", and another socket of the port on ",
                       adopted.address_.ToString(), "; pass sockets of one address"));
    }
    const int on = 1;
    if (address.family() != AF_UNIX) {
      setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));  // accepted sockets inherit it
    }
    fcntl(fd, F_SETFD, FD_CLOEXEC);
    fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
  }
  return adopted;
}

absl::Status ListeningSockets::Prepare(int loops) {
  prepared_.clear();
  const size_t count = std::max(static_cast<size_t>(loops), sockets_.size());
  for (size_t i = 0; i < count; ++i) {
    prepared_.emplace_back(fcntl(sockets_[i % sockets_.size()].get(), F_DUPFD_CLOEXEC, 0));
    if (!prepared_.back().open()) {
      return absl::UnavailableError(
          absl::StrCat("cannot listen on ", address_.ToString(), ": ", std::strerror(errno)));
    }
  }
  return absl::OkStatus();
}

void ListeningSockets::TakeFile() {
  const auto address = Address::Parse(address_.ToString());
  if (!address.ok() || !address->is_unix() || address->unix_path[0] == '@') return;
  struct stat file;
  if (lstat(address->unix_path.c_str(), &file) != 0) return;
  unix_file_ = address->unix_path;
  unix_device_ = file.st_dev;
  unix_inode_ = file.st_ino;
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
    sockets_.emplace_back(fd);
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

absl::Status ListeningSockets::OpenUnix(const Address& address, const Options& options) {
  const absl::StatusOr<SocketAddress> numeric = SocketAddress::FromNumeric(address);
  if (!numeric.ok()) return numeric.status();
  address_ = *numeric;
  const int fd = socket(AF_UNIX, options.unix_type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0) return CannotListen(address, errno);
  sockets_.emplace_back(fd);
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
    if (IsServed(address_, options.unix_type)) return CannotListen(address, EADDRINUSE);
    if (unlink(path.c_str()) != 0) return CannotListen(address, errno);
  }
  if (bind(fd, address_.get(), address_.length) != 0) return CannotListen(address, errno);
  if (has_file) TakeFile();
  // chmod first: no client may connect with other permissions.
  if ((has_file && chmod(path.c_str(), options.unix_mode) != 0) ||
      listen(fd, options.backlog) != 0) {
    return CannotListen(address, errno);
  }
  return absl::OkStatus();
}

}  // namespace sluice::net
