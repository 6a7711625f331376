#include "server/store/redis/wire/parameters_text.h"

#include <gtest/gtest.h>

#include "server/algorithm/make_parameters.h"

namespace sluice::store::redis {
namespace {

using algorithm::Kind;
using algorithm::Parameters;

constexpr algorithm::Rate kRate = {7, 2'000'000'000};

// One of each kind, with the word that Redis holds.
struct Sample {
  Parameters parameters;
  std::string word;
};
std::vector<Sample> Samples() {
  return {{*algorithm::MakeTokenBucket(kRate, 9, 3), "t:7:2000000000:9:3"},
          {*algorithm::MakeSlidingLog(kRate), "l:7:2000000000"},
          {*algorithm::MakeSlidingWindow(kRate, 20), "w:7:2000000000:20"},
          {*algorithm::MakeFixedWindow(kRate, -3'600'000'000'000), "f:7:2000000000:-3600000000000"},
          {*algorithm::MakeConcurrency(7, 30'000'000'000), "c:7:30000000000"}};
}

TEST(ParametersTextTest, ReadsWhatItWritesOfEveryKind) {
  const std::vector<Sample> samples = Samples();
  ASSERT_EQ(samples.size(), std::size(algorithm::kKinds));
  for (const auto& [parameters, word] : samples) {
    EXPECT_EQ(EncodeParameters(parameters), word);
    const auto parsed = ParseParameters(word);
    ASSERT_TRUE(parsed.ok()) << word << ": " << parsed.status();
    EXPECT_EQ(*parsed, parameters) << word;
  }
}

TEST(ParametersTextTest, RefusesOtherWords) {
  for (const char* const word :
       {"", ":", "t", "x:7:2000000000", "tl:7:2000000000", "t:7:2000000000:9", "l:7:2000000000:1",
        "t:7:2000000000:9:", "w:7:2000000000:4294967296", "f:7:2000000000:a", "c:7", "l:0:1"}) {
    EXPECT_EQ(ParseParameters(word).status().code(), absl::StatusCode::kInvalidArgument) << word;
  }
}

}  // namespace
}  // namespace sluice::store::redis
