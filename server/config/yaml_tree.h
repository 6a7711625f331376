// ParseYaml: a YAML document as a tree whose nodes know their place in the file. Restricted to one
// document of maps, lists and single values. Refuses whatever would surprise in a limits file:
// anchors and aliases (unless the options accept them), tags, duplicate keys, keys that are not
// single values, deep nesting, and bytes that are not UTF-8.
#ifndef SLUICE_SERVER_CONFIG_YAML_TREE_H_
#define SLUICE_SERVER_CONFIG_YAML_TREE_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace sluice::config {

// Both count from 1; columns count bytes.
struct TextPlace {
  int line = 1;
  int column = 1;
};

struct YamlNode {
  enum class Kind : uint8_t { kNull, kValue, kList, kMap };
  // A map's entry.
  struct Entry;

  Kind kind = Kind::kNull;
  bool plain = false;  // a kValue without quotes
  TextPlace place;
  std::string value;            // kValue
  std::vector<YamlNode> items;  // kList
  std::vector<Entry> entries;   // kMap, in the order written
};

struct YamlNode::Entry {
  TextPlace place;
  std::string key;
  YamlNode node;
};

// INVALID_ARGUMENT: "FILE:LINE:COLUMN: what is wrong, what to write".
absl::Status ErrorAt(std::string_view filename, TextPlace place, std::string_view text);

struct YamlOptions {
  // Accept anchors (&name), write their aliases (*name) out, and merge `<<`. The nodes of an alias
  // have the places of the anchor's. At most bounds::kMaxYamlAliasNodes.
  bool aliases = false;
};

// The root of the only document. A text without any document has a kNull root. Thread-safe.
absl::StatusOr<YamlNode> ParseYaml(std::string_view text, std::string_view filename,
                                   const YamlOptions& options = {});

}  // namespace sluice::config

#endif  // SLUICE_SERVER_CONFIG_YAML_TREE_H_
