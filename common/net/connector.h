// Connect: opens outgoing connections over TCP, Unix sockets, and TLS over either.
#ifndef SLUICE_COMMON_NET_CONNECTOR_H_
#define SLUICE_COMMON_NET_CONNECTOR_H_

#include <cstdint>
#include <memory>
#include <string>

#include "common/net/address.h"
#include "common/net/event_loop.h"
#include "common/net/resolver.h"
#include "common/net/stream.h"
#include "common/net/tls_context.h"

namespace sluice::net {

struct ConnectOptions {
  // For resolving, connecting and the TLS handshake, together.
  int64_t timeout_ns = int64_t{5} * 1'000'000'000;
  // Role kClient; null: plaintext. Outlives the call only.
  std::shared_ptr<const TlsContext> tls;
  // The name that the server's certificate must have; empty: the address's host.
  std::string server_name;
  StreamOptions stream = {.pause_when_high = false};
};

// Connects on `loop`; call on its thread. The stream exists at once: writes are sent when it is
// connected, and Abort gives up. handler.OnOpen follows, or its OnClosed with DEADLINE_EXCEEDED,
// UNAVAILABLE (refused, unreachable, unknown name; names the address) or UNAUTHENTICATED (TLS: the
// certificate). Neither is called from within Connect. The addresses of a name are tried in turn;
// each gets an equal part of the remaining time. `resolver` is used for names only, and not after
// Connect returns; the loop outlives it.
Stream* Connect(EventLoop& loop, const Address& address, Resolver& resolver,
                const ConnectOptions& options, StreamHandler& handler);

}  // namespace sluice::net

#endif  // SLUICE_COMMON_NET_CONNECTOR_H_
