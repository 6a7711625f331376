// Outgoing connections: TCP, Unix, and TLS over either.
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
  // What the server's certificate must be for; empty: the address's host.
  std::string server_name;
  StreamOptions stream = {.pause_when_high = false};
};

// Connects on `loop`, whose thread calls this. The stream exists at once: what is written to it
// goes out when it is connected, Abort gives up. handler.OnOpen follows, or its OnClosed: with
// DEADLINE_EXCEEDED, UNAVAILABLE (refused, unreachable, no such name; says for which address),
// UNAUTHENTICATED (TLS: the certificate). Neither is called from within Connect. The addresses
// of a name are tried in turn; each has an even part of the time that remains.
// `resolver` is used for names only, and within the call; the loop outlives it.
Stream* Connect(EventLoop& loop, const Address& address, Resolver& resolver,
                const ConnectOptions& options, StreamHandler& handler);

}  // namespace sluice::net

#endif  // SLUICE_COMMON_NET_CONNECTOR_H_
