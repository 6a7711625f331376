// check and import of Envoy's rate-limit configuration.
#include <sys/stat.h>

#include <cstdio>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/cli/session.h"
#include "common/strings.h"
#include "server/config/load.h"
#include "server/envoy/limit_specs.h"
#include "server/envoy/load.h"
#include "server/envoy/matcher.h"
#include "server/limits/notation.h"

namespace sluice::cli {
namespace {

// Loads a file or a folder as the server does.
absl::StatusOr<envoy::LoadedTree> Load(const Session& session) {
  auto loaded = envoy::LoadPath(session.Argument(0), /*ignore_dot_files=*/true);
  if (!loaded.ok()) return loaded;
  absl::Status checked =
      envoy::Check(loaded->tree, {.merge_domains = session.arguments().Has("merge-domains")});
  if (!checked.ok()) return checked;
  return loaded;
}

// Writes the limits of a tree as a limits file. What a limits file cannot express is a comment
// above its limit.
class Importer {
 public:
  Importer(const envoy::DescriptorTree& tree, const envoy::Matcher& matcher)
      : specs_(envoy::MakeSpecs(matcher)), limits_(matcher.limits()) {
    absl::StrAppend(&text_,
                    "# Requests do not choose these limits by their descriptors: a program charges "
                    "a limit by\n# its name, and a key. Denied requests are not counted.\n",
                    specs_.empty() ? "limits: []\n" : "limits:\n");
    for (const envoy::Domain& domain : tree.domains) Add(domain.descriptors, "", {});
  }

  const std::string& text() const { return text_; }
  const std::vector<std::string>& lost() const { return lost_; }

 private:
  // Of the entries above: `open`, those whose values the descriptors leave open, and `wildcards`.
  void Add(const std::vector<envoy::Descriptor>& descriptors, const std::string& open,
           const std::vector<std::string>& wildcards) {
    for (const envoy::Descriptor& one : descriptors) {
      const bool wildcard = one.value.find('*') != one.value.npos;
      const bool fixed = !one.value.empty() && !wildcard;
      const std::string below =
          fixed || one.share_threshold
              ? open
              : absl::StrCat(open, open.empty() ? "" : " | ", "value of ", one.key);
      std::vector<std::string> wildcards_below = wildcards;
      if (wildcard) wildcards_below.push_back(absl::StrCat(one.value, " of ", one.key));
      // The matcher numbers its limits in the same order.
      if (one.rate_limit.has_value()) AddLimit(*limits_[next_++], below, wildcards_below);
      Add(one.descriptors, below, wildcards_below);
    }
  }

  void AddLimit(const envoy::MatchedLimit& limit, const std::string& key,
                const std::vector<std::string>& wildcards) {
    std::vector<std::string> lost;
    if (limit.unlimited) lost.emplace_back("unlimited: needs no limit");
    if (!limit.unlimited && limit.requests_per_unit == 0) {
      lost.emplace_back("requests_per_unit 0: a limit has at least 1 permit");
    }
    if (limit.counting.mode == envoy::CountMode::kCompatible && !limit.unlimited &&
        specs_[limit.limit_index].rate.permits < limit.requests_per_unit) {
      lost.emplace_back("requests_per_unit: a limit has at most 1000000000 permits a second");
    }
    for (const std::string& value : wildcards) {
      lost.push_back(absl::StrCat("value ", value, ": the program must compare"));
    }
    if (limit.quota_mode) lost.emplace_back("quota_mode");
    if (!limit.replaces.empty()) {
      lost.push_back(absl::StrCat("replaces ", absl::StrJoin(limit.replaces, ", ")));
    }
    if (!limit.metadata.empty()) lost.emplace_back("metadata");
    if (limit.metric_has_values) lost.emplace_back("detailed_metric, value_to_metric");
    if (!limit.name.empty()) lost.push_back(absl::StrCat("name ", limit.name));
    for (const std::string& what : lost) {
      lost_.push_back(absl::StrCat(limit.defined_at, ": ", limit.limit_name, ": ", what));
    }
    absl::StrAppend(&text_, "  # ", limit.defined_at, "\n");
    if (!lost.empty()) {
      absl::StrAppend(&text_, "  # not expressed: ", OneLine(absl::StrJoin(lost, "; ")), "\n");
    }
    if (limit.unlimited) return;
    const limits::LimitSpec& spec = specs_[limit.limit_index];
    absl::StrAppend(&text_, "  # key: ", OneLine(key.empty() ? "none, the shared bucket" : key),
                    "\n  - name: ", spec.name,
                    "\n    algorithm: ", common::ToAbsl(algorithm::KindName(spec.algorithm)),
                    "\n    rate: ", limits::FormatRate(spec.rate), "\n");
    if (spec.mode == limits::Mode::kShadow) absl::StrAppend(&text_, "    mode: shadow\n");
  }

  // Of a text in a comment.
  static std::string OneLine(std::string text) {
    for (char& c : text) {
      if (static_cast<unsigned char>(c) < ' ') c = ' ';
    }
    return text;
  }

  const std::vector<limits::LimitSpec> specs_;
  const absl::Span<const std::unique_ptr<envoy::MatchedLimit>> limits_;
  size_t next_ = 0;
  std::string text_;
  std::vector<std::string> lost_;
};

}  // namespace

bool IsEnvoyConfiguration(const std::string& path) {
  struct stat info = {};
  if (stat(path.c_str(), &info) == 0 && S_ISDIR(info.st_mode)) return true;
  const auto text = config::ReadWhole(path);
  return text.ok() && envoy::LooksLikeEnvoy(*text);
}

int RunCheckEnvoy(const Session& session) {
  const auto loaded = Load(session);
  if (!loaded.ok()) return session.FailCheck(loaded.status());
  const envoy::Matcher matcher(loaded->tree, envoy::Overrides());
  if (session.json()) {
    Json json;
    json.Open('{').Field("ok", true).Field("domains", matcher.domain_count());
    json.Field("limits", matcher.limits().size()).Field("version", loaded->version);
    json.Name("warnings").Open('[');
    for (const std::string& warning : loaded->warnings) json.Value(warning);
    json.Close().Close();
    session.Print(json);
    return kExitDone;
  }
  for (const std::string& warning : loaded->warnings) {
    std::fprintf(stderr, "warning: %s\n", warning.c_str());
  }
  std::printf("%s: good, Envoy's configuration: %zu domain%s, %zu limit%s\n",
              session.Argument(0).c_str(), matcher.domain_count(),
              matcher.domain_count() == 1 ? "" : "s", matcher.limits().size(),
              matcher.limits().size() == 1 ? "" : "s");
  return kExitDone;
}

int RunImport(const Session& session) {
  const std::string mode = session.arguments().Get("mode").value_or("exact");
  if (mode != "exact" && mode != "compatible") {
    return session.FailCheck(
        absl::InvalidArgumentError(absl::StrCat("--mode ", mode, ": write exact or compatible")));
  }
  const auto loaded = Load(session);
  if (!loaded.ok()) return session.FailCheck(loaded.status());
  envoy::Overrides overrides;
  overrides.all.mode = mode == "exact" ? envoy::CountMode::kExact : envoy::CountMode::kCompatible;
  const envoy::Matcher matcher(loaded->tree, overrides);
  const Importer importer(loaded->tree, matcher);
  if (session.json()) {
    Json json;
    json.Open('{').Field("limits", importer.text()).Name("not_expressed").Open('[');
    for (const std::string& one : importer.lost()) json.Value(one);
    json.Close().Close();
    session.Print(json);
  } else {
    std::fputs(importer.text().c_str(), stdout);
  }
  return kExitDone;
}

}  // namespace sluice::cli
