// Wildcards: patterns with `*` in them, each of which stands for zero or more characters; finds the
// first in the order added that matches a text. The patterns are found by their literal text before
// the first `*` and after the last: the time grows with their length, and not with their number,
// but for patterns that have both in common and differ only between two `*`.
#ifndef SLUICE_SERVER_ENVOY_WILDCARDS_H_
#define SLUICE_SERVER_ENVOY_WILDCARDS_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/types/span.h"

namespace sluice::envoy {

// A trie of texts, each with a number. Read forwards, or from the texts' ends.
class Trie {
 public:
  enum class Direction : uint8_t { kForward, kBackward };

  explicit Trie(Direction direction) : backward_(direction == Direction::kBackward) {}

  // `texts[i]` gets the number i; equal texts may repeat. Call once.
  void Build(absl::Span<const std::string_view> texts);

  // Calls visit(numbers of the text, ascending) for each text of the trie that `text` begins with
  // (kBackward: ends with), the shortest first.
  template <typename Visit>
  void ForEach(std::string_view text, Visit visit) const;

 private:
  struct Node {
    uint32_t label = 0;  // where its own characters begin, in the order read
    uint32_t label_size = 0;
    uint32_t first_child = 0;
    uint32_t numbers = 0;
    uint32_t number_count = 0;
    uint16_t child_count = 0;
    char first = 0;  // of its label
  };
  // A text in the order read, and its number.
  struct Text {
    std::string characters;
    uint32_t number = 0;
  };

  // Fills in the node for the texts of a sorted range, which share their first `depth` characters.
  void Fill(uint32_t node, absl::Span<const Text> texts, size_t depth);
  char At(std::string_view text, size_t i) const {
    return backward_ ? text[text.size() - 1 - i] : text[i];
  }
  const Node* Child(const Node& node, char first) const;

  const bool backward_;
  std::vector<Node> nodes_;  // children of a node are side by side, sorted by `first`
  std::string labels_;
  std::vector<uint32_t> numbers_;
};

class Wildcards {
 public:
  static constexpr uint32_t kNone = UINT32_MAX;
  class Search;

  // REQUIRES: `pattern` has a `*`.
  void Add(std::string_view pattern);
  // Once, after the last Add.
  void Build();

  bool empty() const { return patterns_.empty(); }
  // The number of the first pattern, counting from 0, that matches all of `text`; kNone: none does.
  // As Search, at once.
  uint32_t Find(std::string_view text) const;

 private:
  struct Pattern {
    std::string text;
    // `text` between its `*`.
    std::string_view prefix;
    std::vector<std::string> middle;
    std::string suffix;
  };
  // The patterns with one prefix.
  struct SamePrefix {
    std::vector<uint32_t> patterns;  // ascending
    Trie suffixes{Trie::Direction::kBackward};
  };

  // Whether the text between prefix and suffix matches.
  static bool MiddleMatches(const Pattern& pattern, std::string_view text);

  std::vector<Pattern> patterns_;
  std::vector<SamePrefix> by_prefix_;
  Trie prefixes_{Trie::Direction::kForward};
};

// A search in steps: patterns that differ only between two `*` are looked for one after the other,
// and a text may have half a megabyte. Reusable; allocates only until its vector has grown.
class Wildcards::Search {
 public:
  // Starts a search, and forgets the one before. Both stay unchanged until it is done.
  void Begin(const Wildcards& wildcards, std::string_view text);
  // Goes on until it has looked at about *budget bytes, which it lowers. Returns whether it is
  // done.
  bool Step(int64_t* budget);
  // As Wildcards::Find. REQUIRES: it is done.
  uint32_t found() const { return best_; }
  size_t memory() const { return candidates_.capacity() * sizeof(Candidates); }

 private:
  // Patterns whose prefix fits.
  struct Candidates {
    const SamePrefix* same = nullptr;    // whose suffixes fit, too; null: not known
    absl::Span<const uint32_t> numbers;  // ascending: of patterns, or in same->patterns
  };

  const Wildcards* wildcards_ = nullptr;
  std::string_view text_;
  std::vector<Candidates> candidates_;
  size_t group_ = 0;   // the next to look at: in candidates_,
  size_t number_ = 0;  // and in its numbers
  uint32_t best_ = kNone;
};

// ---- Implementation ----

inline const Trie::Node* Trie::Child(const Node& node, char first) const {
  const Node* begin = nodes_.data() + node.first_child;
  size_t count = node.child_count;
  while (count > 4) {
    const size_t half = count / 2;
    if (static_cast<unsigned char>(begin[half].first) <= static_cast<unsigned char>(first)) {
      begin += half;
      count -= half;
    } else {
      count = half;
    }
  }
  for (size_t i = 0; i < count; ++i) {
    if (begin[i].first == first) return begin + i;
  }
  return nullptr;
}

template <typename Visit>
void Trie::ForEach(std::string_view text, Visit visit) const {
  if (nodes_.empty()) return;
  const Node* node = nodes_.data();
  size_t depth = 0;
  while (true) {
    if (node->label_size > text.size() - depth) return;
    for (uint32_t i = 0; i < node->label_size; ++i, ++depth) {
      if (At(text, depth) != labels_[node->label + i]) return;
    }
    if (node->number_count > 0) {
      visit(absl::MakeSpan(numbers_.data() + node->numbers, node->number_count));
    }
    if (node->child_count == 0 || depth == text.size()) return;
    node = Child(*node, At(text, depth));
    if (node == nullptr) return;
  }
}

}  // namespace sluice::envoy

#endif  // SLUICE_SERVER_ENVOY_WILDCARDS_H_
