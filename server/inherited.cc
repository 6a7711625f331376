#include "server/inherited.h"

#include <sys/socket.h>

#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "common/net/address.h"
#include "common/net/listening_socket.h"
#include "server/takeover/activation.h"

namespace sluice {
namespace {

using takeover::kTakeoverPort;

absl::Status InheritFromSystemd(Flags* flags, takeover::PortSockets* sockets) {
  std::vector<std::string> names;
  for (const PortFlag& port : PortsOf(*flags)) names.emplace_back(port.name);
  auto activated = takeover::ActivatedSockets(names);
  if (!activated.ok()) return activated.status();
  if (activated->empty()) return absl::OkStatus();
  for (const auto& [name, port] : *activated) {
    auto listen = net::Address::Parse(port.listen);
    if (!listen.ok()) return listen.status();
    SetListen(name, *std::move(listen), flags);
  }
  *sockets = *std::move(activated);
  return CheckTogether(*flags);
}

// Its sockets are used, also if systemd has passed the same ones.
absl::Status InheritFromRunning(const Flags& flags, Inherited* inherited) {
  takeover::PortSockets& running = inherited->taker->ports();
  inherited->sockets.clear();
  for (const PortFlag& port : PortsOf(flags)) {
    const auto found = running.find(port.name);
    if (found == running.end()) continue;
    if (found->second.listen != port.listen.ToString()) {
      return absl::InvalidArgumentError(
          absl::StrCat("--", port.flag, "=", port.listen.ToString(),
                       ": the running server listens on ", found->second.listen,
                       ", and a takeover changes no address; stop it, then start this one"));
    }
    inherited->sockets.insert(*found);
  }
  const auto own = running.find(kTakeoverPort);
  if (own == running.end()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--takeover=", flags.takeover, ": the running server did not pass it"));
  }
  inherited->sockets.insert(*own);
  return absl::OkStatus();
}

absl::StatusOr<takeover::PortSocket> Open(const net::Address& address, const char* flag,
                                          const net::ListeningSockets::Options& options) {
  auto opened = net::ListeningSockets::Open(address, 1, options);
  if (!opened.ok()) {
    return absl::Status(opened.status().code(), absl::StrCat("--", flag, "=", address.ToString(),
                                                             ": ", opened.status().message()));
  }
  return takeover::PortSocket{address.ToString(),
                              std::make_shared<net::ListeningSockets>(*std::move(opened))};
}

}  // namespace

absl::Status Inherit(Flags* flags, Inherited* inherited) {
  if (absl::Status status = InheritFromSystemd(flags, &inherited->sockets); !status.ok()) {
    return status;
  }
  if (flags->takeover.empty()) return absl::OkStatus();
  auto taker = takeover::Taker::Connect(flags->takeover, SLUICE_VERSION, flags->in_redis);
  if (!taker.ok()) {
    return absl::Status(taker.status().code(), absl::StrCat("--takeover=", flags->takeover, ": ",
                                                            taker.status().message()));
  }
  inherited->taker = *std::move(taker);
  if (inherited->taker != nullptr) return InheritFromRunning(*flags, inherited);
  auto opened = Open({.host = "", .unix_path = flags->takeover}, "takeover",
                     {.backlog = 16, .unix_mode = 0600, .unix_type = SOCK_SEQPACKET});
  if (!opened.ok()) return opened.status();
  inherited->sockets[kTakeoverPort] = *std::move(opened);
  return absl::OkStatus();
}

absl::Status OpenOtherPorts(const Flags& flags, takeover::PortSockets* sockets) {
  for (const PortFlag& port : PortsOf(flags)) {
    if (sockets->contains(port.name)) continue;
    auto opened = Open(port.listen, port.flag, {});
    if (!opened.ok()) return opened.status();
    (*sockets)[port.name] = *std::move(opened);
  }
  return absl::OkStatus();
}

}  // namespace sluice
