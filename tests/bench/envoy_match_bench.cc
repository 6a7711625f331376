// What it costs to find the limit of a descriptor, with few limits and with many.
#include <benchmark/benchmark.h>

#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "server/envoy/matcher.h"

namespace sluice::envoy {
namespace {

constexpr int kTenth = 10;

// `limits` paths, each with a limit for a user: one in ten with a wildcard.
std::unique_ptr<Matcher> MakeMatcher(int limits) {
  DescriptorTree tree;
  tree.sources = {"bench"};
  Domain& domain = tree.domains.emplace_back();
  domain.name = "edge";
  for (int i = 0; i < limits; ++i) {
    Descriptor& path = domain.descriptors.emplace_back();
    path.key = "path";
    path.value = "/api/v1/resource" + std::to_string(i) + (i % kTenth == 0 ? "/*" : "/list");
    Descriptor& user = path.descriptors.emplace_back();
    user.key = "user";
    user.rate_limit = RateLimit{.unit = Unit::kMinute, .requests_per_unit = 100};
  }
  if (!Check(tree, {}).ok()) std::abort();
  return std::make_unique<Matcher>(tree, Overrides());
}

// Descriptors of two entries. `wildcard`: they match by one, else exactly.
void Find(benchmark::State& state, bool wildcard) {
  const int limits = static_cast<int>(state.range(0));
  const auto matcher = MakeMatcher(limits);
  std::vector<std::string> paths;
  for (int i = 0; i < 1024; ++i) {
    const int tenth = (i * 7919 % (limits / kTenth)) * kTenth;
    paths.push_back("/api/v1/resource" + std::to_string(wildcard ? tenth : tenth + 1) + "/list");
  }
  size_t i = 0;
  for (auto _ : state) {
    const Entry entries[] = {{"path", paths[i++ % paths.size()]}, {"user", "user-31415926"}};
    BucketKey key;
    const MatchedLimit* found = Matcher::Find(*matcher->FindDomain("edge"), entries, &key);
    if (found == nullptr) std::abort();
    benchmark::DoNotOptimize(key);
  }
}
BENCHMARK_CAPTURE(Find, exact, false)->Arg(100)->Arg(10'000)->Arg(100'000);
BENCHMARK_CAPTURE(Find, wildcard, true)->Arg(100)->Arg(10'000)->Arg(100'000);

}  // namespace
}  // namespace sluice::envoy

BENCHMARK_MAIN();
