#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <string_view>

#include "common/bounds.h"
#include "server/config/load.h"
#include "server/limits/limit_registry.h"
#include "server/limits/spec_check.h"
#include "tests/unit/limits/recording_store.h"

namespace sluice::config {
namespace {

using algorithm::Kind;
using limits::LimitSpec;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr int64_t kSecondNs = 1'000'000'000;
constexpr int64_t kHourNs = 3600 * kSecondNs;

std::vector<LimitSpec> Parse(std::string_view text) {
  const auto specs = ParseLimits(text, "f.yaml");
  EXPECT_TRUE(specs.ok()) << specs.status();
  return specs.ok() ? *specs : std::vector<LimitSpec>();
}

TEST(GoodLimitsTest, AcceptsAnEmptyList) {
  EXPECT_THAT(Parse("limits: []\n"), IsEmpty());
  EXPECT_THAT(Parse("{limits: []}"), IsEmpty());
  EXPECT_THAT(Parse("---\nlimits: []\n...\n"), IsEmpty());
  EXPECT_THAT(Parse("%YAML 1.2\n---\nlimits: []\n"), IsEmpty());
  EXPECT_THAT(Parse("\xef\xbb\xbflimits: []\n"), IsEmpty());
  EXPECT_THAT(Parse("limits: []\r\n"), IsEmpty());
}

TEST(GoodLimitsTest, ReadsEveryField) {
  const auto specs = Parse(R"(# every field
limits:
  - name: api
    algorithm: token_bucket
    rate: 100/s
    burst: 200
    debt: 0
    max_owed: 50
    mode: enforce
    charges: [overall]
    keys: { "user:42": { rate: 1000/s, burst: 2_000 }, "": { debt: 5 } }
  - { name: overall, rate: 5000/s, max_wait: 2s, min_keys: 1, direct: false }
  - name: daily
    algorithm: sliding_window
    rate: 10000/24h
    hash_tag: orders
    sub_windows: 24
    mode: shadow
    on_store_failure: allow
  - name: log
    algorithm: sliding_log
    rate: 500/250ms
    sharing: split
    on_store_failure: split
  - name: calendar
    algorithm: fixed_window
    rate: 10000/day
    utc_offset: -5h30m
)");
  ASSERT_EQ(specs.size(), 5u);
  const LimitSpec& api = specs[0];
  EXPECT_EQ(api.name, "api");
  EXPECT_EQ(api.algorithm, Kind::kTokenBucket);
  EXPECT_EQ(api.rate, (algorithm::Rate{100, kSecondNs}));
  EXPECT_EQ(api.burst, 200u);
  EXPECT_EQ(api.debt, 0u);
  EXPECT_EQ(api.max_owed, 50u);
  EXPECT_EQ(api.mode, limits::Mode::kEnforce);
  EXPECT_EQ(api.on_store_failure, limits::OnStoreFailure::kDeny);
  EXPECT_EQ(api.sharing, store::Sharing::kExact);
  EXPECT_THAT(api.charges, ElementsAre("overall"));
  ASSERT_EQ(api.keys.size(), 2u);
  EXPECT_EQ(api.keys[0].key, "user:42");
  EXPECT_EQ(api.keys[0].rate, (algorithm::Rate{1000, kSecondNs}));
  EXPECT_EQ(api.keys[0].burst, 2000u);
  EXPECT_EQ(api.keys[0].debt, std::nullopt);
  EXPECT_EQ(api.keys[1].key, "");
  EXPECT_EQ(api.keys[1].debt, 5u);
  EXPECT_EQ(api.origin, limits::Origin::kFile);
  EXPECT_EQ(api.defined_at, "f.yaml:3");
  EXPECT_EQ(specs[1].defined_at, "f.yaml:12");
  EXPECT_EQ(specs[1].burst, std::nullopt);
  EXPECT_EQ(specs[2].algorithm, Kind::kSlidingWindow);
  EXPECT_EQ(specs[2].rate.period_ns, 24 * kHourNs);
  EXPECT_EQ(specs[1].hash_tag, std::nullopt);
  EXPECT_EQ(api.max_wait_ns, std::nullopt);
  EXPECT_EQ(api.min_keys, std::nullopt);
  EXPECT_TRUE(api.direct);
  EXPECT_EQ(specs[1].max_wait_ns, 2 * kSecondNs);
  EXPECT_EQ(specs[1].min_keys, 1u);
  EXPECT_FALSE(specs[1].direct);
  EXPECT_EQ(specs[2].hash_tag, "orders");
  EXPECT_EQ(specs[2].sub_windows, 24u);
  EXPECT_EQ(specs[2].mode, limits::Mode::kShadow);
  EXPECT_EQ(specs[2].on_store_failure, limits::OnStoreFailure::kAllow);
  EXPECT_EQ(specs[3].algorithm, Kind::kSlidingLog);
  EXPECT_EQ(specs[3].sharing, store::Sharing::kSplit);
  EXPECT_EQ(specs[3].on_store_failure, limits::OnStoreFailure::kSplit);
  EXPECT_EQ(specs[3].rate, (algorithm::Rate{500, 250'000'000}));
  EXPECT_EQ(specs[4].algorithm, Kind::kFixedWindow);
  EXPECT_EQ(specs[4].utc_offset_ns, -(5 * kHourNs + kHourNs / 2));
}

TEST(GoodLimitsTest, ReadsSlots) {
  const auto specs = Parse(R"(
limits:
  - { name: jobs, algorithm: concurrency, permits: 1_000, hold_for: 1m, keys: { a: { permits: 7 } } }
  - { name: calls, algorithm: concurrency, permits: 2, charges: [rate] }
  - { name: rate, rate: 5/s, charges: [jobs] }
)");
  ASSERT_EQ(specs.size(), 3u);
  EXPECT_EQ(specs[0].algorithm, Kind::kConcurrency);
  EXPECT_EQ(specs[0].permits, 1000u);
  EXPECT_EQ(specs[0].hold_for_ns, 60 * kSecondNs);
  EXPECT_EQ(specs[0].keys[0].permits, 7u);
  limits::SpecParameters parameters;
  ASSERT_FALSE(limits::CheckSpec(specs[0], &parameters).has_value());
  EXPECT_EQ(parameters.own, *algorithm::MakeConcurrency(1000, 60 * kSecondNs));
  EXPECT_EQ(parameters.keys[0], *algorithm::MakeConcurrency(7, 60 * kSecondNs));
  ASSERT_FALSE(limits::CheckSpec(specs[1], &parameters).has_value());
  EXPECT_EQ(parameters.own, *algorithm::MakeConcurrency(2, 30 * kSecondNs));
}

TEST(GoodLimitsTest, ReadsBlockFlowAndQuotedFormsAlike) {
  const auto block = Parse(R"(limits:
- name: api
  rate: 100/s
  charges:
  - overall
  keys:
    user:42:
      rate: 1000/s
- name: overall
  rate: 5000/s
)");
  auto flow =
      Parse(R"({"limits": [{"name": "api", "rate": "100/s", "charges": ["overall"], )"
            R"("keys": {"user:42": {"rate": "1000/s"}}}, {'name': 'overall', 'rate': '5000/s'}]})");
  ASSERT_EQ(flow.size(), block.size());
  for (size_t i = 0; i < flow.size(); ++i) {
    flow[i].defined_at = block[i].defined_at;
    EXPECT_EQ(flow[i], block[i]);
  }
}

TEST(GoodLimitsTest, ReadsNamesThatLookLikeOtherTypes) {
  const auto specs = Parse(R"(limits:
  - { name: 42, rate: 1/s }
  - { name: true, rate: 1/s }
  - { name: "null", rate: 1/s }
  - { name: a/b:c@d.e-f_g, rate: 1/s, keys: { 7: { rate: 2/s }, "~": { rate: 3/s } } }
)");
  ASSERT_EQ(specs.size(), 4u);
  EXPECT_EQ(specs[0].name, "42");
  EXPECT_EQ(specs[1].name, "true");
  EXPECT_EQ(specs[2].name, "null");
  EXPECT_EQ(specs[3].name, "a/b:c@d.e-f_g");
  EXPECT_EQ(specs[3].keys[0].key, "7");
  EXPECT_EQ(specs[3].keys[1].key, "~");
}

TEST(GoodLimitsTest, AcceptsExtremes) {
  EXPECT_EQ(Parse("limits: [{name: a, rate: 1/year, burst: 20}]").size(), 1u);
  EXPECT_EQ(Parse("limits: [{name: a, rate: 1000000000/s, burst: 1}]").size(), 1u);
  EXPECT_EQ(Parse("limits: [{name: a, rate: 1/ms}]").size(), 1u);
  EXPECT_EQ(Parse("limits: [{name: a, rate: 1/s, burst: 0, debt: 1}]").size(), 1u);
  EXPECT_EQ(Parse("limits: [{name: a, rate: 1/366d}]").size(), 1u);
}

TEST(GoodLimitsTest, AcceptsSixteenCharges) {
  std::string text = "limits:\n";
  for (int i = 0; i < 16; ++i) {
    text += "- {name: l" + std::to_string(i) + ", rate: 1/s, charges: [" +
            (i < 15 ? "l" + std::to_string(i + 1) : "") + "]}\n";
  }
  EXPECT_EQ(Parse(text).size(), 16u);
}

TEST(GoodLimitsTest, RegistryAcceptsParsedLimits) {
  limits::RecordingStore store;
  limits::LimitRegistry registry(&store);
  const auto applied = registry.ApplyFile(
      Parse("limits: [{name: a, rate: 1/s, charges: [b]}, {name: b, rate: 1/s}]"), "v1");
  ASSERT_TRUE(applied.ok()) << applied.status();
  EXPECT_EQ(registry.Current()->limits().size(), 2u);
}

TEST(GoodLimitsTest, ParsesAndAppliesTenThousandLimits) {
  const auto text = [](int permits) {
    std::string file = "limits:\n";
    for (int i = 0; i < 10'000; ++i) {
      file += "  - name: limit-" + std::to_string(i) +
              "\n    rate: " + std::to_string(permits + i % 7) + "/s\n    charges: [overall]\n" +
              "    keys: { \"user:1\": { rate: 9/s } }\n";
    }
    return file + "  - { name: overall, rate: 5000/s }\n";
  };
  limits::RecordingStore store;
  limits::LimitRegistry registry(&store);
  ASSERT_TRUE(registry.ApplyFile(Parse(text(10)), "v1").ok());
  const auto before = registry.Current();
  ASSERT_EQ(before->limits().size(), 10'001u);
  ASSERT_TRUE(registry.ApplyFile(Parse(text(20)), "v2").ok());
  const auto after = registry.Current();
  EXPECT_EQ(after->Find("limit-9999")->rule().parameters.token_bucket.rate.permits, 20u + 9999 % 7);
  EXPECT_EQ(after->Find("limit-1")->parents()[0], after->Find("overall"));
  EXPECT_EQ(&after->Find("overall")->rule(), &before->Find("overall")->rule());
  EXPECT_EQ(&after->Find("limit-1")->RuleFor("user:1"),
            &before->Find("limit-1")->RuleFor("user:1"));
}

}  // namespace
}  // namespace sluice::config
