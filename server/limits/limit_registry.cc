#include "server/limits/limit_registry.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/bounds.h"
#include "common/strings.h"
#include "server/limits/charges.h"
#include "server/store/store.h"

namespace sluice::limits {
namespace {

namespace bounds = common::bounds;
using common::ToAbsl;
using RulePtr = std::shared_ptr<const store::Rule>;

constexpr size_t kNone = static_cast<size_t>(-1);

uint64_t NextRegistrySerial() {
  // Relaxed: only uniqueness matters.
  static std::atomic<uint64_t> last{0};
  return last.fetch_add(1, std::memory_order_relaxed) + 1;
}

// Whether two limits of one name come to the same rules.
bool SameParameters(const LimitSpec& a, const LimitSpec& b) {
  return a.algorithm == b.algorithm && a.rate == b.rate && a.burst == b.burst && a.debt == b.debt &&
         a.sub_windows == b.sub_windows && a.utc_offset_ns == b.utc_offset_ns && a.mode == b.mode &&
         a.on_store_failure == b.on_store_failure && a.sharing == b.sharing &&
         a.hash_tag == b.hash_tag && a.keys == b.keys;
}

absl::Status TooManyLimits(size_t count) {
  return absl::ResourceExhaustedError(
      absl::StrCat("limits: there would be ", count, "; at most ", bounds::kMaxLimits));
}

absl::Status TooManyNames() {
  return absl::ResourceExhaustedError(
      absl::StrCat("limits: more than ", bounds::kMaxLimitNames,
                   " names were used since the start, those of deleted limits included; use names "
                   "again, or restart"));
}

absl::Status UnknownLimit(std::string_view name) {
  return absl::NotFoundError(absl::StrCat("limit '", ToAbsl(name), "' is not configured"));
}

// A file's limits by themselves: each right, names unique, charges within the file.
absl::Status CheckFile(const std::vector<LimitSpec>& specs) {
  if (specs.size() > bounds::kMaxLimits) return TooManyLimits(specs.size());
  absl::flat_hash_map<absl::string_view, size_t> by_name;
  std::vector<const LimitSpec*> pointers;
  for (size_t i = 0; i < specs.size(); ++i) {
    const std::string prefix = absl::StrCat("limits[", i, "].");
    if (const auto problem = CheckSpec(specs[i], nullptr)) {
      return absl::InvalidArgumentError(
          absl::StrCat(prefix, ProblemText(problem->Path(specs[i]), *problem)));
    }
    const auto [it, inserted] = by_name.emplace(specs[i].name, i);
    if (!inserted) {
      return absl::InvalidArgumentError(absl::StrCat(prefix, "name: ", ShowValue(specs[i].name),
                                                     "is already the name of limits[", it->second,
                                                     "]; give each limit a name of its own"));
    }
    pointers.push_back(&specs[i]);
  }
  std::vector<std::vector<uint32_t>> parents;
  if (const auto problem = ExpandCharges(pointers, 0, &parents)) {
    return absl::InvalidArgumentError(
        absl::StrCat("limits[", problem->limit, "].",
                     ProblemText(problem->problem.Path(specs[problem->limit]), problem->problem)));
  }
  return absl::OkStatus();
}

// What to say when the charges of the merged limits do not work out, though those of each source
// do.
absl::Status ChargesError(const ChargesProblem& problem, const LimitSpec& spec,
                          std::string_view put) {
  if (put.empty()) {
    const std::string who =
        absl::StrCat("limits: \"", spec.name, "\", which was put by the admin, ");
    if (problem.kind == ChargesProblem::Kind::kUnknown) {
      return absl::FailedPreconditionError(
          absl::StrCat(who, "charges \"", problem.problem.value,
                       "\", which this file does not have; keep it in the file, or change or "
                       "delete \"",
                       spec.name, "\" first"));
    }
    return absl::FailedPreconditionError(
        absl::StrCat(who, "does not go with this file: ", ProblemText("charges", problem.problem),
                     "; change or delete it first"));
  }
  if (spec.name == put) {
    return absl::InvalidArgumentError(
        absl::StrCat("limit.", ProblemText(problem.problem.Path(spec), problem.problem)));
  }
  return absl::InvalidArgumentError(
      absl::StrCat("limit.charges: \"", spec.name,
                   "\" charges this limit: ", ProblemText("charges", problem.problem)));
}

}  // namespace

LimitRegistry::LimitRegistry(store::Store* store)
    : store_(store), registry_serial_(NextRegistrySerial()) {
  common::MutexLock change(&change_mu_);
  auto table = std::make_shared<LimitTable>();
  table->serial_ = 1;
  Swap(std::move(table));
}

LimitRegistry::~LimitRegistry() = default;

absl::StatusOr<bool> LimitRegistry::ApplyFile(std::vector<LimitSpec> specs, std::string version) {
  common::MutexLock change(&change_mu_);
  if (!version.empty() && version == sources_.file_version) return false;
  if (absl::Status status = CheckFile(specs); !status.ok()) return status;

  Sources next;
  next.file_version = std::move(version);
  for (LimitSpec& spec : specs) {
    spec.origin = Origin::kFile;
    // A spec that says the same is not replaced, so that comparing tables stays cheap.
    const auto before = sources_.file.find(spec.name);
    SpecPtr kept = before != sources_.file.end() && *before->second == spec
                       ? before->second
                       : std::make_shared<const LimitSpec>(std::move(spec));
    const std::string& name = kept->name;
    next.file.emplace(name, std::move(kept));
  }
  for (const auto& [name, spec] : sources_.admin) {
    if (spec->origin == Origin::kAdmin && !next.file.contains(name)) next.admin.emplace(name, spec);
  }
  if (absl::Status status = Publish(std::move(next), ""); !status.ok()) return status;
  return true;
}

absl::StatusOr<LimitRegistry::PutResult> LimitRegistry::Put(LimitSpec spec) {
  if (const auto problem = CheckSpec(spec, nullptr)) {
    return absl::InvalidArgumentError(
        absl::StrCat("limit.", ProblemText(problem->Path(spec), *problem)));
  }
  common::MutexLock change(&change_mu_);
  const auto of_file = sources_.file.find(spec.name);
  const bool over_file = of_file != sources_.file.end();
  spec.origin = over_file ? Origin::kAdminOverFile : Origin::kAdmin;
  spec.defined_at = over_file ? of_file->second->defined_at : std::string();

  const std::string name = spec.name;
  PutResult result;
  result.replaced = Current()->Find(name) != nullptr;
  Sources next = sources_;
  next.deleted.erase(name);
  next.admin.insert_or_assign(name, std::make_shared<const LimitSpec>(std::move(spec)));
  if (absl::Status status = Publish(std::move(next), name); !status.ok()) return status;
  result.table = Current();
  result.limit = result.table->Find(name);
  return result;
}

absl::Status LimitRegistry::Delete(std::string_view name) {
  common::MutexLock change(&change_mu_);
  const std::shared_ptr<const LimitTable> table = Current();
  if (table->Find(name) == nullptr) return UnknownLimit(name);
  std::string first;
  size_t others = 0;
  for (const Limit* limit : table->limits()) {
    for (const std::string& charged : limit->spec().charges) {
      if (charged != name) continue;
      if (first.empty()) {
        first = limit->spec().name;
      } else {
        ++others;
      }
    }
  }
  if (!first.empty()) {
    return absl::FailedPreconditionError(
        absl::StrCat("limit '", ToAbsl(name), "' is charged by '", first, "'",
                     others == 0 ? std::string() : absl::StrCat(" and ", others, " more"),
                     "; take it out of their charges first"));
  }
  Sources next = sources_;
  next.admin.erase(name);
  if (next.file.contains(name)) next.deleted.insert(std::string(name));
  return Publish(std::move(next), name);
}

absl::Status LimitRegistry::Publish(Sources next, std::string_view put) {
  // In the order of names, admin over file.
  std::vector<SpecPtr> specs;
  auto of_admin = next.admin.begin();
  for (const auto& [name, spec] : next.file) {
    for (; of_admin != next.admin.end() && of_admin->first < name; ++of_admin) {
      specs.push_back(of_admin->second);
    }
    if (of_admin != next.admin.end() && of_admin->first == name) {
      specs.push_back(of_admin->second);
      ++of_admin;
    } else if (!next.deleted.contains(name)) {
      specs.push_back(spec);
    }
  }
  for (; of_admin != next.admin.end(); ++of_admin) specs.push_back(of_admin->second);
  if (specs.size() > bounds::kMaxLimits) return TooManyLimits(specs.size());

  std::vector<const LimitSpec*> pointers;
  size_t first = kNone;
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
  if (limit_ids_.size() + new_names > bounds::kMaxLimitNames) return TooManyNames();

  // From here on nothing fails.
  const std::shared_ptr<const LimitTable> before = Current();
  auto table = std::make_shared<LimitTable>();
  std::vector<RulePtr> made;
  table->owned_.reserve(specs.size());
  table->sorted_.reserve(specs.size());
  table->by_name_.reserve(specs.size());
  for (SpecPtr& spec : specs) {
    const Limit* old = before->Find(spec->name);
    std::shared_ptr<const LimitRules> rules;
    if (old != nullptr && (old->spec_ == spec || SameParameters(*old->spec_, *spec))) {
      rules = old->rules_;
    } else {
      SpecParameters parameters;
      // Checked when it came in.
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
  table->limit_id_end_ = static_cast<uint32_t>(limit_ids_.size());
  table->admin_changes_ = static_cast<uint32_t>(next.admin.size() + next.deleted.size());

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
  const bool shadow = spec.mode == Mode::kShadow;
  const bool allow_away = spec.on_store_failure == OnStoreFailure::kAllow;
  const bool split_away = spec.on_store_failure == OnStoreFailure::kSplit;
  const auto make = [&](const algorithm::Parameters& parameters)
                        ABSL_EXCLUSIVE_LOCKS_REQUIRED(change_mu_) {
                          auto rule = std::make_shared<store::Rule>();
                          rule->id = ++last_rule_id_;
                          rule->limit_id = limit_id;
                          rule->limit_name = spec.name;
                          rule->hash_tag = spec.hash_tag.value_or("");
                          rule->parameters = parameters;
                          rule->shadow = shadow;
                          rule->allow_when_store_unavailable = allow_away;
                          rule->split_when_store_unavailable = split_away;
                          rule->sharing = spec.sharing;
                          made->push_back(rule);
                          return RulePtr(std::move(rule));
                        };
  const auto same = [&](const RulePtr& rule, const algorithm::Parameters& parameters) {
    return rule->parameters == parameters && rule->shadow == shadow &&
           rule->hash_tag == spec.hash_tag.value_or("") &&
           rule->allow_when_store_unavailable == allow_away &&
           rule->split_when_store_unavailable == split_away && rule->sharing == spec.sharing;
  };

  auto rules = std::make_shared<LimitRules>();
  rules->by_key.reserve(spec.keys.size());
  size_t kept_keys = 0;
  std::vector<size_t> new_keys;
  for (size_t i = 0; i < spec.keys.size(); ++i) {
    RulePtr rule;
    if (before != nullptr) {
      const auto it = before->by_key.find(spec.keys[i].key);
      if (it != before->by_key.end()) {
        ++kept_keys;
        if (same(it->second, parameters.keys[i])) rule = it->second;
      }
    }
    if (rule == nullptr) new_keys.push_back(i);
    rules->by_key.emplace(spec.keys[i].key, std::move(rule));
  }
  // A key that lost its override goes over to the limit's own rule, which therefore has to be the
  // newer of the two.
  const bool lost_override = before != nullptr && kept_keys < before->by_key.size();
  rules->own = before != nullptr && !lost_override && same(before->own, parameters.own)
                   ? before->own
                   : make(parameters.own);
  // After the limit's own: a key with a new override comes from there.
  for (const size_t i : new_keys) rules->by_key[spec.keys[i].key] = make(parameters.keys[i]);
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
  FreeRetired();
}

void LimitRegistry::FreeRetired() {
  // A table that is not current is given to nobody any more: once only retired_ has it, that
  // stays so.
  std::erase_if(retired_, [](const auto& table) { return table.use_count() == 1; });
}

void LimitRegistry::ReleaseRetired() {
  common::MutexLock change(&change_mu_);
  FreeRetired();
}

std::shared_ptr<const LimitTable> LimitRegistry::Current() const {
  common::MutexLock lock(&mu_);
  return current_;
}

const std::shared_ptr<const LimitTable>& LimitRegistry::Local() const {
  // What this thread saw last. `table` has a count of its own, apart from the registry's, and its
  // deleter holds one of the registry's for all copies that this thread gives out.
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
