#include "server/config/yaml_tree.h"

#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/exceptions.h>
#include <yaml-cpp/mark.h>
#include <yaml-cpp/parser.h>

#include <algorithm>
#include <istream>
#include <optional>
#include <streambuf>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "common/bounds.h"
#include "common/errors.h"
#include "common/strings.h"
#include "common/utf8.h"
#include "server/limits/spec_check.h"

namespace sluice::config {
namespace {

using common::ToAbsl;
using common::bounds::kMaxYamlAliasNodes;
using common::bounds::kMaxYamlDepth;
using common::errors::Shown;

struct Problem {
  TextPlace place;
  std::string text;
};

TextPlace PlaceOf(const YAML::Mark& mark) {
  // yaml-cpp counts from 0, and -1 is "nowhere".
  return {std::max(mark.line, 0) + 1, std::max(mark.column, 0) + 1};
}

// Checks the text before yaml-cpp parses it: its bytes, and that it is not nested far too deep,
// which it reports first. yaml-cpp reads to the end of the outermost bracket before its first
// event, so it takes many seconds to refuse megabytes of open brackets. Brackets in quoted text
// count too.
std::optional<Problem> CheckText(std::string_view text) {
  constexpr size_t kMaxOpen = 1000;
  size_t open = 0;
  TextPlace place;
  TextPlace too_deep;
  bool comment = false;
  char before = ' ';
  for (size_t i = 0; i < text.size();) {
    const char c = text[i];
    if (c == 0) return Problem{place, "a NUL byte; the file must be text"};
    const size_t length = common::Utf8Length(text.substr(i));
    if (length == 0) {
      return Problem{place, absl::StrCat("byte 0x", absl::Hex(static_cast<unsigned char>(c)),
                                         " is not UTF-8; save the file as UTF-8")};
    }
    if (c == '#' && (before == ' ' || before == '\t' || before == '\n')) {
      comment = true;
    } else if (!comment && (c == '[' || c == '{')) {
      if (++open == kMaxYamlDepth + 1) too_deep = place;
      if (open > kMaxOpen) {
        return Problem{too_deep, absl::StrCat("is nested deeper than ", kMaxYamlDepth, " levels")};
      }
    } else if (!comment && (c == ']' || c == '}') && open > 0) {
      --open;
    }
    place.column += static_cast<int>(length);
    if (c == '\n') {
      place = {place.line + 1, 1};
      comment = false;
    }
    before = c;
    i += length;
  }
  return std::nullopt;
}

// Reads from memory without a copy.
class TextBuffer final : public std::streambuf {
 public:
  explicit TextBuffer(std::string_view text) {
    char* begin = const_cast<char*>(text.data());  // never written to
    setg(begin, begin, begin + text.size());
  }

  // Ends the text at the current position.
  void End() { setg(eback(), egptr(), egptr()); }
};

// Builds the tree from yaml-cpp's events. Stops at the first problem; the caller catches yaml-cpp's
// exceptions.
class TreeBuilder final : public YAML::EventHandler {
 public:
  // Ends `text` at the first problem, so that yaml-cpp reads no further. `text` outlives this.
  TreeBuilder(TextBuffer* text, const YamlOptions& options) : text_(text), options_(options) {}

  YamlNode TakeRoot() { return std::move(root_); }
  const std::optional<Problem>& problem() const { return problem_; }

  void OnDocumentStart(const YAML::Mark& mark) override {
    if (documents_++ > 0) {
      Fail(PlaceOf(mark), "a second document begins here; keep one");
    }
  }
  void OnDocumentEnd() override {}

  void OnNull(const YAML::Mark& mark, YAML::anchor_t anchor) override {
    Add(Begin(YamlNode::Kind::kNull, mark, "", anchor), anchor);
  }

  void OnAlias(const YAML::Mark& mark, YAML::anchor_t anchor) override {
    if (!options_.aliases) {
      Fail(PlaceOf(mark), "an alias (*name) is not allowed; write it out");
      return;
    }
    const auto it = anchors_.find(anchor);
    if (it == anchors_.end()) {
      Fail(PlaceOf(mark), "an alias of a node that it is itself in; write it out");
      return;
    }
    alias_nodes_ += it->second.nodes;
    if (alias_nodes_ > kMaxYamlAliasNodes || it->second.depth + levels_.size() > kMaxYamlDepth) {
      Fail(PlaceOf(mark),
           absl::StrCat("the aliases up to here come to more than ", kMaxYamlAliasNodes,
                        " nodes or ", kMaxYamlDepth, " levels; write less of the file by aliases"));
      return;
    }
    if (!problem_) Add(it->second.node, 0);
  }

  void OnScalar(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                const std::string& value) override {
    YamlNode node = Begin(YamlNode::Kind::kValue, mark, tag, anchor);
    if (!problem_) node.value = value;
    node.plain = tag == "?";
    Add(std::move(node), anchor);
  }

  void OnSequenceStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                       YAML::EmitterStyle::value) override {
    Open(Begin(YamlNode::Kind::kList, mark, tag, anchor), anchor);
  }
  void OnSequenceEnd() override { Close(); }

  void OnMapStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                  YAML::EmitterStyle::value) override {
    Open(Begin(YamlNode::Kind::kMap, mark, tag, anchor), anchor);
  }
  void OnMapEnd() override { Close(); }

 private:
  // A list or map that is not complete yet.
  struct Level {
    YamlNode node;
    YAML::anchor_t anchor = 0;
    // A map's key whose value comes next.
    std::optional<YamlNode> key = {};
    absl::flat_hash_map<std::string, int> line_of_key = {};
  };
  // What an alias stands for.
  struct Anchored {
    YamlNode node;
    size_t nodes = 0;
    size_t depth = 0;
  };

  void Fail(TextPlace place, std::string text) {
    if (problem_) return;
    problem_ = Problem{place, std::move(text)};
    text_->End();
  }

  // A node that is still empty. Refuses anchors and tags.
  YamlNode Begin(YamlNode::Kind kind, const YAML::Mark& mark, const std::string& tag,
                 YAML::anchor_t anchor) {
    if (anchor != 0 && !options_.aliases) {
      Fail(PlaceOf(mark), "an anchor (&name) is not allowed; take it out");
    }
    // "?" and "!" stand for plain and quoted.
    if (!tag.empty() && tag != "?" && tag != "!") {
      Fail(PlaceOf(mark),
           absl::StrCat("tag: ", limits::Quoted(tag), ": tags are not allowed; take it out"));
    }
    YamlNode node;
    node.kind = kind;
    node.place = PlaceOf(mark);
    return node;
  }

  void Open(YamlNode node, YAML::anchor_t anchor) {
    if (problem_) return;
    if (levels_.size() == kMaxYamlDepth) {
      Fail(node.place, absl::StrCat("is nested deeper than ", kMaxYamlDepth, " levels"));
      return;
    }
    levels_.push_back({std::move(node), anchor});
  }

  void Close() {
    if (problem_) return;
    YamlNode node = std::move(levels_.back().node);
    const YAML::anchor_t anchor = levels_.back().anchor;
    levels_.pop_back();
    if (options_.aliases && node.kind == YamlNode::Kind::kMap) Merge(&node);
    Add(std::move(node), anchor);
  }

  void Add(YamlNode node, YAML::anchor_t anchor) {
    if (problem_) return;
    if (anchor != 0) {
      Anchored anchored;
      Measure(node, 1, &anchored);
      // Nested anchors keep a copy each.
      alias_nodes_ += anchored.nodes;
      anchored.node = node;
      anchors_.insert_or_assign(anchor, std::move(anchored));
    }
    if (levels_.empty()) {
      root_ = std::move(node);
      return;
    }
    Level& level = levels_.back();
    if (level.node.kind == YamlNode::Kind::kList) {
      level.node.items.push_back(std::move(node));
      return;
    }
    if (!level.key) {
      AddKey(&level, std::move(node));
      return;
    }
    // The mark of an absent value is the next token's; its key's place is more useful.
    if (node.kind == YamlNode::Kind::kNull) node.place = level.key->place;
    level.node.entries.push_back({level.key->place, std::move(level.key->value), std::move(node)});
    level.key.reset();
  }

  void AddKey(Level* level, YamlNode key) {
    if (key.kind == YamlNode::Kind::kNull) {
      Fail(key.place, "an empty key, null or ~; put the key in quotes");
      return;
    }
    if (key.kind != YamlNode::Kind::kValue) {
      Fail(key.place, "a list or map as a key; say a plain name");
      return;
    }
    const auto [it, inserted] = level->line_of_key.emplace(key.value, key.place.line);
    if (!inserted) {
      Fail(key.place, absl::StrCat(limits::Quoted(key.value), ": is given twice, first in line ",
                                   it->second, "; keep one"));
      return;
    }
    level->key = std::move(key);
  }

  static void Measure(const YamlNode& node, size_t depth, Anchored* measured) {
    ++measured->nodes;
    measured->depth = std::max(measured->depth, depth);
    for (const YamlNode& item : node.items) Measure(item, depth + 1, measured);
    for (const YamlNode::Entry& entry : node.entries) Measure(entry.node, depth + 1, measured);
  }

  // `<<: *name` or `<<: [*a, *b]`: adds the entries of those maps whose keys the map does not have.
  void Merge(YamlNode* map) {
    const auto merge = std::find_if(map->entries.begin(), map->entries.end(),
                                    [](const YamlNode::Entry& one) { return one.key == "<<"; });
    if (merge == map->entries.end()) return;
    const YamlNode::Entry merged = std::move(*merge);
    map->entries.erase(merge);
    std::vector<YamlNode> maps = merged.node.items;
    if (merged.node.kind == YamlNode::Kind::kMap) maps.push_back(merged.node);
    const bool are_maps = std::all_of(maps.begin(), maps.end(), [](const YamlNode& one) {
      return one.kind == YamlNode::Kind::kMap;
    });
    if (maps.empty() || !are_maps) {
      Fail(merged.place, "\"<<\": say the alias of a map, or a list of them");
      return;
    }
    for (YamlNode& one : maps) {
      for (YamlNode::Entry& entry : one.entries) {
        const auto same = [&](const YamlNode::Entry& own) { return own.key == entry.key; };
        if (std::none_of(map->entries.begin(), map->entries.end(), same)) {
          map->entries.push_back(std::move(entry));
        }
      }
    }
  }

  TextBuffer* const text_;
  const YamlOptions& options_;
  absl::flat_hash_map<YAML::anchor_t, Anchored> anchors_;
  size_t alias_nodes_ = 0;
  int documents_ = 0;
  YamlNode root_;
  std::vector<Level> levels_;
  std::optional<Problem> problem_;
};

}  // namespace

absl::Status ErrorAt(std::string_view filename, TextPlace place, std::string_view text) {
  return absl::InvalidArgumentError(
      absl::StrCat(ToAbsl(filename), ":", place.line, ":", place.column, ": ", ToAbsl(text)));
}

absl::StatusOr<YamlNode> ParseYaml(std::string_view text, std::string_view filename,
                                   const YamlOptions& options) {
  if (const auto problem = CheckText(text)) return ErrorAt(filename, problem->place, problem->text);
  TextBuffer buffer(text);
  std::istream stream(&buffer);
  TreeBuilder builder(&buffer, options);
  try {
    YAML::Parser parser(stream);
    while (!builder.problem() && parser.HandleNextDocument(builder)) {
    }
  } catch (const YAML::Exception& e) {
    // A problem of ours is earlier in the file.
    if (!builder.problem()) {
      return ErrorAt(filename, PlaceOf(e.mark), absl::StrCat("is not YAML: ", Shown(e.msg, 160)));
    }
  }
  if (const std::optional<Problem>& problem = builder.problem()) {
    return ErrorAt(filename, problem->place, problem->text);
  }
  return builder.TakeRoot();
}

}  // namespace sluice::config
