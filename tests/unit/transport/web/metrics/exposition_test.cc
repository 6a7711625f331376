#include "server/transport/web/metrics/exposition.h"

#include <algorithm>
#include <cstdint>
#include <string>
#include <thread>

#include "tests/unit/transport/envoy/fixture.h"
#include "tests/unit/transport/web/metrics/fixture.h"

namespace sluice::metrics {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Key;
using ::testing::Not;
using ::testing::Pair;

TEST_F(MetricsTest, CountsChargesAndPermitsOfEachLimit) {
  limits::LimitSpec trial = PerSecond("trial", 1);
  trial.mode = limits::Mode::kShadow;
  Load({PerSecond("api", 10), PerSecond("idle", 1), trial});
  EXPECT_TRUE(Acquire("api", "k", 8).granted);
  EXPECT_FALSE(Acquire("api", "k", 8).granted);
  EXPECT_TRUE(Acquire("trial", "k").granted);
  EXPECT_TRUE(Acquire("trial", "k").granted);

  const auto samples = Samples();
  EXPECT_THAT(samples, Contains(Pair("sluice_acquisitions_total{outcome=\"granted\"}", "3")));
  EXPECT_THAT(samples, Contains(Pair("sluice_acquisitions_total{outcome=\"denied\"}", "1")));
  const auto charges = [](const char* limit, const char* outcome) {
    return "sluice_limit_charges_total{limit=\"" + std::string(limit) + "\",outcome=\"" + outcome +
           "\"}";
  };
  EXPECT_THAT(samples, Contains(Pair(charges("api", "granted"), "1")));
  EXPECT_THAT(samples, Contains(Pair(charges("api", "denied"), "1")));
  EXPECT_THAT(samples, Contains(Pair(charges("trial", "granted"), "2")));
  EXPECT_THAT(samples, Contains(Pair(charges("idle", "granted"), "0")));
  EXPECT_THAT(samples, Contains(Pair("sluice_limit_permits_granted_total{limit=\"api\"}", "8")));
  EXPECT_THAT(samples, Contains(Pair("sluice_limit_permits_per_second{limit=\"api\"}", "10")));
  EXPECT_THAT(samples, Contains(Pair("sluice_limit_shadow_denied_total{limit=\"trial\"}", "1")));
  EXPECT_THAT(samples, Not(Contains(Key("sluice_limit_shadow_denied_total{limit=\"api\"}"))));
}

TEST_F(MetricsTest, SumsLimitsBeyondTheBoundAsOther) {
  Load({PerSecond("a", 10), PerSecond("b", 10), PerSecond("c", 10), PerSecond("d", 10)});
  for (const char* limit : {"a", "b", "c", "d"}) EXPECT_TRUE(Acquire(limit, "k", 3).granted);
  const auto samples = Samples(2);
  const std::string granted = "sluice_limit_permits_granted_total";
  EXPECT_THAT(samples, Contains(Pair(granted + "{limit=\"a\"}", "3")));
  EXPECT_THAT(samples, Contains(Pair(granted + "{limit=\"b\"}", "3")));
  EXPECT_THAT(samples, Not(Contains(Key(granted + "{limit=\"c\"}"))));
  EXPECT_THAT(samples, Contains(Pair(granted + "{limit=\"other\"}", "6")));
  EXPECT_THAT(samples, Not(Contains(Key("sluice_limit_permits_per_second{limit=\"other\"}"))));
}

TEST_F(MetricsTest, OtherNeverFallsWhenLimitsGo) {
  Load({PerSecond("a", 10), PerSecond("b", 10), PerSecond("c", 10)});
  for (const char* limit : {"a", "b", "c"}) EXPECT_TRUE(Acquire(limit, "k", 3).granted);
  const std::string granted = "sluice_limit_permits_granted_total";
  ASSERT_THAT(Samples(1), Contains(Pair(granted + "{limit=\"other\"}", "6")));
  Load({PerSecond("b", 10), PerSecond("d", 10)});
  const auto samples = Samples(1);
  EXPECT_THAT(samples, Not(Contains(Key(granted + "{limit=\"a\"}"))));
  EXPECT_THAT(samples, Not(Contains(Key(granted + "{limit=\"b\"}"))))
      << "its counts stay where they were";
  EXPECT_THAT(samples, Contains(Pair(granted + "{limit=\"other\"}", "6")));
}

TEST_F(MetricsTest, LimitNamedOtherIsInTheSum) {
  Load({PerSecond("other", 10), PerSecond("b", 10), PerSecond("c", 10)});
  for (const char* limit : {"other", "b", "c"}) EXPECT_TRUE(Acquire(limit, "k", 3).granted);
  const std::string other = "sluice_limit_permits_granted_total{limit=\"other\"}";
  EXPECT_THAT(Samples(), Contains(Pair(other, "3")));
  EXPECT_THAT(Samples(1), Contains(Pair(other, "6"))) << "b is shown, c is not";
}

TEST_F(MetricsTest, SamplesOfManyLimitsStayInOneFamily) {
  std::vector<limits::LimitSpec> specs;
  for (int i = 0; i < 1000; ++i) specs.push_back(PerSecond("limit-" + std::to_string(i), 1000));
  Load(std::move(specs));
  uint64_t permits = 0;
  for (int i = 0; i < 1000; ++i) {
    EXPECT_TRUE(Acquire("limit-" + std::to_string(i), "k", i % 7 + 1).granted);
    permits += i % 7 + 1;
  }
  uint64_t sum = 0;
  int limits = 0;
  for (const auto& [name, value] : Samples()) {
    if (name.rfind("sluice_limit_permits_granted_total{", 0) != 0) continue;
    sum += std::stoull(value);
    ++limits;
  }
  EXPECT_EQ(limits, 1000);
  EXPECT_EQ(sum, permits);
}

TEST_F(MetricsTest, HistogramsAreCumulative) {
  const uint32_t method = metrics_.AddMethod("/sluice.v1.RateLimiter/Acquire");
  std::thread([&] {
    for (const uint64_t ns : {500u, 1024u, 1025u, 3000u, 2'000'000'000u}) {
      metrics_.Local().OfMethod(method).Finish(0, ns);
    }
    metrics_.Local().OfMethod(method).Finish(8, uint64_t{100} * 1'000'000'000);
  }).join();
  const auto samples = Samples();
  const auto bucket = [](const char* le) {
    return "sluice_call_duration_seconds_bucket{method=\"/sluice.v1.RateLimiter/Acquire\",le=\"" +
           std::string(le) + "\"}";
  };
  EXPECT_THAT(samples, Contains(Pair(bucket("1.024e-06"), "2"))) << "bounds are inclusive";
  EXPECT_THAT(samples, Contains(Pair(bucket("2.048e-06"), "3")));
  EXPECT_THAT(samples, Contains(Pair(bucket("4.096e-06"), "4")));
  EXPECT_THAT(samples, Contains(Pair(bucket("17.179869184"), "5")));
  EXPECT_THAT(samples, Contains(Pair(bucket("+Inf"), "6")));
  const std::string labels = "{method=\"/sluice.v1.RateLimiter/Acquire\"}";
  EXPECT_THAT(samples, Contains(Pair("sluice_call_duration_seconds_count" + labels, "6")));
  const std::string calls = "sluice_calls_total{method=\"/sluice.v1.RateLimiter/Acquire\",code=\"";
  EXPECT_THAT(samples, Contains(Pair(calls + "OK\"}", "5")));
  EXPECT_THAT(samples, Contains(Pair(calls + "RESOURCE_EXHAUSTED\"}", "1")));
}

TEST_F(MetricsTest, EscapesLabels) {
  file_.path = "limits.yaml";
  file_.version = "a\"b\\c\nd";
  EXPECT_THAT(Text(), HasSubstr("sluice_config_info{version=\"a\\\"b\\\\c\\nd\"} 1\n"));
}

TEST_F(MetricsTest, HelpNeedsNoEscapes) {
  Load({PerSecond("api", 10)});
  const std::string text = Text();
  EXPECT_THAT(text, Not(HasSubstr("\\")));
  Samples(text);
}

TEST_F(MetricsTest, SaysWhetherTheLastReloadWorked) {
  EXPECT_THAT(Text(), Not(HasSubstr("sluice_config_last_reload_successful"))) << "there is no file";
  file_ = {.path = "limits.yaml",
           .version = "abc",
           .active_since_wall_ns = 1'700'000'000'000'000'000,
           .last_error = {},
           .last_error_at_wall_ns = 0,
           .reloads = 3,
           .failed_reloads = 1};
  EXPECT_THAT(Samples(), Contains(Pair("sluice_config_last_reload_successful", "1")));
  file_.last_error = "limits.yaml:3: rate: absent";
  const auto samples = Samples();
  EXPECT_THAT(samples, Contains(Pair("sluice_config_last_reload_successful", "0")));
  EXPECT_THAT(samples,
              Contains(Pair("sluice_config_last_reload_success_timestamp_seconds", "1700000000")));
  EXPECT_THAT(samples, Contains(Pair("sluice_config_failed_reloads_total", "1")));
}

TEST_F(MetricsTest, ShowsTheProcess) {
  const auto samples = Samples();
  EXPECT_GT(std::stod(samples.at("process_cpu_seconds_total")), 0);
  EXPECT_GT(std::stod(samples.at("process_resident_memory_bytes")), 1 << 20);
  EXPECT_GE(std::stoi(samples.at("process_open_fds")), 4) << "stdio and /dev/null";
  EXPECT_GT(std::stod(samples.at("process_max_fds")), 4);
  EXPECT_THAT(samples, Contains(Pair("process_start_time_seconds", "1700000000")));
  EXPECT_THAT(samples, Contains(Pair("sluice_build_info{version=\"1.2.3\"}", "1")));
  EXPECT_THAT(samples, Contains(Pair("sluice_store_up{kind=\"memory\"}", "1")));
  EXPECT_THAT(samples, Contains(Pair("sluice_peer_memory_limit_bytes", "1048576")));
}

// A step makes a few thousand lines at most, which takes well under a millisecond.
void ExpectShortSteps(const Sources& sources) {
  Exposition exposition(sources);
  std::string piece;
  size_t steps = 0;
  ptrdiff_t most_lines = 0;
  bool more = true;
  while (more) {
    piece.clear();
    more = exposition.Step(&piece);
    ++steps;
    most_lines = std::max(most_lines, std::count(piece.begin(), piece.end(), '\n'));
  }
  EXPECT_GT(steps, 100u);
  EXPECT_LE(most_lines, 2050);
}

TEST_F(MetricsTest, StepsOfTenThousandLimitsAreShort) {
  std::vector<limits::LimitSpec> specs;
  for (int i = 0; i < 10'000; ++i) {
    specs.push_back(PerSecond("tenant-" + std::to_string(i) + "/requests", 1000));
  }
  Load(std::move(specs));
  ExpectShortSteps(sources_);
}

TEST_F(MetricsTest, StepsOfTenThousandLimitsOfEnvoyAreShort) {
  envoy::DescriptorTree tree;
  tree.sources = {"test"};
  tree.domains.push_back({.name = "shop"});
  for (int i = 0; i < 10'000; ++i) {
    tree.domains[0].descriptors.push_back(
        transport::Configured("tenant", "customer-" + std::to_string(i), 5));
  }
  const auto matcher = std::make_shared<const envoy::Matcher>(tree, envoy::Overrides());
  ASSERT_TRUE(registry_.ApplyEnvoy(envoy::MakeSpecs(*matcher), "1", matcher).ok());
  envoy::HitCounters counters;
  counters.Local().OfLimit(0).total_hits.Add(1);
  for (size_t i = 0; i < common::bounds::kMaxDetailedCounters; ++i) {
    const std::string name = "shop.tenant_new-" + std::to_string(i);
    counters.Local().Detailed(name, [&] { return name; })->total_hits.Add(1);
  }
  sources_.envoy = &counters;
  ExpectShortSteps(sources_);
}

}  // namespace
}  // namespace sluice::metrics
