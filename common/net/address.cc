#include "common/net/address.h"

#include <arpa/inet.h>
#include <netinet/in.h>

#include <cstddef>
#include <cstring>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/strings.h"

namespace sluice::net {

using common::ToAbsl;

std::string Address::ToString() const {
  if (is_unix()) return absl::StrCat("unix:", unix_path);
  const bool brackets = host.find(':') != std::string::npos;
  return brackets ? absl::StrCat("[", host, "]:", port) : absl::StrCat(host, ":", port);
}

absl::StatusOr<Address> Address::Parse(std::string_view text) {
  const auto wrong = [text](absl::string_view what) {
    return absl::InvalidArgumentError(absl::StrCat("address \"", ToAbsl(text), "\": ", what,
                                                   "; write HOST:PORT, [IPV6]:PORT or unix:PATH"));
  };
  Address address;
  constexpr std::string_view kUnix = "unix:";
  if (text.substr(0, kUnix.size()) == kUnix) {
    address.unix_path = std::string(text.substr(kUnix.size()));
    if (address.unix_path.empty() || address.unix_path == "@") return wrong("the path is empty");
    if (address.unix_path.size() >= sizeof(sockaddr_un::sun_path)) {
      return wrong(absl::StrCat("the path has ", address.unix_path.size(), " bytes, at most ",
                                sizeof(sockaddr_un::sun_path) - 1, " fit"));
    }
    if (address.unix_path.find('\0') != std::string::npos) return wrong("the path has a zero byte");
    return address;
  }
  const size_t colon = text.rfind(':');
  if (colon == std::string_view::npos) return wrong("the port is missing");
  std::string_view host = text.substr(0, colon);
  const std::string_view port = text.substr(colon + 1);
  if (!host.empty() && host.front() == '[') {
    if (host.back() != ']' || host.size() < 3) return wrong("the bracket is not closed");
    host = host.substr(1, host.size() - 2);
  } else if (host.find(':') != std::string_view::npos) {
    return wrong("an IPv6 address needs brackets");
  }
  if (host.empty()) return wrong("the host is empty");
  if (host.find('\0') != std::string_view::npos) return wrong("the host has a zero byte");
  uint32_t number;
  const bool digits = port.find_first_not_of("0123456789") == std::string_view::npos;
  if (!digits || !absl::SimpleAtoi(ToAbsl(port), &number) || number > 65535) {
    return wrong("the port is not a number from 0 to 65535");
  }
  address.host = std::string(host);
  address.port = static_cast<uint16_t>(number);
  return address;
}

uint16_t SocketAddress::port() const {
  if (family() == AF_INET) return ntohs(reinterpret_cast<const sockaddr_in*>(&storage)->sin_port);
  if (family() == AF_INET6) {
    return ntohs(reinterpret_cast<const sockaddr_in6*>(&storage)->sin6_port);
  }
  return 0;
}

uint64_t SocketAddress::PeerNetwork() const {
  uint32_t ipv4 = 0;
  uint64_t prefix = 0;
  if (family() == AF_INET) {
    ipv4 = reinterpret_cast<const sockaddr_in*>(&storage)->sin_addr.s_addr;
  } else if (family() == AF_INET6) {
    const in6_addr& ip = reinterpret_cast<const sockaddr_in6*>(&storage)->sin6_addr;
    std::memcpy(&prefix, ip.s6_addr, sizeof(prefix));
    if (IN6_IS_ADDR_V4MAPPED(&ip)) std::memcpy(&ipv4, ip.s6_addr + 12, sizeof(ipv4));
  }
  // ::/64 has no addresses of peers but the mapped ones and ::1.
  return ipv4 != 0 ? uint64_t{ipv4} << 32 : prefix;
}

std::string SocketAddress::ToString() const {
  char text[INET6_ADDRSTRLEN] = "";
  if (family() == AF_INET) {
    inet_ntop(AF_INET, &reinterpret_cast<const sockaddr_in*>(&storage)->sin_addr, text,
              sizeof(text));
    return absl::StrCat(text, ":", port());
  }
  if (family() == AF_INET6) {
    inet_ntop(AF_INET6, &reinterpret_cast<const sockaddr_in6*>(&storage)->sin6_addr, text,
              sizeof(text));
    return absl::StrCat("[", text, "]:", port());
  }
  if (family() != AF_UNIX) return "unknown";
  const auto* const un = reinterpret_cast<const sockaddr_un*>(&storage);
  const size_t header = offsetof(sockaddr_un, sun_path);
  if (length <= header) return "unix:";
  if (un->sun_path[0] == '\0') {
    return absl::StrCat("unix:@", absl::string_view(un->sun_path + 1, length - header - 1));
  }
  return absl::StrCat("unix:",
                      absl::string_view(un->sun_path, strnlen(un->sun_path, length - header)));
}

absl::StatusOr<SocketAddress> SocketAddress::FromNumeric(const Address& address) {
  SocketAddress result;
  if (address.is_unix()) {
    auto* const un = reinterpret_cast<sockaddr_un*>(&result.storage);
    if (address.unix_path.size() >= sizeof(un->sun_path)) {
      return absl::InvalidArgumentError(absl::StrCat(address.ToString(), ": the path has ",
                                                     address.unix_path.size(), " bytes, at most ",
                                                     sizeof(un->sun_path) - 1, " fit"));
    }
    un->sun_family = AF_UNIX;
    std::memcpy(un->sun_path, address.unix_path.data(), address.unix_path.size());
    const bool abstract = address.unix_path[0] == '@';
    if (abstract) un->sun_path[0] = '\0';
    result.length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) +
                                           address.unix_path.size() + (abstract ? 0 : 1));
    return result;
  }
  auto* const in = reinterpret_cast<sockaddr_in*>(&result.storage);
  if (inet_pton(AF_INET, address.host.c_str(), &in->sin_addr) == 1) {
    in->sin_family = AF_INET;
    in->sin_port = htons(address.port);
    result.length = sizeof(sockaddr_in);
    return result;
  }
  auto* const in6 = reinterpret_cast<sockaddr_in6*>(&result.storage);
  if (inet_pton(AF_INET6, address.host.c_str(), &in6->sin6_addr) == 1) {
    in6->sin6_family = AF_INET6;
    in6->sin6_port = htons(address.port);
    result.length = sizeof(sockaddr_in6);
    return result;
  }
  return absl::InvalidArgumentError(
      absl::StrCat(address.ToString(), ": the host is a name, not an IP address"));
}

}  // namespace sluice::net
