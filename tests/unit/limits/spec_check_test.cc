#include "server/limits/spec_check.h"

#include <gtest/gtest.h>

#include <limits>
#include <string>

#include "common/bounds.h"
#include "server/algorithm/parameters.h"

namespace sluice::limits {
namespace {

using algorithm::Kind;

constexpr int64_t kSecondNs = 1'000'000'000;
constexpr int64_t kHourNs = 3600 * kSecondNs;
constexpr int64_t kDayNs = 24 * kHourNs;

LimitSpec Spec(Kind kind = Kind::kTokenBucket) {
  LimitSpec spec;
  spec.name = "api";
  spec.algorithm = kind;
  spec.rate = {100, kSecondNs};
  return spec;
}

std::string Check(const LimitSpec& spec) {
  const auto problem = CheckSpec(spec, nullptr);
  return problem ? ProblemText(problem->Path(spec), *problem) : "ok";
}

TEST(SpecCheckTest, FillsInDefaults) {
  LimitSpec spec = Spec();
  SpecParameters made;
  ASSERT_FALSE(CheckSpec(spec, &made));
  EXPECT_EQ(made.own.token_bucket.burst, 100u);
  EXPECT_EQ(made.own.token_bucket.debt, 0u);

  spec = Spec(Kind::kSlidingWindow);
  ASSERT_FALSE(CheckSpec(spec, &made));
  EXPECT_EQ(made.own.sliding_window.sub_windows, common::bounds::kDefaultSubWindows);
}

TEST(SpecCheckTest, OverridesInheritAbsentParameters) {
  LimitSpec spec = Spec();
  spec.keys.push_back({"fast", algorithm::Rate{1000, kSecondNs}, {}, {}});
  spec.keys.push_back({"deep", {}, 7, 3});
  SpecParameters made;
  ASSERT_FALSE(CheckSpec(spec, &made));
  ASSERT_EQ(made.keys.size(), 2u);
  // No burst anywhere: the permits of the override's own rate.
  EXPECT_EQ(made.keys[0].token_bucket.burst, 1000u);
  EXPECT_EQ(made.keys[1].token_bucket.rate, spec.rate);
  EXPECT_EQ(made.keys[1].token_bucket.burst, 7u);
  EXPECT_EQ(made.keys[1].token_bucket.debt, 3u);

  spec.burst = 50;
  ASSERT_FALSE(CheckSpec(spec, &made));
  EXPECT_EQ(made.keys[0].token_bucket.burst, 50u);
}

TEST(SpecCheckTest, AcceptsExtremes) {
  LimitSpec spec = Spec();
  spec.rate = {1, 365 * kDayNs};
  spec.burst = 20;
  EXPECT_EQ(Check(spec), "ok");
  spec = Spec();
  spec.rate = {1'000'000'000, kSecondNs};
  EXPECT_EQ(Check(spec), "ok");
  spec = Spec();
  spec.burst = 0;
  spec.debt = 1;
  EXPECT_EQ(Check(spec), "ok");
  spec = Spec();
  spec.name = std::string(128, 'x');
  spec.keys.push_back({std::string(512, 'k'), {}, 1, {}});
  spec.keys.push_back({"", {}, 1, {}});
  EXPECT_EQ(Check(spec), "ok");
  spec = Spec(Kind::kFixedWindow);
  spec.utc_offset_ns = -kDayNs;
  spec.max_wait_ns = kDayNs;
  spec.min_keys = common::bounds::kMaxMinKeys;
  EXPECT_EQ(Check(spec), "ok");
  spec.max_wait_ns = 0;
  spec.min_keys = 0;
  EXPECT_EQ(Check(spec), "ok");
}

TEST(SpecCheckTest, NamesTheFieldAndTheRemedy) {
  struct Case {
    LimitSpec spec;
    std::string text;
  };
  std::vector<Case> cases;
  const auto add = [&](Kind kind, const auto& change, std::string text) {
    LimitSpec spec = Spec(kind);
    change(spec);
    cases.push_back({std::move(spec), std::move(text)});
  };
  const auto kBucket = Kind::kTokenBucket;
  const auto kLog = Kind::kSlidingLog;

  add(
      kBucket, [](auto& s) { s.name = ""; },
      "name: is empty; say a name of letters, digits and - _ . : / @");
  add(
      kBucket, [](auto& s) { s.name = "a b"; },
      "name: \"a b\": a name has only letters, digits and - _ . : / @");
  add(
      kBucket, [](auto& s) { s.name = std::string(129, 'n'); },
      "name: \"" + std::string(64, 'n') + "...\": the name has 129 characters; at most 128");
  add(
      kBucket, [](auto& s) { s.rate.permits = 0; },
      "rate: \"0/s\": grants nothing; say at least 1 permit per period, e.g. 1/s");
  add(
      kBucket, [](auto& s) { s.rate.permits = uint64_t{1} << 63; },
      "rate: \"9223372036854775808/s\": the permits do not fit; at most 9223372036854775807");
  add(
      kBucket, [](auto& s) { s.rate.period_ns = 999'999; },
      "rate: \"100/999999ns\": the period must be from 1ms to 366d");
  add(
      kBucket, [](auto& s) { s.rate.period_ns = 0; },
      "rate: \"100/0s\": the period must be from 1ms to 366d");
  add(kBucket, [](auto& s) { s.rate.period_ns = -1; }, "rate: the period must be from 1ms to 366d");
  add(
      kBucket, [](auto& s) { s.rate.period_ns = 367 * kDayNs; },
      "rate: \"100/367d\": the period must be from 1ms to 366d");
  add(
      kBucket, [](auto& s) { s.rate.permits = 1'000'000'001; },
      "rate: \"1000000001/s\": is too fast; at most 1000000000/s");
  add(
      kBucket, [](auto& s) { s.burst = 0; },
      "burst: \"0\": without debt grants nothing; say at least 1, or add debt to pace evenly");
  add(
      kBucket, [](auto& s) { s.burst = uint64_t{1} << 63; },
      "burst: \"9223372036854775808\": does not fit; at most 9223372036854775807");
  add(
      kBucket, [](auto& s) { s.debt = std::numeric_limits<uint64_t>::max(); },
      "debt: \"18446744073709551615\": does not fit; at most 9223372036854775807");
  add(
      kBucket, [](auto& s) { s.sub_windows = 10; },
      "sub_windows: \"10\": token_bucket has none; take it out, or say algorithm: sliding_window");
  add(
      kBucket, [](auto& s) { s.utc_offset_ns = kHourNs; },
      "utc_offset: \"+01:00\": token_bucket has none; take it out, or say algorithm: "
      "fixed_window");
  add(
      kBucket,
      [](auto& s) {
        s.max_owed = 5;
        s.keys.push_back({"u", {}, {}, 6});
      },
      "keys[\"u\"]: \"u\": its max_owed of 5 (the limit's or the default) does not go with it: is "
      "below debt, 6; say at least as many");
  add(
      kLog,
      [](auto& s) {
        s.sharing = store::Sharing::kRelaxed;
        s.max_owed = 5;
      },
      "max_owed: \"5\": sharing: relaxed has no forced debits; take it out, or say sharing: exact");
  add(
      kLog, [](auto& s) { s.burst = 5; },
      "burst: \"5\": sliding_log has none; take it out, or say algorithm: token_bucket");
  add(
      kLog, [](auto& s) { s.debt = 0; },
      "debt: \"0\": sliding_log has none; take it out, or say algorithm: token_bucket");
  add(
      Kind::kSlidingWindow, [](auto& s) { s.sub_windows = 0; },
      "sub_windows: \"0\": must be from 1 to 100");
  add(
      Kind::kSlidingWindow, [](auto& s) { s.sub_windows = 101; },
      "sub_windows: \"101\": must be from 1 to 100");
  add(
      Kind::kFixedWindow, [](auto& s) { s.utc_offset_ns = kDayNs + 1; },
      "utc_offset: \"+86400000000001ns\": must be from -24:00 to +24:00");
  add(
      kBucket, [](auto& s) { s.max_wait_ns = kDayNs + 1; },
      "max_wait: \"86400000000001ns\": must be from 0s to 24h");
  add(kBucket, [](auto& s) { s.max_wait_ns = -1; }, "max_wait: must be from 0s to 24h");
  add(
      kBucket, [](auto& s) { s.min_keys = common::bounds::kMaxMinKeys + 1; },
      "min_keys: \"4294967297\": is too many; at most 4294967296");
  add(
      kBucket, [](auto& s) { s.charges = {"ok", "not ok"}; },
      "charges[1]: \"not ok\": a name has only letters, digits and - _ . : / @");
  add(
      kBucket, [](auto& s) { s.charges = {"a", "b", "a"}; },
      "charges[2]: \"a\": is named twice; a limit is charged once, name it once");
  add(
      kBucket,
      [](auto& s) {
        for (int i = 0; i < 16; ++i) s.charges.push_back("p" + std::to_string(i));
      },
      "charges: names 16 limits; at most 15");
  add(
      kBucket, [](auto& s) { s.keys.push_back({std::string(513, 'k'), {}, 1, {}}); },
      "keys[\"" + std::string(64, 'k') + "...\"]: \"" + std::string(64, 'k') +
          "...\": the key has 513 bytes; at most 512");
  add(
      kBucket,
      [](auto& s) {
        s.keys.push_back({"u", {}, 1, {}});
        s.keys.push_back({"u", {}, 2, {}});
      },
      "keys[\"u\"]: \"u\": the key is given twice; keep one");
  add(
      kBucket, [](auto& s) { s.keys.push_back({"u", {}, {}, {}}); },
      "keys[\"u\"]: \"u\": says nothing; give it a rate, burst or debt, or take it out");
  add(
      kBucket, [](auto& s) { s.keys.push_back({"u", algorithm::Rate{0, kSecondNs}, {}, {}}); },
      "keys[\"u\"].rate: \"0/s\": grants nothing; say at least 1 permit per period, e.g. 1/s");
  add(
      kBucket, [](auto& s) { s.keys.push_back({"u", {}, 0, {}}); },
      "keys[\"u\"].burst: \"0\": without debt grants nothing; say at least 1, or add debt to pace "
      "evenly");
  add(
      kLog, [](auto& s) { s.keys.push_back({"u", {}, 5, {}}); },
      "keys[\"u\"].burst: \"5\": sliding_log has none; take it out, or say algorithm: "
      "token_bucket");

  for (const Case& c : cases) EXPECT_EQ(Check(c.spec), c.text);
}

TEST(SpecCheckTest, ReportsBurstAndDebtThatDoNotFitTogether) {
  LimitSpec spec = Spec();
  spec.rate = {1, 365 * kDayNs};
  spec.burst = 1'000'000;
  const auto problem = CheckSpec(spec, nullptr);
  ASSERT_TRUE(problem);
  EXPECT_EQ(problem->Path(spec), "burst");
  EXPECT_EQ(problem->value, "1000000");
  EXPECT_NE(problem->advice.find("at most"), std::string::npos) << problem->advice;

  // The limit's burst does not fit the override's rate: reported for the override.
  spec = Spec();
  spec.burst = 1'000'000;
  spec.keys.push_back({"slow", algorithm::Rate{1, 365 * kDayNs}, {}, {}});
  const auto of_key = CheckSpec(spec, nullptr);
  ASSERT_TRUE(of_key);
  EXPECT_EQ(of_key->Path(spec), "keys[\"slow\"]");
  EXPECT_NE(of_key->advice.find("burst of 1000000"), std::string::npos) << of_key->advice;
}

}  // namespace
}  // namespace sluice::limits
