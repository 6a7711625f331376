#include "server/config/load.h"

#include <fcntl.h>
#include <openssl/evp.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <optional>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "common/bounds.h"
#include "common/strings.h"
#include "server/config/yaml_tree.h"
#include "server/limits/charges.h"
#include "server/limits/nearest_name.h"
#include "server/limits/notation.h"
#include "server/limits/spec_check.h"

namespace sluice::config {
namespace {

namespace bounds = common::bounds;
using common::ToAbsl;
using limits::ShowValue;
using Kind = YamlNode::Kind;

constexpr std::string_view kTopFields[] = {"limits"};
constexpr std::string_view kLimitFields[] = {"name",
                                             "algorithm",
                                             "rate",
                                             "burst",
                                             "debt",
                                             "mode",
                                             "charges",
                                             "keys",
                                             "sub_windows",
                                             "utc_offset",
                                             "on_store_failure",
                                             "hash_tag",
                                             "sharing"};
constexpr std::string_view kKeyFields[] = {"rate", "burst", "debt"};

std::string_view KindName(Kind kind) {
  switch (kind) {
    case Kind::kNull:
      return "nothing";
    case Kind::kValue:
      return "a single value";
    case Kind::kList:
      return "a list";
    case Kind::kMap:
      return "a map";
  }
  return "";
}

// Turns one file's tree into specs; the first problem ends it. Messages are built as they are
// found, so that each has the place of what it is about.
class Reader {
 public:
  explicit Reader(std::string_view filename) : filename_(filename) {}

  absl::StatusOr<std::vector<limits::LimitSpec>> Read(const YamlNode& root) {
    if (root.kind == Kind::kNull) {
      return Error(Place{}, "the file is empty; say limits: [] to have no limits");
    }
    if (root.kind != Kind::kMap) {
      return Error(root.place, absl::StrCat("is ", ToAbsl(KindName(root.kind)),
                                            "; begin the file with limits:"));
    }
    if (absl::Status s = CheckFields(root, "", kTopFields); !s.ok()) return s;
    const YamlNode* list = Field(root, "limits");
    if (list == nullptr) return Error(root.place, "limits: is missing; say limits: [] for none");
    if (list->kind == Kind::kNull) {
      return Error(list->place, "limits: has no value; say limits: [] for none");
    }
    if (list->kind != Kind::kList) {
      return Error(list->place, absl::StrCat("limits: say a list, each limit after a dash, not ",
                                             ToAbsl(KindName(list->kind))));
    }
    if (list->items.size() > bounds::kMaxLimits) {
      return Error(
          list->items[bounds::kMaxLimits].place,
          absl::StrCat("limits: there are ", list->items.size(), "; at most ", bounds::kMaxLimits));
    }
    std::vector<limits::LimitSpec> specs(list->items.size());
    for (size_t i = 0; i < specs.size(); ++i) {
      const std::string path = absl::StrCat("limits[", i, "]");
      if (absl::Status s = ReadLimit(list->items[i], path, &specs[i]); !s.ok()) return s;
    }
    if (absl::Status s = CheckTogether(*list, specs); !s.ok()) return s;
    return specs;
  }

 private:
  absl::Status Error(Place place, std::string_view text) const {
    return ErrorAt(filename_, place, text);
  }
  absl::Status Error(Place place, std::string_view path, std::string_view value,
                     std::string_view advice) const {
    return Error(place, absl::StrCat(ToAbsl(path), ": ", ShowValue(value), ToAbsl(advice)));
  }

  static const YamlNode* Field(const YamlNode& map, std::string_view name) {
    for (const YamlNode::Entry& entry : map.entries) {
      if (entry.key == name) return &entry.node;
    }
    return nullptr;
  }

  // That a map has no other fields than these.
  absl::Status CheckFields(const YamlNode& map, std::string_view path,
                           absl::Span<const std::string_view> known) const {
    for (const YamlNode::Entry& entry : map.entries) {
      bool found = false;
      for (const std::string_view name : known) found = found || entry.key == name;
      if (found) continue;
      std::string advice;
      if (entry.key == "<<") {
        advice = "merge keys are not taken in a limits file; write it out";
      } else if (const std::string_view near = limits::NearestName(entry.key, known);
                 !near.empty()) {
        advice = absl::StrCat("no field has that name; did you mean ", ToAbsl(near), "?");
      } else {
        advice = "no field has that name; there are ";
        for (size_t i = 0; i < known.size(); ++i) {
          absl::StrAppend(&advice,
                          i == 0                  ? ""
                          : i + 1 == known.size() ? " and "
                                                  : ", ",
                          ToAbsl(known[i]));
        }
        if (known.size() == 1)
          advice = absl::StrCat("no field has that name; there is only ", ToAbsl(known[0]));
      }
      return Error(entry.place, absl::StrCat(ToAbsl(path), path.empty() ? "" : ": ",
                                             ShowValue(entry.key), advice));
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
    return Error(node.place, absl::StrCat(ToAbsl(path), ": ", ToAbsl(form), ", not ",
                                          ToAbsl(KindName(node.kind))));
  }

  // Reads the field `name` of `map`, if it is there, by `parse`, into `out`.
  template <typename Parse, typename Out>
  absl::Status ReadField(const YamlNode& map, const std::string& path, std::string_view name,
                         std::string_view form, Parse parse, Out* out) const {
    const YamlNode* node = Field(map, name);
    if (node == nullptr) return absl::OkStatus();
    const std::string field = absl::StrCat(path, ".", ToAbsl(name));
    const auto text = Value(*node, field, form);
    if (!text.ok()) return text.status();
    const auto value = parse(*text);
    if (!value.ok()) {
      return Error(node->place, field, *text, common::ToStd(value.status().message()));
    }
    *out = *value;
    return absl::OkStatus();
  }

  static absl::StatusOr<uint32_t> ParseSubWindows(std::string_view text) {
    const auto value = limits::ParseWhole(text);
    if (!value.ok()) return value.status();
    if (*value > bounds::kMaxSubWindows) {
      return absl::InvalidArgumentError(absl::StrCat("must be from 1 to ", bounds::kMaxSubWindows));
    }
    return static_cast<uint32_t>(*value);
  }

  static constexpr std::string_view kRateForm =
      "say permits per period, e.g. 5/s, 500/250ms or 10000/24h";
  static constexpr std::string_view kPermitsForm = "say a whole number of permits";

  // rate, burst and debt, which limits and overrides both have.
  template <typename Spec>
  absl::Status ReadParameters(const YamlNode& map, const std::string& path, Spec* spec) const {
    if (auto s = ReadField(map, path, "rate", kRateForm, limits::ParseRate, &spec->rate); !s.ok()) {
      return s;
    }
    if (auto s = ReadField(map, path, "burst", kPermitsForm, limits::ParseWhole, &spec->burst);
        !s.ok()) {
      return s;
    }
    return ReadField(map, path, "debt", kPermitsForm, limits::ParseWhole, &spec->debt);
  }

  absl::Status ReadLimit(const YamlNode& node, const std::string& path, limits::LimitSpec* spec) {
    if (node.kind != Kind::kMap) {
      return Error(node.place,
                   absl::StrCat(path, ": say a map with name and rate, e.g. ",
                                "{ name: api, rate: 100/s }, not ", ToAbsl(KindName(node.kind))));
    }
    if (auto s = CheckFields(node, path, kLimitFields); !s.ok()) return s;
    for (const std::string_view needed : {"name", "rate"}) {
      if (Field(node, needed) == nullptr) {
        return Error(node.place, absl::StrCat(path, ".", ToAbsl(needed), ": is missing; ",
                                              needed == "name" ? "give the limit a name"
                                                               : "say e.g. rate: 100/s"));
      }
    }
    const auto as_text = [](std::string_view text) {
      return absl::StatusOr<std::string>(std::string(text));
    };
    absl::Status s = ReadField(node, path, "name", "say a name, in quotes if it is null or ~",
                               as_text, &spec->name);
    if (s.ok()) {
      s = ReadField(node, path, "algorithm",
                    "say token_bucket, sliding_log, sliding_window or fixed_window",
                    limits::ParseAlgorithm, &spec->algorithm);
    }
    if (s.ok()) s = ReadParameters(node, path, spec);
    if (s.ok()) {
      s = ReadField(node, path, "mode", "say enforce or shadow", limits::ParseMode, &spec->mode);
    }
    if (s.ok()) {
      s = ReadField(node, path, "on_store_failure", "say deny, allow or split",
                    limits::ParseOnStoreFailure, &spec->on_store_failure);
    }
    if (s.ok()) {
      s = ReadField(node, path, "sharing", "say exact, split or relaxed", limits::ParseSharing,
                    &spec->sharing);
    }
    if (s.ok()) {
      s = ReadField(node, path, "sub_windows", "say a whole number from 1 to 100", ParseSubWindows,
                    &spec->sub_windows);
    }
    if (s.ok()) {
      s = ReadField(node, path, "utc_offset", "say an offset from UTC, e.g. +02:00, -5h30m or 0",
                    limits::ParseUtcOffset, &spec->utc_offset_ns);
    }
    if (s.ok()) {
      s = ReadField(node, path, "hash_tag", "say a word, e.g. orders", as_text, &spec->hash_tag);
    }
    if (s.ok()) s = ReadCharges(node, path, spec);
    if (s.ok()) s = ReadKeys(node, path, spec);
    if (!s.ok()) return s;
    spec->origin = limits::Origin::kFile;
    spec->defined_at = absl::StrCat(ToAbsl(filename_), ":", node.place.line);
    if (const auto problem = limits::CheckSpec(*spec, nullptr)) {
      return SpecError(node, path, *spec, *problem);
    }
    return absl::OkStatus();
  }

  absl::Status ReadCharges(const YamlNode& limit, const std::string& path,
                           limits::LimitSpec* spec) const {
    const YamlNode* list = Field(limit, "charges");
    if (list == nullptr) return absl::OkStatus();
    if (list->kind != Kind::kList) {
      return Error(list->place,
                   absl::StrCat(path, ".charges: say a list of limits' names, e.g. [overall], not ",
                                ToAbsl(KindName(list->kind))));
    }
    for (size_t i = 0; i < list->items.size(); ++i) {
      const auto name =
          Value(list->items[i], absl::StrCat(path, ".charges[", i, "]"), "say a limit's name");
      if (!name.ok()) return name.status();
      spec->charges.emplace_back(*name);
    }
    return absl::OkStatus();
  }

  absl::Status ReadKeys(const YamlNode& limit, const std::string& path,
                        limits::LimitSpec* spec) const {
    const YamlNode* map = Field(limit, "keys");
    if (map == nullptr) return absl::OkStatus();
    if (map->kind != Kind::kMap) {
      return Error(
          map->place,
          absl::StrCat(path, ".keys: say a map of keys to their parameters, e.g. ",
                       "{ \"user:42\": { rate: 1000/s } }, not ", ToAbsl(KindName(map->kind))));
    }
    spec->keys.reserve(map->entries.size());
    for (const YamlNode::Entry& entry : map->entries) {
      std::string shown = ShowValue(entry.key);
      shown.resize(shown.size() - 2);  // its ": "
      const std::string key_path = absl::StrCat(path, ".keys[", shown, "]");
      if (entry.node.kind != Kind::kMap) {
        return Error(
            entry.node.place,
            absl::StrCat(key_path, ": say a map of parameters, e.g. { rate: 1000/s }, not ",
                         ToAbsl(KindName(entry.node.kind))));
      }
      if (auto s = CheckFields(entry.node, key_path, kKeyFields); !s.ok()) return s;
      limits::KeyOverride& override = spec->keys.emplace_back();
      override.key = entry.key;
      if (auto s = ReadParameters(entry.node, key_path, &override); !s.ok()) return s;
    }
    return absl::OkStatus();
  }

  // Where what a SpecProblem is about was written, and the value as it was written there.
  struct Written {
    Place place;
    std::optional<std::string> value;
  };
  static Written Find(const YamlNode& limit, const limits::SpecProblem& problem) {
    const YamlNode* node = Field(limit, problem.field);
    // A default's problem is the limit's.
    if (node == nullptr) return {limit.place, std::nullopt};
    if (problem.index) {
      if (node->kind == Kind::kMap) {
        const YamlNode::Entry& entry = node->entries[*problem.index];
        node = problem.key_field.empty() ? nullptr : Field(entry.node, problem.key_field);
        if (node == nullptr) return {entry.place, std::nullopt};
      } else {
        node = &node->items[*problem.index];
      }
    }
    if (node->kind != Kind::kValue) return {node->place, std::nullopt};
    return {node->place, node->value};
  }

  absl::Status SpecError(const YamlNode& node, std::string_view path, const limits::LimitSpec& spec,
                         limits::SpecProblem problem) const {
    const Written written = Find(node, problem);
    if (written.value) problem.value = *written.value;
    return Error(written.place,
                 absl::StrCat(ToAbsl(path), ".", limits::ProblemText(problem.Path(spec), problem)));
  }

  // What the limits need besides each being right by itself.
  absl::Status CheckTogether(const YamlNode& list,
                             const std::vector<limits::LimitSpec>& specs) const {
    absl::flat_hash_map<absl::string_view, size_t> by_name;
    std::vector<const limits::LimitSpec*> pointers;
    by_name.reserve(specs.size());
    for (size_t i = 0; i < specs.size(); ++i) {
      const auto [it, inserted] = by_name.emplace(specs[i].name, i);
      if (!inserted) {
        return Error(Field(list.items[i], "name")->place, absl::StrCat("limits[", i, "].name"),
                     specs[i].name,
                     absl::StrCat("is already the name of limits[", it->second, "] in line ",
                                  Field(list.items[it->second], "name")->place.line,
                                  "; give each limit a name of its own"));
      }
      pointers.push_back(&specs[i]);
    }
    std::vector<std::vector<uint32_t>> parents;
    if (const auto problem = limits::ExpandCharges(pointers, 0, &parents)) {
      return SpecError(list.items[problem->limit], absl::StrCat("limits[", problem->limit, "]"),
                       specs[problem->limit], problem->problem);
    }
    return absl::OkStatus();
  }

  const std::string filename_;
};

// Closes at the end of its scope.
class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  ~Descriptor() {
    if (fd_ >= 0) close(fd_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int get() const { return fd_; }

 private:
  const int fd_;
};

absl::Status ErrnoStatus(const std::string& path, int error) {
  const std::string text = absl::StrCat(path, ": ", std::strerror(error));
  switch (error) {
    case ENOENT:
    case ENOTDIR:
      return absl::NotFoundError(text);
    case EACCES:
    case EPERM:
      return absl::PermissionDeniedError(text);
    default:
      return absl::UnavailableError(text);
  }
}

absl::Status TooLarge(const std::string& path, absl::string_view size) {
  return absl::InvalidArgumentError(absl::StrCat(path, ": ", size, "; a limits file has at most ",
                                                 bounds::kMaxLimitsFileBytes, " bytes"));
}

bool SameFile(const struct stat& a, const struct stat& b) {
  return a.st_size == b.st_size && a.st_mtim.tv_sec == b.st_mtim.tv_sec &&
         a.st_mtim.tv_nsec == b.st_mtim.tv_nsec;
}

absl::StatusOr<std::string> ReadWhole(const std::string& path) {
  // O_NONBLOCK: a FIFO in the file's place must not hang us before fstat tells.
  const Descriptor file(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  struct stat before = {};
  if (file.get() < 0 || fstat(file.get(), &before) != 0) return ErrnoStatus(path, errno);
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
    const ssize_t n = read(file.get(), buffer, sizeof(buffer));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return ErrnoStatus(path, errno);
    if (n == 0) break;
    text.append(buffer, static_cast<size_t>(n));
    if (text.size() > bounds::kMaxLimitsFileBytes) return TooLarge(path, "grows while it is read");
  }
  struct stat after = {};
  if (fstat(file.get(), &after) != 0) return ErrnoStatus(path, errno);
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

}  // namespace

absl::StatusOr<std::vector<limits::LimitSpec>> ParseLimits(std::string_view text,
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
