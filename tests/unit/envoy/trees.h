// What the tests of server/envoy have in common: configurations from YAML, and look-ups in them.
#ifndef SLUICE_TESTS_UNIT_ENVOY_TREES_H_
#define SLUICE_TESTS_UNIT_ENVOY_TREES_H_

#include <gtest/gtest.h>

#include <initializer_list>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "server/envoy/load.h"
#include "server/envoy/matcher.h"

namespace sluice::envoy {

inline LoadedTree TreeOf(std::initializer_list<std::string_view> texts) {
  LoadedTree loaded;
  for (const std::string_view text : texts) {
    const absl::Status added = AddText(text, "f.yaml", &loaded);
    EXPECT_TRUE(added.ok()) << added;
  }
  const absl::Status checked = Check(loaded.tree, {.merge_domains = true});
  EXPECT_TRUE(checked.ok()) << checked;
  return loaded;
}

inline std::unique_ptr<Matcher> MatcherOfText(std::string_view text) {
  return std::make_unique<Matcher>(TreeOf({text}).tree, Overrides());
}

struct Found {
  const MatchedLimit* limit = nullptr;
  std::string key;

  std::string name() const { return limit == nullptr ? "" : limit->limit_name; }
};

inline Found FindIn(const Matcher& matcher, std::string_view domain,
                    const std::vector<Entry>& entries) {
  Found found;
  const Matcher::Level* level = matcher.FindDomain(domain);
  if (level == nullptr) return found;
  BucketKey key;
  found.limit = Matcher::Find(*level, entries, &key);
  if (found.limit != nullptr) found.key = key.view();
  return found;
}

}  // namespace sluice::envoy

#endif  // SLUICE_TESTS_UNIT_ENVOY_TREES_H_
