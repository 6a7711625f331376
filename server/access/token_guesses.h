// TokenGuesses: decides when a caller that sent a wrong token is answered, so that one address
// learns about few tokens in a second.
#ifndef SLUICE_SERVER_ACCESS_TOKEN_GUESSES_H_
#define SLUICE_SERVER_ACCESS_TOKEN_GUESSES_H_

#include <cstdint>
#include <optional>
#include <string_view>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "common/mutex.h"

namespace sluice::access {

// Thread-safe. All event loops share it. Addresses count by their network, as in
// net::SocketAddress::PeerNetwork. It knows bounds::kMaxGuessingNetworks of them at a time; further
// ones share one account.
class TokenGuesses {
 public:
  // The refusals of an address that are sent at once. Further ones are kIntervalNs apart.
  static constexpr int64_t kAtOnce = 5;
  static constexpr int64_t kIntervalNs = 100'000'000;

  TokenGuesses() = default;
  TokenGuesses(const TokenGuesses&) = delete;
  TokenGuesses& operator=(const TokenGuesses&) = delete;

  // A wrong token came from `peer_address` ("10.0.0.7:40312") at `now_ns`. Returns when to refuse
  // it: `now_ns` or later. nullopt: bounds::kMaxLateRefusals of its address wait already; close its
  // connection.
  std::optional<int64_t> RefuseAt(std::string_view peer_address, int64_t now_ns);

 private:
  // The account of the network, which may be that of all others.
  int64_t& NextOf(uint64_t network, int64_t now_ns) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  common::Mutex mu_;
  // When the next refusal is due if none is sent ahead.
  absl::flat_hash_map<uint64_t, int64_t> next_ns_ ABSL_GUARDED_BY(mu_);
};

}  // namespace sluice::access

#endif  // SLUICE_SERVER_ACCESS_TOKEN_GUESSES_H_
