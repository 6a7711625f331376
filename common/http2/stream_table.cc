#include "common/http2/stream_table.h"

#include <utility>

#include "common/random.h"

namespace sluice::http2 {

const uint32_t StreamTable::kSeed = static_cast<uint32_t>(common::RandomWord());

void StreamTable::Insert(int32_t id, Stream& stream) {
  // At most half full: searches end soon.
  if (slots_ == nullptr) {
    Resize(kFewSlotBits);
  } else if (2 * (size_ + 1) > mask_ + 1) {
    Resize(32 - shift_ + 1);
  }
  size_t at = Home(id);
  while (slots_[at].id != 0) at = Next(at);
  slots_[at] = {id, &stream};
  ++size_;
}

void StreamTable::Remove(int32_t id) {
  size_t hole = Home(id);
  while (slots_[hole].id != id) hole = Next(hole);
  // Entries behind it that a search could no longer reach move into the hole.
  for (size_t at = Next(hole); slots_[at].id != 0; at = Next(at)) {
    const size_t home = Home(slots_[at].id);
    if (((at - home) & mask_) < ((at - hole) & mask_)) continue;
    slots_[hole] = slots_[at];
    hole = at;
  }
  slots_[hole] = {};
  --size_;
}

void StreamTable::Resize(int bits) {
  const size_t old_slots = slots_ == nullptr ? 0 : mask_ + 1;
  const auto old = std::exchange(slots_, std::make_unique<Slot[]>(size_t{1} << bits));
  mask_ = (size_t{1} << bits) - 1;
  shift_ = 32 - bits;
  for (size_t i = 0; i < old_slots; ++i) {
    if (old[i].id == 0) continue;
    size_t at = Home(old[i].id);
    while (slots_[at].id != 0) at = Next(at);
    slots_[at] = old[i];
  }
}

}  // namespace sluice::http2
