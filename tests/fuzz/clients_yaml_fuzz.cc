// Fuzzes the clients file: no bytes crash the parser; every error names a place; a caller that is
// accepted as a client is found by each of its credentials.
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string_view>

#include "absl/strings/match.h"
#include "server/access/client_table.h"
#include "server/config/clients_file.h"

namespace {

using sluice::access::Client;

void Require(bool ok, const char* what, absl::string_view said = "") {
  if (ok) return;
  std::fprintf(stderr, "not so: %s: %.*s\n", what, static_cast<int>(said.size()), said.data());
  std::abort();
}

void CheckFound(const sluice::access::ClientTable& table, const Client& client) {
  const auto by_peer = [&](const sluice::net::PeerIdentity& peer) {
    const Client* const found = table.FindByPeer(peer);
    return found != nullptr && found->name == client.name;
  };
  for (const auto& id : client.known_by.spiffe_ids) Require(by_peer({.uris = {id}}), "spiffe_id");
  for (const auto& name : client.known_by.dns_sans) Require(by_peer({.dns_names = {name}}), "dns");
  for (const auto& one : client.known_by.subjects) Require(by_peer({.subject = one}), "subject");
  for (const uint32_t uid : client.known_by.uids) Require(by_peer({.uid = uid}), "uid");
  for (const auto& token : client.known_by.tokens) {
    const Client* const found = table.FindByToken(token);
    Require(found != nullptr && found->name == client.name, "token");
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto clients = sluice::config::ParseClients(text, "f.yaml");
  if (!clients.ok()) {
    const absl::string_view message = clients.status().message();
    Require(absl::StartsWith(message, "f.yaml:") && message.size() > 7 && message[7] >= '1' &&
                message[7] <= '9',
            "an error begins with the file and a line", message);
    for (const char c : message) {
      Require(static_cast<unsigned char>(c) >= 0x20 && c != 0x7f, "an error is printable", message);
    }
    return 0;
  }
  const sluice::access::ClientTable table(*clients);
  for (const Client& client : *clients) {
    CheckFound(table, client);
    client.limits.Match("api");
    Require(!client.calls.empty(), "a client has calls", client.name);
  }
  return 0;
}
