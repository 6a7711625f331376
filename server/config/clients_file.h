// Reads the clients file (docs/security.md). Errors say where the problem is and what to write.
#ifndef SLUICE_SERVER_CONFIG_CLIENTS_FILE_H_
#define SLUICE_SERVER_CONFIG_CLIENTS_FILE_H_

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "server/access/client.h"

namespace sluice::config {

struct ClientsFile {
  std::vector<access::Client> clients;
  // SHA-256 of the file's bytes, in hex.
  std::string version;
};

// `filename` is only for messages. INVALID_ARGUMENT: "FILE:LINE:COLUMN: clients[2].calls[0]:
// \"aquire\": ..." (lines and columns count from 1); no message shows a token. Thread-safe.
absl::StatusOr<std::vector<access::Client>> ParseClients(std::string_view text,
                                                         std::string_view filename);

// Reads and parses a file. Blocks on the disk. Errors as LoadFile's.
absl::StatusOr<ClientsFile> LoadClients(const std::string& path);

}  // namespace sluice::config

#endif  // SLUICE_SERVER_CONFIG_CLIENTS_FILE_H_
