// HandshakeSlots: bounds the TLS handshakes that run at once on a loop.
//
// A handshake costs the server memory, and its peer next to nothing. When all slots are in use, a
// new one displaces a handshake of the peer that holds most (SocketAddress::PeerNetwork): the
// oldest that has received nothing, else the oldest. So no peer keeps another out, and a peer that
// says nothing does not keep out one that does, even at the same address.
#ifndef SLUICE_COMMON_NET_HANDSHAKE_SLOTS_H_
#define SLUICE_COMMON_NET_HANDSHAKE_SLOTS_H_

#include <cstddef>
#include <cstdint>
#include <list>

#include "absl/container/flat_hash_map.h"
#include "common/net/address.h"
#include "common/net/tls_stream.h"

namespace sluice::net {

// Used on its loop only. Outlives its handshakes.
class HandshakeSlots {
 public:
  struct Handshake {
    uint64_t peer;
    TlsStream* stream = nullptr;
  };
  using Slot = std::list<Handshake>::iterator;

  explicit HandshakeSlots(size_t most) : most_(most) {}

  bool full() const { return handshakes_.size() >= most_; }

  // Takes a slot; set its stream. REQUIRES: not full.
  Slot Take(const SocketAddress& peer) {
    const uint64_t network = peer.PeerNetwork();
    ++held_[network];
    return handshakes_.insert(handshakes_.end(), {network});
  }

  void GiveBack(Slot slot) {
    const auto held = held_.find(slot->peer);
    if (--held->second == 0) held_.erase(held);
    handshakes_.erase(slot);
  }

  // The handshake that makes room. REQUIRES: there is one.
  TlsStream& Displaced() const {
    auto most = held_.begin();
    for (auto one = most; one != held_.end(); ++one) {
      if (one->second > most->second) most = one;
    }
    TlsStream* oldest = nullptr;
    for (const Handshake& handshake : handshakes_) {
      if (handshake.peer != most->first) continue;
      if (handshake.stream->silent()) return *handshake.stream;
      if (oldest == nullptr) oldest = handshake.stream;
    }
    return *oldest;
  }

 private:
  const size_t most_;
  std::list<Handshake> handshakes_;  // oldest first
  absl::flat_hash_map<uint64_t, size_t> held_;
};

}  // namespace sluice::net

#endif  // SLUICE_COMMON_NET_HANDSHAKE_SLOTS_H_
