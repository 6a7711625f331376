#include "server/transport/web/metrics/envoy_families.h"

#include "tests/unit/transport/envoy/fixture.h"
#include "tests/unit/transport/web/metrics/fixture.h"

namespace sluice::metrics {
namespace {

using ::testing::Contains;
using ::testing::Key;
using ::testing::Not;
using ::testing::Pair;

class EnvoyFamiliesTest : public MetricsTest {
 protected:
  // As transport::DescriptorTest counts them.
  void Count(const char* limit, uint64_t hits) {
    counters_.Local().OfLimit(registry_.Current()->Find(limit)->limit_id()).total_hits.Add(hits);
  }

  envoy::HitCounters counters_;
};

TEST_F(EnvoyFamiliesTest, ShowsHitsByDomainAndKeys) {
  envoy::DescriptorTree tree;
  tree.sources = {"test"};
  envoy::Descriptor parent = transport::Configured("user", "vip", 5);
  parent.descriptors.push_back(transport::Configured("path", "", 5));
  tree.domains.push_back({.name = "shop", .descriptors = {parent}});
  const auto matcher = std::make_shared<const envoy::Matcher>(tree, envoy::Overrides());
  ASSERT_TRUE(registry_.ApplyEnvoy(envoy::MakeSpecs(*matcher), "1", matcher).ok());
  for (const auto& limit : matcher->limits()) Count(limit->limit_name.c_str(), 7);
  counters_.Local().calls.redis_error.Add(2);
  counters_.Local().calls.reported.Add(3);
  EXPECT_THAT(Samples(), Not(Contains(Key("ratelimit_service_domain_not_found"))));
  sources_.envoy = &counters_;
  const auto samples = Samples();
  EXPECT_THAT(samples, Contains(Pair("ratelimit_service_rate_limit_total_hits{domain=\"shop\","
                                     "key1=\"user_vip\"}",
                                     "7")));
  EXPECT_THAT(samples, Contains(Pair("ratelimit_service_rate_limit_total_hits{domain=\"shop\","
                                     "key1=\"user_vip\",key2=\"path\"}",
                                     "7")));
  EXPECT_THAT(samples, Contains(Pair("ratelimit_service_rate_limit_over_limit{domain=\"shop\","
                                     "key1=\"user_vip\"}",
                                     "0")));
  EXPECT_THAT(samples, Not(Contains(Key("ratelimit_service_rate_limit_shadow_mode{domain=\"shop\","
                                        "key1=\"user_vip\"}"))));
  EXPECT_THAT(
      samples,
      Contains(Pair("ratelimit_service_should_rate_limit_error{err_type=\"redis_error\"}", "2")));
  EXPECT_THAT(samples,
              Contains(Pair("sluice_kuadrant_reservations_total{outcome=\"reported\"}", "3")));
}

TEST_F(EnvoyFamiliesTest, SumsNamesBeyondTheBound) {
  envoy::HitsByName hits;
  for (size_t i = 0; i < 600; ++i) hits["d.k_" + std::to_string(i)].total_hits = 1;
  EnvoyHitFamilies families(hits, 500);
  prometheus::MetricFamily family;
  bool continued = false;
  size_t samples = 0;
  size_t pieces = 0;
  double others = 0;
  while (families.NextPiece(&family, &continued) &&
         family.name == "ratelimit_service_rate_limit_total_hits") {
    EXPECT_EQ(continued, pieces++ > 0);
    samples += family.metric.size();
    if (!family.metric.empty()) others = family.metric.back().counter.value;
  }
  EXPECT_EQ(pieces, 3u);
  EXPECT_EQ(samples, 501u);
  EXPECT_EQ(others, 100);
}

}  // namespace
}  // namespace sluice::metrics
