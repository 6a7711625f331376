#include "server/envoy/load.h"

#include <algorithm>
#include <filesystem>
#include <optional>
#include <system_error>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "common/bounds.h"
#include "common/strings.h"
#include "server/config/load.h"
#include "server/config/yaml_tree.h"
#include "server/limits/nearest_name.h"
#include "server/limits/notation.h"
#include "server/limits/spec_check.h"

namespace sluice::envoy {
namespace {

namespace bounds = common::bounds;
namespace fs = std::filesystem;
using common::ToAbsl;
using config::YamlNode;
using limits::Quoted;
using Kind = YamlNode::Kind;

constexpr std::string_view kRootFields[] = {"domain", "descriptors"};
constexpr std::string_view kDescriptorFields[] = {
    "key",        "value",           "rate_limit",      "descriptors",     "shadow_mode",
    "quota_mode", "detailed_metric", "value_to_metric", "share_threshold", "metadata"};
constexpr std::string_view kRateLimitFields[] = {"unit", "requests_per_unit", "unlimited", "name",
                                                 "replaces"};
constexpr std::string_view kReplacesFields[] = {"name"};
// envoyproxy/ratelimit accepts each of its fields anywhere, and ignores it in the wrong place.
constexpr absl::Span<const std::string_view> kAllFields[] = {kRootFields, kDescriptorFields,
                                                             kRateLimitFields, kReplacesFields};

absl::string_view KindName(Kind kind) {
  constexpr absl::string_view kNames[] = {"nothing", "a single value", "a list", "a map"};
  return kNames[static_cast<size_t>(kind)];
}

// ---- Values, as YAML 1.1 reads them ----

std::optional<bool> ReadBool(const YamlNode& node) {
  if (!node.plain) return std::nullopt;
  const std::string word = absl::AsciiStrToLower(node.value);
  for (const char* one : {"true", "yes", "on", "y"}) {
    if (word == one) return true;
  }
  for (const char* one : {"false", "no", "off", "n"}) {
    if (word == one) return false;
  }
  return std::nullopt;
}

// Decimal, 0x, 0o, 0b or 0 (octal), with _ between digits.
std::optional<uint64_t> ReadWhole(const YamlNode& node) {
  if (!node.plain) return std::nullopt;
  std::string digits = absl::StrReplaceAll(node.value, {{"_", ""}});
  if (!digits.empty() && digits[0] == '+') digits.erase(0, 1);
  int base = 10;
  if (digits.size() > 1 && digits[0] == '0') {
    base = digits[1] == 'x' ? 16 : digits[1] == 'b' ? 2 : 8;
    const bool named = digits[1] == 'x' || digits[1] == 'b' || digits[1] == 'o';
    digits.erase(0, named ? 2 : 1);
  }
  uint64_t value = 0;
  if (digits.empty()) return std::nullopt;
  for (const char c : digits) {
    const int digit = absl::ascii_isdigit(static_cast<unsigned char>(c)) ? c - '0'
                      : absl::ascii_isxdigit(static_cast<unsigned char>(c))
                          ? absl::ascii_tolower(static_cast<unsigned char>(c)) - 'a' + 10
                          : base;
    if (digit >= base || value > (UINT64_MAX >> 5)) return std::nullopt;
    value = value * static_cast<uint64_t>(base) + static_cast<uint64_t>(digit);
  }
  return value;
}

// Whether a value without quotes is a number with a point or an exponent.
bool IsFloat(const YamlNode& node) {
  if (!node.plain || node.value.empty()) return false;
  const std::string word = absl::AsciiStrToLower(node.value);
  for (const char* one : {".inf", "+.inf", "-.inf", ".nan"}) {
    if (word == one) return true;
  }
  const bool of_number = absl::c_all_of(word, [](unsigned char c) {
    return absl::ascii_isdigit(c) || std::string_view("+-._e").find(c) != std::string_view::npos;
  });
  if (!of_number || word.find_first_of("0123456789") == word.npos) return false;
  if (word.find('.') == word.npos && word.find('e') == word.npos) return false;
  double number = 0;
  return absl::SimpleAtod(absl::StrReplaceAll(word, {{"_", ""}}), &number);
}

MetadataValue ReadMetadataValue(const YamlNode& node) {
  MetadataValue value;
  switch (node.kind) {
    case Kind::kNull:
      return value;
    case Kind::kList:
      value.kind = MetadataValue::Kind::kList;
      for (const YamlNode& item : node.items) value.list.push_back(ReadMetadataValue(item));
      return value;
    case Kind::kMap:
      value.kind = MetadataValue::Kind::kStruct;
      for (const YamlNode::Entry& entry : node.entries) {
        value.fields.emplace_back(entry.key, ReadMetadataValue(entry.node));
      }
      return value;
    case Kind::kValue:
      break;
  }
  const std::string_view text = node.value;
  double number = 0;
  if (const auto flag = ReadBool(node)) {
    value.kind = MetadataValue::Kind::kBool;
    value.boolean = *flag;
  } else if (const auto whole = ReadWhole(node)) {
    value.kind = MetadataValue::Kind::kNumber;
    value.number = static_cast<double>(*whole);
  } else if (node.plain && (IsFloat(node) || text.starts_with('-')) &&
             absl::SimpleAtod(ToAbsl(text), &number)) {
    value.kind = MetadataValue::Kind::kNumber;
    value.number = number;
  } else {
    value.kind = MetadataValue::Kind::kText;
    value.text = text;
  }
  return value;
}

// ---- The tree ----

// Turns one file's tree into a domain. Stops at the first problem, which the message locates.
class Reader {
 public:
  Reader(std::string_view filename, LoadedTree* loaded)
      : filename_(filename),
        source_(static_cast<uint32_t>(loaded->tree.sources.size())),
        loaded_(*loaded) {}

  absl::Status Read(const YamlNode& root) {
    Domain domain;
    domain.place = {source_, root.place.line, root.place.column};
    if (root.kind != Kind::kNull) {
      if (auto s = CheckFields(root, "", kRootFields, "begin the file with domain:"); !s.ok()) {
        return s;
      }
      for (const YamlNode::Entry& entry : root.entries) {
        absl::Status s;
        if (entry.key == "domain") {
          domain.place = PlaceOf(entry.node);
          s = ReadText(entry.node, "domain", &domain.name);
        } else if (entry.key == "descriptors") {
          s = ReadDescriptors(entry.node, "descriptors", &domain.descriptors);
        }
        if (!s.ok()) return s;
      }
    }
    loaded_.tree.sources.emplace_back(filename_);
    loaded_.tree.domains.push_back(std::move(domain));
    return absl::OkStatus();
  }

 private:
  absl::Status Error(config::TextPlace place, std::string_view text) const {
    return config::ErrorAt(filename_, place, text);
  }
  SourcePlace PlaceOf(const YamlNode& node) const {
    return {source_, node.place.line, node.place.column};
  }

  // `node` must be a map with fields that exist.
  absl::Status CheckFields(const YamlNode& node, const std::string& path,
                           absl::Span<const std::string_view> known, absl::string_view form) {
    const std::string subject = path.empty() ? "" : path + ": ";
    if (node.kind != Kind::kMap) {
      return Error(node.place,
                   absl::StrCat(subject, "is ", KindName(node.kind), ", not a map; ", form));
    }
    for (const YamlNode::Entry& entry : node.entries) {
      if (absl::c_linear_search(known, entry.key)) continue;
      const bool elsewhere = absl::c_any_of(
          kAllFields, [&](const auto& fields) { return absl::c_linear_search(fields, entry.key); });
      if (elsewhere) {
        loaded_.warnings.emplace_back(
            Error(entry.place, absl::StrCat(subject, Quoted(entry.key), ": has no effect here; ",
                                            "there are ", limits::Listed(known, " and ")))
                .message());
        continue;
      }
      const std::string_view near = limits::NearestName(entry.key, known);
      return Error(
          entry.place,
          absl::StrCat(subject, Quoted(entry.key), ": no field has that name; ",
                       near.empty() ? absl::StrCat("there are ", limits::Listed(known, " and "))
                                    : absl::StrCat("did you mean ", ToAbsl(near), "?")));
    }
    return absl::OkStatus();
  }

  absl::Status ReadText(const YamlNode& node, const std::string& path, std::string* text) const {
    if (node.kind == Kind::kNull) return absl::OkStatus();
    if (node.kind != Kind::kValue) {
      return Error(node.place, absl::StrCat(path, ": is ", KindName(node.kind), "; say a text"));
    }
    if (IsFloat(node)) {
      return Error(node.place, absl::StrCat(path, ": ", Quoted(node.value),
                                            ": is a number with a point or an exponent; put it "
                                            "in quotes"));
    }
    *text = node.value;
    return absl::OkStatus();
  }

  absl::Status ReadFlag(const YamlNode& node, const std::string& path, bool* flag) const {
    if (node.kind == Kind::kNull) return absl::OkStatus();
    const auto value = node.kind == Kind::kValue ? ReadBool(node) : std::nullopt;
    if (!value) {
      return Error(node.place,
                   absl::StrCat(path, ": ",
                                node.kind == Kind::kValue ? Quoted(node.value)
                                                          : std::string(KindName(node.kind)),
                                ": say true or false, without quotes"));
    }
    *flag = *value;
    return absl::OkStatus();
  }

  absl::Status ReadRequests(const YamlNode& node, const std::string& path, uint32_t* requests) {
    if (node.kind == Kind::kNull) return absl::OkStatus();
    const auto value = node.kind == Kind::kValue ? ReadWhole(node) : std::nullopt;
    if (!value || *value > UINT32_MAX) {
      return Error(node.place,
                   absl::StrCat(path, ": ",
                                node.kind == Kind::kValue ? Quoted(node.value)
                                                          : std::string(KindName(node.kind)),
                                ": say a whole number from 0 to 4294967295, without "
                                "quotes"));
    }
    *requests = static_cast<uint32_t>(*value);
    return absl::OkStatus();
  }

  absl::Status ReadDescriptors(const YamlNode& list, const std::string& path,
                               std::vector<Descriptor>* descriptors) {
    if (list.kind == Kind::kNull) return absl::OkStatus();
    if (list.kind != Kind::kList) {
      return Error(list.place, absl::StrCat(path, ": is ", KindName(list.kind),
                                            "; say a list, each descriptor after a dash"));
    }
    descriptors->resize(list.items.size());
    for (size_t i = 0; i < list.items.size(); ++i) {
      absl::Status s =
          ReadDescriptor(list.items[i], absl::StrCat(path, "[", i, "]"), &(*descriptors)[i]);
      if (!s.ok()) return s;
    }
    return absl::OkStatus();
  }

  absl::Status ReadDescriptor(const YamlNode& node, const std::string& path, Descriptor* out) {
    if (auto s = CheckFields(node, path, kDescriptorFields, "say a map with key:"); !s.ok()) {
      return s;
    }
    out->place = PlaceOf(node);
    const std::pair<std::string_view, bool*> flags[] = {{"shadow_mode", &out->shadow_mode},
                                                        {"quota_mode", &out->quota_mode},
                                                        {"detailed_metric", &out->detailed_metric},
                                                        {"value_to_metric", &out->value_to_metric},
                                                        {"share_threshold", &out->share_threshold}};
    for (const YamlNode::Entry& entry : node.entries) {
      const std::string field = absl::StrCat(path, ".", entry.key);
      absl::Status s;
      if (entry.key == "key") s = ReadText(entry.node, field, &out->key);
      if (entry.key == "value") s = ReadText(entry.node, field, &out->value);
      if (entry.key == "rate_limit") s = ReadRateLimit(entry.node, field, &out->rate_limit);
      if (entry.key == "descriptors") s = ReadDescriptors(entry.node, field, &out->descriptors);
      if (entry.key == "metadata") s = ReadMetadata(entry.node, field, &out->metadata);
      for (const auto& [name, flag] : flags) {
        if (entry.key == name) s = ReadFlag(entry.node, field, flag);
      }
      if (!s.ok()) return s;
    }
    return absl::OkStatus();
  }

  absl::Status ReadMetadata(const YamlNode& node, const std::string& path,
                            MetadataValue::Fields* out) const {
    if (node.kind == Kind::kNull) return absl::OkStatus();
    if (node.kind != Kind::kMap) {
      return Error(node.place,
                   absl::StrCat(path, ": is ", KindName(node.kind), "; say a map of any values"));
    }
    *out = ReadMetadataValue(node).fields;
    return absl::OkStatus();
  }

  absl::Status ReadRateLimit(const YamlNode& node, const std::string& path,
                             std::optional<RateLimit>* out) {
    if (node.kind == Kind::kNull) return absl::OkStatus();
    if (auto s = CheckFields(node, path, kRateLimitFields,
                             "say e.g. { unit: minute, requests_per_unit: 100 }");
        !s.ok()) {
      return s;
    }
    RateLimit& limit = out->emplace();
    limit.place = PlaceOf(node);
    for (const YamlNode::Entry& entry : node.entries) {
      const std::string field = absl::StrCat(path, ".", entry.key);
      absl::Status s;
      if (entry.key == "unit") {
        limit.unit_place = PlaceOf(entry.node);
        s = ReadText(entry.node, field, &limit.unit_text);
        limit.unit = ParseUnit(limit.unit_text).value_or(Unit::kUnknown);
      }
      if (entry.key == "requests_per_unit") {
        s = ReadRequests(entry.node, field, &limit.requests_per_unit);
      }
      if (entry.key == "unlimited") s = ReadFlag(entry.node, field, &limit.unlimited);
      if (entry.key == "name") s = ReadText(entry.node, field, &limit.name);
      if (entry.key == "replaces") s = ReadReplaces(entry.node, field, &limit);
      if (!s.ok()) return s;
    }
    return absl::OkStatus();
  }

  absl::Status ReadReplaces(const YamlNode& list, const std::string& path, RateLimit* limit) {
    constexpr char kForm[] = "say a list of names, e.g. [{ name: per-ip }]";
    if (list.kind == Kind::kNull) return absl::OkStatus();
    if (list.kind != Kind::kList) {
      return Error(list.place, absl::StrCat(path, ": is ", KindName(list.kind), "; ", kForm));
    }
    for (size_t i = 0; i < list.items.size(); ++i) {
      const YamlNode& item = list.items[i];
      const std::string item_path = absl::StrCat(path, "[", i, "]");
      if (auto s = CheckFields(item, item_path, kReplacesFields, kForm); !s.ok()) return s;
      auto& [name, place] = limit->replaces.emplace_back();
      place = PlaceOf(item);
      for (const YamlNode::Entry& entry : item.entries) {
        if (entry.key != "name") continue;
        if (auto s = ReadText(entry.node, item_path + ".name", &name); !s.ok()) return s;
      }
    }
    return absl::OkStatus();
  }

  const std::string filename_;
  const uint32_t source_;
  LoadedTree& loaded_;
};

// ---- Files ----

// The files below a folder, by their names with . for /, as envoyproxy/ratelimit orders them.
absl::StatusOr<std::vector<std::pair<std::string, fs::path>>> ListFiles(const fs::path& folder,
                                                                        bool ignore_dot_files) {
  std::vector<std::pair<std::string, fs::path>> files;
  std::error_code error;
  const auto failed = [&] {
    return absl::UnavailableError(absl::StrCat(folder.string(), ": ", error.message()));
  };
  fs::recursive_directory_iterator it(folder, error);
  for (; !error && it != fs::recursive_directory_iterator(); it.increment(error)) {
    const std::string name = it->path().filename();
    std::error_code gone;
    const bool is_folder = it->is_directory(gone);
    if (absl::StartsWith(name, "..") || (ignore_dot_files && absl::StartsWith(name, "."))) {
      if (is_folder) it.disable_recursion_pending();
      continue;
    }
    // The iterator does not follow symlinks to folders.
    if (is_folder) continue;
    files.emplace_back(
        absl::StrReplaceAll(it->path().lexically_relative(folder).string(), {{"/", "."}}),
        it->path());
    if (files.size() > bounds::kMaxConfigFiles) {
      return absl::InvalidArgumentError(
          absl::StrCat(folder.string(), ": has more than ", bounds::kMaxConfigFiles, " files"));
    }
  }
  if (error) return failed();
  std::sort(files.begin(), files.end());
  return files;
}

}  // namespace

absl::Status AddText(std::string_view text, std::string_view filename, LoadedTree* loaded) {
  if (text.size() > bounds::kMaxLimitsFileBytes) {
    return absl::InvalidArgumentError(absl::StrCat(ToAbsl(filename), ": has ", text.size(),
                                                   " bytes; a configuration file has at most ",
                                                   bounds::kMaxLimitsFileBytes));
  }
  const auto root = config::ParseYaml(text, filename, {.aliases = true});
  if (!root.ok()) return root.status();
  return Reader(filename, loaded).Read(*root);
}

absl::StatusOr<LoadedTree> LoadPath(const std::string& path, bool ignore_dot_files) {
  std::vector<std::pair<std::string, fs::path>> files;
  std::error_code error;
  if (fs::is_directory(path, error)) {
    auto listed = ListFiles(path, ignore_dot_files);
    if (!listed.ok()) return listed.status();
    files = *std::move(listed);
  } else {
    files.emplace_back("", path);
  }
  LoadedTree loaded;
  std::string hashed;
  size_t bytes = 0;
  for (const auto& [name, file] : files) {
    const auto text = config::ReadWhole(file);
    if (!text.ok()) return text.status();
    bytes += text->size();
    if (bytes > bounds::kMaxConfigBytes) {
      return absl::InvalidArgumentError(absl::StrCat(path, ": its files have more than ",
                                                     bounds::kMaxConfigBytes, " bytes together"));
    }
    if (absl::Status s = AddText(*text, file.string(), &loaded); !s.ok()) return s;
    absl::StrAppend(&hashed, file.string(), "\n", config::Sha256Hex(*text), "\n");
  }
  loaded.version = config::Sha256Hex(hashed);
  return loaded;
}

bool LooksLikeEnvoy(std::string_view text) {
  const auto root = config::ParseYaml(text, "", {.aliases = true});
  if (root.ok()) {
    return absl::c_any_of(root->entries, [](const YamlNode::Entry& entry) {
      return absl::c_linear_search(kRootFields, entry.key);
    });
  }
  // It is not YAML: the first line decides whose error is shown.
  return absl::StartsWith(ToAbsl(text), "domain:") || absl::StrContains(ToAbsl(text), "\ndomain:");
}

}  // namespace sluice::envoy
