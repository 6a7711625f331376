// ClientList: the clients that the server recognises: those of the clients file, and the holder of
// the admin token.
#ifndef SLUICE_SERVER_CLIENT_LIST_H_
#define SLUICE_SERVER_CLIENT_LIST_H_

#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "common/log.h"
#include "common/mutex.h"
#include "server/access/caller.h"
#include "server/access/client_use.h"
#include "server/config/clients_file.h"
#include "server/transport/services/bearer_token.h"

namespace sluice {

// Thread-safe.
class ClientList {
 public:
  // `token`: of --admin_token_file, whose holder is a client with admin_view and admin_change;
  // null: there is none. `log`: has a line when a client reaches a bound; null: none. Both outlive
  // the list. Errors: as config::LoadClients.
  static absl::StatusOr<std::unique_ptr<ClientList>> Load(std::string path,
                                                          const transport::BearerToken* token,
                                                          common::Log* log);

  // Reads the file again (blocking), and the token. Returns whether either has changed. On an error
  // of the file its clients stay as they were, and the new token is used.
  absl::StatusOr<bool> Reload();

  const access::Clients& clients() const { return clients_; }

  // Logs that a bound on new keys or on the table has no effect, if a client has one. For a server
  // whose buckets are not in its memory.
  void WarnOfKeyBounds(common::Log& log) const;

 private:
  ClientList(std::string path, const transport::BearerToken* token, common::Log* log)
      : path_(std::move(path)), token_(token), uses_(log) {}

  const std::string path_;
  const transport::BearerToken* const token_;
  access::ClientUses uses_;
  access::Clients clients_{nullptr};
  common::Mutex mu_;
  std::optional<config::ClientsFile> file_ ABSL_GUARDED_BY(mu_);  // the last good one
  std::string version_ ABSL_GUARDED_BY(mu_);  // of the file and the token in use
};

}  // namespace sluice

#endif  // SLUICE_SERVER_CLIENT_LIST_H_
