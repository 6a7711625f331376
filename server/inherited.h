// Inherited: the listening sockets that sluiced gets from systemd or from the process that it
// replaces, and the state of that process.
#ifndef SLUICE_SERVER_INHERITED_H_
#define SLUICE_SERVER_INHERITED_H_

#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "common/net/descriptor.h"
#include "server/envoy/configuration.h"
#include "server/flags.h"
#include "server/takeover/port_sockets.h"
#include "server/takeover/taker.h"

namespace sluice {

// Used by the main thread.
struct Inherited {
  // Also those that this process opened itself.
  takeover::PortSockets sockets;
  net::Descriptor state;  // none: none is handed over
  net::Descriptor lock;   // of the folder of the state; may be none
  // Of the management server. The server begins with it, since the management server may be down.
  std::optional<envoy::ReceivedTree> rate_limits;
  // To the process that serves; null: there is none.
  std::unique_ptr<takeover::Taker> taker;
};

// Gets the sockets of systemd, whose addresses take the place of those of `flags`, and of the
// process that listens at --takeover; or listens there. INVALID_ARGUMENT: names, or flags that do
// not go with the sockets; errors of Taker and ListeningSockets.
absl::Status Inherit(Flags* flags, Inherited* inherited);

// Listens on the ports that were not inherited. The error names the flag.
absl::Status OpenOtherPorts(const Flags& flags, takeover::PortSockets* sockets);

}  // namespace sluice

#endif  // SLUICE_SERVER_INHERITED_H_
