// Random limits and histories: the store against the slow references, one bucket of each key, with
// drops, batches, several charges and receipts in between that must not be noticed.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <map>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "common/clock.h"
#include "server/store/memory/memory_store.h"
#include "tests/support/generators.h"
#include "tests/support/reference.h"
#include "tests/support/store_calls.h"

namespace sluice::store {
namespace {

using testing::Acquire;
using testing::Acquired;
using testing::MakeRule;

// A limit of any algorithm, and its reference.
struct Limit {
  std::shared_ptr<const Rule> rule;
  std::variant<test_support::ReferenceTokenBucket, test_support::ReferenceLog,
               test_support::ReferenceSlidingWindow>
      fresh;
  test_support::RandomParameters random;
};

Limit AnyLimit(uint32_t limit_id) {
  const test_support::RandomParameters random = *test_support::AnyParameters(1000);
  const algorithm::Rate rate{random.permits, random.period_ns};
  switch (*rc::gen::inRange(0, 3)) {
    case 0: {
      const uint64_t burst = *rc::gen::inRange<uint64_t>(1, 20);
      const uint64_t debt = *rc::gen::elementOf(std::vector<uint64_t>{0, 0, 1, 10});
      auto parameters = algorithm::MakeTokenBucket(rate, burst, debt);
      RC_PRE(parameters.ok());
      const algorithm::TokenBucket& bucket = parameters->token_bucket;
      return {MakeRule(limit_id, *parameters),
              test_support::ReferenceTokenBucket(bucket.unit_ticks, uint64_t{1} << bucket.shift,
                                                 burst, debt),
              random};
    }
    case 1: {
      auto parameters = algorithm::MakeSlidingLog(rate);
      RC_PRE(parameters.ok());
      return {MakeRule(limit_id, *parameters),
              test_support::ReferenceLog(random.permits, random.period_ns,
                                         parameters->sliding_log.quantum_ns),
              random};
    }
    default: {
      auto parameters = algorithm::MakeSlidingWindow(rate, 10);
      RC_PRE(parameters.ok());
      return {MakeRule(limit_id, *parameters),
              test_support::ReferenceSlidingWindow(random.permits, random.period_ns, 10), random};
    }
  }
}

class Property : public ::testing::Test {};

RC_GTEST_FIXTURE_PROP(Property, DecidesLikeTheReference, ()) {
  common::FakeClock clock;
  MemoryStore store(clock, {.max_buckets = 64, .seed = 1});
  std::vector<Limit> limits;
  for (uint32_t i = 1; i <= 3; ++i) {
    limits.push_back(AnyLimit(i));
    store.Register(limits.back().rule);
  }
  std::map<std::pair<size_t, std::string>, decltype(Limit::fresh)> references;
  const auto reference = [&](size_t limit, const std::string& key) -> decltype(Limit::fresh)& {
    return references.try_emplace({limit, key}, limits[limit].fresh).first->second;
  };
  const int steps = *rc::gen::inRange(1, 80);
  for (int n = 0; n < steps; ++n) {
    const size_t first = *rc::gen::inRange<size_t>(0, limits.size());
    const Limit& limit = limits[first];
    const test_support::Step step =
        *test_support::AnyStep(limit.random, algorithm::MaxGrant(limit.rule->parameters));
    // Time does not step back here: the references differ in what they make of it.
    clock.Advance(std::min<int64_t>(std::abs(step.advance_ns), int64_t{1} << 50));
    const int64_t now_ns = clock.NowNs();
    const uint64_t permits =
        std::min<uint64_t>(step.permits, algorithm::MaxGrant(limit.rule->parameters));
    const std::string key = *rc::gen::elementOf(std::vector<std::string>{"", "a", "b"});
    const bool want_receipt = *rc::gen::inRange(0, 4) == 0;
    // Housekeeping at any moment must not be noticed.
    for (int i = *rc::gen::inRange(0, 3); i > 0; --i) store.Maintain();

    std::vector<Charge> charges{{limit.rule.get(), key, permits}};
    std::vector<size_t> charged{first};
    if (*rc::gen::inRange(0, 3) == 0) {
      const size_t second = (first + 1) % limits.size();
      charges.push_back({limits[second].rule.get(), key, 1});
      charged.push_back(second);
    }
    bool fits = true;
    for (size_t c = 0; c < charges.size(); ++c) {
      fits &= std::visit([&](auto& r) { return r.CanTake(charges[c].permits, now_ns); },
                         reference(charged[c], key));
    }
    const Acquired acquired = Acquire(store, charges, {.want_receipt = want_receipt});
    RC_ASSERT(acquired.granted() == fits);
    if (fits) {
      for (size_t c = 0; c < charges.size(); ++c) {
        std::visit([&](auto& r) { r.TryTake(charges[c].permits, now_ns); },
                   reference(charged[c], key));
      }
    } else if (acquired.retry_after_ns < int64_t{1} << 50) {
      // Exact: denied a nanosecond before, granted at it.
      RC_ASSERT(acquired.retry_after_ns > 0);
      clock.Advance(acquired.retry_after_ns - 1);
      RC_ASSERT(!Acquire(store, charges).granted());
      clock.Advance(1);
      RC_ASSERT(Acquire(store, charges).granted());
      for (size_t c = 0; c < charges.size(); ++c) {
        RC_ASSERT(std::visit([&](auto& r) { return r.TryTake(charges[c].permits, clock.NowNs()); },
                             reference(charged[c], key)));
      }
    }
  }
}

}  // namespace
}  // namespace sluice::store
