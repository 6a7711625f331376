// ClientTable: an immutable snapshot of all clients, looked up by what a caller proves or sends.
#ifndef SLUICE_SERVER_ACCESS_CLIENT_TABLE_H_
#define SLUICE_SERVER_ACCESS_CLIENT_TABLE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/types/span.h"
#include "common/net/peer_identity.h"
#include "server/access/client.h"

namespace sluice::access {

// Thread-safe. Clients live as long as the table.
class ClientTable {
 public:
  // REQUIRES: names are unique, and no credential is that of two clients.
  explicit ClientTable(std::vector<Client> clients);
  ClientTable(const ClientTable&) = delete;
  ClientTable& operator=(const ClientTable&) = delete;

  // Null: no client has this token.
  const Client* FindByToken(const TokenDigest& token) const;
  // The client of a caller that sent no token: by its certificate (SPIFFE ID, URI, DNS name,
  // subject, in this order), by its user, or the anonymous one. Null: none.
  const Client* FindByPeer(const net::PeerIdentity& peer) const;

  absl::Span<const Client> clients() const { return clients_; }

 private:
  template <typename Key>
  using Index = absl::flat_hash_map<Key, const Client*>;

  const Client* FindByCertificate(const net::PeerIdentity& peer) const;

  const std::vector<Client> clients_;
  Index<std::string> by_spiffe_id_;
  Index<std::string> by_uri_san_;
  Index<std::string> by_dns_san_;
  Index<std::string> by_subject_;
  Index<TokenDigest> by_token_;
  Index<uint32_t> by_uid_;
  const Client* anonymous_ = nullptr;
};

}  // namespace sluice::access

#endif  // SLUICE_SERVER_ACCESS_CLIENT_TABLE_H_
