// Caller: the client that makes a call, and what it may do. Clients: recognises callers by the
// running clients file. CallerCache: the caller of a connection's calls, recognised once.
#ifndef SLUICE_SERVER_ACCESS_CALLER_H_
#define SLUICE_SERVER_ACCESS_CALLER_H_

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "common/bounds.h"
#include "common/mutex.h"
#include "common/net/peer_identity.h"
#include "common/strings.h"
#include "server/access/client.h"
#include "server/access/client_table.h"
#include "server/access/client_use.h"

namespace sluice::net {
class Stream;
}  // namespace sluice::net

namespace sluice::access {

class Caller;
class Clients;

// Null: the server has no clients file, and all callers may do everything.
using CallerPtr = std::shared_ptr<const Caller>;

// What a caller has proved and sent.
struct Proof {
  // How the header `authorization` is to be read.
  enum class Token : uint8_t {
    kNone,    // there is no such header
    kBearer,  // "Bearer TOKEN"
    kOther,   // of another scheme, or too long: no client is recognised by it
  };

  net::PeerIdentity peer;
  Token token = Token::kNone;
  TokenDigest digest = {};  // of a kBearer
};

// Thread-safe. Immutable, except for a cache of limits that it may use. Its Clients outlives it.
class Caller {
 public:
  Caller(const Clients& clients, uint64_t generation, std::shared_ptr<const ClientTable> table,
         Proof proof);

  // UNAUTHENTICATED: the caller is no client. PERMISSION_DENIED: its client may not make this call.
  absl::Status Check(Call call) const {
    return client_ != nullptr && client_->calls.Has(call) ? absl::OkStatus() : Refusal(call);
  }
  bool May(Call call) const { return client_ != nullptr && client_->calls.Has(call); }
  bool MayUseLimit(std::string_view limit) const {
    return client_ != nullptr && client_->limits.Match(limit);
  }
  // The same for a limit of this id (limits::Limit::limit_id). Remembers some that it may use: a
  // name keeps its id, and this is of one clients file.
  bool MayUseLimit(std::string_view limit, uint32_t limit_id) const {
    std::atomic<uint32_t>& allowed = allowed_[limit_id % allowed_.size()];
    if (allowed.load(std::memory_order_relaxed) == limit_id + 1) return true;
    if (!MayUseLimit(limit)) return false;
    allowed.store(limit_id + 1, std::memory_order_relaxed);
    return true;
  }
  bool MayUseDomain(std::string_view domain) const {
    return client_ != nullptr && client_->domains.Match(domain);
  }

  // Whether the caller sent a token, and no client has it.
  bool has_wrong_token() const { return client_ == nullptr && proof_.token != Proof::Token::kNone; }
  // Counts one call of the client. RESOURCE_EXHAUSTED: it has none left now.
  absl::Status CountCall(int64_t now_ns) const {
    ClientUse* const use = this->use();
    return use == nullptr || use->TakeCalls(1, now_ns) == 1
               ? absl::OkStatus()
               : use->Refuse(ClientBound::kCallsPerSecond, 1, now_ns);
  }
  // Takes a place for a held call or a stream (`bound`), until it is left. RESOURCE_EXHAUSTED: all
  // of the client's are in use.
  absl::Status Enter(ClientBound bound, int64_t now_ns, ClientPlace* place) const {
    if (use() == nullptr || place->Enter(client_->use, bound)) return absl::OkStatus();
    return use()->Refuse(bound, 1, now_ns);
  }
  // Null: the client has no bounds.
  ClientUse* use() const { return client_ == nullptr ? nullptr : client_->use.get(); }

  // Null: no client is recognised by what the caller has proved.
  const Client* client() const { return client_; }
  const Clients& clients() const { return clients_; }
  uint64_t generation() const { return generation_; }
  const Proof& proof() const { return proof_; }

 private:
  absl::Status Refusal(Call call) const;

  const Clients& clients_;
  const uint64_t generation_;
  const std::shared_ptr<const ClientTable> table_;
  const Proof proof_;
  const Client* const client_;
  // Ids of limits that the client may use, plus 1. Relaxed: each says all that it means.
  mutable std::array<std::atomic<uint32_t>, 8> allowed_ = {};
};

// Thread-safe.
class Clients {
 public:
  explicit Clients(std::shared_ptr<const ClientTable> table) : table_(std::move(table)) {}
  Clients(const Clients&) = delete;
  Clients& operator=(const Clients&) = delete;

  // Callers that were recognised before are recognised again at their next call.
  void Replace(std::shared_ptr<const ClientTable> table);
  // Changes with each Replace.
  uint64_t generation() const { return generation_.load(std::memory_order_acquire); }

  CallerPtr Recognise(Proof proof) const;
  // The clients as they are now.
  std::shared_ptr<const ClientTable> table() const;
  // The caller by the clients as they are now: for a call that lasts over a Replace. Null for null.
  static CallerPtr Current(CallerPtr caller);

 private:
  mutable common::Mutex mu_;
  std::shared_ptr<const ClientTable> table_ ABSL_GUARDED_BY(mu_);
  // Written under mu_. Acquire and release, so that a thread that sees a new one sees its table.
  std::atomic<uint64_t> generation_{1};
};

// Of one connection; used on its loop only. A token is recognised again only if the header differs
// from that of the call before. What the connection proves is read once.
class CallerCache {
 public:
  // Null: there is no clients file. Outlives the cache.
  explicit CallerCache(const Clients* clients) : clients_(clients) {}

  bool enabled() const { return clients_ != nullptr; }

  // Whether last() is the caller that sent this header `authorization`; empty: none was sent. Also
  // if not enabled().
  bool Has(std::string_view authorization) const {
    return clients_ == nullptr ||
           (caller_ != nullptr && caller_->generation() == clients_->generation() &&
            common::SameBytes(Kept(authorization), authorization_));
  }
  // REQUIRES: enabled().
  void Recognise(const net::Stream& stream, std::string_view authorization);
  // Null if not enabled().
  const CallerPtr& last() const { return caller_; }

 private:
  // One byte over the bound is enough to refuse it.
  static std::string_view Kept(std::string_view authorization) {
    return authorization.substr(0, common::bounds::kMaxAuthorizationBytes + 1);
  }

  const Clients* const clients_;
  std::string authorization_;  // of caller_, as far as it is kept
  CallerPtr caller_;
};

}  // namespace sluice::access

#endif  // SLUICE_SERVER_ACCESS_CALLER_H_
