#include "server/envoy/configuration.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "server/config/load.h"
#include "server/envoy/limit_specs.h"
#include "server/envoy/load.h"
#include "server/envoy/matcher.h"

namespace sluice::envoy {
namespace {

// An error of a file's text has its place; one of the file itself gets the flag that names it.
absl::Status OfFlag(absl::string_view flag, const absl::Status& status) {
  if (absl::IsInvalidArgument(status)) return status;
  return absl::Status(status.code(), absl::StrCat("--", flag, ": ", status.message()));
}

// Warnings that a load logs at most.
constexpr size_t kMaxWarnings = 20;

void LogWarnings(const std::vector<std::string>& warnings, common::Log& log) {
  for (size_t i = 0; i < warnings.size() && i < kMaxWarnings; ++i) {
    log.Warning("ratelimit_config_warning", {{"text", warnings[i]}});
  }
}

// Names in the overrides that nothing has: they are probably mistyped.
std::vector<std::string> UnusedOverrides(const Overrides& overrides, const Matcher& matcher) {
  std::vector<std::string> warnings;
  absl::flat_hash_map<absl::string_view, bool> names;
  for (const auto& limit : matcher.limits()) {
    names.emplace(limit->name, true);
    names.emplace(limit->limit_name, true);
  }
  for (const auto& [name, counting] : overrides.limits) {
    if (!names.contains(name)) {
      warnings.push_back(absl::StrCat("limits[\"", name, "\"]: no rate_limit has that name"));
    }
  }
  for (const auto& [name, counting] : overrides.domains) {
    if (matcher.FindDomain(name) == nullptr) {
      warnings.push_back(absl::StrCat("domains[\"", name, "\"]: no domain has that name"));
    }
  }
  return warnings;
}

}  // namespace

Configuration::Configuration(ConfigurationOptions options, limits::LimitRegistry& registry,
                             const common::Clock& clock, common::Log& log)
    : options_(std::move(options)), registry_(registry), clock_(clock), log_(log) {
  common::MutexLock lock(&mu_);
  status_.path = options_.path;
}

absl::Status Configuration::Start() {
  common::MutexLock reload(&reload_mu_);
  if (absl::Status read = ReadOverrides(); !read.ok()) return Failed(std::move(read));
  return options_.path.empty() ? absl::OkStatus() : ReloadFiles();
}

void Configuration::Watch() {
  const auto watch = [this](const std::string& path, std::unique_ptr<config::FileWatcher>* to) {
    if (path.empty()) return;
    auto watcher =
        config::FileWatcher::Start(path, [this] { Reload().IgnoreError(); }, {.folder = true});
    if (watcher.ok()) {
      *to = *std::move(watcher);
    } else {
      log_.Warning("watch_failed", {{"path", path},
                                    {"error", watcher.status().message()},
                                    {"consequence", "only SIGHUP reloads"}});
    }
  };
  watch(options_.path, &watcher_);
  watch(options_.overrides, &overrides_watcher_);
}

void Configuration::Stop() {
  watcher_.reset();
  overrides_watcher_.reset();
}

absl::Status Configuration::Reload() {
  common::MutexLock reload(&reload_mu_);
  if (absl::Status read = ReadOverrides(); !read.ok()) return Failed(std::move(read));
  if (!options_.path.empty()) return ReloadFiles();
  // The tree that xDS sent, with other overrides.
  return received_.has_value() ? Swap(received_->tree, received_->version, received_->sha256)
                               : absl::OkStatus();
}

absl::Status Configuration::Apply(ReceivedTree received) {
  common::MutexLock reload(&reload_mu_);
  absl::Status status = Swap(received.tree, received.version, received.sha256);
  if (status.ok()) received_ = std::move(received);
  return status;
}

limits::FileStatus Configuration::Status() const {
  common::MutexLock lock(&mu_);
  return status_;
}

std::optional<ReceivedTree> Configuration::Received() const {
  common::MutexLock reload(&reload_mu_);
  return received_;
}

absl::Status Configuration::ReadOverrides() {
  if (options_.overrides.empty()) {
    overrides_.all = options_.counting;
    return absl::OkStatus();
  }
  const auto text = config::ReadWhole(options_.overrides);
  if (!text.ok()) return OfFlag("ratelimit_overrides", text.status());
  auto parsed = ParseOverrides(*text, options_.overrides, options_.counting);
  if (!parsed.ok()) return parsed.status();
  overrides_ = *std::move(parsed);
  overrides_version_ = config::Sha256Hex(*text);
  return absl::OkStatus();
}

absl::Status Configuration::ReloadFiles() {
  auto loaded = LoadPath(options_.path, options_.ignore_dot_files);
  if (!loaded.ok()) return Failed(OfFlag("ratelimit_config", loaded.status()));
  // The version is that of the content.
  absl::Status status = Swap(loaded->tree, loaded->version, loaded->version);
  if (status.ok()) LogWarnings(loaded->warnings, log_);
  return status;
}

absl::Status Configuration::Swap(const DescriptorTree& tree, const std::string& version,
                                 const std::string& sha256) {
  absl::Status checked = Check(tree, {.merge_domains = options_.merge_domains});
  if (!checked.ok()) return Failed(std::move(checked));
  const auto matcher = std::make_shared<const Matcher>(tree, overrides_);
  std::vector<limits::LimitSpec> specs = MakeSpecs(*matcher);
  const size_t limits = specs.size();
  const auto applied =
      registry_.ApplyEnvoy(std::move(specs), absl::StrCat(sha256, overrides_version_), matcher);
  if (!applied.ok()) return Failed(applied.status());

  const int64_t now_ns = clock_.WallNs();
  {
    common::MutexLock lock(&mu_);
    status_.last_error.clear();
    status_.last_error_at_wall_ns = 0;
    status_.version = version;
    if (!*applied) return absl::OkStatus();
    ++status_.reloads;
    status_.active_since_wall_ns = now_ns;
  }
  log_.Info("ratelimit_config_loaded",
            {{"version", version}, {"domains", matcher->domain_count()}, {"limits", limits}});
  LogWarnings(UnusedOverrides(overrides_, *matcher), log_);
  return absl::OkStatus();
}

absl::Status Configuration::Failed(absl::Status status) {
  const int64_t now_ns = clock_.WallNs();
  std::string version;
  {
    common::MutexLock lock(&mu_);
    status_.last_error = std::string(status.message());
    status_.last_error_at_wall_ns = now_ns;
    ++status_.failed_reloads;
    version = status_.version;
  }
  log_.Error("ratelimit_config_not_loaded",
             {{"error", status.message()}, {"active_version", version}});
  return status;
}

}  // namespace sluice::envoy
