// Hash slots: which server of a Redis Cluster has a key.
//
// A Cluster has 16384 slots, each served by one primary. A key's slot is the CRC-16 (XMODEM) of
// its hash tag: the text between its first { and the first } after that. If that is empty or
// missing the whole key counts.
#ifndef SLUICE_SERVER_STORE_REDIS_WIRE_HASH_SLOT_H_
#define SLUICE_SERVER_STORE_REDIS_WIRE_HASH_SLOT_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "common/net/address.h"
#include "server/store/redis/wire/resp.h"

namespace sluice::store::redis {

inline constexpr size_t kSlots = 16384;

// Empty: it has none, and the whole key is hashed. Points into `key`.
std::string_view HashTagOf(std::string_view key);
uint16_t SlotOf(std::string_view key);
// A hash tag of the slot: the same one on every node. Thread-safe.
const std::string& TagOfSlot(uint16_t slot);

// Which primary serves which slot, by one server's answer. Not thread-safe.
class SlotMap {
 public:
  // No slot has an owner.
  SlotMap() { owners_.fill(kNoOwner); }

  // From the reply to CLUSTER SLOTS. A server that does not know its own name leaves it out: then
  // it has the host of `asked`, where the reply came from. INVALID_ARGUMENT: not such a reply.
  static absl::StatusOr<SlotMap> FromReply(const Reply& reply, const net::Address& asked);

  // The owner's place in primaries(); kNoOwner: none is known.
  static constexpr uint16_t kNoOwner = 0xffff;
  uint16_t OwnerOf(uint16_t slot) const { return owners_[slot]; }
  // The slot has another owner now (MOVED).
  void Move(uint16_t slot, const net::Address& to);

  // Servers that serve a slot, or did before Move. Places do not change.
  const std::vector<net::Address>& primaries() const { return primaries_; }
  // It has replicas, one of which may be promoted in its place.
  bool replicated(uint16_t place) const { return replicated_[place]; }
  // How many slots are served.
  size_t served() const;

 private:
  uint16_t PlaceOf(const net::Address& address);

  std::vector<net::Address> primaries_;
  std::vector<bool> replicated_;
  std::array<uint16_t, kSlots> owners_;  // places in primaries_
};

// "MOVED 3999 127.0.0.1:6381": the slot has another owner. "ASK ...": this command is to go to
// another server, this once.
struct Redirect {
  bool ask = false;
  uint16_t slot = 0;
  net::Address to;
};
// From an error reply. nullopt: it is neither. `asked` as in SlotMap::FromReply.
std::optional<Redirect> RedirectOf(const Reply& reply, const net::Address& asked);

}  // namespace sluice::store::redis

#endif  // SLUICE_SERVER_STORE_REDIS_WIRE_HASH_SLOT_H_
