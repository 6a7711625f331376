#include "server/limits/limit_registry.h"

#include <algorithm>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "common/bounds.h"
#include "common/errors.h"
#include "common/strings.h"
#include "server/limits/nearest_name.h"

namespace sluice::limits {
namespace {

namespace bounds = common::bounds;
namespace errors = common::errors;
using RulePtr = std::shared_ptr<const store::Rule>;

uint64_t NextRegistrySerial() {
  // Relaxed: only uniqueness matters.
  static std::atomic<uint64_t> last{0};
  return last.fetch_add(1, std::memory_order_relaxed) + 1;
}

void FreeUnused(std::vector<std::shared_ptr<const LimitTable>>* retired) {
  // Only the current table is handed out: once `retired` has the only pointer, that stays so.
  std::erase_if(*retired, [](const auto& table) { return table.use_count() == 1; });
}

// Whether two specs of one name come to the same rules: whether they differ at most in what rules
// do not have. A new field of LimitSpec counts as a difference unless it is added here.
bool SameRules(LimitSpec a, const LimitSpec& b) {
  a.charges = b.charges;
  a.origin = b.origin;
  a.defined_at = b.defined_at;
  a.direct = b.direct;
  a.reason = b.reason;
  a.ends_at_ns = b.ends_at_ns;
  return a == b;
}

// `defined`: the limit that a file defines under the same name; null: there is none.
void SetOrigin(const LimitSpec* defined, LimitSpec* put) {
  put->origin = defined != nullptr ? Origin::kAdminOverFile : Origin::kAdmin;
  put->defined_at = defined != nullptr ? defined->defined_at : std::string();
}

// Checks the limits of one source by themselves: each is good, names are unique, charges stay in
// the source.
absl::Status CheckFile(const std::vector<LimitSpec>& specs) {
  if (specs.size() > bounds::kMaxLimits) return errors::TooManyLimits(specs.size());
  std::vector<const LimitSpec*> pointers;
  for (size_t i = 0; i < specs.size(); ++i) {
    if (const auto problem = CheckSpec(specs[i], nullptr)) {
      return ProblemStatus(absl::StrCat("limits[", i, "]."), specs[i], *problem);
    }
    pointers.push_back(&specs[i]);
  }
  std::vector<std::vector<uint32_t>> parents;
  if (const auto problem = ExpandCharges(pointers, 0, &parents)) {
    return ProblemStatus(absl::StrCat("limits[", problem->limit, "]."), specs[problem->limit],
                         problem->problem);
  }
  return absl::OkStatus();
}

// The error if the charges of the file's and the admin's limits together are bad, though those of
// the file alone are good.
absl::Status ChargesError(const ChargesProblem& problem, const LimitSpec& spec,
                          std::string_view put) {
  if (put.empty()) {
    const std::string subject =
        absl::StrCat("limits: \"", spec.name, "\", which was put by the admin, ");
    return absl::FailedPreconditionError(
        problem.kind == ChargesProblem::Kind::kUnknown
            ? absl::StrCat(subject, "charges \"", problem.problem.value,
                           "\", which this file does not have; keep it in the file, or change or "
                           "delete \"",
                           spec.name, "\" first")
            : absl::StrCat(subject, "does not go with this file: ",
                           ProblemText("charges", problem.problem), "; change or delete it first"));
  }
  if (spec.name == put) return ProblemStatus("limit.", spec, problem.problem);
  return absl::InvalidArgumentError(
      absl::StrCat("limit.charges: \"", spec.name,
                   "\" charges this limit: ", ProblemText("charges", problem.problem)));
}

// What a limit in place of one of Envoy's configuration cannot be.
std::optional<SpecProblem> CheckOverEnvoy(const LimitSpec& spec) {
  if (!spec.charges.empty()) {
    return SpecProblem{.field = "charges",
                       .value = spec.charges[0],
                       .advice = "a limit of Envoy's configuration charges no others; leave it out",
                       .index = 0};
  }
  if (spec.algorithm == algorithm::Kind::kConcurrency) {
    return SpecProblem{.field = "algorithm",
                       .value = "concurrency",
                       .advice =
                           "a limit of Envoy's configuration counts hits, which do not end; "
                           "say token_bucket, sliding_window or another with a rate"};
  }
  return std::nullopt;
}

// Checks that the room which limits reserve (min_keys) fits in the store. Blames the limit that Put
// changes (`put`, as in Publish), else the one that reserves most.
absl::Status CheckReservedBytes(const std::vector<std::shared_ptr<const LimitSpec>>& specs,
                                const store::Store& store, std::string_view put) {
  using Wide = unsigned __int128;
  Wide total = 0, blamed_bytes = 0;
  uint64_t blamed_bytes_per_key = 1;
  const LimitSpec* blamed = nullptr;
  for (const auto& spec : specs) {
    const uint64_t min_keys = spec->min_keys.value_or(0);
    if (min_keys == 0) continue;
    SpecParameters parameters;
    (void)CheckSpec(*spec, &parameters);  // checked before
    uint64_t bytes_per_key = store.MaxBytesPerKey(parameters.own, spec->max_owed.value_or(0));
    for (const algorithm::Parameters& of_key : parameters.keys) {
      bytes_per_key =
          std::max(bytes_per_key, store.MaxBytesPerKey(of_key, spec->max_owed.value_or(0)));
    }
    const Wide bytes = Wide{min_keys} * bytes_per_key;
    total += bytes;
    if ((blamed != nullptr && blamed->name == put) || (spec->name != put && bytes < blamed_bytes)) {
      continue;
    }
    blamed = spec.get();
    blamed_bytes = bytes;
    blamed_bytes_per_key = bytes_per_key;
  }
  const uint64_t most = store.ReservableBytes();
  if (most == 0 || total <= most) return absl::OkStatus();
  const Wide others = total - blamed_bytes;
  const auto left =
      static_cast<uint64_t>(others < most ? (most - others) / blamed_bytes_per_key : 0);
  const std::string where = blamed->name == put ? "limit."
                                                : absl::StrCat("limit \"", blamed->name, "\" (",
                                                               blamed->defined_at, "): ");
  return absl::InvalidArgumentError(
      absl::StrCat(where, "min_keys: \"", blamed->min_keys.value_or(0), "\": a key takes up to ",
                   blamed_bytes_per_key, " bytes, and all limits together reserve at most ", most,
                   " bytes; say at most ", left));
}

}  // namespace

LimitRegistry::LimitRegistry(store::Store* store)
    : store_(store), registry_serial_(NextRegistrySerial()) {
  common::MutexLock change(&change_mu_);
  auto table = std::make_shared<LimitTable>();
  table->serial_ = 1;
  Swap(std::move(table));
}

const LimitSpec* LimitRegistry::Sources::Defined(std::string_view name) const {
  for (const SpecMap* map : {&file, &envoy}) {
    if (const auto it = map->find(name); it != map->end()) return it->second.get();
  }
  return nullptr;
}

LimitRegistry::SpecMap LimitRegistry::Sources::Merged() const {
  SpecMap merged = temporary;
  for (const auto& [name, spec] : admin) merged.emplace(name, spec);
  for (const SpecMap* defined : {&file, &envoy}) {
    for (const auto& [name, spec] : *defined) {
      if (!deleted.contains(name)) merged.emplace(name, spec);
    }
  }
  return merged;
}

uint32_t LimitRegistry::Sources::AdminChanges() const {
  size_t changes = admin.size() + deleted.size();
  for (const auto& [name, spec] : temporary) {
    if (!admin.contains(name) && !deleted.contains(name)) ++changes;
  }
  return static_cast<uint32_t>(changes);
}

absl::StatusOr<bool> LimitRegistry::ApplyFile(std::vector<LimitSpec> specs, std::string version) {
  common::MutexLock change(&change_mu_);
  if (!version.empty() && version == sources_.file_version) return false;
  Sources next = sources_;
  next.file_version = std::move(version);
  absl::Status status = ReplaceDefined(Origin::kFile, std::move(specs), &next);
  if (status.ok()) status = Publish(std::move(next), "");
  if (!status.ok()) return status;
  return true;
}

absl::StatusOr<bool> LimitRegistry::ApplyEnvoy(std::vector<LimitSpec> specs, std::string version,
                                               std::shared_ptr<const void> companion) {
  common::MutexLock change(&change_mu_);
  if (!version.empty() && version == sources_.envoy_version) return false;
  Sources next = sources_;
  next.envoy_version = std::move(version);
  next.envoy_companion = std::move(companion);
  auto order = std::make_shared<std::vector<std::string>>();
  for (const LimitSpec& spec : specs) order->push_back(spec.name);
  next.envoy_order = std::move(order);
  absl::Status status = ReplaceDefined(Origin::kEnvoy, std::move(specs), &next);
  if (status.ok()) status = Publish(std::move(next), "");
  if (!status.ok()) return status;
  return true;
}

absl::Status LimitRegistry::ReplaceDefined(Origin origin, std::vector<LimitSpec> specs,
                                           Sources* next) {
  if (absl::Status status = CheckFile(specs); !status.ok()) return status;
  const bool of_file = origin == Origin::kFile;
  SpecMap& defined = of_file ? next->file : next->envoy;
  const SpecMap& others = of_file ? next->envoy : next->file;
  SpecMap before;
  before.swap(defined);
  for (const auto& [name, spec] : before) next->deleted.erase(name);
  for (LimitSpec& spec : specs) {
    spec.origin = origin;
    if (const auto it = others.find(spec.name); it != others.end()) {
      return absl::FailedPreconditionError(
          absl::StrCat("limits: \"", spec.name, "\" (", spec.defined_at, ") is also ",
                       of_file ? "a limit of Envoy's configuration" : "in the limits file", " (",
                       it->second->defined_at, "); rename one of them"));
    }
    // An equal spec is not replaced, so that comparing tables stays cheap.
    const auto old = before.find(spec.name);
    SpecPtr kept = old != before.end() && *old->second == spec
                       ? old->second
                       : std::make_shared<const LimitSpec>(std::move(spec));
    const std::string& name = kept->name;
    defined.emplace(name, std::move(kept));
  }
  // An admin's limit stays if neither source defined or defines it.
  absl::erase_if(next->admin, [&](const auto& put) {
    return before.contains(put.first) || defined.contains(put.first);
  });
  for (auto& [name, put] : next->temporary) {
    if (const auto problem = CheckOverEnvoy(*put); problem && next->envoy.contains(name)) {
      return absl::FailedPreconditionError(
          absl::StrCat("limits: \"", name, "\", which was put by the admin, does not go with ",
                       "Envoy's configuration: ", ProblemText(problem->Path(*put), *problem),
                       "; change or delete it first"));
    }
    LimitSpec spec = *put;
    SetOrigin(next->Defined(name), &spec);
    if (spec != *put) put = std::make_shared<const LimitSpec>(std::move(spec));
  }
  return absl::OkStatus();
}

absl::StatusOr<LimitRegistry::PutResult> LimitRegistry::Put(LimitSpec spec) {
  if (const auto problem = CheckSpec(spec, nullptr)) return ProblemStatus("limit.", spec, *problem);
  common::MutexLock change(&change_mu_);
  if (sources_.envoy.contains(spec.name)) {
    if (const auto problem = CheckOverEnvoy(spec)) return ProblemStatus("limit.", spec, *problem);
  }
  SetOrigin(sources_.Defined(spec.name), &spec);
  const std::string name = spec.name;
  PutResult result;
  result.replaced = Current()->Find(name) != nullptr;
  Sources next = sources_;
  if (spec.ends_at_ns.has_value()) {
    // What was in force before stays beneath it.
    next.temporary.insert_or_assign(name, std::make_shared<const LimitSpec>(std::move(spec)));
  } else {
    next.temporary.erase(name);
    next.deleted.erase(name);
    next.admin.insert_or_assign(name, std::make_shared<const LimitSpec>(std::move(spec)));
  }
  if (absl::Status status = Publish(std::move(next), name); !status.ok()) return status;
  result.table = Current();
  result.limit = result.table->Find(name);
  return result;
}

absl::Status LimitRegistry::Delete(std::string_view name) {
  common::MutexLock change(&change_mu_);
  const std::shared_ptr<const LimitTable> table = Current();
  if (table->Find(name) == nullptr) {
    return errors::NoLimitNamed("name", name, NearestLimit(*table, name));
  }
  if (absl::Status status = CheckNotCharged(name); !status.ok()) return status;
  Sources next = sources_;
  next.temporary.erase(name);
  next.admin.erase(name);
  if (next.Defined(name) != nullptr) next.deleted.insert(std::string(name));
  return Publish(std::move(next), name);
}

SavedLimits LimitRegistry::Save() {
  common::MutexLock change(&change_mu_);
  SavedLimits saved;
  saved.names.resize(limit_ids_.size());
  for (const auto& [name, id] : limit_ids_) saved.names[id] = name;
  saved.last_rule_id = last_rule_id_;
  saved.file_version = sources_.file_version;
  saved.envoy_version = sources_.envoy_version;
  for (const auto* puts : {&sources_.admin, &sources_.temporary}) {
    for (const auto& [name, spec] : *puts) saved.admin.push_back(*spec);
  }
  saved.deleted.assign(sources_.deleted.begin(), sources_.deleted.end());
  return saved;
}

void LimitRegistry::RestoreIds(const SavedLimits& saved) {
  common::MutexLock change(&change_mu_);
  for (const std::string& name : saved.names) {
    limit_ids_.emplace(name, static_cast<uint32_t>(limit_ids_.size()));
  }
  last_rule_id_ = saved.last_rule_id;
}

std::vector<std::pair<std::string, absl::Status>> LimitRegistry::RestoreAdmin(
    const SavedLimits& saved) {
  common::MutexLock change(&change_mu_);
  // Whether the definition of that name is the one that the admin changed.
  const auto stands = [&](const std::string& name) ABSL_EXCLUSIVE_LOCKS_REQUIRED(change_mu_) {
    if (sources_.file.contains(name)) return sources_.file_version == saved.file_version;
    return sources_.envoy.contains(name) && sources_.envoy_version == saved.envoy_version;
  };
  const auto put = [](const SpecPtr& spec, Sources* to) {
    (spec->ends_at_ns.has_value() ? to->temporary : to->admin).insert_or_assign(spec->name, spec);
  };
  std::vector<std::pair<std::string, absl::Status>> refused;
  std::vector<SpecPtr> specs;
  for (const LimitSpec& one : saved.admin) {
    const LimitSpec* const defined = sources_.Defined(one.name);
    const bool over = one.origin == Origin::kAdminOverFile;
    // A change with an end precedes every definition.
    if (!one.ends_at_ns.has_value() &&
        (over != (defined != nullptr) || (over && !stands(one.name)))) {
      continue;
    }
    auto problem = CheckSpec(one, nullptr);
    if (!problem && sources_.envoy.contains(one.name)) problem = CheckOverEnvoy(one);
    if (problem) {
      refused.emplace_back(one.name, ProblemStatus("limit.", one, *problem));
      continue;
    }
    LimitSpec spec = one;
    SetOrigin(defined, &spec);
    specs.push_back(std::make_shared<const LimitSpec>(std::move(spec)));
  }
  Sources next = sources_;
  for (const std::string& name : saved.deleted) {
    if (stands(name)) next.deleted.insert(name);
  }
  if (specs.empty() && next.deleted.empty()) return refused;
  const Sources without = next;
  for (const SpecPtr& spec : specs) put(spec, &next);
  if (Publish(std::move(next), "").ok()) return refused;
  // One does not go with the file any more: one by one, those that others charge first.
  if (!without.deleted.empty()) {
    if (const absl::Status status = Publish(without, ""); !status.ok()) {
      for (const std::string& name : without.deleted) refused.emplace_back(name, status);
    }
  }
  for (bool progress = true; progress;) {
    progress = false;
    for (SpecPtr& spec : specs) {
      if (spec == nullptr) continue;
      Sources with = sources_;
      put(spec, &with);
      if (!Publish(std::move(with), spec->name).ok()) continue;
      spec = nullptr;
      progress = true;
    }
  }
  for (const SpecPtr& spec : specs) {
    if (spec == nullptr) continue;
    Sources with = sources_;
    put(spec, &with);
    refused.emplace_back(spec->name, Publish(std::move(with), spec->name));
  }
  return refused;
}

absl::Status LimitRegistry::EndTemporary(std::string_view name, int64_t now_ns) {
  common::MutexLock change(&change_mu_);
  const auto put = sources_.temporary.find(name);
  if (put == sources_.temporary.end() ||
      put->second->ends_at_ns.value_or(LimitTable::kNoEnd) > now_ns) {
    return absl::NotFoundError(
        absl::StrCat("name: no change of the limit \"", common::ToAbsl(name), "\" has ended"));
  }
  Sources next = sources_;
  next.temporary.erase(name);
  if (!next.admin.contains(name) &&
      (next.deleted.contains(common::ToAbsl(name)) || next.Defined(name) == nullptr)) {
    if (absl::Status status = CheckNotCharged(name); !status.ok()) return status;
  }
  return Publish(std::move(next), name);
}

absl::Status LimitRegistry::CheckNotCharged(std::string_view name) const {
  std::vector<std::string_view> charged_by;
  const std::shared_ptr<const LimitTable> table = Current();
  for (const Limit* limit : table->limits()) {
    if (absl::c_linear_search(limit->spec().charges, name)) charged_by.push_back(limit->name());
  }
  if (charged_by.empty()) return absl::OkStatus();
  return errors::LimitIsCharged(name, charged_by[0], charged_by.size() - 1);
}

absl::Status LimitRegistry::Publish(Sources next, std::string_view put) {
  std::vector<SpecPtr> specs;
  for (auto& [name, spec] : next.Merged()) specs.push_back(std::move(spec));
  if (specs.size() > bounds::kMaxLimits) return errors::TooManyLimits(specs.size());

  std::vector<const LimitSpec*> pointers;
  size_t first = specs.size();
  for (const SpecPtr& spec : specs) {
    if (spec->name == put) first = pointers.size();
    pointers.push_back(spec.get());
  }
  std::vector<std::vector<uint32_t>> parents;
  if (const auto problem = ExpandCharges(pointers, first, &parents)) {
    return ChargesError(*problem, *pointers[problem->limit], put);
  }

  size_t new_names = 0;
  for (const SpecPtr& spec : specs) new_names += limit_ids_.contains(spec->name) ? 0 : 1;
  if (limit_ids_.size() + new_names > bounds::kMaxLimitNames) return errors::TooManyLimitNames();

  if (absl::Status status = CheckReservedBytes(specs, *store_, put); !status.ok()) return status;

  const size_t names_before = limit_ids_.size();
  const uint32_t last_rule_id_before = last_rule_id_;
  const std::shared_ptr<const LimitTable> before = Current();
  auto table = std::make_shared<LimitTable>();
  std::vector<RulePtr> made;
  table->owned_.reserve(specs.size());
  table->sorted_.reserve(specs.size());
  table->by_name_.reserve(specs.size());
  for (SpecPtr& spec : specs) {
    const Limit* old = before->Find(spec->name);
    std::shared_ptr<const LimitRules> rules;
    if (old != nullptr && (old->spec_ == spec || SameRules(*old->spec_, *spec))) {
      rules = old->rules_;
    } else {
      SpecParameters parameters;
      // ApplyFile or Put has checked it.
      (void)CheckSpec(*spec, &parameters);
      const auto id = static_cast<uint32_t>(limit_ids_.size());
      const uint32_t limit_id = limit_ids_.emplace(spec->name, id).first->second;
      rules = MakeRules(*spec, parameters, limit_id, old == nullptr ? nullptr : old->rules_.get(),
                        &made);
    }
    auto limit = std::make_unique<Limit>(std::move(spec), std::move(rules));
    table->by_name_.emplace(limit->spec().name, limit.get());
    table->sorted_.push_back(limit.get());
    table->owned_.push_back(std::move(limit));
  }
  for (size_t i = 0; i < parents.size(); ++i) {
    for (const uint32_t parent : parents[i]) {
      table->owned_[i]->parents_.push_back(table->owned_[parent].get());
    }
  }
  table->serial_ = before->serial() + 1;
  table->file_version_ = next.file_version;
  table->envoy_companion_ = next.envoy_companion;
  if (next.envoy_order != nullptr) {
    table->envoy_limits_.reserve(next.envoy_order->size());
    for (const std::string& name : *next.envoy_order) {
      table->envoy_limits_.push_back(table->Find(name));
    }
  }
  table->limit_id_end_ = static_cast<uint32_t>(limit_ids_.size());
  table->admin_changes_ = next.AdminChanges();
  for (const auto& [name, spec] : next.temporary) {
    table->first_end_ns_ =
        std::min(table->first_end_ns_, spec->ends_at_ns.value_or(LimitTable::kNoEnd));
  }

  if (before_change_) {
    if (absl::Status status = before_change_(*table); !status.ok()) {
      absl::erase_if(limit_ids_, [&](const auto& one) { return one.second >= names_before; });
      last_rule_id_ = last_rule_id_before;
      return status;
    }
  }
  // From here on nothing fails.
  for (RulePtr& rule : made) store_->Register(std::move(rule));
  sources_ = std::move(next);
  Swap(std::move(table));
  return absl::OkStatus();
}

std::shared_ptr<const LimitRules> LimitRegistry::MakeRules(const LimitSpec& spec,
                                                           const SpecParameters& parameters,
                                                           uint32_t limit_id,
                                                           const LimitRules* before,
                                                           std::vector<RulePtr>* made) {
  // `old` if it is the same rule, else a new one.
  const auto make = [&](const algorithm::Parameters& parameters,
                        const RulePtr* old) ABSL_EXCLUSIVE_LOCKS_REQUIRED(change_mu_) {
    store::Rule rule;
    rule.limit_id = limit_id;
    rule.limit_name = spec.name;
    rule.hash_tag = spec.hash_tag.value_or("");
    rule.parameters = parameters;
    rule.shadow = spec.mode == Mode::kShadow;
    rule.allow_when_store_unavailable = spec.on_store_failure == OnStoreFailure::kAllow;
    rule.split_when_store_unavailable = spec.on_store_failure == OnStoreFailure::kSplit;
    rule.sharing = spec.sharing;
    rule.max_wait_ns = spec.max_wait_ns.value_or(bounds::kDefaultMaxWaitNs);
    rule.max_owed = spec.max_owed;
    rule.min_keys = spec.min_keys;
    if (old != nullptr) {
      rule.id = (*old)->id;
      if (**old == rule) return *old;
    }
    rule.id = ++last_rule_id_;
    return made->emplace_back(std::make_shared<store::Rule>(std::move(rule)));
  };
  const auto old_of = [&](const std::string& key) -> const RulePtr* {
    if (before == nullptr) return nullptr;
    const auto it = before->by_key.find(key);
    return it == before->by_key.end() ? nullptr : &it->second;
  };

  // The bucket of a key that lost its override has the override's rule. The limit's own rule takes
  // it over, so it must be newer: it gets a new id.
  size_t kept_keys = 0;
  for (const KeyOverride& override : spec.keys) kept_keys += old_of(override.key) != nullptr;
  const bool keep_own = before != nullptr && kept_keys == before->by_key.size();
  auto rules = std::make_shared<LimitRules>();
  rules->own = make(parameters.own, keep_own ? &before->own : nullptr);
  // After the limit's own rule: a new override takes the key's bucket over from it.
  rules->by_key.reserve(spec.keys.size());
  for (size_t i = 0; i < spec.keys.size(); ++i) {
    const std::string& key = spec.keys[i].key;
    rules->by_key.emplace(key, make(parameters.keys[i], old_of(key)));
  }
  return rules;
}

void LimitRegistry::Swap(std::shared_ptr<const LimitTable> table) {
  const uint64_t serial = table->serial();
  {
    common::MutexLock lock(&mu_);
    current_.swap(table);
    current_serial_.store(serial, std::memory_order_release);
  }
  if (table != nullptr) retired_.push_back(std::move(table));
  if (changed_) changed_();
  FreeUnused(&retired_);
}

void LimitRegistry::ReleaseRetired() {
  common::MutexLock change(&change_mu_);
  FreeUnused(&retired_);
}

std::shared_ptr<const LimitTable> LimitRegistry::Current() const {
  common::MutexLock lock(&mu_);
  return current_;
}

const std::shared_ptr<const LimitTable>& LimitRegistry::Local() const {
  // The table that this thread saw last. `table` has its own reference count, apart from the
  // registry's; its deleter holds one reference of the registry's for all copies of this thread.
  struct Cache {
    uint64_t registry_serial = 0;
    uint64_t table_serial = 0;
    std::shared_ptr<const LimitTable> table;
  };
  static thread_local Cache cache;
  if (cache.registry_serial == registry_serial_ &&
      cache.table_serial == current_serial_.load(std::memory_order_acquire)) {
    return cache.table;
  }
  std::shared_ptr<const LimitTable> current = Current();
  const LimitTable* table = current.get();
  cache.table = std::shared_ptr<const LimitTable>(
      table, [current = std::move(current)](const LimitTable*) mutable { current.reset(); });
  cache.table_serial = table->serial();
  cache.registry_serial = registry_serial_;
  return cache.table;
}

}  // namespace sluice::limits
