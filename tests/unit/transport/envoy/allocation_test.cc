// A call of Envoy's rate-limit service in steady state allocates nothing.
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "envoy/service/ratelimit/v3/rls.pb.h"
#include "gtest/gtest.h"
#include "server/envoy/limit_specs.h"
#include "server/envoy/matcher.h"
#include "server/limits/limit_registry.h"
#include "server/service/key_usage.h"
#include "server/service/receipt.h"
#include "server/store/memory/memory_store.h"
#include "server/transport/envoy/rate_limit_service.h"
#include "tests/support/counted_allocations.h"
#include "tests/support/h2_peer.h"

namespace sluice::transport {
namespace {

namespace v3 = ::envoy::service::ratelimit::v3;

// 10,000 limits of two entries: tenant 0 to 99, path 0 to 99.
std::shared_ptr<const envoy::Matcher> ManyLimits() {
  envoy::DescriptorTree tree;
  tree.sources = {"test"};
  envoy::Domain& domain = tree.domains.emplace_back();
  domain.name = "mongo_cps";
  for (int tenant = 0; tenant < 100; ++tenant) {
    envoy::Descriptor& parent = domain.descriptors.emplace_back();
    parent.key = "tenant";
    parent.value = std::to_string(tenant);
    for (int path = 0; path < 100; ++path) {
      envoy::Descriptor& child = parent.descriptors.emplace_back();
      child.key = "path";
      child.value = std::to_string(path);
      child.rate_limit.emplace();
      child.rate_limit->unit = envoy::Unit::kHour;
      child.rate_limit->requests_per_unit = 4000;
    }
  }
  return std::make_shared<const envoy::Matcher>(tree, envoy::Overrides());
}

// `descriptors`: of each request. A few limits: first within the limit, then over it.
void CountAllocations(int descriptors) {
  testing::H2Server server;
  store::MemoryStore store{server.clock};
  limits::LimitRegistry registry{&store};
  service::KeyUsage usage;
  service::ReceiptSigner signer;
  const auto matcher = ManyLimits();
  ASSERT_TRUE(registry.ApplyEnvoy(envoy::MakeSpecs(*matcher), "1", matcher).ok());
  DescriptorLimiter limiter({registry, store, server.clock, server.metrics, usage, signer}, {});
  RateLimitService service(&limiter, 1);
  service.Register(&server.methods);
  testing::H2Client client(server);
  client.Pump();
  int next = 0;
  const auto call = [&] {
    v3::RateLimitRequest message;
    message.set_domain("mongo_cps");
    for (int d = 0; d < descriptors; ++d) {
      auto* const descriptor = message.add_descriptors();
      for (const char* key : {"tenant", "path"}) {
        auto* const entry = descriptor->add_entries();
        entry->set_key(key);
        entry->set_value(std::to_string(next % 3 + d));
      }
    }
    ++next;
    message.set_hits_addend(3);
    client.Call("/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit",
                testing::Framed(message.SerializeAsString()));
  };
  for (int i = 0; i < 100; ++i) {
    for (int j = 0; j < 32; ++j) call();
    client.Pump();
  }
  // The responses fit the client's window: it reads none of them meanwhile.
  constexpr int kRounds = 10;
  std::string requests[kRounds];
  for (std::string& round : requests) {
    for (int j = 0; j < 32; ++j) call();
    round = client.TakeOutput();
  }
  client.connection.stream.output.reserve(4 << 20);

  const uint64_t before = allocations;
  for (const std::string& round : requests) client.connection.Feed(round);
  const uint64_t after = allocations;
  EXPECT_EQ(after - before, 0u) << "in " << 32 * kRounds << " calls";
  uint64_t hits = 0;
  for (const auto& [of, one] : limiter.counters().Hits(registry.Current())) {
    hits += one.total_hits;
  }
  EXPECT_EQ(hits, 3u * 32u * (100 + kRounds) * static_cast<uint64_t>(descriptors));
}

TEST(EnvoyAllocationTest, OneDescriptorInSteadyStateAllocatesNothing) { CountAllocations(1); }
TEST(EnvoyAllocationTest, FourDescriptorsInSteadyStateAllocateNothing) { CountAllocations(4); }

}  // namespace
}  // namespace sluice::transport
