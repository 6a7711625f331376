// Access: who may use the HTTP port, as gates of its routes.
//
// The port serves what three kinds of callers use, and each route names the gate of its kind:
//   data      takes permits or asks for them: what the data port requires. If that asks for client
//             certificates (--tls_client_ca), this port must do so too.
//   reading   shows limits, keys and counters: on loopback nothing is required; elsewhere a client
//             certificate (--http_tls_client_ca) or the token (--admin_token_file).
//   changing  changes limits or buckets: always the token.
// Routes without secrets (the files of the page) have no gate.
//
// With a clients file, callers must be clients: for data with the call that the route makes, for
// reading with admin_view, for changing with admin_change.
//
// All requests of the port pass `site` first, against hostile pages in a browser that can reach the
// port. Host must be one of --http_hosts; Origin, if present, must be the same site;
// Sec-Fetch-Site, if present, must be same-origin or none. There are no cookies and no CORS. A port
// that is reached under any name, as envoyproxy/ratelimit's is, has `pages` instead, which asks for
// the last two.
#ifndef SLUICE_SERVER_TRANSPORT_WEB_ACCESS_H_
#define SLUICE_SERVER_TRANSPORT_WEB_ACCESS_H_

#include <memory>
#include <string>
#include <vector>

#include "common/net/address.h"
#include "server/access/client.h"
#include "server/access/refusal_log.h"
#include "server/transport/http1/route.h"
#include "server/transport/services/bearer_token.h"

namespace sluice::web {

struct AccessOptions {
  net::Address listen;
  // Whether the HTTP port, and the data port, ask for client certificates.
  bool client_certificates = false;
  bool data_client_certificates = false;
  // Null: there is no token. Outlives the gates.
  const transport::BearerToken* token = nullptr;
  // Whether the port recognises clients.
  bool clients = false;
  // Names of hosts, without ports. Empty: loopback and the address that the port listens on.
  std::vector<std::string> hosts = {};
  // Gets the requests to show or change something that were refused; null: nothing does. Outlives
  // the gates.
  access::RefusalLog* refusals = nullptr;
};

// Thread-safe.
class Access {
 public:
  explicit Access(AccessOptions options);
  ~Access();
  Access(const Access&) = delete;
  Access& operator=(const Access&) = delete;

  // They live as long as this.
  // Of a route that makes this call.
  const http1::Gate& data(access::Call call) const { return *data_[static_cast<size_t>(call)]; }
  const http1::Gate& reading() const { return *reading_; }
  const http1::Gate& changing() const { return *changing_; }
  const http1::Gate& pages() const { return *pages_; }
  const http1::Gate& site() const { return *site_; }

 private:
  class DataGate;
  class ReadGate;
  class ChangeGate;
  class PageGate;
  class SiteGate;
  class ClientGate;

  const AccessOptions options_;
  std::unique_ptr<http1::Gate> data_[access::kCalls];
  std::unique_ptr<http1::Gate> reading_;
  std::unique_ptr<http1::Gate> changing_;
  std::unique_ptr<http1::Gate> pages_;
  std::unique_ptr<http1::Gate> site_;
};

// Whether only programs on this machine can connect: 127.0.0.0/8, ::1, localhost, a Unix socket.
bool IsLoopback(const net::Address& address);

}  // namespace sluice::web

#endif  // SLUICE_SERVER_TRANSPORT_WEB_ACCESS_H_
