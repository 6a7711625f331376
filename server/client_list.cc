#include "server/client_list.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/strings.h"
#include "server/access/client.h"
#include "server/access/client_table.h"

namespace sluice {
namespace {

access::Client HolderOf(const transport::BearerToken& token) {
  access::Client client;
  client.name = access::Client::kAdminToken;
  client.known_by.tokens.push_back(token.digest());
  client.calls.Add(access::Call::kAdminView);
  client.calls.Add(access::Call::kAdminChange);
  return client;
}

}  // namespace

absl::StatusOr<std::unique_ptr<ClientList>> ClientList::Load(std::string path,
                                                             const transport::BearerToken* token,
                                                             common::Log* log) {
  std::unique_ptr<ClientList> list(new ClientList(std::move(path), token, log));
  if (const auto loaded = list->Reload(); !loaded.ok()) return loaded.status();
  return list;
}

absl::StatusOr<bool> ClientList::Reload() {
  // Held over a whole reload, so that of two the one that read the file later wins.
  const common::MutexLock lock(&mu_);
  auto file = config::LoadClients(path_);
  if (file.ok()) file_ = *file;
  if (!file_.has_value()) return file.status();
  // With a bad file too: a token that was replaced is to be worth nothing at once.
  std::string version = file_->version;
  std::vector<access::Client> clients = file_->clients;
  if (token_ != nullptr) {
    const access::TokenDigest digest = token_->digest();
    version.append(digest.begin(), digest.end());
    clients.push_back(HolderOf(*token_));
  }
  const bool changed = version != version_;
  if (changed) {
    version_ = std::move(version);
    // The bounds of a client change for all of its calls, whichever table recognised them.
    for (access::Client& client : clients) {
      client.use = uses_.Of(client.name);
      client.use->SetBounds(client.bounds);
    }
    clients_.Replace(std::make_shared<const access::ClientTable>(std::move(clients)));
  }
  if (!file.ok()) return file.status();
  return changed;
}

void ClientList::WarnOfKeyBounds(common::Log& log) const {
  const auto table = clients_.table();
  for (const access::Client& client : table->clients()) {
    for (const auto bound :
         {access::ClientBound::kNewKeysPerMinute, access::ClientBound::kTableShare}) {
      if (!client.bounds.Has(bound)) continue;
      log.Warning(
          "client_bound_without_effect",
          {{"client", client.name},
           {"bound", common::ToAbsl(access::BoundName(bound))},
           {"reason", "the buckets are in Redis, and this node does not know which are new"}});
      return;
    }
  }
}

}  // namespace sluice
