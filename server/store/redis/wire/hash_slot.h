// Slots: which server of a Redis Cluster a key belongs to.
//
// A Cluster has 16384 slots, each served by one primary. A key's slot is the CRC-16 (XMODEM) of
// its hash tag, that is, of what stands between its first { and the first } after that, or of the
// whole key when there is nothing between them.
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
// A hash tag of the slot: the same one whoever asks. Thread-safe.
const std::string& TagOfSlot(uint16_t slot);

// Which primary serves which slot, as one server of the Cluster told. Not thread-safe.
class SlotMap {
 public:
  // Nobody serves anything.
  SlotMap() { owners_.fill(kNobody); }

  // From the answer to CLUSTER SLOTS. A server that does not know its own name leaves it out: then
  // it is `asked`, where the answer came from. INVALID_ARGUMENT: not such an answer.
  static absl::StatusOr<SlotMap> FromReply(const Reply& reply, const net::Address& asked);

  // Its place in primaries(); kNobody: nobody serves it, as far as is known.
  static constexpr uint16_t kNobody = 0xffff;
  uint16_t OwnerOf(uint16_t slot) const { return owners_[slot]; }
  // One slot is another's now (MOVED).
  void Move(uint16_t slot, const net::Address& to);

  // Those who serve a slot, or did before Move. A place stays its server's.
  const std::vector<net::Address>& primaries() const { return primaries_; }
  // Somebody may be promoted in this one's place, as far as its server said.
  bool replicated(uint16_t place) const { return replicated_[place]; }
  // How many slots are served.
  size_t served() const;

 private:
  uint16_t PlaceOf(const net::Address& address);

  std::vector<net::Address> primaries_;
  std::vector<bool> replicated_;
  std::array<uint16_t, kSlots> owners_;  // places in primaries_
};

// "MOVED 3999 127.0.0.1:6381": the slot is another's. "ASK ...": this key of it may be, this once.
struct Redirect {
  bool ask = false;
  uint16_t slot = 0;
  net::Address to;
};
// Of an error reply. None: it is neither. `asked` as in SlotMap::FromReply.
std::optional<Redirect> RedirectOf(const Reply& reply, const net::Address& asked);

}  // namespace sluice::store::redis

#endif  // SLUICE_SERVER_STORE_REDIS_WIRE_HASH_SLOT_H_
