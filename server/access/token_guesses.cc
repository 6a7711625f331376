#include "server/access/token_guesses.h"

#include <algorithm>

#include "common/bounds.h"
#include "common/net/address.h"

namespace sluice::access {
namespace {

namespace bounds = common::bounds;

// No network has it: of an IPv6 prefix it is reserved, of an IPv4 address the lower half is 0.
constexpr uint64_t kAllOthers = UINT64_MAX;
constexpr int64_t kAheadNs = (TokenGuesses::kAtOnce - 1) * TokenGuesses::kIntervalNs;
constexpr int64_t kMostLateNs =
    static_cast<int64_t>(bounds::kMaxLateRefusals) * TokenGuesses::kIntervalNs;

// Unix sockets are one network.
uint64_t NetworkOf(std::string_view peer_address) {
  const auto address = net::Address::Parse(peer_address);
  if (!address.ok()) return 0;
  const auto socket = net::SocketAddress::FromNumeric(*address);
  return socket.ok() ? socket->PeerNetwork() : 0;
}

}  // namespace

std::optional<int64_t> TokenGuesses::RefuseAt(std::string_view peer_address, int64_t now_ns) {
  const uint64_t network = NetworkOf(peer_address);
  const common::MutexLock lock(&mu_);
  int64_t& next_ns = NextOf(network, now_ns);
  const int64_t due_ns = std::max(next_ns, now_ns - kAheadNs);
  if (due_ns - now_ns > kMostLateNs) return std::nullopt;
  next_ns = due_ns + kIntervalNs;
  return std::max(due_ns, now_ns);
}

int64_t& TokenGuesses::NextOf(uint64_t network, int64_t now_ns) {
  if (const auto known = next_ns_.find(network); known != next_ns_.end()) return known->second;
  if (next_ns_.size() >= bounds::kMaxGuessingNetworks) {
    // An account that is as good as new is not needed.
    absl::erase_if(next_ns_, [&](const auto& one) { return one.second <= now_ns - kAheadNs; });
  }
  if (next_ns_.size() >= bounds::kMaxGuessingNetworks) network = kAllOthers;
  return next_ns_.try_emplace(network, now_ns - kAheadNs).first->second;
}

}  // namespace sluice::access
