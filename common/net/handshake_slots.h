// HandshakeSlots: bounds the TLS handshakes of a listener, and gives them their turns.
//
// A handshake costs the server memory and a millisecond, and its peer next to nothing.
//
// Slots bound the memory. When all are in use, a new handshake displaces one of the peer that holds
// most (PeerOf): the oldest that has received nothing for a quarter of a
// second, else the oldest that waits for its peer, else the newest. So no peer keeps another out,
// and a peer that says nothing does not keep out one that does, even at the same address. And a
// flood from one address does not displace each handshake before its turn comes.
//
// Turns bound the time. All handshakes together are one worker (work_queue.h), so that connections
// are served between two of them. Of those that have input, one of the peer that holds fewest slots
// is next, and of these the one that has waited longest.
#ifndef SLUICE_COMMON_NET_HANDSHAKE_SLOTS_H_
#define SLUICE_COMMON_NET_HANDSHAKE_SLOTS_H_

#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>

#include "absl/container/flat_hash_map.h"
#include "common/memory_account.h"
#include "common/net/event_loop.h"
#include "common/net/tls_stream.h"
#include "common/net/work_queue.h"

namespace sluice::net {

// Used on its loop only. Its handshakes own it, as they may outlive the listener.
class HandshakeSlots final : public std::enable_shared_from_this<HandshakeSlots>, private Worker {
 public:
  struct Handshake {
    uint64_t peer;
    int64_t since_ns;  // when it took the slot, on the loop's clock
    TlsStream* stream = nullptr;
    bool queued = false;  // its turn is due
    int64_t counted_bytes = 0;
  };
  using Slot = std::list<Handshake>::iterator;

  // `memory` counts what the handshakes hold; null: nothing does. Outlives the slots.
  HandshakeSlots(EventLoop& loop, size_t most, common::MemoryBudget* memory)
      : loop_(loop), most_(most), memory_(memory) {}

  bool full() const { return handshakes_.size() >= most_; }

  // Takes a slot; set its stream. `peer`: as PeerOf. REQUIRES: not full.
  Slot Take(uint64_t peer);
  // The handshake received input. If its turn is due, TlsStream::ContinueHandshake follows.
  void OnInput(Slot slot);
  void GiveBack(Slot slot);

  // The handshake that makes room. REQUIRES: there is one.
  TlsStream& Displaced() const;

 private:
  void OnTurn() override;
  // What an answer costs while so many workers wait.
  int64_t AnswerUnits() const;
  std::list<Slot>::iterator Next();
  void Count(Handshake& handshake, size_t bytes);

  EventLoop& loop_;
  const size_t most_;
  std::list<Handshake> handshakes_;  // oldest first
  std::list<Slot> queue_;            // first come first
  absl::flat_hash_map<uint64_t, size_t> held_;
  common::MemoryPart memory_;
};

}  // namespace sluice::net

#endif  // SLUICE_COMMON_NET_HANDSHAKE_SLOTS_H_
