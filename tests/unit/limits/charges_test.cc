#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "server/limits/spec_check.h"

namespace sluice::limits {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class ChargesTest : public ::testing::Test {
 protected:
  void Add(std::string name, std::vector<std::string> charges) {
    auto spec = std::make_unique<LimitSpec>();
    spec->name = std::move(name);
    spec->charges = std::move(charges);
    specs_.push_back(std::move(spec));
  }
  std::string Expand(size_t first = 0) {
    std::vector<const LimitSpec*> pointers;
    for (const auto& spec : specs_) pointers.push_back(spec.get());
    const auto problem = ExpandCharges(pointers, first, &parents_);
    if (!problem) return "ok";
    const LimitSpec& spec = *specs_[problem->limit];
    return spec.name + "." + ProblemText(problem->problem.Path(spec), problem->problem);
  }

  std::vector<std::unique_ptr<LimitSpec>> specs_;
  std::vector<std::vector<uint32_t>> parents_;
};

TEST_F(ChargesTest, ExpandsIndirectChargesOnceNearestFirst) {
  Add("a", {"b", "c"});
  Add("b", {"d"});
  Add("c", {"e", "d"});
  Add("d", {"f"});
  Add("e", {});
  Add("f", {});
  ASSERT_EQ(Expand(), "ok");
  EXPECT_THAT(parents_[0], ElementsAre(1, 2, 3, 4, 5));
  EXPECT_THAT(parents_[2], ElementsAre(4, 3, 5));
  EXPECT_THAT(parents_[5], IsEmpty());
}

TEST_F(ChargesTest, RejectsCycles) {
  Add("x", {});
  Add("a", {"x", "b"});
  Add("b", {"a"});
  EXPECT_EQ(Expand(),
            "a.charges[1]: \"b\": makes a cycle, a -> b -> a; a limit cannot charge itself, take "
            "one of them out");
  // Reported for the limit that is checked first.
  EXPECT_EQ(Expand(2),
            "b.charges[0]: \"a\": makes a cycle, b -> a -> b; a limit cannot charge itself, take "
            "one of them out");
}

TEST_F(ChargesTest, RejectsALimitThatChargesItself) {
  Add("a", {"a"});
  EXPECT_EQ(Expand(),
            "a.charges[0]: \"a\": makes a cycle, a -> a; a limit cannot charge itself, take one of "
            "them out");
}

TEST_F(ChargesTest, FindsACycleBehindALongChain) {
  Add("tail", {"a"});
  Add("a", {"b"});
  Add("b", {"c"});
  Add("c", {"a"});
  EXPECT_EQ(Expand(),
            "a.charges[0]: \"b\": makes a cycle, a -> b -> c -> a; a limit cannot charge itself, "
            "take one of them out");
}

TEST_F(ChargesTest, RejectsUnknownNames) {
  Add("api", {"overal"});
  Add("overall", {});
  EXPECT_EQ(Expand(), "api.charges[0]: \"overal\": no limit has that name; did you mean overall?");
  specs_[0]->charges[0] = "xyz";
  EXPECT_EQ(Expand(), "api.charges[0]: \"xyz\": no limit has that name; add it, or take this out");
}

TEST_F(ChargesTest, AcceptsSixteenChargesAndNoMore) {
  // A chain: the limit itself and 15 others.
  for (int i = 0; i < 15; ++i) Add("l" + std::to_string(i), {"l" + std::to_string(i + 1)});
  Add("l15", {});
  ASSERT_EQ(Expand(), "ok");
  EXPECT_THAT(parents_[0], SizeIs(15));
  specs_[15]->charges = {"l16"};
  Add("l16", {});
  EXPECT_EQ(Expand(),
            "l0.charges: with those that the limits named here charge in turn, and itself, this "
            "limit makes more than 16 charges of one; at most 16");
}

TEST_F(ChargesTest, HandlesAVeryLongChain) {
  for (int i = 0; i < 50'000; ++i) Add("l" + std::to_string(i), {"l" + std::to_string(i + 1)});
  Add("l50000", {"l0"});
  EXPECT_THAT(Expand(), ::testing::StartsWith("l0.charges[0]: \"l1\": makes a cycle, l0 -> l1"));
  specs_.back()->charges.clear();
  EXPECT_THAT(Expand(), ::testing::StartsWith("l0.charges: with those"));
}

TEST_F(ChargesTest, RejectsSlotsTogetherWithASplitLimit) {
  const std::string advice =
      " has algorithm concurrency, which cannot be charged together; have \"rate\" say sharing: "
      "exact or relaxed";
  Add("slots", {"between"});
  Add("between", {"rate"});
  Add("rate", {});
  specs_[0]->algorithm = algorithm::Kind::kConcurrency;
  ASSERT_EQ(Expand(), "ok");
  specs_[2]->sharing = store::Sharing::kSplit;
  EXPECT_EQ(Expand(), "slots.charges: \"rate\" says sharing: split and \"slots\"" + advice);
  specs_[0]->charges = {};
  ASSERT_EQ(Expand(), "ok");
  specs_[2]->charges = {"slots"};
  EXPECT_EQ(Expand(), "between.charges: \"rate\" says sharing: split and \"slots\"" + advice);
  specs_[2]->sharing = store::Sharing::kRelaxed;
  EXPECT_EQ(Expand(), "ok");
}

TEST_F(ChargesTest, CountsTheCommonParentOfADiamondOnce) {
  Add("top", {"m0", "m1", "m2", "m3"});
  for (int i = 0; i < 4; ++i) Add("m" + std::to_string(i), {"foot"});
  Add("foot", {});
  ASSERT_EQ(Expand(), "ok");
  EXPECT_THAT(parents_[0], ElementsAre(1, 2, 3, 4, 5));
}

}  // namespace
}  // namespace sluice::limits
