#include "server/algorithm/hold_list.h"

#include <gtest/gtest.h>

#include <cstdint>

#include "tests/support/counted_allocations.h"

namespace sluice::algorithm {
namespace {

// What grows at once is copied in one step of an event loop.
TEST(HoldListTest, GrowsInSmallPieces) {
  constexpr uint64_t kHolds = 200'000;
  HoldList list;
  largest_allocation = 0;
  for (uint64_t id = 1; id <= kHolds; ++id) list.Add({static_cast<int64_t>(id), id, 1});
  EXPECT_EQ(list.size(), kHolds);
  EXPECT_LE(largest_allocation, kHolds) << "a byte for each hold";
}

}  // namespace
}  // namespace sluice::algorithm
