#include "server/config/load.h"

#include <fcntl.h>
#include <openssl/evp.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/cleanup/cleanup.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "common/bounds.h"
#include "common/strings.h"
#include "server/config/yaml_tree.h"
#include "server/limits/nearest_name.h"
#include "server/limits/notation.h"
#include "server/limits/spec_check.h"

namespace sluice::config {
namespace {

namespace bounds = common::bounds;
using common::ToAbsl;
using limits::KeyOverride;
using limits::LimitSpec;
using limits::Quoted;
using Kind = YamlNode::Kind;

// A field of a limit, or of a key's override, in the order in which messages list them.
template <typename Spec>
struct Field {
  std::string_view name;
  // Parses the text of a field that has a single value. Null: the field is a list or a map.
  absl::Status (*parse)(std::string_view text, Spec* spec) = nullptr;
  // What to write, if the parser's message about an empty text does not say it.
  std::string_view form = {};
};

template <auto kMember, auto kParse, typename Spec>
absl::Status Into(std::string_view text, Spec* spec) {
  auto value = kParse(text);
  if (!value.ok()) return value.status();
  spec->*kMember = *std::move(value);
  return absl::OkStatus();
}

absl::StatusOr<std::string> ParseText(std::string_view text) { return std::string(text); }

absl::StatusOr<uint32_t> ParseSubWindows(std::string_view text) {
  const auto value = limits::ParseWhole(text);
  if (!value.ok()) return value.status();
  if (*value > bounds::kMaxSubWindows) {
    return absl::InvalidArgumentError(absl::StrCat("must be from 1 to ", bounds::kMaxSubWindows));
  }
  return static_cast<uint32_t>(*value);
}

constexpr std::string_view kPermitsForm = "say a whole number of permits";

constexpr Field<LimitSpec> kTopFields[] = {{"limits"}};
constexpr Field<LimitSpec> kLimitFields[] = {
    {"name", Into<&LimitSpec::name, ParseText>, "say a name, in quotes if it is null or ~"},
    {"algorithm", Into<&LimitSpec::algorithm, limits::ParseAlgorithm>},
    {"rate", Into<&LimitSpec::rate, limits::ParseRate>},
    {"burst", Into<&LimitSpec::burst, limits::ParseWhole>, kPermitsForm},
    {"debt", Into<&LimitSpec::debt, limits::ParseWhole>, kPermitsForm},
    {"max_owed", Into<&LimitSpec::max_owed, limits::ParseWhole>, kPermitsForm},
    {"permits", Into<&LimitSpec::permits, limits::ParseWhole>, kPermitsForm},
    {"hold_for", Into<&LimitSpec::hold_for_ns, limits::ParseDuration>},
    {"mode", Into<&LimitSpec::mode, limits::ParseMode>},
    {"charges"},
    {"keys"},
    {"sub_windows", Into<&LimitSpec::sub_windows, ParseSubWindows>,
     "say a whole number from 1 to 100"},
    {"utc_offset", Into<&LimitSpec::utc_offset_ns, limits::ParseUtcOffset>},
    {"on_store_failure", Into<&LimitSpec::on_store_failure, limits::ParseOnStoreFailure>},
    {"hash_tag", Into<&LimitSpec::hash_tag, ParseText>, "say a word, e.g. orders"},
    {"sharing", Into<&LimitSpec::sharing, limits::ParseSharing>},
    {"max_wait", Into<&LimitSpec::max_wait_ns, limits::ParseDuration>},
    {"min_keys", Into<&LimitSpec::min_keys, limits::ParseWhole>, "say a whole number of keys"},
    {"direct", Into<&LimitSpec::direct, limits::ParseBool>},
};
constexpr Field<KeyOverride> kKeyFields[] = {
    {"rate", Into<&KeyOverride::rate, limits::ParseRate>},
    {"burst", Into<&KeyOverride::burst, limits::ParseWhole>, kPermitsForm},
    {"debt", Into<&KeyOverride::debt, limits::ParseWhole>, kPermitsForm},
    {"permits", Into<&KeyOverride::permits, limits::ParseWhole>, kPermitsForm},
};

absl::string_view KindName(Kind kind) {
  constexpr absl::string_view kNames[] = {"nothing", "a single value", "a list", "a map"};
  return kNames[static_cast<size_t>(kind)];
}

// Turns one file's tree into specs. Stops at the first problem, which the message locates.
class Reader {
 public:
  explicit Reader(std::string_view filename) : filename_(filename) {}

  absl::StatusOr<std::vector<LimitSpec>> Read(const YamlNode& root) {
    if (root.kind == Kind::kNull) {
      return Error(TextPlace{}, "the file is empty; say limits: [] to have no limits");
    }
    if (root.kind != Kind::kMap) {
      return Error(root.place,
                   absl::StrCat("is ", KindName(root.kind), "; begin the file with limits:"));
    }
    if (absl::Status s = CheckFields<LimitSpec>(root, "", kTopFields); !s.ok()) return s;
    const YamlNode* list = Find(root, "limits");
    if (list == nullptr) return Error(root.place, "limits: is missing; say limits: [] for none");
    if (list->kind == Kind::kNull) {
      return Error(list->place, "limits: has no value; say limits: [] for none");
    }
    if (auto s = Expect(*list, Kind::kList, "limits", "say a list, each limit after a dash");
        !s.ok()) {
      return s;
    }
    if (list->items.size() > bounds::kMaxLimits) {
      return Error(
          list->items[bounds::kMaxLimits].place,
          absl::StrCat("limits: there are ", list->items.size(), "; at most ", bounds::kMaxLimits));
    }
    std::vector<LimitSpec> specs(list->items.size());
    for (size_t i = 0; i < specs.size(); ++i) {
      const std::string path = absl::StrCat("limits[", i, "]");
      if (absl::Status s = ReadLimit(list->items[i], path, &specs[i]); !s.ok()) return s;
    }
    if (absl::Status s = CheckTogether(*list, specs); !s.ok()) return s;
    return specs;
  }

 private:
  absl::Status Error(TextPlace place, std::string_view text) const {
    return ErrorAt(filename_, place, text);
  }
  absl::Status Expect(const YamlNode& node, Kind kind, std::string_view path,
                      std::string_view form) const {
    if (node.kind == kind) return absl::OkStatus();
    return Error(node.place,
                 absl::StrCat(ToAbsl(path), ": ", ToAbsl(form), ", not ", KindName(node.kind)));
  }

  static const YamlNode* Find(const YamlNode& map, std::string_view name) {
    for (const YamlNode::Entry& entry : map.entries) {
      if (entry.key == name) return &entry.node;
    }
    return nullptr;
  }

  // An error if the map has other fields than `known`.
  template <typename Spec>
  absl::Status CheckFields(const YamlNode& map, std::string_view path,
                           absl::Span<const Field<Spec>> known) const {
    std::vector<std::string_view> names;
    for (const Field<Spec>& field : known) names.push_back(field.name);
    for (const YamlNode::Entry& entry : map.entries) {
      if (absl::c_linear_search(names, entry.key)) continue;
      std::string advice = "no field has that name; ";
      if (entry.key == "<<") {
        advice = "merge keys are not allowed; write the fields out";
      } else if (const std::string_view near = limits::NearestName(entry.key, names);
                 !near.empty()) {
        absl::StrAppend(&advice, "did you mean ", ToAbsl(near), "?");
      } else {
        absl::StrAppend(&advice, known.size() == 1 ? "there is only " : "there are ",
                        limits::Listed(names, " and "));
      }
      return Error(entry.place, absl::StrCat(ToAbsl(path), path.empty() ? "" : ": ",
                                             Quoted(entry.key), ": ", advice));
    }
    return absl::OkStatus();
  }

  // The text of a field that must be a single value.
  absl::StatusOr<std::string_view> Value(const YamlNode& node, std::string_view path,
                                         std::string_view form) const {
    if (node.kind == Kind::kValue) return std::string_view(node.value);
    if (node.kind == Kind::kNull) {
      return Error(node.place, absl::StrCat(ToAbsl(path), ": has no value; ", ToAbsl(form),
                                            ", or take the field out"));
    }
    return Expect(node, Kind::kValue, path, form);
  }

  // Reads the fields of `map` that have a single value into `spec`.
  template <typename Spec>
  absl::Status ReadFields(const YamlNode& map, const std::string& path,
                          absl::Span<const Field<Spec>> fields, Spec* spec) const {
    for (const Field<Spec>& field : fields) {
      const YamlNode* node = Find(map, field.name);
      if (node == nullptr || field.parse == nullptr) continue;
      const std::string field_path = absl::StrCat(path, ".", ToAbsl(field.name));
      if (node->kind != Kind::kValue) {
        Spec unused;
        const absl::Status empty = field.parse("", &unused);
        return Value(*node, field_path,
                     field.form.empty() ? common::ToStd(empty.message()) : field.form)
            .status();
      }
      if (const absl::Status s = field.parse(node->value, spec); !s.ok()) {
        return Error(node->place,
                     absl::StrCat(field_path, ": ", Quoted(node->value), ": ", s.message()));
      }
    }
    return absl::OkStatus();
  }

  absl::Status ReadLimit(const YamlNode& node, const std::string& path, LimitSpec* spec) {
    constexpr char kForm[] = "say a map with name and rate, e.g. { name: api, rate: 100/s }";
    if (auto s = Expect(node, Kind::kMap, path, kForm); !s.ok()) return s;
    if (auto s = CheckFields<LimitSpec>(node, path, kLimitFields); !s.ok()) return s;
    if (Find(node, "name") == nullptr) {
      return Error(node.place, absl::StrCat(path, ".name: is missing; give the limit a name"));
    }
    if (auto s = ReadFields<LimitSpec>(node, path, kLimitFields, spec); !s.ok()) return s;
    if (const auto problem = limits::CheckHasRate(*spec, Find(node, "rate") != nullptr)) {
      return SpecError(node, path, *spec, *problem);
    }
    if (auto s = ReadCharges(node, path, spec); !s.ok()) return s;
    if (auto s = ReadKeys(node, path, spec); !s.ok()) return s;
    spec->origin = limits::Origin::kFile;
    spec->defined_at = absl::StrCat(ToAbsl(filename_), ":", node.place.line);
    if (const auto problem = limits::CheckSpec(*spec, nullptr)) {
      return SpecError(node, path, *spec, *problem);
    }
    return absl::OkStatus();
  }

  absl::Status ReadCharges(const YamlNode& limit, const std::string& path, LimitSpec* spec) const {
    const YamlNode* list = Find(limit, "charges");
    if (list == nullptr) return absl::OkStatus();
    constexpr char kForm[] = "say a list of limits' names, e.g. [overall]";
    if (auto s = Expect(*list, Kind::kList, path + ".charges", kForm); !s.ok()) return s;
    for (size_t i = 0; i < list->items.size(); ++i) {
      const auto name =
          Value(list->items[i], absl::StrCat(path, ".charges[", i, "]"), "say a limit's name");
      if (!name.ok()) return name.status();
      spec->charges.emplace_back(*name);
    }
    return absl::OkStatus();
  }

  absl::Status ReadKeys(const YamlNode& limit, const std::string& path, LimitSpec* spec) const {
    const YamlNode* map = Find(limit, "keys");
    if (map == nullptr) return absl::OkStatus();
    constexpr char kForm[] =
        "say a map of keys to their parameters, e.g. { \"user:42\": { rate: 1000/s } }";
    if (auto s = Expect(*map, Kind::kMap, path + ".keys", kForm); !s.ok()) return s;
    spec->keys.reserve(map->entries.size());
    for (const YamlNode::Entry& entry : map->entries) {
      const std::string key_path = absl::StrCat(path, ".keys[", Quoted(entry.key), "]");
      constexpr char kEntryForm[] = "say a map of parameters, e.g. { rate: 1000/s }";
      if (auto s = Expect(entry.node, Kind::kMap, key_path, kEntryForm); !s.ok()) return s;
      if (auto s = CheckFields<KeyOverride>(entry.node, key_path, kKeyFields); !s.ok()) return s;
      KeyOverride& override = spec->keys.emplace_back();
      override.key = entry.key;
      const absl::Status s = ReadFields<KeyOverride>(entry.node, key_path, kKeyFields, &override);
      if (!s.ok()) return s;
    }
    return absl::OkStatus();
  }

  // The place in the file that the problem is about. Sets its value to what is written there.
  static TextPlace Locate(const YamlNode& limit, limits::SpecProblem* problem) {
    const YamlNode* node = Find(limit, problem->field);
    // The field is absent and its default is bad: blame the limit.
    if (node == nullptr) return limit.place;
    if (problem->index) {
      if (node->kind == Kind::kMap) {
        const YamlNode::Entry& entry = node->entries[*problem->index];
        node = problem->key_field.empty() ? nullptr : Find(entry.node, problem->key_field);
        if (node == nullptr) return entry.place;
      } else {
        node = &node->items[*problem->index];
      }
    }
    if (node->kind == Kind::kValue) problem->value = node->value;
    return node->place;
  }

  absl::Status SpecError(const YamlNode& node, std::string_view path, const LimitSpec& spec,
                         limits::SpecProblem problem) const {
    const TextPlace place = Locate(node, &problem);
    return Error(place,
                 absl::StrCat(ToAbsl(path), ".", limits::ProblemText(problem.Path(spec), problem)));
  }

  // Checks that names are unique and charges are good, once each limit is.
  absl::Status CheckTogether(const YamlNode& list, const std::vector<LimitSpec>& specs) const {
    std::vector<const LimitSpec*> pointers;
    pointers.reserve(specs.size());
    for (const LimitSpec& spec : specs) pointers.push_back(&spec);
    std::vector<std::vector<uint32_t>> parents;
    if (const auto problem = limits::ExpandCharges(pointers, 0, &parents)) {
      return SpecError(list.items[problem->limit], absl::StrCat("limits[", problem->limit, "]"),
                       specs[problem->limit], problem->problem);
    }
    return absl::OkStatus();
  }

  const std::string filename_;
};

absl::Status TooLarge(const std::string& path, absl::string_view size) {
  return absl::InvalidArgumentError(absl::StrCat(
      path, ": ", size, "; at most ", bounds::kMaxLimitsFileBytes, " bytes are allowed"));
}

bool SameFile(const struct stat& a, const struct stat& b) {
  return a.st_size == b.st_size && a.st_mtim.tv_sec == b.st_mtim.tv_sec &&
         a.st_mtim.tv_nsec == b.st_mtim.tv_nsec;
}

}  // namespace

absl::StatusOr<std::string> ReadWhole(const std::string& path) {
  // O_NONBLOCK: opening a FIFO in the file's place must not block.
  const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (file < 0) return absl::ErrnoToStatus(errno, path);
  const absl::Cleanup close_file = [file] { close(file); };
  struct stat before = {};
  if (fstat(file, &before) != 0) return absl::ErrnoToStatus(errno, path);
  if (S_ISDIR(before.st_mode)) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": is a directory; name a file in it"));
  }
  if (!S_ISREG(before.st_mode)) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": is not a regular file"));
  }
  if (static_cast<uint64_t>(before.st_size) > bounds::kMaxLimitsFileBytes) {
    return TooLarge(path, absl::StrCat("has ", before.st_size, " bytes"));
  }
  std::string text;
  char buffer[1 << 16];
  while (true) {
    const ssize_t n = read(file, buffer, sizeof(buffer));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return absl::ErrnoToStatus(errno, path);
    if (n == 0) break;
    text.append(buffer, static_cast<size_t>(n));
    if (text.size() > bounds::kMaxLimitsFileBytes) return TooLarge(path, "grows while it is read");
  }
  struct stat after = {};
  if (fstat(file, &after) != 0) return absl::ErrnoToStatus(errno, path);
  if (!SameFile(before, after)) {
    return absl::UnavailableError(
        absl::StrCat(path, ": changed while it was read; replace it by rename"));
  }
  return text;
}

std::string Sha256Hex(std::string_view text) {
  unsigned char digest[EVP_MAX_MD_SIZE];
  unsigned int size = 0;
  EVP_Digest(text.data(), text.size(), digest, &size, EVP_sha256(), nullptr);
  return absl::BytesToHexString(absl::string_view(reinterpret_cast<const char*>(digest), size));
}

absl::StatusOr<std::vector<LimitSpec>> ParseLimits(std::string_view text,
                                                   std::string_view filename) {
  if (text.size() > bounds::kMaxLimitsFileBytes) {
    return TooLarge(std::string(filename), absl::StrCat("has ", text.size(), " bytes"));
  }
  const auto root = ParseYaml(text, filename);
  if (!root.ok()) return root.status();
  return Reader(filename).Read(*root);
}

absl::StatusOr<LimitsFile> LoadFile(const std::string& path) {
  const auto text = ReadWhole(path);
  if (!text.ok()) return text.status();
  auto specs = ParseLimits(*text, path);
  if (!specs.ok()) return specs.status();
  return LimitsFile{*std::move(specs), Sha256Hex(*text)};
}

}  // namespace sluice::config
