#include "server/store/redis/commands/id_source.h"

#include <gtest/gtest.h>

#include <cstdint>

namespace sluice::store::redis {
namespace {

// A bucket of slots in a Cluster has ids of both kinds.
TEST(IdSourceTest, IdsOfReceiptsAndOfBookingsNeverMeet) {
  constexpr int64_t kIn2026Ns = 1'767'225'600'000'000'000;
  for (int i = 0; i < 1000; ++i) {
    IdSource ids;
    IdSource other;
    const uint64_t receipt = ids.NewReceipt();
    // Another node has read a bucket with a hold of this receipt.
    const uint64_t booking = other.NewBooking(kIn2026Ns, /*after=*/receipt);
    for (int more = 0; more < 3; ++more) ASSERT_LT(ids.NewReceipt(), booking);
    ASSERT_LT(other.NewReceipt(), booking);
  }
}

TEST(IdSourceTest, BookingsFollowWhatTheyAreToldTo) {
  IdSource ids;
  const uint64_t first = ids.NewBooking(0, /*after=*/1000);
  EXPECT_GT(first, 1000u);
  EXPECT_GT(ids.NewBooking(0, /*after=*/0), first);
}

}  // namespace
}  // namespace sluice::store::redis
