#include "server/store/redis/wire/stored_bucket.h"

#include <gtest/gtest.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "server/algorithm/make_parameters.h"
#include "server/store/redis/wire/parameters_text.h"

namespace sluice::store::redis {
namespace {

TEST(StoredBucketTest, ReadsTokenBucketsThatEarlierVersionsWrote) {
  const algorithm::Parameters parameters = *algorithm::MakeTokenBucket({1, 1'000'000'000}, 5, 0);
  const std::string state = absl::StrCat(EncodeParameters(parameters), " writer 3000000 0 0");
  const auto now = ParseBucket(state, {}, "", 1'000'000'000);
  ASSERT_TRUE(now.ok()) << now.status();
  EXPECT_NE(now->image.tat, 0u);
  // The time at which its key expires, without and with the fence's word.
  for (const char* behind : {" 1700000000", " 1700000000 a1b2c3"}) {
    const auto read = ParseBucket(state + behind, {}, "", 1'000'000'000);
    ASSERT_TRUE(read.ok()) << read.status();
    EXPECT_EQ(read->image.tat, now->image.tat) << behind;
  }
  for (const char* behind : {" x", " 1 a b"}) {
    EXPECT_FALSE(ParseBucket(state + behind, {}, "", 1'000'000'000).ok()) << behind;
  }
}

}  // namespace
}  // namespace sluice::store::redis
