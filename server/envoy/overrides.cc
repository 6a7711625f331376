#include "server/envoy/overrides.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/strings.h"
#include "server/config/yaml_tree.h"
#include "server/limits/notation.h"
#include "server/limits/spec_check.h"

namespace sluice::envoy {
namespace {

using config::ErrorAt;
using config::YamlNode;
using limits::Quoted;
using Kind = YamlNode::Kind;

constexpr char kForm[] =
    "say a map, e.g. { mode: exact, algorithm: sliding_window, all_or_none: true }";

// One entry of `domains` or `limits`.
absl::StatusOr<Counting> ReadCounting(const YamlNode& node, const std::string& path,
                                      std::string_view filename, Counting counting) {
  if (node.kind != Kind::kMap)
    return ErrorAt(filename, node.place, absl::StrCat(path, ": ", kForm));
  const YamlNode::Entry* of_exact = nullptr;
  const YamlNode::Entry* split = nullptr;
  for (const YamlNode::Entry& entry : node.entries) {
    const std::string field = absl::StrCat(path, ".", entry.key);
    const std::string& value = entry.node.value;
    const auto bad = [&](absl::string_view advice) {
      return ErrorAt(filename, entry.node.place,
                     absl::StrCat(field, ": ", Quoted(value), ": ", advice));
    };
    if (entry.key == "mode") {
      if (value != "compatible" && value != "exact") return bad("say compatible or exact");
      counting.mode = value == "exact" ? CountMode::kExact : CountMode::kCompatible;
    } else if (entry.key == "algorithm") {
      if (value != "token_bucket" && value != "sliding_window") {
        return bad("say token_bucket or sliding_window");
      }
      counting.algorithm =
          value == "token_bucket" ? ExactAlgorithm::kTokenBucket : ExactAlgorithm::kSlidingWindow;
      of_exact = &entry;
    } else if (entry.key == "all_or_none") {
      const auto flag = limits::ParseBool(value);
      if (!flag.ok()) return bad("say true or false");
      counting.all_or_none = *flag;
      of_exact = &entry;
    } else if (entry.key == "on_store_failure") {
      const auto choice = limits::ParseOnStoreFailure(value);
      if (!choice.ok()) return bad(choice.status().message());
      counting.on_store_failure = *choice;
      // A node's share of a window that counts denied requests too would tell nothing.
      if (*choice == limits::OnStoreFailure::kSplit) split = &entry;
    } else {
      return ErrorAt(filename, entry.place,
                     absl::StrCat(path, ": ", Quoted(entry.key),
                                  ": no field has that name; there are mode, algorithm, "
                                  "all_or_none and on_store_failure"));
    }
  }
  if (of_exact != nullptr && counting.mode == CountMode::kCompatible) {
    return ErrorAt(filename, of_exact->place,
                   absl::StrCat(path, ": ", Quoted(of_exact->key),
                                ": has no effect in mode: compatible; say mode: exact"));
  }
  if (split != nullptr && counting.mode == CountMode::kCompatible) {
    return ErrorAt(filename, split->node.place,
                   absl::StrCat(path,
                                ".on_store_failure: \"split\": needs mode: exact; say "
                                "deny or allow, or mode: exact"));
  }
  return counting;
}

}  // namespace

const Counting& Overrides::Of(std::string_view domain, std::string_view name,
                              std::string_view limit_name) const {
  const auto find = [](const auto& map, std::string_view key) -> const Counting* {
    const auto it = map.find(common::ToAbsl(key));
    return it == map.end() ? nullptr : &it->second;
  };
  if (const Counting* of_limit = find(limits, limit_name)) return *of_limit;
  if (const Counting* of_limit = name.empty() ? nullptr : find(limits, name)) return *of_limit;
  if (const Counting* of_domain = find(domains, domain)) return *of_domain;
  return all;
}

absl::StatusOr<Overrides> ParseOverrides(std::string_view text, std::string_view filename,
                                         const Counting& all) {
  const auto root = config::ParseYaml(text, filename);
  if (!root.ok()) return root.status();
  Overrides overrides;
  overrides.all = all;
  if (root->kind == Kind::kNull) return overrides;
  if (root->kind != Kind::kMap) {
    return ErrorAt(filename, root->place, "say a map with domains: or limits:");
  }
  for (const YamlNode::Entry& entry : root->entries) {
    const bool of_domains = entry.key == "domains";
    if (!of_domains && entry.key != "limits") {
      return ErrorAt(filename, entry.place,
                     absl::StrCat(Quoted(entry.key),
                                  ": no field has that name; there are domains and limits"));
    }
    if (entry.node.kind != Kind::kMap) {
      return ErrorAt(filename, entry.node.place,
                     absl::StrCat(entry.key, ": say a map of names, e.g. edge: { mode: exact }"));
    }
    for (const YamlNode::Entry& one : entry.node.entries) {
      auto counting =
          ReadCounting(one.node, absl::StrCat(entry.key, "[", Quoted(one.key), "]"), filename, all);
      if (!counting.ok()) return counting.status();
      (of_domains ? overrides.domains : overrides.limits).emplace(one.key, *counting);
    }
  }
  return overrides;
}

}  // namespace sluice::envoy
