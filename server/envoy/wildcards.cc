#include "server/envoy/wildcards.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_split.h"
#include "common/strings.h"

namespace sluice::envoy {
namespace {

// Of fewer patterns with one prefix, each is tried.
constexpr size_t kFewPatterns = 4;

}  // namespace

void Trie::Build(absl::Span<const std::string_view> texts) {
  std::vector<Text> sorted;
  sorted.reserve(texts.size());
  for (const std::string_view text : texts) {
    sorted.push_back({std::string(text), static_cast<uint32_t>(sorted.size())});
    if (backward_) std::reverse(sorted.back().characters.begin(), sorted.back().characters.end());
  }
  std::stable_sort(sorted.begin(), sorted.end(),
                   [](const Text& a, const Text& b) { return a.characters < b.characters; });
  if (sorted.empty()) return;
  nodes_.emplace_back();
  Fill(0, sorted, 0);
}

void Trie::Fill(uint32_t node, absl::Span<const Text> texts, size_t depth) {
  // The texts are sorted, so what the first and the last have in common, all have.
  const std::string& front = texts.front().characters;
  const std::string& back = texts.back().characters;
  size_t end = depth;
  while (end < front.size() && end < back.size() && front[end] == back[end]) ++end;

  Node filled;
  filled.label = static_cast<uint32_t>(labels_.size());
  filled.label_size = static_cast<uint32_t>(end - depth);
  if (end > depth) filled.first = front[depth];
  labels_.append(front, depth, end - depth);
  filled.numbers = static_cast<uint32_t>(numbers_.size());
  size_t i = 0;
  for (; i < texts.size() && texts[i].characters.size() == end; ++i) {
    numbers_.push_back(texts[i].number);
  }
  filled.number_count = static_cast<uint32_t>(numbers_.size()) - filled.numbers;

  std::vector<absl::Span<const Text>> groups;
  while (i < texts.size()) {
    size_t next = i + 1;
    while (next < texts.size() && texts[next].characters[end] == texts[i].characters[end]) ++next;
    groups.push_back(texts.subspan(i, next - i));
    i = next;
  }
  filled.first_child = static_cast<uint32_t>(nodes_.size());
  filled.child_count = static_cast<uint16_t>(groups.size());
  nodes_.resize(nodes_.size() + groups.size());
  nodes_[node] = filled;
  for (size_t child = 0; child < groups.size(); ++child) {
    Fill(filled.first_child + static_cast<uint32_t>(child), groups[child], end);
  }
}

void Wildcards::Add(std::string_view pattern) {
  Pattern& added = patterns_.emplace_back();
  added.text = pattern;
  std::vector<std::string> parts = absl::StrSplit(common::ToAbsl(pattern), '*');
  added.suffix = std::move(parts.back());
  for (size_t i = 1; i + 1 < parts.size(); ++i) {
    // An empty part, of `**`, is found anywhere.
    if (!parts[i].empty()) added.middle.push_back(std::move(parts[i]));
  }
}

void Wildcards::Build() {
  absl::flat_hash_map<std::string, size_t> by_text;
  for (uint32_t i = 0; i < patterns_.size(); ++i) {
    Pattern& pattern = patterns_[i];
    pattern.prefix = std::string_view(pattern.text).substr(0, pattern.text.find('*'));
    const auto [it, added] = by_text.emplace(std::string(pattern.prefix), by_prefix_.size());
    if (added) by_prefix_.emplace_back();
    by_prefix_[it->second].patterns.push_back(i);
  }
  std::vector<std::string_view> prefixes;
  for (SamePrefix& same : by_prefix_) {
    prefixes.push_back(patterns_[same.patterns.front()].prefix);
    if (same.patterns.size() <= kFewPatterns) continue;
    std::vector<std::string_view> suffixes;
    suffixes.reserve(same.patterns.size());
    for (const uint32_t i : same.patterns) suffixes.push_back(patterns_[i].suffix);
    same.suffixes.Build(suffixes);
  }
  prefixes_.Build(prefixes);
}

bool Wildcards::MiddleMatches(const Pattern& pattern, std::string_view text) {
  if (text.size() < pattern.prefix.size() + pattern.suffix.size()) return false;
  text.remove_prefix(pattern.prefix.size());
  text.remove_suffix(pattern.suffix.size());
  // The leftmost place for each part leaves most room for the next.
  for (const std::string& part : pattern.middle) {
    // Several times faster than find where the text is full of the part's first character.
    const void* const at = memmem(text.data(), text.size(), part.data(), part.size());
    if (at == nullptr) return false;
    text.remove_prefix(static_cast<const char*>(at) - text.data() + part.size());
  }
  return true;
}

uint32_t Wildcards::Find(std::string_view text) const {
  Search search;
  search.Begin(*this, text);
  int64_t any = INT64_MAX;
  search.Step(&any);
  return search.found();
}

void Wildcards::Search::Begin(const Wildcards& wildcards, std::string_view text) {
  wildcards_ = &wildcards;
  text_ = text;
  candidates_.clear();
  group_ = number_ = 0;
  best_ = kNone;
  wildcards.prefixes_.ForEach(text, [&](absl::Span<const uint32_t> found) {
    const SamePrefix& same = wildcards.by_prefix_[found.front()];
    if (same.patterns.size() <= kFewPatterns) {
      candidates_.push_back({nullptr, same.patterns});
      return;
    }
    same.suffixes.ForEach(
        text, [&](absl::Span<const uint32_t> numbers) { candidates_.push_back({&same, numbers}); });
  });
}

bool Wildcards::Search::Step(int64_t* budget) {
  constexpr int64_t kPatternBytes = 32;
  for (; group_ < candidates_.size(); ++group_, number_ = 0) {
    const Candidates& group = candidates_[group_];
    for (; number_ < group.numbers.size(); ++number_) {
      const uint32_t number = group.numbers[number_];
      const uint32_t i = group.same == nullptr ? number : group.same->patterns[number];
      if (i >= best_) break;
      if (*budget <= 0) return false;
      *budget -= kPatternBytes;
      const Pattern& pattern = wildcards_->patterns_[i];
      if (group.same == nullptr && !text_.ends_with(pattern.suffix)) continue;
      if (!pattern.middle.empty()) *budget -= static_cast<int64_t>(text_.size());
      if (MiddleMatches(pattern, text_)) best_ = i;
    }
  }
  return true;
}

}  // namespace sluice::envoy
