#include "server/envoy/matcher.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "server/envoy/limit_specs.h"
#include "tests/unit/envoy/trees.h"

namespace sluice::envoy {
namespace {

constexpr char kEdge[] = R"(
domain: edge
descriptors:
  - key: path
    value: /exact
    rate_limit: {unit: second, requests_per_unit: 1}
  - key: path
    value: /a/*
    rate_limit: {unit: second, requests_per_unit: 2}
  - key: path
    value: /a/b/*
    rate_limit: {unit: second, requests_per_unit: 3}
  - key: path
    value: "*.png"
    rate_limit: {unit: second, requests_per_unit: 4}
  - key: path
    value: /x*y*z
    rate_limit: {unit: second, requests_per_unit: 5}
  - key: path
    rate_limit: {unit: second, requests_per_unit: 6}
  - key: user
    descriptors:
      - key: method
        value: GET
        rate_limit: {unit: minute, requests_per_unit: 7}
      - key: method
        rate_limit: {unit: minute, requests_per_unit: 8}
  - key: user
    value: root
    rate_limit: {unlimited: true}
  - key: tenant
    value: acme
    descriptors:
      - key: method
        value: PUT
        rate_limit: {unit: minute, requests_per_unit: 9}
  - key: tenant
    rate_limit: {unit: minute, requests_per_unit: 10}
    descriptors:
      - key: method
        rate_limit: {unit: minute, requests_per_unit: 11}
)";

struct Case {
  std::string name;
  std::vector<Entry> entries;
  uint32_t requests = 0;  // 0: no limit
  std::string key = {};
};

void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }

class MatcherTest : public ::testing::TestWithParam<Case> {};

TEST_P(MatcherTest, FindsTheLimitAndItsBucket) {
  const auto matcher = MatcherOfText(kEdge);
  const Found found = FindIn(*matcher, "edge", GetParam().entries);
  EXPECT_EQ(found.limit == nullptr ? 0 : found.limit->requests_per_unit, GetParam().requests);
  EXPECT_EQ(found.key, GetParam().key);
}

INSTANTIATE_TEST_SUITE_P(
    Rules, MatcherTest,
    ::testing::Values(
        Case{"ExactBeforeBareKey", {{"path", "/exact"}}, 1, ""},
        Case{"FirstWildcardInFileOrder", {{"path", "/a/b/c"}}, 2, "/a/b/c"},
        Case{"WildcardStandsForNoCharacters", {{"path", "/a/"}}, 2, "/a/"},
        Case{"WildcardAtTheFront", {{"path", "/i/x.png"}}, 4, "/i/x.png"},
        Case{"EarlierWildcardBeforeALaterOne", {{"path", "/a/x.png"}}, 2, "/a/x.png"},
        Case{"SeveralWildcards", {{"path", "/x1y2z"}}, 5, "/x1y2z"},
        Case{"WildcardPartsDoNotOverlap", {{"path", "/xz"}}, 6, "/xz"},
        Case{"BareKeyLast", {{"path", "/other"}}, 6, "/other"},
        Case{"BareKeyWithoutValue", {{"path", ""}}, 6, ""},
        Case{"LiteralTextOfAWildcard", {{"path", "/a/*"}}, 2, "/a/*"},
        Case{"OtherKey", {{"host", "a"}}}, Case{"TooShallow", {{"user", "u"}}},
        Case{"SecondLevel", {{"user", "u"}, {"method", "GET"}}, 7, "u"},
        Case{"SecondLevelBareKey", {{"user", "u"}, {"method", "POST"}}, 8, "u|POST"},
        Case{"TooDeep", {{"user", "u"}, {"method", "GET"}, {"path", "/"}}},
        Case{"NoBacktracking", {{"tenant", "acme"}, {"method", "GET"}}},
        Case{"LimitAboveTheLastEntryDoesNotApply", {{"tenant", "t"}, {"host", "h"}}},
        Case{"BothLevelsHaveLimits", {{"tenant", "t"}, {"method", "GET"}}, 11, "t|GET"},
        Case{"SeparatorsInValues", {{"tenant", "a|b\\"}, {"method", "c"}}, 11, "a\\|b\\\\|c"},
        Case{"NoEntries", {}}),
    [](const auto& info) { return info.param.name; });

TEST(MatcherOfTest, UnlimitedHasNoLimitInTheTable) {
  const auto matcher = MatcherOfText(kEdge);
  const Found found = FindIn(*matcher, "edge", {{"user", "root"}});
  ASSERT_NE(found.limit, nullptr);
  EXPECT_TRUE(found.limit->unlimited);
  EXPECT_EQ(found.limit->limit_index, MatchedLimit::kUncounted);
  const std::vector<limits::LimitSpec> specs = MakeSpecs(*matcher);
  EXPECT_EQ(specs.size(), 11u);
  for (const auto& limit : matcher->limits()) {
    if (limit->unlimited) continue;
    EXPECT_EQ(specs[limit->limit_index].name, limit->limit_name);
  }
}

TEST(MatcherOfTest, UnknownDomainHasNoLevel) {
  EXPECT_EQ(MatcherOfText(kEdge)->FindDomain("edg"), nullptr);
  EXPECT_EQ(MatcherOfText(kEdge)->FindDomain(""), nullptr);
}

TEST(MatcherOfTest, SharedThresholdHasOneBucket) {
  const auto matcher = MatcherOfText(R"(
domain: d
descriptors:
  - key: path
    value: /f*
    share_threshold: true
    descriptors:
      - key: user
        rate_limit: {unit: hour, requests_per_unit: 5}
)");
  EXPECT_EQ(FindIn(*matcher, "d", {{"path", "/f1"}, {"user", "u"}}).key, "u");
  EXPECT_EQ(FindIn(*matcher, "d", {{"path", "/f2"}, {"user", "u"}}).key, "u");
}

// "a_b" + "c" and "a" + "b_c" are put together to one text, which finds one limit as in
// envoyproxy/ratelimit; but they count apart.
TEST(MatcherOfTest, EntriesThatJoinToOneTextCountApart) {
  const auto matcher = MatcherOfText(R"(
domain: d
descriptors:
  - key: a
    value: b_c
    rate_limit: {unit: hour, requests_per_unit: 5}
)");
  const Found own = FindIn(*matcher, "d", {{"a", "b_c"}});
  const Found joined = FindIn(*matcher, "d", {{"a_b", "c"}});
  ASSERT_NE(own.limit, nullptr);
  EXPECT_EQ(joined.limit, own.limit);
  EXPECT_EQ(own.key, "");
  EXPECT_EQ(joined.key, "\\ea_b|c");
}

TEST(MatcherOfTest, LongKeysAreHashedAndStayApart) {
  const auto matcher = MatcherOfText(kEdge);
  const std::string longest(common::bounds::kMaxKeyBytes, 'x');
  EXPECT_EQ(FindIn(*matcher, "edge", {{"path", longest}}).key, longest);
  const Found one = FindIn(*matcher, "edge", {{"path", longest + "1"}});
  const Found other = FindIn(*matcher, "edge", {{"path", longest + "2"}});
  ASSERT_NE(one.limit, nullptr);
  EXPECT_EQ(one.key.size(), 2u + 64);
  EXPECT_TRUE(one.key.starts_with("\\h"));
  EXPECT_NE(one.key, other.key);
  EXPECT_EQ(FindIn(*matcher, "edge", {{"path", longest + "1"}}).key, one.key);
  // A value that looks like a hashed key has another key.
  EXPECT_NE(FindIn(*matcher, "edge", {{"path", one.key}}).key, one.key);
  // So does one that is long only because of what stands before its own | and \\.
  const std::string escaped = std::string(300, '|') + std::string(300, '\\');
  const Found third = FindIn(*matcher, "edge", {{"path", escaped}});
  EXPECT_TRUE(third.key.starts_with("\\h"));
  EXPECT_NE(FindIn(*matcher, "edge", {{"path", escaped + "|"}}).key, third.key);
  EXPECT_EQ(FindIn(*matcher, "edge", {{"path", escaped.substr(172, 256)}}).key.size(), 512u);
  // Longer than any configured text.
  EXPECT_EQ(FindIn(*matcher, "edge", {{"path", "/a/" + std::string(65536, 'x')}})
                .limit->requests_per_unit,
            2u);
}

TEST(MatcherOfTest, MetricNamesAreThoseOfEnvoyproxyRatelimit) {
  const auto matcher = MatcherOfText(R"(
domain: d
descriptors:
  - key: plain
    value: x*
    rate_limit: {unit: hour, requests_per_unit: 1}
  - key: detailed
    detailed_metric: true
    rate_limit: {unit: hour, requests_per_unit: 1}
  - key: valued
    value_to_metric: true
    descriptors:
      - key: leaf
        rate_limit: {unit: hour, requests_per_unit: 1}
  - key: shared
    value: s*
    share_threshold: true
    detailed_metric: true
    rate_limit: {unit: hour, requests_per_unit: 1}
)");
  const auto name = [&](const std::vector<Entry>& entries) {
    const Found found = FindIn(*matcher, "d", entries);
    EXPECT_NE(found.limit, nullptr);
    const std::string full = matcher->MetricName("d", entries);
    EXPECT_EQ(full != found.limit->metric_name, found.limit->metric_has_values) << full;
    return full;
  };
  EXPECT_EQ(name({{"plain", "xy"}}), "d.plain_x*");
  EXPECT_EQ(name({{"detailed", "v"}}), "d.detailed_v");
  EXPECT_EQ(name({{"valued", "v"}, {"leaf", "l"}}), "d.valued_v.leaf");
  EXPECT_EQ(matcher->MetricName("d", std::vector<Entry>{{"shared", "s1"}}), "d.shared_s*");
}

TEST(LimitPathTest, NamesAreReadableAndDifferent) {
  const auto name = [](std::vector<std::pair<std::string, std::string>> path) {
    LimitPath limit("edge");
    for (const auto& [key, value] : path) limit = limit.Child(key, value);
    return limit.Name();
  };
  EXPECT_EQ(name({{"remote_address", ""}}), "edge//remote_address");
  EXPECT_EQ(name({{"path", "/api/v1/*"}, {"method", "GET"}}), "edge//path:/api/v1/@2A//method:GET");
  EXPECT_EQ(name({{"a:b", "c"}}), "edge//a@3Ab:c");
  EXPECT_EQ(name({{"a", "b:c"}}), "edge//a:b:c");
  EXPECT_EQ(name({{"a", "b//c"}}), "edge//a:b/@2Fc");
  EXPECT_EQ(name({{"a", "b"}, {"c", ""}}), "edge//a:b//c");
  EXPECT_EQ(name({{"a", "b/"}, {"c", ""}}), "edge//a:b@2F//c");
  EXPECT_EQ(name({{"a@b", ""}}), "edge//a@40b");
  const std::string one = name({{"k", std::string(200, 'x') + "1"}});
  const std::string other = name({{"k", std::string(200, 'x') + "2"}});
  EXPECT_EQ(one.size(), common::bounds::kMaxLimitNameBytes);
  EXPECT_NE(one, other);
}

TEST(MakeSpecsTest, CountsAsConfigured) {
  const std::string text = R"(
domain: d
descriptors:
  - key: a
    rate_limit: {unit: week, requests_per_unit: 5, name: weekly}
  - key: b
    shadow_mode: true
    rate_limit: {unit: second, requests_per_unit: 0}
  - key: c
    rate_limit: {unit: second, requests_per_unit: 4294967295}
)";
  const DescriptorTree tree = TreeOf({text}).tree;
  std::vector<limits::LimitSpec> specs = MakeSpecs(Matcher(tree, Overrides()));
  ASSERT_EQ(specs.size(), 3u);
  constexpr int64_t kSecond = 1'000'000'000;
  EXPECT_EQ(specs[0].algorithm, algorithm::Kind::kFixedWindow);
  EXPECT_EQ(specs[0].rate, (algorithm::Rate{5, 7 * 86400 * kSecond}));
  EXPECT_EQ(specs[0].defined_at, "f.yaml:4:5");
  EXPECT_EQ(specs[1].rate, (algorithm::Rate{1, kSecond}));
  EXPECT_EQ(specs[1].mode, limits::Mode::kShadow);
  EXPECT_EQ(specs[2].rate, (algorithm::Rate{1'000'000'000, kSecond}));

  Overrides overrides;
  overrides.all.mode = CountMode::kExact;
  overrides.limits["weekly"] = {CountMode::kExact, ExactAlgorithm::kSlidingWindow, true};
  overrides.limits["d//c"] = {};
  const Matcher matcher(tree, overrides);
  specs = MakeSpecs(matcher);
  EXPECT_EQ(specs[0].algorithm, algorithm::Kind::kSlidingWindow);
  EXPECT_TRUE(matcher.limits()[0]->counting.all_or_none);
  EXPECT_EQ(specs[1].algorithm, algorithm::Kind::kTokenBucket);
  EXPECT_EQ(specs[2].algorithm, algorithm::Kind::kFixedWindow);
}

}  // namespace
}  // namespace sluice::envoy
