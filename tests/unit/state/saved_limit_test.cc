#include "server/state/saved_limit.h"

#include <gtest/gtest.h>

#include <string>

namespace sluice::state {
namespace {

limits::LimitSpec Read(const std::string& bytes) {
  FieldReader from(bytes);
  limits::LimitSpec spec = ReadLimit(&from);
  EXPECT_TRUE(from.done());
  return spec;
}

TEST(SavedLimitTest, KeepsAllFields) {
  limits::LimitSpec spec;
  spec.name = "api";
  spec.algorithm = algorithm::Kind::kSlidingWindow;
  spec.rate = {17, 3'000'000'000};
  spec.burst = 0;
  spec.debt = 3;
  spec.max_owed = 9;
  spec.sub_windows = 20;
  spec.utc_offset_ns = -3600'000'000'000;
  spec.permits = 8;
  spec.hold_for_ns = 1'000'000;
  spec.mode = limits::Mode::kShadow;
  spec.on_store_failure = limits::OnStoreFailure::kSplit;
  spec.sharing = store::Sharing::kRelaxed;
  spec.charges = {"a", "b"};
  spec.keys = {{"k", algorithm::Rate{5, 1'000'000'000}, 1, 2, 3}, {"", {}, {}, {}, {}}};
  spec.hash_tag = "tag";
  spec.max_wait_ns = 5;
  spec.min_keys = 6;
  spec.direct = false;
  spec.reason = "sale";
  spec.ends_at_ns = 7;
  spec.origin = limits::Origin::kAdminOverFile;
  std::string bytes;
  FieldWriter to(&bytes);
  WriteLimit(spec, &to);
  EXPECT_EQ(Read(bytes), spec);
}

TEST(SavedLimitTest, KeepsWhatIsAbsent) {
  limits::LimitSpec spec;
  spec.name = "plain";
  spec.origin = limits::Origin::kAdmin;
  std::string bytes;
  FieldWriter to(&bytes);
  WriteLimit(spec, &to);
  EXPECT_EQ(Read(bytes), spec);
}

TEST(FieldReaderTest, FailsAtTheEndAndAtNumbersThatDoNotFit) {
  for (const std::string& bad : {std::string(), std::string("\x80"), std::string(11, '\x80'),
                                 std::string(9, '\xff') + '\x02'}) {
    FieldReader from(bad);
    EXPECT_EQ(from.Number(), 0u);
    EXPECT_FALSE(from.ok());
  }
  // A count that the bytes cannot hold.
  std::string bytes;
  FieldWriter(&bytes).Number(uint64_t{1} << 60);
  FieldReader from(bytes);
  EXPECT_EQ(from.Count(), 0u);
  EXPECT_FALSE(from.ok());
}

TEST(FieldReaderTest, ReadsWhatWasWritten) {
  std::string bytes;
  FieldWriter to(&bytes);
  to.Number(~uint64_t{0});
  to.Signed(std::numeric_limits<int64_t>::min());
  to.Signed(-1);
  to.Text("abc");
  to.Optional(std::optional<int64_t>(-5));
  to.Optional(std::optional<uint64_t>());
  FieldReader from(bytes);
  EXPECT_EQ(from.Number(), ~uint64_t{0});
  EXPECT_EQ(from.Signed(), std::numeric_limits<int64_t>::min());
  EXPECT_EQ(from.Signed(), -1);
  EXPECT_EQ(from.Text(), "abc");
  EXPECT_EQ(from.Optional<int64_t>(), -5);
  EXPECT_EQ(from.Optional<uint64_t>(), std::nullopt);
  EXPECT_TRUE(from.done());
}

}  // namespace
}  // namespace sluice::state
