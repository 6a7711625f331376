// The matcher against a slow reference that does literally what envoyproxy/ratelimit is said to do.
#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>

#include <map>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "server/envoy/matcher.h"

namespace sluice::envoy {
namespace {

using Words = std::vector<std::pair<std::string, std::string>>;

// `*` stands for zero or more characters.
bool Glob(std::string_view pattern, std::string_view text) {
  if (pattern.empty()) return text.empty();
  if (pattern[0] != '*') {
    return !text.empty() && text[0] == pattern[0] && Glob(pattern.substr(1), text.substr(1));
  }
  for (size_t i = 0; i <= text.size(); ++i) {
    if (Glob(pattern.substr(1), text.substr(i))) return true;
  }
  return false;
}

std::string TextOf(const Descriptor& one) {
  return one.value.empty() ? one.key : one.key + "_" + one.value;
}

struct Expected {
  const Descriptor* landed = nullptr;
  // What counts: the entries, with the patterns of share_threshold instead of values.
  Words counted;
};

Expected FindSlowly(const std::vector<Descriptor>& top, const Words& entries) {
  Expected expected;
  const std::vector<Descriptor>* level = &top;
  for (const auto& [key, value] : entries) {
    const std::string joined = key + "_" + value;
    const Descriptor* next = nullptr;
    for (const Descriptor& one : *level) {
      if (TextOf(one) == joined) next = &one;
    }
    for (size_t i = 0; next == nullptr && i < level->size(); ++i) {
      const std::string pattern = TextOf((*level)[i]);
      if (pattern.find('*') != pattern.npos && Glob(pattern, joined)) next = &(*level)[i];
    }
    for (size_t i = 0; next == nullptr && i < level->size(); ++i) {
      if (TextOf((*level)[i]) == key) next = &(*level)[i];
    }
    if (next == nullptr) return {};
    expected.counted.emplace_back(key, next->share_threshold ? "" : value);
    expected.landed = next;
    level = &next->descriptors;
  }
  return expected;
}

// Few letters, so that texts and patterns meet.
rc::Gen<std::string> WordGen(std::string letters, size_t most) {
  return rc::gen::exec([letters, most] {
    std::string word;
    const size_t size = *rc::gen::inRange<size_t>(0, most + 1);
    for (size_t i = 0; i < size; ++i) word += *rc::gen::elementOf(letters);
    return word;
  });
}

std::vector<Descriptor> Level(int depth) {
  std::vector<Descriptor> level;
  std::set<std::string> texts;
  const int count = *rc::gen::inRange(0, depth == 0 ? 16 : 8);
  for (int i = 0; i < count; ++i) {
    Descriptor one{.key = "a" + *WordGen("ab_*", 2), .value = *WordGen("ab_*", 5)};
    if (!texts.insert(TextOf(one)).second) continue;
    if (*rc::gen::inRange(0, 3) > 0) {
      one.rate_limit = RateLimit{.unit = Unit::kSecond, .requests_per_unit = 1};
    }
    one.share_threshold =
        TextOf(one).find('*') != std::string::npos && *rc::gen::inRange(0, 3) == 0;
    if (depth < 2) one.descriptors = Level(depth + 1);
    level.push_back(std::move(one));
  }
  return level;
}

RC_GTEST_PROP(MatcherProperty, FindsWhatASlowReferenceFinds, ()) {
  DescriptorTree tree;
  tree.sources = {"test"};
  tree.domains.push_back({"d", Level(0)});
  // Each limit has a place of its own, to tell them apart.
  std::map<std::string, const Descriptor*> by_place;
  int line = 0;
  const auto number = [&](const auto& self, std::vector<Descriptor>& level) -> void {
    for (Descriptor& one : level) {
      one.place.line = ++line;
      by_place["test:" + std::to_string(line) + ":0"] = &one;
      self(self, one.descriptors);
    }
  };
  number(number, tree.domains[0].descriptors);
  RC_ASSERT(Check(tree, {}).ok());
  const Matcher matcher(tree, Overrides());
  const Matcher::Level* domain = matcher.FindDomain("d");
  RC_ASSERT(static_cast<bool>(domain != nullptr));

  std::map<const MatchedLimit*, std::map<std::string, Words>> counted_by_key;
  std::map<const MatchedLimit*, std::map<Words, std::string>> key_by_counted;
  for (int i = 0; i < 60; ++i) {
    Words words;
    const int count = *rc::gen::inRange(0, 4);
    for (int e = 0; e < count; ++e) {
      words.emplace_back("a" + *WordGen("ab_", 2), *WordGen("ab_*|\\", 6));
    }
    std::vector<Entry> entries;
    for (const auto& [key, value] : words) entries.push_back({key, value});
    const Expected expected = FindSlowly(tree.domains[0].descriptors, words);
    BucketKey key;
    const MatchedLimit* found = Matcher::Find(*domain, entries, &key);
    const bool has_limit = expected.landed != nullptr && expected.landed->rate_limit.has_value();
    RC_ASSERT((found != nullptr) == has_limit);
    if (found == nullptr) continue;
    const bool same = by_place[found->defined_at] == expected.landed;
    RC_ASSERT(same);
    // One key for what counts together, and only for that.
    const std::string text(key.view());
    RC_ASSERT(counted_by_key[found].emplace(text, expected.counted).first->second ==
              expected.counted);
    RC_ASSERT(key_by_counted[found].emplace(expected.counted, text).first->second == text);
  }
}

}  // namespace
}  // namespace sluice::envoy
