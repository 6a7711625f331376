#include "server/state/saved_bucket.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/escaping.h"
#include "server/algorithm/make_parameters.h"

namespace sluice::state {
namespace {

using algorithm::Kind;
using algorithm::Parameters;

constexpr algorithm::Rate kRate = {7, 2'000'000'000};

// One of each kind, with its bytes in a state file.
struct Sample {
  Parameters parameters;
  std::string hex;
};
std::vector<Sample> Samples() {
  return {
      {*algorithm::MakeTokenBucket(kRate, 9, 3), "00f0f6f4c1080780d0acf30e0903"},
      {*algorithm::MakeSlidingLog(kRate), "01b6ee010780d0acf30e"},
      {*algorithm::MakeSlidingWindow(kRate, 20), "02000780d0acf30e14"},
      {*algorithm::MakeFixedWindow(kRate, -3'600'000'000'000), "03000780d0acf30effffc48bc6d101"},
      {*algorithm::MakeConcurrency(7, 30'000'000'000), "04000780b09dc2df01"}};
}

TEST(SavedBucketTest, ReadsParametersOfEveryKindAsTheyWereWritten) {
  const std::vector<Sample> samples = Samples();
  ASSERT_EQ(samples.size(), std::size(algorithm::kKinds));
  for (const auto& [parameters, hex] : samples) {
    std::string bytes;
    FieldWriter to(&bytes);
    WriteParameters(parameters, &to);
    EXPECT_EQ(absl::BytesToHexString(bytes), hex);
    FieldReader from(bytes);
    EXPECT_EQ(ReadParameters(&from), parameters) << hex;
    EXPECT_TRUE(from.done()) << hex;
  }
}

TEST(SavedBucketTest, RefusesParametersThatNoLimitHas) {
  std::string bytes;
  FieldWriter to(&bytes);
  // A log whose quantum is not that of its period.
  to.Number(static_cast<uint64_t>(Kind::kSlidingLog));
  to.Number(1);
  to.Number(kRate.permits);
  to.Signed(kRate.period_ns);
  FieldReader from(bytes);
  ReadParameters(&from);
  EXPECT_FALSE(from.ok());
  // An algorithm that there is not.
  std::string unknown(1, static_cast<char>(algorithm::kLastKind) + 1);
  FieldReader other(unknown);
  ReadParameters(&other);
  EXPECT_FALSE(other.ok());
}

}  // namespace
}  // namespace sluice::state
