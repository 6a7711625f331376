#include "server/transport/envoy/descriptor_call.h"

#include <algorithm>
#include <string>

#include "common/errors.h"
#include "tests/unit/transport/envoy/fixture.h"

namespace sluice::transport {
namespace {

using envoy::CountMode;
using ::testing::HasSubstr;

constexpr envoy::Counting kExact = {.mode = CountMode::kExact};
constexpr envoy::Counting kAllOrNone = {.mode = CountMode::kExact, .all_or_none = true};

// ---- compatible ----

TEST_F(DescriptorTest, CountsUpToTheLimit) {
  Configure({Configured("user", "", 2)});
  EXPECT_EQ(Ask({{{{"user", "a"}}}}), "O1 OK");
  const DescriptorStatus& status = descriptors_.statuses()[0];
  EXPECT_EQ(status.requests_per_unit, 2u);
  EXPECT_EQ(status.unit, envoy::Unit::kMinute);
  EXPECT_GE(status.reset_s, 1u);
  EXPECT_LE(status.reset_s, 60u);
  EXPECT_EQ(Ask({{{{"user", "a"}}}}), "O0 OK");
  EXPECT_EQ(Ask({{{{"user", "a"}}}}), "X0 OVER");
  EXPECT_EQ(Ask({{{{"user", "b"}}}}), "O1 OK");
  clock_.Advance(60 * service::kSecond);
  EXPECT_EQ(Ask({{{{"user", "a"}}}}), "O1 OK");
}

TEST_F(DescriptorTest, AnswersOkWithoutFieldsWhereNoLimitApplies) {
  envoy::Descriptor parent = Configured("a", "", 5);
  parent.rate_limit.reset();
  parent.descriptors.push_back(Configured("b", "", 5));
  Configure({parent, Configured("x", "1", 5)});
  EXPECT_EQ(Ask({{{{"a", "1"}}}, {{{"x", "2"}}}, {{{"x", "1"}, {"y", "1"}}}, {{}}}), "- - - - OK");
  EXPECT_EQ(Ask({{{{"a", "1"}, {"b", "1"}}}}), "O4 OK");
  EXPECT_EQ(Ask({{{{"x", "1"}}}}, 0, Method::kShouldRateLimit, "other"), "- OK");
  EXPECT_EQ(limiter().counters().Calls().domain_not_found, 1u);
}

TEST_F(DescriptorTest, CountsHitsOfTheDescriptorElseOfTheRequest) {
  Configure({Configured("k", "", 100)});
  EXPECT_EQ(Ask({{{{"k", "1"}}}}, 10), "O90 OK");
  EXPECT_EQ(Ask({{.entries = {{"k", "1"}}, .hits = 3}}, 10), "O87 OK");
  EXPECT_EQ(Ask({{{{"k", "1"}}}}, 0), "O86 OK");
  EXPECT_EQ(Ask({{.entries = {{"k", "1"}}, .hits = 0}}, 10), "O86 OK");
}

TEST_F(DescriptorTest, DeniedHitsAreCounted) {
  Configure({Configured("k", "", 10)});
  EXPECT_EQ(Ask({{{{"k", "1"}}}}, 25), "X0 OVER");
  // 15 over the limit: 10 given back leave it over, and 5 more at exactly the limit.
  EXPECT_EQ(Ask({{.entries = {{"k", "1"}}, .hits = 10, .negative = true}}), "O0 OK");
  EXPECT_EQ(Ask({{.entries = {{"k", "1"}}, .hits = 0}}), "X0 OVER");
  EXPECT_EQ(Ask({{.entries = {{"k", "1"}}, .hits = 5, .negative = true}}), "O0 OK");
  EXPECT_EQ(Ask({{.entries = {{"k", "1"}}, .hits = 0}}), "O0 OK");
  EXPECT_EQ(Ask({{.entries = {{"k", "1"}}, .hits = 100, .negative = true}}), "O10 OK");
  EXPECT_EQ(Ask({{{{"k", "1"}}}}), "O9 OK");
}

TEST_F(DescriptorTest, SiblingsOfADescriptorOverItsLimitAreCounted) {
  Configure({Configured("a", "", 1), Configured("b", "", 10)});
  EXPECT_EQ(Ask({{{{"a", "1"}}}, {{{"b", "1"}}}}), "O0 O9 OK");
  EXPECT_EQ(Ask({{{{"a", "1"}}}, {{{"b", "1"}}}}), "X0 O8 OVER");
}

TEST_F(DescriptorTest, CountsDescriptorsOfOneBucketInOrder) {
  Configure({Configured("k", "", 3)});
  const Asked one = {{{"k", "1"}}};
  const Asked check = {.entries = {{"k", "1"}}, .hits = 0};
  EXPECT_EQ(Ask({one, check, one, check}), "O2 O2 O1 O1 OK");
  EXPECT_EQ(Ask({check, one, one, check}), "O1 O0 X0 X0 OVER");
}

// A thousand descriptors, of which the first hundred come twice.
class SlicedDescriptorTest : public DescriptorTest {
 protected:
  SlicedDescriptorTest() {
    sliced_ = true;
    for (int i = 0; i < 900; ++i) values_.push_back(std::to_string(i) + std::string(400, 'v'));
    for (int i = 0; i < 1000; ++i) asked_.push_back({{{"u", values_[i % 900].c_str()}}});
  }
  static std::string Times(int count, const std::string& text) {
    std::string all;
    for (int i = 0; i < count; ++i) all += text;
    return all;
  }

  std::vector<std::string> values_;
  std::vector<Asked> asked_;
};

TEST_F(SlicedDescriptorTest, CountsAsInOneSlice) {
  Configure({Configured("u", "", 3)});
  EXPECT_EQ(Ask(asked_, 2), Times(900, "O1 ") + Times(100, "X0 ") + "OVER");
  EXPECT_GT(slices_, 4);
  EXPECT_EQ(limiter().counters().Hits(registry_.Current()).begin()->second.total_hits, 2000u);
  const common::MetricsSnapshot counted = metrics_.Snapshot(0);
  EXPECT_EQ(counted.granted, 900u);
  EXPECT_EQ(counted.denied, 100u);
  // Few are decided at once.
  EXPECT_EQ(Ask({{{{"u", "a"}}}, {{{"u", "b"}}}}), "O2 O2 OK");
  EXPECT_EQ(slices_, 1);
}

// Patterns that differ only between two *, each of which is looked for in all of the text.
TEST_F(SlicedDescriptorTest, ComparesATextWithManyPatternsInSlices) {
  std::vector<envoy::Descriptor> patterns;
  for (int i = 0; i < 100; ++i) {
    patterns.push_back(Configured("agent", "*bot" + std::to_string(i) + "x*", 5));
  }
  Configure(std::move(patterns));
  const std::string text = std::string(60'000, 'b') + "bot99x" + std::string(60'000, 'b');
  EXPECT_EQ(Ask({{{{"agent", text.c_str()}}}, {{{"agent", "none"}}}}), "O4 - OK");
  EXPECT_GT(slices_, 100 * 120'000 / (512 << 10));
  EXPECT_EQ(Ask({{{{"agent", text.c_str()}}}, {{{"agent", "bot7x"}}}}), "O3 O4 OK");
  sliced_ = false;
  EXPECT_EQ(Ask({{{{"agent", text.c_str()}}}}), "O2 OK");
}

TEST_F(SlicedDescriptorTest, ChecksAsInOneSlice) {
  Configure({Configured("u", "", 3)});
  Ask(asked_, 2);
  const std::string checked = Ask(asked_, 1, Method::kCheck);
  EXPECT_GT(slices_, 4);
  sliced_ = false;
  EXPECT_EQ(Ask(asked_, 1, Method::kCheck), checked);
  EXPECT_EQ(slices_, 1);
}

TEST_F(SlicedDescriptorTest, FoldsBookingsInSlicesBeforeItStopsWhenOver) {
  Use({.stop_when_over = true});
  ConfigureWithPassedBookings();
  EXPECT_EQ(Ask({{{{"f", "x"}}}, {{{"g", "y"}}}}), "O19999 O9 OK");
  EXPECT_GT(slices_, 2);
  EXPECT_EQ(Ask({{{{"f", "x"}}}, {{{"g", "y"}}}}, 10), "O19999 X0 OVER");
  EXPECT_EQ(slices_, 1);
}

TEST_F(SlicedDescriptorTest, DecidesByTheLimitsOfItsStartWhenTheyChangeBetweenSlices) {
  Configure({Configured("u", "", 3)});
  between_slices_ = [this] {
    between_slices_ = nullptr;
    Configure({Configured("u", "", 6)});
  };
  EXPECT_EQ(Ask(asked_, 2), Times(900, "O1 ") + Times(100, "X0 ") + "OVER");
  EXPECT_EQ(descriptors_.statuses()[999].requests_per_unit, 3u);
  sliced_ = false;
  EXPECT_EQ(Ask(asked_, 1), Times(100, "O1 ") + Times(800, "O3 ") + Times(100, "O0 ") + "OK");
}

TEST_F(SlicedDescriptorTest, SaysThatAPartIsCountedWhenItsDeadlinePassesBetweenSlices) {
  Configure({Configured("u", "", 3)});
  deadline_ns_ = clock_.NowNs() + 1;
  between_slices_ = [this] {
    if (metrics_.Snapshot(0).granted > 0) clock_.Advance(2);
  };
  EXPECT_EQ(Ask(asked_),
            "DEADLINE_EXCEEDED: a part of the call was counted before the deadline passed; the "
            "rest was not");
  EXPECT_FALSE(common::errors::WasNotExecuted(descriptors_.status()));
  // Before the first slice nothing is.
  Ask({asked_[0]});
  EXPECT_TRUE(common::errors::WasNotExecuted(descriptors_.status()));
}

TEST_F(DescriptorTest, HugeHitsAreOverAndStay) {
  Configure({Configured("k", "", 10)});
  EXPECT_EQ(Ask({{{{"k", "1"}}}}, UINT32_MAX), "X0 OVER");
  EXPECT_EQ(Ask({{.entries = {{"k", "2"}}, .hits = INT64_MAX}}), "X0 OVER");
  EXPECT_EQ(Ask({{.entries = {{"k", "2"}}, .hits = INT64_MAX}}), "X0 OVER");
  EXPECT_EQ(Ask({{.entries = {{"k", "2"}}, .hits = INT64_MAX}}), "X0 OVER");
  EXPECT_EQ(Ask({{.entries = {{"k", "2"}}, .hits = 0}}), "X0 OVER");
  descriptors_.Reset(Method::kShouldRateLimit);
  Fill({{.entries = {{"k", "3"}}, .hits = 0}}, 0, "d");
  descriptors_.request().descriptors[0].hits = UINT64_MAX;
  limiter().Decide(&descriptors_, store::kNoDeadline, [](void*, DescriptorCall*) {}, nullptr);
  EXPECT_TRUE(descriptors_.statuses()[0].over);
}

TEST_F(DescriptorTest, LimitOfZeroGrantsOnlyChecks) {
  Configure({Configured("k", "", 0)});
  EXPECT_EQ(Ask({{.entries = {{"k", "1"}}, .hits = 0}}), "O0 OK");
  EXPECT_EQ(Ask({{{{"k", "1"}}}}), "X0 OVER");
  EXPECT_EQ(Ask({{.entries = {{"k", "1"}}, .hits = 0}}), "X0 OVER");
  Configure({Configured("k", "", 0)}, kExact);
  EXPECT_EQ(Ask({{{{"k", "2"}}}}), "X0 OVER");
}

TEST_F(DescriptorTest, ShadowModeIsOkAndCounted) {
  envoy::Descriptor shadow = Configured("s", "", 1);
  shadow.shadow_mode = true;
  Configure({shadow, Configured("k", "", 1)});
  EXPECT_EQ(Ask({{{{"s", "1"}}}}, 3), "O0 OK");
  EXPECT_EQ(Ask({{{{"s", "1"}}}, {{{"k", "1"}}}}, 3), "O0 X0 OVER");
  const auto hits = limiter().counters().Hits(registry_.Current());
  ASSERT_EQ(hits.size(), 2u);
  const envoy::HitTotals& of_shadow = hits.at("d.s");
  EXPECT_EQ(of_shadow.total_hits, 6u);
  EXPECT_EQ(of_shadow.over_limit, 5u);
  EXPECT_EQ(of_shadow.shadow_mode, 6u);
}

TEST_F(DescriptorTest, QuotaModeIsOverIfAllQuotasAre) {
  envoy::Descriptor one = Configured("a", "", 1);
  envoy::Descriptor other = Configured("b", "", 2);
  one.quota_mode = other.quota_mode = true;
  Configure({one, other});
  const std::vector<Asked> both = {{{{"a", "1"}}}, {{{"b", "1"}}}};
  EXPECT_EQ(Ask(both), "O0 O1 OK");
  EXPECT_EQ(Ask(both), "X0 O0 OK");
  EXPECT_EQ(Ask(both), "X0 X0 OVER");
}

TEST_F(DescriptorTest, AllDescriptorsAreQuotasIfSoAsked) {
  Configure({Configured("a", "", 1), Configured("b", "", 2)});
  Use({.answer = {.quota_all = true}});
  const std::vector<Asked> both = {{{{"a", "1"}}}, {{{"b", "1"}}}};
  EXPECT_EQ(Ask(both, 2), "X0 O0 OK");
  EXPECT_EQ(Ask({{{{"a", "1"}}}, {{{"c", "1"}}}}), "X0 - OK");
  EXPECT_EQ(Ask(both), "X0 X0 OVER");
}

TEST_F(DescriptorTest, ReplacedLimitsDoNotApply) {
  envoy::Descriptor general = Configured("g", "", 1);
  general.rate_limit->name = "general";
  envoy::Descriptor special = Configured("s", "", 100);
  special.rate_limit->replaces.push_back({"general", {}});
  Configure({general, special});
  EXPECT_EQ(Ask({{{{"g", "1"}}}, {{{"s", "1"}}}}), "- O99 OK");
  EXPECT_EQ(Ask({{{{"g", "1"}}}}), "O0 OK");
}

TEST_F(DescriptorTest, UnlimitedReplacesAndIsNotReplaced) {
  envoy::Descriptor general = Configured("g", "", 1);
  general.rate_limit->name = "general";
  envoy::Descriptor unlimited = Configured("u", "", 0, envoy::Unit::kUnknown);
  unlimited.rate_limit->unlimited = true;
  unlimited.rate_limit->name = "all";
  unlimited.metadata = {{"shown", {}}};  // with limits only
  unlimited.rate_limit->replaces.push_back({"general", {}});
  envoy::Descriptor other = Configured("o", "", 5);
  other.rate_limit->replaces.push_back({"all", {}});
  Configure({general, unlimited, other});
  EXPECT_EQ(Ask({{{{"g", "1"}}}, {{{"u", "1"}}}, {{{"o", "1"}}}}), "- * O4 OK");
  EXPECT_EQ(descriptors_.statuses()[1].metadata, nullptr);
}

TEST_F(DescriptorTest, SiblingsOfADescriptorOverItsLimitAreSparedIfSoAsked) {
  Configure({Configured("a", "", 1), Configured("b", "", 10)});
  Use({.stop_when_over = true});
  const std::vector<Asked> both = {{{{"a", "1"}}}, {{{"b", "1"}}}};
  EXPECT_EQ(Ask(both), "O0 O9 OK");
  EXPECT_EQ(Ask(both), "X0 O9 OVER");
  // A check of a limit that is exceeded spares its siblings too.
  EXPECT_EQ(Ask({{.entries = {{"a", "1"}}, .hits = 0}, {{{"b", "1"}}}}), "X0 O9 OVER");
  EXPECT_EQ(Ask({{{{"b", "1"}}}}, 20), "X0 OVER");
  EXPECT_EQ(Ask({{.entries = {{"b", "1"}}, .hits = 0}}), "X0 OVER");
}

// ---- Limits in requests ----

TEST_F(DescriptorTest, LimitInARequestIsIgnoredUnlessAllowed) {
  Configure({Configured("k", "", 10)});
  const Asked asked = {.entries = {{"k", "1"}}, .requests_per_unit = 3, .unit = 2};
  EXPECT_EQ(Ask({asked}), "O9 OK");
  Use({.request_limits = true});
  EXPECT_EQ(Ask({asked}), "O2 OK");
  EXPECT_EQ(descriptors_.statuses()[0].requests_per_unit, 3u);
}

TEST_F(DescriptorTest, LimitsInRequestsShareTheCountOfTheirWindow) {
  Configure({Configured("k", "", 10)});
  Use({.request_limits = true});
  Asked asked = {.entries = {{"any", "1"}}, .requests_per_unit = 3, .unit = 2};
  EXPECT_EQ(Ask({asked}, 4), "X0 OVER");
  asked.requests_per_unit = 5;
  EXPECT_EQ(Ask({asked}), "O0 OK");
  asked.unit_multiplier = 2;
  EXPECT_EQ(Ask({asked}), "O4 OK");
  EXPECT_EQ(Ask({asked}, 0, Method::kShouldRateLimit, "unknown"), "- OK");
}

TEST_F(DescriptorTest, RefusesLimitsWithoutWindow) {
  Configure({Configured("k", "", 10)});
  Use({.request_limits = true});
  EXPECT_THAT(Ask({{.entries = {{"k", "1"}}, .requests_per_unit = 3, .unit = 0}}),
              HasSubstr("INVALID_ARGUMENT: descriptors[0].limit.unit: 0 is no unit; say SECOND"));
  EXPECT_THAT(Ask({{.entries = {{"k", "1"}}, .requests_per_unit = 3, .unit = 8}}),
              HasSubstr("descriptors[0].limit.unit: 8 is no unit"));
  EXPECT_THAT(
      Ask({{.entries = {{"k", "1"}}, .unit = 4, .unit_multiplier = 400}}),
      HasSubstr("INVALID_ARGUMENT: descriptors[0].limit.unit_multiplier: 400 makes too long "
                "a window; at most 366 of this unit"));
  EXPECT_THAT(Ask({{.entries = {{"k", "1"}}, .unit = 6, .unit_multiplier = UINT32_MAX}}),
              HasSubstr("at most 1 of this unit"));
}

TEST_F(DescriptorTest, BoundsTheWindowsThatRequestsBring) {
  Configure({Configured("k", "", 10)});
  Use({.request_limits = true});
  Asked asked = {.entries = {{"k", "1"}}, .requests_per_unit = 3, .unit = 1};
  for (uint32_t i = 1; i <= common::bounds::kMaxRequestedWindows; ++i) {
    asked.unit_multiplier = i;
    ASSERT_EQ(Ask({asked}), "O2 OK");
  }
  asked.unit_multiplier = 1000;
  EXPECT_THAT(Ask({asked}), HasSubstr("RESOURCE_EXHAUSTED"));
  asked.unit_multiplier = 1;
  EXPECT_EQ(Ask({asked}), "O1 OK");
}

TEST_F(DescriptorTest, RefusesRequestedWindowsWhoseLimitIsAnother) {
  Configure({Configured("k", "", 10)});
  Use({.request_limits = true});
  const Asked asked = {.entries = {{"k", "1"}}, .requests_per_unit = 3, .unit = 2};
  EXPECT_EQ(Ask({asked}), "O2 OK");
  ASSERT_TRUE(registry_.Put(service::PerSecond("envoy-request/60s", 1)).ok());
  EXPECT_THAT(Ask({asked}), HasSubstr("FAILED_PRECONDITION: limit \"envoy-request/60s\" cannot"));
  ASSERT_TRUE(registry_.Delete("envoy-request/60s").ok());
  EXPECT_EQ(Ask({asked}), "O1 OK");
}

// ---- exact ----

TEST_F(DescriptorTest, ExactLimitsDoNotCountWhatTheyDeny) {
  Configure({Configured("k", "", 10)}, kExact);
  EXPECT_EQ(Ask({{{{"k", "1"}}}}, 8), "O2 OK");
  EXPECT_EQ(Ask({{{{"k", "1"}}}}, 3), "X0 OVER");
  EXPECT_EQ(Ask({{{{"k", "1"}}}}, 2), "O0 OK");
  EXPECT_EQ(Ask({{{{"k", "1"}}}}), "X0 OVER");
  EXPECT_EQ(descriptors_.statuses()[0].reset_s, 6u);
  EXPECT_EQ(Ask({{{{"k", "2"}}}}, 11), "X0 OVER");
  EXPECT_EQ(Ask({{{{"k", "2"}}}}, 10), "O0 OK");
}

TEST_F(DescriptorTest, ExactDescriptorsAreDecidedByThemselves) {
  Configure({Configured("a", "", 1), Configured("b", "", 10)}, kExact);
  const std::vector<Asked> both = {{{{"a", "1"}}}, {{{"b", "1"}}}};
  EXPECT_EQ(Ask(both), "O0 O9 OK");
  EXPECT_EQ(Ask(both), "X0 O8 OVER");
}

TEST_F(DescriptorTest, TakesAllOrNone) {
  Configure({Configured("a", "", 1), Configured("b", "", 10)}, kAllOrNone);
  const std::vector<Asked> both = {{{{"a", "1"}}}, {{{"b", "1"}}}};
  EXPECT_EQ(Ask(both), "O0 O9 OK");
  EXPECT_EQ(Ask(both), "X0 O9 OVER");
  EXPECT_EQ(Ask({{.entries = {{"a", "2"}}, .hits = 5}, {{{"b", "1"}}}}), "X0 O9 OVER");
  EXPECT_EQ(Ask({{{{"b", "1"}}}, {{{"b", "1"}}}}, 4), "O1 O1 OK");
}

// It is in shadow, whatever is configured: it denies no other.
TEST_F(DescriptorTest, LimitThatAnAdminPutsInShadowIsNotTakenAllOrNone) {
  Configure({Configured("a", "", 100), Configured("b", "", 100)}, kAllOrNone);
  limits::LimitSpec shadow = service::PerSecond("d//b", 10);
  shadow.mode = limits::Mode::kShadow;
  ASSERT_TRUE(registry_.Put(shadow).ok());
  const std::vector<Asked> both = {{{{"a", "1"}}}, {{{"b", "1"}}}};
  EXPECT_EQ(Ask(both, 11), "O89 O0 OK");
  EXPECT_EQ(Ask(both, 11), "O78 O0 OK");
  limits::LimitSpec enforced = service::PerSecond("d//b", 5);
  ASSERT_TRUE(registry_.Put(enforced).ok());
  clock_.Advance(service::kSecond);
  EXPECT_EQ(Ask(both, 6), "O79 X0 OVER") << "nothing of a is taken";
}

TEST_F(DescriptorTest, ChecksBesideOtherDescriptorsTakeNothingAllOrNone) {
  envoy::Descriptor shadow = Configured("s", "", 10);
  shadow.shadow_mode = true;
  Configure({Configured("a", "", 1), shadow}, kAllOrNone);
  EXPECT_EQ(Ask({{.entries = {{"a", "1"}}, .hits = 0}, {{{"s", "1"}}}}), "O1 O9 OK");
  EXPECT_EQ(Ask({{{{"s", "1"}}}, {{{"a", "1"}}}}, 1, Method::kCheck), "O9 O1 OK");
}

TEST_F(DescriptorTest, BoundsTheLimitsThatAreTakenAllOrNone) {
  Configure({Configured("a", "", 10)}, kAllOrNone);
  std::vector<std::string> values;
  for (size_t i = 0; i <= common::bounds::kMaxCharges; ++i) values.push_back(std::to_string(i));
  std::vector<Asked> asked;
  for (const std::string& value : values) asked.push_back({{{"a", value.c_str()}}});
  EXPECT_THAT(Ask(asked), HasSubstr("INVALID_ARGUMENT: descriptors: more than 16 limits"));
  asked.pop_back();
  EXPECT_THAT(Ask(asked), HasSubstr("O9 OK"));
}

// ---- Kuadrant ----

TEST_F(DescriptorTest, CheckRateLimitCountsNothing) {
  Configure({Configured("k", "", 2)});
  EXPECT_EQ(Ask({{{{"k", "1"}}}}, 2, Method::kCheck), "O2 OK");
  EXPECT_EQ(Ask({{{{"k", "1"}}}}, 3, Method::kCheck), "X0 OVER");
  EXPECT_EQ(Ask({{{{"k", "1"}}}}, 3, Method::kReport), "X0 OVER");
  EXPECT_EQ(Ask({{{{"k", "1"}}}}, 1, Method::kCheck), "X0 OVER");
}

// ---- Errors ----

TEST_F(DescriptorTest, AnswersErrorsAsEnvoysServiceDoes) {
  EXPECT_EQ(Ask({{{{"k", "1"}}}}), "UNKNOWN: no rate limit configuration loaded");
  Configure({Configured("k", "", 2)});
  EXPECT_EQ(Ask({}), "UNKNOWN: rate limit descriptor list must not be empty");
  EXPECT_EQ(Ask({{{{"k", "1"}}}}, 0, Method::kShouldRateLimit, ""),
            "UNKNOWN: rate limit domain must not be empty");
  EXPECT_EQ(limiter().counters().Calls().service_error, 3u);
}

TEST_F(DescriptorTest, BadRequestIsNoErrorOfTheStoreWhateverCameBefore) {
  Configure({Configured("k", "", 2)});
  for (const Method before : {Method::kShouldRateLimit, Method::kCheck}) {
    EXPECT_EQ(Ask({{{{"k", "1"}}}}, 1, before), "O1 OK");
    EXPECT_EQ(Ask({}), "UNKNOWN: rate limit descriptor list must not be empty");
  }
  EXPECT_EQ(limiter().counters().Calls().service_error, 2u);
  EXPECT_EQ(limiter().counters().Calls().redis_error, 0u);
}

// ---- Changes and counters ----

TEST_F(DescriptorTest, ReloadKeepsCountsAndChangesTheLimit) {
  Configure({Configured("k", "", 5)});
  EXPECT_EQ(Ask({{{{"k", "1"}}}}, 4), "O1 OK");
  Configure({Configured("k", "", 10), Configured("l", "", 1)});
  EXPECT_EQ(Ask({{{{"k", "1"}}}}), "O5 OK");
  Configure({Configured("k", "", 3)});
  EXPECT_EQ(Ask({{.entries = {{"k", "1"}}, .hits = 0}}), "X0 OVER");
}

// Whose algorithm may be another, and forgive hits that do not fit.
TEST_F(DescriptorTest, LimitThatAnAdminPutsInPlaceOfAConfiguredOneIsExact) {
  Configure({Configured("k", "", 100)});
  const Asked asked = {{{"k", "1"}}};
  ASSERT_TRUE(registry_.Put(service::PerSecond("d//k", 10)).ok());
  EXPECT_EQ(Ask({asked}, 8), "O2 OK");
  EXPECT_EQ(descriptors_.statuses()[0].requests_per_unit, 10u);
  EXPECT_EQ(descriptors_.statuses()[0].unit, envoy::Unit::kSecond);
  EXPECT_EQ(Ask({asked}, 3), "X0 OVER");
  EXPECT_EQ(Ask({asked}, 2), "O0 OK");
  EXPECT_EQ(Ask({{.entries = {{"k", "1"}}, .hits = 5, .negative = true}}), "O0 OK");
  limits::LimitSpec shadow = service::PerSecond("d//k", 200);
  shadow.mode = limits::Mode::kShadow;
  ASSERT_TRUE(registry_.Put(shadow).ok());
  clock_.Advance(service::kSecond);
  EXPECT_EQ(Ask({asked}, 150), "O50 OK");
  EXPECT_EQ(Ask({asked}, 150), "O0 OK");
  EXPECT_TRUE(descriptors_.statuses()[0].over);
  ASSERT_TRUE(registry_.Delete("d//k").ok());
  EXPECT_EQ(Ask({asked}), "- OK");
}

TEST_F(DescriptorTest, CountsHitsOfEachLimit) {
  envoy::Descriptor detailed = Configured("u", "", 10);
  detailed.detailed_metric = true;
  envoy::Descriptor unlimited = Configured("free", "", 0, envoy::Unit::kUnknown);
  unlimited.rate_limit->unlimited = true;
  Configure({Configured("k", "v", 10), detailed, unlimited});
  Ask({{{{"free", "1"}}}});  // not counted
  Ask({{{{"k", "v"}}}, {{{"u", "a"}}}, {{{"u", "b"}}}}, 9);
  Ask({{{{"k", "v"}}}, {{{"u", "a"}}}}, 3);
  const auto hits = limiter().counters().Hits(registry_.Current());
  std::string text;
  for (const auto& [name, one] : hits) {
    text += name + " " + std::to_string(one.total_hits) + " " + std::to_string(one.over_limit) +
            " " + std::to_string(one.near_limit) + " " + std::to_string(one.within_limit) + "\n";
  }
  EXPECT_EQ(text,
            "d.k_v 12 2 2 9\n"
            "d.u 0 0 0 0\n"
            "d.u_a 12 2 2 9\n"
            "d.u_b 9 0 1 9\n");
}

TEST_F(DescriptorTest, SumsTheHitsOfLongValuesInsteadOfKeepingTheirNames) {
  envoy::Descriptor detailed = Configured("u", "", 10);
  detailed.detailed_metric = true;
  Configure({detailed});
  const std::string long_value(64 << 10, 'x');
  Ask({{{{"u", long_value.c_str()}}}}, 3);
  const auto hits = limiter().counters().Hits(registry_.Current());
  ASSERT_EQ(hits.size(), 1u);
  EXPECT_EQ(hits.at("d.u").total_hits, 3u);
}

}  // namespace
}  // namespace sluice::transport
