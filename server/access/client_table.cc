#include "server/access/client_table.h"

#include <utility>

#include "absl/strings/ascii.h"

namespace sluice::access {
namespace {

template <typename Map, typename Key>
const Client* FindIn(const Map& map, const Key& key) {
  const auto found = map.find(key);
  return found == map.end() ? nullptr : found->second;
}

}  // namespace

ClientTable::ClientTable(std::vector<Client> clients) : clients_(std::move(clients)) {
  for (const Client& client : clients_) {
    const auto index = [&client](const auto& keys, auto* map) {
      for (const auto& key : keys) map->emplace(key, &client);
    };
    index(client.known_by.spiffe_ids, &by_spiffe_id_);
    index(client.known_by.uri_sans, &by_uri_san_);
    index(client.known_by.dns_sans, &by_dns_san_);
    index(client.known_by.subjects, &by_subject_);
    index(client.known_by.tokens, &by_token_);
    index(client.known_by.uids, &by_uid_);
    if (client.name == Client::kAnonymous) anonymous_ = &client;
  }
}

const Client* ClientTable::FindByToken(const TokenDigest& token) const {
  return FindIn(by_token_, token);
}

const Client* ClientTable::FindByPeer(const net::PeerIdentity& peer) const {
  if (const Client* const found = FindByCertificate(peer); found != nullptr) return found;
  if (peer.uid.has_value()) {
    if (const Client* const found = FindIn(by_uid_, *peer.uid); found != nullptr) return found;
  }
  return anonymous_;
}

const Client* ClientTable::FindByCertificate(const net::PeerIdentity& peer) const {
  // An X.509-SVID has exactly one URI: with several, it would not be clear who the peer is.
  if (peer.uris.size() == 1) {
    const Client* const found = FindIn(by_spiffe_id_, peer.uris[0]);
    if (found != nullptr) return found;
  }
  for (const std::string& uri : peer.uris) {
    if (const Client* const found = FindIn(by_uri_san_, uri); found != nullptr) return found;
  }
  for (const std::string& name : peer.dns_names) {
    const Client* const found = FindIn(by_dns_san_, absl::AsciiStrToLower(name));
    if (found != nullptr) return found;
  }
  return peer.subject.empty() ? nullptr : FindIn(by_subject_, peer.subject);
}

}  // namespace sluice::access
