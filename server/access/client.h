// Client: one caller of the clients file: how it is recognised, and what it may do.
#ifndef SLUICE_SERVER_ACCESS_CLIENT_H_
#define SLUICE_SERVER_ACCESS_CLIENT_H_

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/strings.h"
#include "server/access/client_bounds.h"

namespace sluice::access {

class ClientUse;

// What a client may be allowed to call.
enum class Call : uint8_t {
  kAcquire,  // Acquire, AcquireBatch, AcquireStream, /v1/check; Envoy's and Kuadrant's services
  kQuery,
  kRefund,
  kSettle,  // Settle, SettleBatch, Renew
  kForce,   // `force` in an acquisition
  kWatch,
  kAdminView,
  kAdminChange,
};
inline constexpr size_t kCalls = 8;

// "admin_view".
std::string_view CallName(Call call);
// nullopt: no call has that name.
std::optional<Call> FindCall(std::string_view name);

// Whether it is a call of the control plane.
inline bool IsAdmin(Call call) { return call == Call::kAdminView || call == Call::kAdminChange; }

class CallSet {
 public:
  void Add(Call call) { bits_ = static_cast<uint8_t>(bits_ | BitOf(call)); }
  bool Has(Call call) const { return (bits_ & BitOf(call)) != 0; }
  bool empty() const { return bits_ == 0; }
  // "acquire, query".
  std::string ToString() const;

 private:
  static uint8_t BitOf(Call call) { return static_cast<uint8_t>(1U << static_cast<uint8_t>(call)); }
  uint8_t bits_ = 0;
};

// Names and prefixes of names: "orders.*" is every name that begins with "orders.".
class NamePatterns {
 public:
  NamePatterns() = default;
  explicit NamePatterns(const std::vector<std::string>& patterns);

  // Inline for the usual list of a few names; others take at most two binary searches.
  bool Match(std::string_view name) const {
    if (!few_) return Search(name);
    for (const std::string& one : names_) {
      if (common::SameBytes(one, name)) return true;
    }
    return false;
  }
  bool empty() const { return names_.empty() && prefixes_.empty(); }
  // "api, orders.*".
  std::string ToString() const;

 private:
  static constexpr size_t kFew = 8;

  bool Search(std::string_view name) const;

  bool few_ = true;                 // at most kFew names, and no prefixes
  std::vector<std::string> names_;  // sorted
  // Sorted; none begins with another, so that only the last one before a name can be its prefix.
  std::vector<std::string> prefixes_;
};

// SHA-256 of a token.
using TokenDigest = std::array<uint8_t, 32>;
TokenDigest DigestOf(std::string_view token);

// The credentials of which each is enough.
struct Credentials {
  std::vector<std::string> spiffe_ids;
  std::vector<std::string> dns_sans;  // in lower case
  std::vector<std::string> uri_sans;
  std::vector<std::string> subjects;
  std::vector<TokenDigest> tokens;
  std::vector<uint32_t> uids;

  bool empty() const {
    return spiffe_ids.empty() && dns_sans.empty() && uri_sans.empty() && subjects.empty() &&
           tokens.empty() && uids.empty();
  }
};

struct Client {
  // The name of the client that stands for callers without credentials.
  static constexpr std::string_view kAnonymous = "anonymous";
  // That of the holder of the admin token. The clients file may not use it.
  static constexpr std::string_view kAdminToken = "admin_token";

  std::string name;
  Credentials known_by;
  NamePatterns limits;
  NamePatterns domains;  // of Envoy's protocol
  CallSet calls;
  ClientBounds bounds;
  // What it uses of them; null: it has no bounds.
  std::shared_ptr<ClientUse> use;
};

}  // namespace sluice::access

#endif  // SLUICE_SERVER_ACCESS_CLIENT_H_
