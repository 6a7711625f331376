#include "server/service/validation.h"

#include <limits>
#include <string>

#include "gtest/gtest.h"

namespace sluice::service {
namespace {

TEST(FieldPathTest, NamesTheFieldByTheListsThatLeadToIt) {
  const FieldPath request;
  EXPECT_EQ(request.Field("max_wait"), "max_wait");
  EXPECT_EQ(request.Element("buckets", 7).Field("key"), "buckets[7].key");
  EXPECT_EQ(request.Element("acquisitions", 3).Element("charges", 0).Field("key"),
            "acquisitions[3].charges[0].key");
}

TEST(ValidationTest, FillsInTheDefaultOfMaxKeys) {
  EXPECT_EQ(CheckMaxKeys(0).value(), 20u);
  EXPECT_EQ(CheckMaxKeys(1000).value(), 1000u);
  EXPECT_EQ(CheckMaxKeys(1001).status().message(), "max_keys: 1001; 1 to 1000, or 0 for 20");
}

TEST(ToNanosecondsTest, SaturatesAndRejectsMixedSigns) {
  EXPECT_EQ(ToNanoseconds("f", {1, 5}).value(), 1'000'000'005);
  EXPECT_EQ(ToNanoseconds("f", {-1, -5}).value(), -1'000'000'005);
  EXPECT_EQ(ToNanoseconds("f", {std::numeric_limits<int64_t>::max(), 0}).value(),
            std::numeric_limits<int64_t>::max());
  EXPECT_EQ(ToNanoseconds("f", {std::numeric_limits<int64_t>::min(), 0}).value(),
            std::numeric_limits<int64_t>::min());
  EXPECT_FALSE(ToNanoseconds("f", {1, -1}).ok());
  EXPECT_FALSE(ToNanoseconds("f", {-1, 1}).ok());
  EXPECT_FALSE(ToNanoseconds("f", {0, std::numeric_limits<int32_t>::min()}).ok());
}

}  // namespace
}  // namespace sluice::service
