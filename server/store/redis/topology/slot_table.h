// SlotTable: which primary of a Redis Cluster has which slot, and the floors of each slot.
//
// A slot that moves brings its floors along, in a key of its own (FloorKey). They are unread until
// that key was read at the slot's new primary.
//
// Belongs to its loop.
#ifndef SLUICE_SERVER_STORE_REDIS_TOPOLOGY_SLOT_TABLE_H_
#define SLUICE_SERVER_STORE_REDIS_TOPOLOGY_SLOT_TABLE_H_

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "common/net/address.h"
#include "server/store/redis/fencing/fence.h"
#include "server/store/redis/wire/hash_slot.h"

namespace sluice::store::redis {

class SlotTable {
 public:
  // Takes a newer map. Returns the places, in map().primaries(), of the primaries that have slots
  // which they did not have before. The floors of these slots are unread.
  std::vector<uint16_t> Adopt(SlotMap map);
  // The slot has another owner now (MOVED). Its floor is unread.
  void Move(uint16_t slot, const net::Address& to);

  const SlotMap& map() const { return map_; }

  bool Has(const net::Address& primary, uint16_t slot) const;
  // In ascending order.
  std::vector<uint16_t> SlotsOf(const net::Address& primary) const;
  // It has replicas, one of which may be promoted in its place.
  bool HasReplicas(const net::Address& primary) const;

  // Null: unread.
  const std::shared_ptr<const SlotFloors>& FloorsOf(uint16_t slot) const { return floors_[slot]; }
  void SetFloors(uint16_t slot, std::shared_ptr<const SlotFloors> floors) {
    floors_[slot] = std::move(floors);
  }

 private:
  // kNoOwner: it is not in the map.
  uint16_t PlaceOf(const net::Address& primary) const;

  SlotMap map_;
  std::vector<std::shared_ptr<const SlotFloors>> floors_{kSlots};
};

}  // namespace sluice::store::redis

#endif  // SLUICE_SERVER_STORE_REDIS_TOPOLOGY_SLOT_TABLE_H_
