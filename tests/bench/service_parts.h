// ServiceParts: a RateLimiter on a memory store, with the one limit "api".
#ifndef SLUICE_TESTS_BENCH_SERVICE_PARTS_H_
#define SLUICE_TESTS_BENCH_SERVICE_PARTS_H_

#include <cstdint>
#include <cstdlib>

#include "common/clock.h"
#include "common/metrics.h"
#include "server/limits/limit_registry.h"
#include "server/service/key_usage.h"
#include "server/service/rate_limiter.h"
#include "server/service/receipt.h"
#include "server/store/memory/memory_store.h"

namespace sluice {

struct ServiceParts {
  common::SystemClock clock;
  common::Metrics metrics;
  store::MemoryStore store{clock};
  limits::LimitRegistry registry{&store};
  service::KeyUsage usage;
  service::ReceiptSigner signer;
  service::RateLimiter limiter{registry, store, clock, metrics, usage, signer};

  ServiceParts(uint64_t permits_per_second, uint64_t burst) {
    limits::LimitSpec spec;
    spec.name = "api";
    spec.rate = {permits_per_second, 1'000'000'000};
    spec.burst = burst;
    if (!registry.ApplyFile({spec}, "1").ok()) std::abort();
  }
};

}  // namespace sluice

#endif  // SLUICE_TESTS_BENCH_SERVICE_PARTS_H_
