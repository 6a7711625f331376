#include "server/transport/grpc/listen_address.h"

#include <netdb.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <memory>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/strings.h"

namespace sluice::transport {
namespace {

constexpr absl::string_view kUnix = "unix:";

absl::Status Bad(absl::string_view text, absl::string_view why) {
  return absl::InvalidArgumentError(absl::StrCat(
      "\"", text, "\": ", why, "; write HOST:PORT, [IPV6]:PORT or unix:/path (port 0: any)"));
}

absl::Status ProbeOne(int family, const sockaddr* address, socklen_t length) {
  const int fd = socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return absl::UnavailableError(std::strerror(errno));
  const int on = 1;
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  const int error = bind(fd, address, length) == 0 ? 0 : errno;
  close(fd);
  return error == 0 ? absl::OkStatus() : absl::UnavailableError(std::strerror(error));
}

absl::Status ProbeUnix(const std::string& path) {
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, path.data(), path.size());
  struct stat info;
  if (stat(path.c_str(), &info) != 0) return absl::OkStatus();
  if (!S_ISSOCK(info.st_mode)) return absl::UnavailableError("exists, and is no socket");
  const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return absl::UnavailableError(std::strerror(errno));
  const bool alive = connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0 ||
                     errno != ECONNREFUSED;
  close(fd);
  if (alive) return absl::UnavailableError("another process listens there");
  // Left behind by a server that was killed.
  if (unlink(path.c_str()) != 0) return absl::UnavailableError(std::strerror(errno));
  return absl::OkStatus();
}

}  // namespace

bool ListenAddress::is_loopback() const {
  return is_unix() || host == "localhost" || host == "::1" ||
         (absl::StartsWith(host, "127.") &&
          host.find_first_not_of("0123456789.") == std::string::npos);
}

std::string ListenAddress::ToString() const {
  if (is_unix()) return absl::StrCat(kUnix, unix_path);
  return host.find(':') == std::string::npos ? absl::StrCat(host, ":", port)
                                             : absl::StrCat("[", host, "]:", port);
}

absl::StatusOr<ListenAddress> ListenAddress::Parse(std::string_view std_text) {
  const absl::string_view text = common::ToAbsl(std_text);
  ListenAddress address;
  if (absl::StartsWith(text, kUnix)) {
    address.unix_path = std::string(text.substr(kUnix.size()));
    if (address.unix_path.empty() || address.unix_path[0] != '/') {
      return Bad(text, "the path of a Unix socket starts with /");
    }
    if (address.unix_path.size() >= sizeof(sockaddr_un::sun_path)) {
      return Bad(text, "the path of a Unix socket has at most 107 bytes");
    }
    return address;
  }
  const size_t colon = text.rfind(':');
  if (colon == absl::string_view::npos) return Bad(text, "no port");
  absl::string_view host = text.substr(0, colon);
  const absl::string_view port = text.substr(colon + 1);
  if (absl::StartsWith(host, "[") && absl::EndsWith(host, "]")) {
    host = host.substr(1, host.size() - 2);
  } else if (host.find(':') != absl::string_view::npos) {
    return Bad(text, "an IPv6 address stands in brackets");
  }
  if (host.empty()) return Bad(text, "no host (0.0.0.0 or [::] for all)");
  uint32_t number = 0;
  if (!absl::SimpleAtoi(port, &number) || number > 65535) {
    return Bad(text, "the port is a number from 0 to 65535");
  }
  address.host = std::string(host);
  address.port = static_cast<uint16_t>(number);
  return address;
}

absl::Status ProbeBind(const ListenAddress& address) {
  if (address.is_unix()) return ProbeUnix(address.unix_path);
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  const int error =
      getaddrinfo(address.host.c_str(), std::to_string(address.port).c_str(), &hints, &found);
  if (error != 0) return absl::UnavailableError(gai_strerror(error));
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> owned(found, &freeaddrinfo);
  for (const addrinfo* one = found; one != nullptr; one = one->ai_next) {
    if (absl::Status status = ProbeOne(one->ai_family, one->ai_addr, one->ai_addrlen);
        !status.ok()) {
      return status;
    }
  }
  return absl::OkStatus();
}

}  // namespace sluice::transport
