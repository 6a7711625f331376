// PortListener: the listening side of a port of sluiced: its address, its bounds, its TLS files and
// their reload.
#ifndef SLUICE_SERVER_TRANSPORT_SERVICES_PORT_LISTENER_H_
#define SLUICE_SERVER_TRANSPORT_SERVICES_PORT_LISTENER_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "common/log.h"
#include "common/memory_account.h"
#include "common/net/address.h"
#include "common/net/connection_budget.h"
#include "common/net/listener.h"
#include "common/net/loop_group.h"
#include "common/net/tls_context.h"
#include "server/transport/services/tls_files.h"

namespace sluice::transport {

struct PortListenerOptions {
  net::Address listen;
  TlsFiles tls;
  // What TLS clients must speak, if they offer a choice (ALPN): "h2", "http/1.1".
  std::string protocol;
  // Open connections, over all loops, shared between the peers: net::ConnectionBudget.
  int64_t max_connections = 0;
  bool displaces_idle = false;
  // Counts what TLS handshakes hold, and bounds the connections; null: nothing does.
  common::MemoryBudget* memory = nullptr;
  common::Log* log = nullptr;  // null: nothing is logged
};

// Used by one thread (main). Outlives the loops' threads.
class PortListener {
 public:
  explicit PortListener(PortListenerOptions options)
      : options_(std::move(options)),
        connections_(options_.max_connections, {.displaces_idle = options_.displaces_idle,
                                                .memory = options_.memory,
                                                .log = options_.log}) {}

  // Listens on all loops, and starts them unless they run already. INVALID_ARGUMENT: the TLS files
  // or the address; ALREADY_EXISTS, PERMISSION_DENIED, UNAVAILABLE: the address cannot be bound.
  // Changed TLS files are loaded while the server runs; then `certificates_changed` is called on a
  // thread of its own, with OK or with the reason why the old certificates stay in use.
  //   `sockets`: null, or sockets that listen already, to be used instead of the address. If there
  // are none, those that were opened are put there.
  absl::Status Listen(net::LoopGroup& loops, net::Acceptor& acceptor,
                      std::function<void(const absl::Status&)> certificates_changed,
                      std::shared_ptr<net::ListeningSockets>* sockets = nullptr);

  // "127.0.0.1:7200", with the port that was picked. REQUIRES: Listen succeeded.
  const std::string& address() const { return address_; }
  // Checks the TLS files now. Does not wait for the outcome.
  void ReloadCertificates();

 private:
  const PortListenerOptions options_;
  net::ConnectionBudget connections_;
  std::unique_ptr<net::CertificateWatcher> certificates_;
  std::string address_;
};

}  // namespace sluice::transport

#endif  // SLUICE_SERVER_TRANSPORT_SERVICES_PORT_LISTENER_H_
