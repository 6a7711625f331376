#include "server/service/limit_admin.h"

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "common/errors.h"
#include "common/memory_limit.h"
#include "common/strings.h"
#include "server/service/validation.h"

namespace sluice::service {
namespace {

namespace errors = common::errors;

// One HoldsOperation, from the request to the caller.
struct HoldsCall final : store::HoldsOperation {
  LimitFinder limits;  // keeps the rule alive
  std::string key_bytes;
  std::function<void(absl::StatusOr<const store::HoldsOperation*>)> done;

  void Done() override {
    const std::unique_ptr<HoldsCall> self(this);
    switch (outcome) {
      case Outcome::kDone:
        return done(this);
      case Outcome::kStaleRule:
        return done(errors::LimitsKeepChanging());
      case Outcome::kPending:
      case Outcome::kUnavailable:
        return done(errors::HoldsUnanswered());
    }
  }
};

// Callers may wait for slots of the key.
void NoteSlotsFreed(const Collaborators& with, const store::Rule& rule, std::string_view key) {
  if (with.held_callers == nullptr || !algorithm::IsConcurrency(rule.parameters)) return;
  const store::Charge charge = {&rule, key, 1};
  with.held_callers->SlotsFreed(absl::MakeConstSpan(&charge, 1));
}

void AskHolds(const Collaborators& with, std::string_view limit, std::string_view key,
              uint64_t receipt_id, size_t most,
              std::function<void(absl::StatusOr<const store::HoldsOperation*>)> done) {
  auto call = std::make_unique<HoldsCall>();
  call->limits.Use(with.registry.Current());
  call->key_bytes.assign(key);
  const auto found = call->limits.FindOrError(FieldPath(), "limit", limit);
  if (!found.ok()) return done(found.status());
  if (absl::Status status = CheckKey(FieldPath(), key); !status.ok()) return done(status);
  const store::Rule& rule = (*found)->RuleFor(key);
  if (!algorithm::IsConcurrency(rule.parameters)) {
    return done(errors::NoSlots("limit", limit, algorithm::KindName(rule.parameters.kind)));
  }
  call->rule = &rule;
  call->key = call->key_bytes;
  call->receipt_id = receipt_id;
  call->most_listed = most;
  call->done = std::move(done);
  with.store.Holds(call.release());
}

}  // namespace

absl::StatusOr<FoundLimit> LimitAdmin::Get(std::string_view name) const {
  LimitFinder finder;
  finder.Use(with_.registry.Current());
  const auto limit = finder.FindOrError(FieldPath(), "name", name);
  if (!limit.ok()) return limit.status();
  return FoundLimit{*limit, finder.table()};
}

absl::StatusOr<limits::LimitRegistry::PutResult> LimitAdmin::Put(limits::LimitSpec spec,
                                                                 const PutOptions& options) {
  const std::string name = spec.name;
  std::string expires_after = "never";
  const auto put = [&]() -> absl::StatusOr<limits::LimitRegistry::PutResult> {
    if (absl::Status status = CheckReason(options.reason); !status.ok()) return status;
    spec.reason = options.reason;
    if (options.expires_after.has_value()) {
      const auto after_ns = CheckExpiresAfter(*options.expires_after);
      if (!after_ns.ok()) return after_ns.status();
      spec.ends_at_ns = now_ns() + *after_ns;
      expires_after = absl::FormatDuration(absl::Nanoseconds(*after_ns));
    }
    return with_.registry.Put(std::move(spec));
  };
  auto result = put();
  if (result.ok()) {
    log_.Info("limit_put", {{"limit", name},
                            {"replaced", result->replaced ? "true" : "false"},
                            {"expires_after", expires_after},
                            {"reason", options.reason}});
  } else {
    log_.Warning("limit_put_refused", {{"limit", name}, {"error", result.status().message()}});
  }
  return result;
}

absl::Status LimitAdmin::Delete(std::string_view name) {
  absl::Status status = with_.registry.Delete(name);
  if (status.ok()) log_.Info("limit_deleted", {{"limit", common::ToAbsl(name)}});
  return status;
}

std::vector<std::string> LimitAdmin::Ended() const {
  const std::shared_ptr<const limits::LimitTable> table = with_.registry.Current();
  const int64_t now = now_ns();
  std::vector<std::string> ended;
  if (table->first_end_ns() > now) return ended;
  for (const limits::Limit* limit : table->limits()) {
    if (limit->spec().ends_at_ns.value_or(limits::LimitTable::kNoEnd) <= now) {
      ended.emplace_back(limit->name());
    }
  }
  return ended;
}

absl::Status LimitAdmin::Undo(std::string_view name) {
  absl::Status status = with_.registry.EndTemporary(name, now_ns());
  if (!status.ok()) return status;
  const limits::Limit* const limit = with_.registry.Local()->Find(name);
  log_.Info("limit_expired",
            {{"limit", common::ToAbsl(name)}, {"now", limit == nullptr ? "deleted" : "restored"}});
  return status;
}

void LimitAdmin::ResetKey(std::string_view limit, std::string_view key,
                          std::function<void(absl::StatusOr<bool>)> done) {
  struct Call {
    std::function<void(absl::StatusOr<bool>)> done;
    const Collaborators& with;
    common::Log& log;
    std::string limit;
    std::string key;
    LimitFinder limits = {};  // keeps the rule alive
    const store::Rule* rule = nullptr;

    static void Done(void* context, store::ResetOutcome outcome) {
      const std::unique_ptr<Call> call(static_cast<Call*>(context));
      switch (outcome) {
        case store::ResetOutcome::kReset:
          NoteSlotsFreed(call->with, *call->rule, call->key);
          return call->Finish(true);
        case store::ResetOutcome::kNotInUse:
          return call->Finish(false);
        case store::ResetOutcome::kUnavailable:
          return call->Finish(errors::BucketNotReset());
        case store::ResetOutcome::kUnknown:
          return call->Finish(errors::ResetAnswerLost());
      }
    }
    void Finish(absl::StatusOr<bool> existed) {
      if (existed.ok()) {
        log.Info("key_reset", {{"limit", limit}, {"key", key}});
      } else {
        log.Warning("key_reset_failed",
                    {{"limit", limit}, {"key", key}, {"error", existed.status().message()}});
      }
      done(std::move(existed));
    }
  };
  std::unique_ptr<Call> call(
      new Call{std::move(done), with_, log_, std::string(limit), std::string(key)});
  call->limits.Use(with_.registry.Current());
  const auto found = call->limits.FindOrError(FieldPath(), "limit", call->limit);
  absl::Status status = found.ok() ? CheckKey(FieldPath(), call->key) : found.status();
  if (!status.ok()) {
    call->done(std::move(status));
    return;
  }
  Call* const raw = call.release();
  raw->rule = &(*found)->RuleFor(raw->key);
  with_.store.Reset(*raw->rule, raw->key, &Call::Done, raw);
}

void LimitAdmin::ListHolds(std::string_view limit, std::string_view key, uint32_t max_holds,
                           std::function<void(absl::StatusOr<ListedHolds>)> done) {
  const auto most = CheckMaxHolds(max_holds);
  if (!most.ok()) return done(most.status());
  AskHolds(with_, limit, key, /*receipt_id=*/0, *most,
           [done = std::move(done)](absl::StatusOr<const store::HoldsOperation*> asked) {
             if (!asked.ok()) return done(asked.status());
             done(ListedHolds{(*asked)->listed, (*asked)->holds, (*asked)->level});
           });
}

void LimitAdmin::EndHold(std::string_view limit, std::string_view key, uint64_t id,
                         std::function<void(absl::StatusOr<bool>)> done) {
  if (id == 0) return done(errors::Invalid("id", "0; say the id of a hold, as ListHolds gives it"));
  AskHolds(with_, limit, key, id, /*most=*/0,
           [this, done = std::move(done), log = &log_, limit = std::string(limit),
            key = std::string(key), id](absl::StatusOr<const store::HoldsOperation*> asked) {
             if (!asked.ok()) return done(asked.status());
             if ((*asked)->ended) NoteSlotsFreed(with_, *(*asked)->rule, (*asked)->key);
             log->Info("hold_ended", {{"limit", limit},
                                      {"key", key},
                                      {"id", absl::StrCat(id)},
                                      {"existed", (*asked)->ended ? "true" : "false"}});
             done((*asked)->ended);
           });
}

void LimitAdmin::LiftFloor(std::string_view limit,
                           std::function<void(absl::StatusOr<int64_t>)> done) {
  LimitFinder limits;
  limits.Use(with_.registry.Current());
  const auto found = limits.FindOrError(FieldPath(), "limit", limit);
  if (!found.ok()) return done(found.status());
  if (!with_.store.Shared()) return done(errors::NoFloors());
  // The store logs it.
  with_.store.LiftFloor(limit, [done = std::move(done)](std::optional<int64_t> floor_wall_ns) {
    if (!floor_wall_ns.has_value()) return done(errors::FloorNotLifted());
    done(*floor_wall_ns);
  });
}

void LimitAdmin::ListKeys(std::string_view limit, KeyOrder order, uint32_t max_keys,
                          std::function<void(absl::StatusOr<ListedKeys>)> done) {
  const auto most = CheckMaxKeys(max_keys);
  if (!most.ok()) {
    done(most.status());
    return;
  }
  struct Operation final : store::QueryOperation {
    LimitFinder limits;  // keeps the rules alive
    KeyUsage::Top top;   // has the keys
    std::vector<store::QueryItem> queried;
    ListedKeys listed;
    std::function<void(absl::StatusOr<ListedKeys>)> done;
    const Collaborators* with = nullptr;
    void Done() override {
      const std::unique_ptr<Operation> self(this);
      for (size_t i = 0; i < queried.size(); ++i) {
        listed.keys[i].level = queried[i].level;
        if (queried[i].unavailable) {
          listed.keys[i].bucket = errors::BucketNotKnown();
          listed.keys[i].level.capacity = algorithm::Capacity(queried[i].rule->parameters);
        }
        listed.keys[i].waiting = queried[i].waiting + CallersInLine(*with, queried[i]);
        listed.keys[i].next_grant_after_ns = queried[i].next_grant_after_ns;
      }
      done(std::move(listed));
    }
  };
  auto operation = std::make_unique<Operation>();
  operation->limits.Use(with_.registry.Current());
  uint32_t wanted = KeyUsage::kAllLimits;
  if (!limit.empty()) {
    const auto found = operation->limits.FindOrError(FieldPath(), "limit", limit);
    if (!found.ok()) {
      done(found.status());
      return;
    }
    wanted = (*found)->limit_id();
  }
  absl::flat_hash_map<uint32_t, const limits::Limit*> by_id;
  for (const limits::Limit* one : operation->limits.table()->limits()) by_id[one->limit_id()] = one;
  operation->top = with_.usage.MostUsed(order, wanted, *most);
  operation->listed.total = operation->top.total;
  operation->listed.counters = operation->top.guaranteed;
  operation->listed.since_wall_ns = operation->top.since_wall_ns;
  for (const KeyUsage::Key& key : operation->top.keys) {
    const auto it = by_id.find(key.limit_id);
    if (it == by_id.end()) continue;  // the limit was deleted
    operation->listed.keys.push_back({key, std::string(it->second->name()), {}, {}});
    store::QueryItem& item = operation->queried.emplace_back();
    item.rule = &it->second->RuleFor(key.key);
    item.key = key.key;
  }
  operation->done = std::move(done);
  operation->with = &with_;
  if (operation->queried.empty()) {
    operation.release()->Done();
    return;
  }
  operation->items = absl::MakeSpan(operation->queried);
  with_.store.Query(operation.release());
}

ConfigStatus LimitAdmin::GetConfigStatusWithoutDecisions() const {
  const std::shared_ptr<const limits::LimitTable> table = with_.registry.Current();
  ConfigStatus status;
  status.file = file_status_();
  status.limits = static_cast<uint32_t>(table->limits().size());
  status.admin_changes = table->admin_changes();
  status.store.kind = std::string(with_.store.Kind());
  status.store.health = with_.store.Health();
  return status;
}

ConfigStatus LimitAdmin::GetConfigStatus() const {
  ConfigStatus status = GetConfigStatusWithoutDecisions();
  if (!status.store.health.shared) return status;
  for (NamedLimitTotals& one : GetStats().limits) {
    if (one.totals.allowed_while_unavailable + one.totals.denied_while_unavailable > 0) {
      status.store.decided_while_unavailable.push_back(std::move(one));
    }
  }
  return status;
}

ServerStats LimitAdmin::GetStats() const {
  const std::shared_ptr<const limits::LimitTable> table = with_.registry.Current();
  ServerStats stats = GetStatsWithoutLimits();
  stats.totals.limits = GetLimitTotals(0, table->limit_id_end());
  for (const limits::Limit* limit : table->limits()) {
    stats.limits.push_back({std::string(limit->name()), stats.totals.limits[limit->limit_id()],
                            OvershootPermits(limit->limit_id())});
  }
  return stats;
}

ServerStats LimitAdmin::GetStatsWithoutLimits() const {
  ServerStats stats;
  stats.started_at_wall_ns = started_at_wall_ns_;
  stats.version = version_;
  stats.totals = with_.metrics.Snapshot(0);
  stats.store_kind = std::string(with_.store.Kind());
  stats.store = with_.store.Stats();
  stats.resident_bytes = static_cast<uint64_t>(common::ResidentBytes());
  stats.log_lines_suppressed = log_.suppressed();
  return stats;
}

}  // namespace sluice::service
