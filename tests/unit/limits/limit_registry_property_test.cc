#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "server/limits/limit_registry.h"
#include "tests/unit/limits/recording_store.h"

namespace sluice::limits {
namespace {

// Few names and parameters, so that sequences repeat them.
rc::Gen<LimitSpec> SpecGen(int index) {
  return rc::gen::exec([index] {
    LimitSpec spec;
    spec.name = "l" + std::to_string(index);
    spec.rate = {*rc::gen::inRange<uint64_t>(1, 4), 1'000'000'000};
    spec.algorithm =
        *rc::gen::element(algorithm::Kind::kTokenBucket, algorithm::Kind::kSlidingWindow);
    const bool bucket = spec.algorithm == algorithm::Kind::kTokenBucket;
    if (bucket && *rc::gen::arbitrary<bool>()) spec.burst = *rc::gen::inRange<uint64_t>(1, 4);
    if (*rc::gen::inRange(0, 4) == 0) spec.mode = Mode::kShadow;
    // Only limits that come later, so there are no cycles.
    for (int to = index + 1; to < 6; ++to) {
      if (*rc::gen::inRange(0, 4) == 0) spec.charges.push_back("l" + std::to_string(to));
    }
    for (const char* key : {"x", "y"}) {
      if (*rc::gen::arbitrary<bool>()) {
        spec.keys.push_back(
            {key, algorithm::Rate{*rc::gen::inRange<uint64_t>(1, 4), 1'000'000'000}, {}, {}});
      }
    }
    return spec;
  });
}

rc::Gen<std::vector<LimitSpec>> FileGen() {
  return rc::gen::exec([] {
    std::vector<LimitSpec> specs;
    std::set<std::string> names;
    for (int i = 5; i >= 0; --i) {
      if (*rc::gen::inRange(0, 4) == 0) continue;
      LimitSpec spec = *SpecGen(i);
      std::erase_if(spec.charges, [&](const std::string& name) { return !names.contains(name); });
      names.insert(spec.name);
      specs.insert(specs.begin(), std::move(spec));
    }
    return specs;
  });
}

// Every rule that a request can have.
std::map<std::pair<std::string, std::string>, const store::Rule*> Rules(const LimitTable& table) {
  std::map<std::pair<std::string, std::string>, const store::Rule*> rules;
  for (const Limit* limit : table.limits()) {
    for (const char* key : {"", "x", "y"}) {
      rules[{std::string(limit->name()), key}] = &limit->RuleFor(key);
    }
  }
  return rules;
}

RC_GTEST_PROP(LimitRegistryProperty, ReapplyingTheSameLimitsChangesNoRule, ()) {
  RecordingStore store;
  LimitRegistry registry(&store);
  const auto specs = *FileGen();
  RC_ASSERT(registry.ApplyFile(specs, "v1").ok());
  const auto first = registry.Current();
  const size_t registered = store.rules().size();

  auto again = specs;
  if (*rc::gen::arbitrary<bool>()) std::reverse(again.begin(), again.end());
  for (LimitSpec& spec : again) spec.defined_at = *rc::gen::element<std::string>("a:1", "a:2");
  RC_ASSERT(registry.ApplyFile(again, "v2").ok());
  const auto second = registry.Current();
  RC_ASSERT(first != second);
  RC_ASSERT(Rules(*first) == Rules(*second));
  RC_ASSERT(store.rules().size() == registered);
}

RC_GTEST_PROP(LimitRegistryProperty, TheRuleOfABucketNeverGetsOlder, ()) {
  RecordingStore store;
  LimitRegistry registry(&store);
  // For each bucket the greatest rule id that it can have, even while its limit is deleted.
  std::map<std::pair<std::string, std::string>, const store::Rule*> last;
  std::map<std::string, uint32_t> ids;
  const int steps = *rc::gen::inRange(1, 12);
  for (int step = 0; step < steps; ++step) {
    switch (*rc::gen::inRange(0, 5)) {
      case 0:
        // May contradict limits of the admin; then nothing changes, which is checked below too.
        (void)registry.ApplyFile(*FileGen(), std::to_string(step));
        break;
      case 1:
        (void)registry.Put(*SpecGen(*rc::gen::inRange(0, 6)));
        break;
      case 2:
        (void)registry.Delete("l" + std::to_string(*rc::gen::inRange(0, 6)));
        break;
      case 3: {
        LimitSpec spec = *SpecGen(*rc::gen::inRange(0, 6));
        spec.ends_at_ns = step;
        (void)registry.Put(std::move(spec));
        break;
      }
      case 4:
        (void)registry.EndTemporary("l" + std::to_string(*rc::gen::inRange(0, 6)), step);
        break;
    }
    const auto table = registry.Current();
    for (const auto& [bucket, rule] : Rules(*table)) {
      RC_ASSERT(store.Has(*rule));
      const auto [it, first] = last.emplace(bucket, rule);
      if (!first && it->second != rule) {
        RC_ASSERT(rule->id > it->second->id);
        it->second = rule;
      }
      const auto [id, first_id] = ids.emplace(bucket.first, rule->limit_id);
      RC_ASSERT(id->second == rule->limit_id);
      RC_ASSERT(rule->limit_id < table->limit_id_end());
    }
    for (const Limit* limit : table->limits()) {
      for (const Limit* parent : limit->parents()) {
        RC_ASSERT(parent == table->Find(parent->name()));
      }
    }
  }
}

}  // namespace
}  // namespace sluice::limits
