// PeerIdentity: what a connection proves about its peer: a certificate's names, the user of a Unix
// socket.
#ifndef SLUICE_COMMON_NET_PEER_IDENTITY_H_
#define SLUICE_COMMON_NET_PEER_IDENTITY_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace sluice::net {

struct PeerIdentity {
  // Of the certificate, which TLS has verified. Empty: none was shown, or it has no such names.
  std::string subject = {};  // "CN=page,O=Sluice"
  std::vector<std::string> dns_names = {};
  std::vector<std::string> uris = {};
  // Of the process that connected to a Unix socket.
  std::optional<uint32_t> uid = std::nullopt;
};

}  // namespace sluice::net

#endif  // SLUICE_COMMON_NET_PEER_IDENTITY_H_
