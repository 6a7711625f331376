#include "client/src/transport/server_address.h"

#include <netdb.h>
#include <sys/un.h>

#include <charconv>
#include <cstddef>
#include <cstring>
#include <memory>
#include <string_view>

namespace sluice::client_internal {
namespace {

constexpr std::string_view kUnix = "unix:";

Status BadAddress(const std::string& text) {
  return Status(
      StatusCode::kInvalidArgument,
      "\"" + text + "\" is not a server address: write HOST:PORT, [IPV6]:PORT or unix:PATH");
}

Result<std::vector<SocketAddress>> UnixAddress(const ServerAddress& server) {
  SocketAddress address;
  auto* const un = reinterpret_cast<sockaddr_un*>(&address.storage);
  const std::string& path = server.unix_path;
  if (path.size() >= sizeof(un->sun_path)) {
    return Status(StatusCode::kUnavailable, "the path has " + std::to_string(path.size()) +
                                                " bytes; a socket's has at most " +
                                                std::to_string(sizeof(un->sun_path) - 1));
  }
  un->sun_family = AF_UNIX;
  std::memcpy(un->sun_path, path.data(), path.size());
  address.size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + path.size() + 1);
  if (path.front() == '@') {
    un->sun_path[0] = '\0';
    --address.size;  // abstract names are not terminated
  }
  address.text = server.text;
  return std::vector<SocketAddress>{address};
}

std::string NumericText(const sockaddr* address, socklen_t size) {
  char host[NI_MAXHOST];
  char port[NI_MAXSERV];
  if (getnameinfo(address, size, host, sizeof(host), port, sizeof(port),
                  NI_NUMERICHOST | NI_NUMERICSERV) != 0) {
    return "?";
  }
  const std::string text = host;
  return (address->sa_family == AF_INET6 ? "[" + text + "]" : text) + ":" + port;
}

}  // namespace

Result<ServerAddress> ServerAddress::Parse(const std::string& text) {
  ServerAddress address;
  address.text = text;
  if (text.rfind(kUnix, 0) == 0) {
    address.unix_path = text.substr(kUnix.size());
    // unix:///run/x is /run/x.
    if (address.unix_path.rfind("///", 0) == 0) address.unix_path.erase(0, 2);
    if (address.unix_path.empty() || address.unix_path == "@") return BadAddress(text);
    return address;
  }
  const size_t colon = text.rfind(':');
  if (colon == std::string::npos || colon == 0) return BadAddress(text);
  if (text.find('/') != std::string::npos) return BadAddress(text);
  address.host = text.substr(0, colon);
  address.port = text.substr(colon + 1);
  if (address.host.find(':') != std::string::npos || address.host.front() == '[') {
    if (address.host.size() < 3 || address.host.front() != '[' || address.host.back() != ']') {
      return BadAddress(text);
    }
    address.host = address.host.substr(1, address.host.size() - 2);
  }
  int port = 0;
  const char* const end = address.port.data() + address.port.size();
  const auto parsed = std::from_chars(address.port.data(), end, port);
  if (parsed.ec != std::errc() || parsed.ptr != end || port < 1 || port > 65535) {
    return BadAddress(text);
  }
  return address;
}

Result<std::vector<SocketAddress>> Resolve(const ServerAddress& server) {
  if (server.is_unix()) return UnixAddress(server);
  addrinfo hints = {};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV;
  addrinfo* found = nullptr;
  const int error = getaddrinfo(server.host.c_str(), server.port.c_str(), &hints, &found);
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> owner(found, &freeaddrinfo);
  if (error != 0) {
    return Status(StatusCode::kUnavailable,
                  "cannot resolve \"" + server.host + "\": " + gai_strerror(error));
  }
  std::vector<SocketAddress> addresses;
  for (const addrinfo* at = found; at != nullptr; at = at->ai_next) {
    SocketAddress& address = addresses.emplace_back();
    std::memcpy(&address.storage, at->ai_addr, at->ai_addrlen);
    address.size = at->ai_addrlen;
    address.text = NumericText(at->ai_addr, at->ai_addrlen);
  }
  return addresses;
}

}  // namespace sluice::client_internal
