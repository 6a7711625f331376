// Reloads: loads the limits, the clients, the admin token and the certificates again while sluiced
// runs.
#ifndef SLUICE_SERVER_RELOADS_H_
#define SLUICE_SERVER_RELOADS_H_

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "common/log.h"
#include "server/client_list.h"
#include "server/config/file_watcher.h"
#include "server/config/reloader.h"
#include "server/flags.h"
#include "server/limits/limit_registry.h"
#include "server/ports.h"
#include "server/transport/services/bearer_token.h"

namespace sluice {

// Reloads the limits, the clients and the token when their files change, on threads of its own. The
// ports watch their certificates themselves. The destructor waits for a reload that is in progress.
class Reloads {
 public:
  // All outlive it.
  struct Collaborators {
    const Flags& flags;
    common::Log& log;
    const limits::LimitRegistry& registry;
    config::Reloader* limits;       // null: no limits file
    transport::BearerToken* token;  // null: none is required
    ClientList* clients;            // null: all callers are served
    Ports& ports;
  };

  explicit Reloads(const Collaborators& with);
  Reloads(const Reloads&) = delete;
  Reloads& operator=(const Reloads&) = delete;

  // Reloads all that has changed. Thread-safe.
  void ReloadNow();

 private:
  void Watch(const std::string& path, std::function<void()> on_change);
  void ReloadLimits();
  void ReloadToken();
  void ReloadClients();

  const Collaborators with_;
  std::vector<std::unique_ptr<config::FileWatcher>> watchers_;
};

}  // namespace sluice

#endif  // SLUICE_SERVER_RELOADS_H_
