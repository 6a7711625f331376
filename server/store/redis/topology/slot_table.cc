#include "server/store/redis/topology/slot_table.h"

#include <algorithm>
#include <cstddef>
#include <utility>

namespace sluice::store::redis {

std::vector<uint16_t> SlotTable::Adopt(SlotMap map) {
  const SlotMap before = std::exchange(map_, std::move(map));
  // By place in the map before: the place in the map now.
  std::vector<uint16_t> places;
  for (const net::Address& primary : before.primaries()) places.push_back(PlaceOf(primary));

  std::vector<uint16_t> grown;
  for (uint16_t slot = 0; slot < kSlots; ++slot) {
    const uint16_t was = before.OwnerOf(slot);
    const uint16_t is = map_.OwnerOf(slot);
    const bool unowned = was == SlotMap::kNoOwner || is == SlotMap::kNoOwner;
    if (unowned ? was == is : places[was] == is) continue;
    floors_[slot] = nullptr;
    if (is == SlotMap::kNoOwner) continue;
    if (std::find(grown.begin(), grown.end(), is) == grown.end()) grown.push_back(is);
  }
  return grown;
}

void SlotTable::Move(uint16_t slot, const net::Address& to) {
  map_.Move(slot, to);
  floors_[slot] = nullptr;
}

bool SlotTable::Has(const net::Address& primary, uint16_t slot) const {
  const uint16_t owner = map_.OwnerOf(slot);
  return owner != SlotMap::kNoOwner && map_.primaries()[owner] == primary;
}

std::vector<uint16_t> SlotTable::SlotsOf(const net::Address& primary) const {
  std::vector<uint16_t> slots;
  const uint16_t place = PlaceOf(primary);
  if (place == SlotMap::kNoOwner) return slots;
  for (uint16_t slot = 0; slot < kSlots; ++slot) {
    if (map_.OwnerOf(slot) == place) slots.push_back(slot);
  }
  return slots;
}

bool SlotTable::HasReplicas(const net::Address& primary) const {
  const uint16_t place = PlaceOf(primary);
  return place != SlotMap::kNoOwner && map_.replicated(place);
}

uint16_t SlotTable::PlaceOf(const net::Address& primary) const {
  const auto& primaries = map_.primaries();
  const auto found = std::find(primaries.begin(), primaries.end(), primary);
  if (found == primaries.end()) return SlotMap::kNoOwner;
  return static_cast<uint16_t>(found - primaries.begin());
}

}  // namespace sluice::store::redis
