#include "server/access/caller.h"

#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/bounds.h"
#include "common/errors.h"
#include "common/net/stream.h"
#include "common/strings.h"

namespace sluice::access {
namespace {

const Client* Find(const ClientTable& table, const Proof& proof) {
  switch (proof.token) {
    case Proof::Token::kNone:
      return table.FindByPeer(proof.peer);
    case Proof::Token::kBearer:
      return table.FindByToken(proof.digest);
    case Proof::Token::kOther:
      break;
  }
  return nullptr;
}

// Why no client was recognised.
std::string WhyUnknown(const Proof& proof) {
  if (proof.token == Proof::Token::kBearer) return "authorization: no client has this token";
  if (proof.token == Proof::Token::kOther)
    return absl::StrCat("authorization: must be `Bearer TOKEN`, at most ",
                        common::bounds::kMaxAuthorizationBytes, " bytes");
  const net::PeerIdentity& peer = proof.peer;
  if (!peer.subject.empty() || !peer.uris.empty() || !peer.dns_names.empty()) {
    const std::string name = !peer.uris.empty()        ? absl::StrCat("URI ", peer.uris[0])
                             : !peer.dns_names.empty() ? absl::StrCat("DNS ", peer.dns_names[0])
                                                       : absl::StrCat("subject ", peer.subject);
    return absl::StrCat("no client has this certificate (", common::errors::Shown(name), ")");
  }
  if (peer.uid.has_value()) return absl::StrCat("no client has the uid ", *peer.uid);
  return "only known clients are served; send the metadata `authorization: Bearer TOKEN`, or show "
         "a client certificate";
}

Proof ProofOf(net::PeerIdentity peer, std::string_view authorization) {
  constexpr absl::string_view kScheme = "bearer ";
  Proof proof;
  proof.peer = std::move(peer);
  if (authorization.empty()) return proof;
  const absl::string_view sent = common::ToAbsl(authorization);
  if (absl::StartsWithIgnoreCase(sent, kScheme) &&
      sent.size() <= common::bounds::kMaxAuthorizationBytes) {
    proof.token = Proof::Token::kBearer;
    proof.digest = DigestOf(common::ToStd(absl::StripAsciiWhitespace(sent.substr(kScheme.size()))));
  } else {
    proof.token = Proof::Token::kOther;
  }
  return proof;
}

}  // namespace

Caller::Caller(const Clients& clients, uint64_t generation,
               std::shared_ptr<const ClientTable> table, Proof proof)
    : clients_(clients),
      generation_(generation),
      table_(std::move(table)),
      proof_(std::move(proof)),
      client_(Find(*table_, proof_)) {}

absl::Status Caller::Refusal(Call call) const {
  if (client_ == nullptr) return absl::UnauthenticatedError(WhyUnknown(proof_));
  return common::errors::CallNotAllowed(client_->name, CallName(call), client_->calls.ToString());
}

void Clients::Replace(std::shared_ptr<const ClientTable> table) {
  const common::MutexLock lock(&mu_);
  table_.swap(table);
  generation_.store(generation_.load(std::memory_order_relaxed) + 1, std::memory_order_release);
}

CallerPtr Clients::Recognise(Proof proof) const {
  std::shared_ptr<const ClientTable> table;
  uint64_t generation;
  {
    const common::MutexLock lock(&mu_);
    table = table_;
    generation = generation_.load(std::memory_order_relaxed);
  }
  return std::make_shared<const Caller>(*this, generation, std::move(table), std::move(proof));
}

std::shared_ptr<const ClientTable> Clients::table() const {
  const common::MutexLock lock(&mu_);
  return table_;
}

CallerPtr Clients::Current(CallerPtr caller) {
  if (caller == nullptr || caller->generation() == caller->clients().generation()) return caller;
  return caller->clients().Recognise(caller->proof());
}

void CallerCache::Recognise(const net::Stream& stream, std::string_view authorization) {
  // To read a certificate takes 10 us.
  caller_ = clients_->Recognise(
      ProofOf(caller_ != nullptr ? caller_->proof().peer : stream.peer_identity(), authorization));
  authorization_ = Kept(authorization);
}

}  // namespace sluice::access
