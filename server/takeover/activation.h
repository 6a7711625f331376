// Activation: the sockets that systemd listens on for this process (sd_listen_fds(3)).
#ifndef SLUICE_SERVER_TAKEOVER_ACTIVATION_H_
#define SLUICE_SERVER_TAKEOVER_ACTIVATION_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "server/takeover/port_sockets.h"

namespace sluice::takeover {

// Takes the descriptors that LISTEN_PID, LISTEN_FDS and LISTEN_FDNAMES name, and removes these
// variables. `names`: of the ports of this process. Empty: there are none for this process.
// INVALID_ARGUMENT: a name that is no port's, or a descriptor that is no listening socket. Call it
// before any other descriptor is opened, and before any thread is started.
absl::StatusOr<PortSockets> ActivatedSockets(const std::vector<std::string>& names);

}  // namespace sluice::takeover

#endif  // SLUICE_SERVER_TAKEOVER_ACTIVATION_H_
