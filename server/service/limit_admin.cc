#include "server/service/limit_admin.h"

#include <unistd.h>

#include <cstdio>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "common/bounds.h"
#include "common/errors.h"
#include "common/strings.h"
#include "server/service/validation.h"

namespace sluice::service {
namespace {

namespace bounds = common::bounds;
namespace errors = common::errors;

constexpr uint32_t kDefaultListKeys = 20;

uint64_t ResidentBytes() {
  uint64_t pages = 0;
  uint64_t resident = 0;
  std::FILE* file = std::fopen("/proc/self/statm", "r");
  if (file == nullptr) return 0;
  if (std::fscanf(file, "%lu %lu", &pages, &resident) != 2) resident = 0;
  std::fclose(file);
  return resident * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
}

}  // namespace

LimitAdmin::LimitAdmin(limits::LimitRegistry& registry, store::Store& store,
                       const common::Clock& clock, common::Metrics& metrics, KeyUsage& usage,
                       common::Log& log, std::string version,
                       std::function<ConfigStatus()> config_status)
    : registry_(registry),
      store_(store),
      metrics_(metrics),
      usage_(usage),
      log_(log),
      version_(std::move(version)),
      config_status_(std::move(config_status)),
      started_at_wall_ns_(clock.WallNs()) {}

absl::StatusOr<FoundLimit> LimitAdmin::Get(std::string_view name) const {
  FoundLimit found;
  found.table = registry_.Current();
  found.limit = found.table->Find(name);
  if (found.limit == nullptr) {
    return errors::NoLimitNamed("name", name, NearestLimit(*found.table, name));
  }
  return found;
}

absl::StatusOr<limits::LimitRegistry::PutResult> LimitAdmin::Put(limits::LimitSpec spec) {
  const std::string name = spec.name;
  auto result = registry_.Put(std::move(spec));
  if (result.ok()) {
    log_.Info("limit_put", {{"limit", name}, {"replaced", result->replaced ? "true" : "false"}});
  } else {
    log_.Warning("limit_put_refused", {{"limit", name}, {"error", result.status().message()}});
  }
  return result;
}

absl::Status LimitAdmin::Delete(std::string_view name) {
  absl::Status status = registry_.Delete(name);
  if (status.ok()) log_.Info("limit_deleted", {{"limit", common::ToAbsl(name)}});
  return status;
}

void LimitAdmin::ResetKey(std::string_view limit, std::string_view key,
                          std::function<void(absl::StatusOr<bool>)> done) {
  struct Call {
    std::function<void(absl::StatusOr<bool>)> done;
    std::shared_ptr<const limits::LimitTable> table;
    std::string limit;
    std::string key;
    common::Log& log;

    void End(absl::StatusOr<bool> existed) {
      if (existed.ok()) {
        log.Info("key_reset", {{"limit", limit}, {"key", key}});
      } else {
        log.Warning("key_reset_failed",
                    {{"limit", limit}, {"key", key}, {"error", existed.status().message()}});
      }
      done(std::move(existed));
    }
  };
  std::unique_ptr<Call> call(new Call{std::move(done), registry_.Current(), {}, {}, log_});
  const limits::Limit* const found = call->table->Find(limit);
  if (found == nullptr) {
    call->done(errors::NoLimitNamed("limit", limit, NearestLimit(*call->table, limit)));
    return;
  }
  if (key.size() > bounds::kMaxKeyBytes) {
    call->done(errors::FieldOutOfBounds("key", absl::StrCat(key.size(), " bytes"),
                                        absl::StrCat("at most ", bounds::kMaxKeyBytes)));
    return;
  }
  call->limit.assign(limit);
  call->key.assign(key);
  Call* const raw = call.release();
  store_.Reset(
      found->RuleFor(raw->key), raw->key,
      [](void* context, store::ResetOutcome outcome) {
        const std::unique_ptr<Call> owned(static_cast<Call*>(context));
        switch (outcome) {
          case store::ResetOutcome::kReset:
            return owned->End(true);
          case store::ResetOutcome::kNotInUse:
            return owned->End(false);
          case store::ResetOutcome::kUnavailable:
            return owned->End(errors::NotReset());
          case store::ResetOutcome::kUnknown:
            return owned->End(errors::ResetAnswerLost());
        }
      },
      raw);
}

void LimitAdmin::ListKeys(std::string_view limit, KeyOrder order, uint32_t most,
                          std::function<void(absl::StatusOr<ListedKeys>)> done) {
  if (most > bounds::kMaxListKeys) {
    done(errors::FieldOutOfBounds(
        "max_keys", most,
        absl::StrCat("1 to ", bounds::kMaxListKeys, ", or 0 for ", kDefaultListKeys)));
    return;
  }
  if (most == 0) most = kDefaultListKeys;
  struct Operation final : store::QueryOperation {
    std::shared_ptr<const limits::LimitTable> table;
    KeyUsage::Top top;
    std::vector<store::QueryItem> queried;
    ListedKeys listed;
    std::function<void(absl::StatusOr<ListedKeys>)> done;
    void Done() override {
      const std::unique_ptr<Operation> self(this);
      for (size_t i = 0; i < queried.size(); ++i) {
        listed.keys[i].level = queried[i].level;
        if (queried[i].unavailable) {
          listed.keys[i].bucket = errors::BucketNotKnown();
          listed.keys[i].level.capacity = algorithm::Capacity(queried[i].rule->parameters);
        }
        listed.keys[i].waiting = queried[i].waiting;
        listed.keys[i].next_grant_after_ns = queried[i].next_grant_after_ns;
      }
      done(std::move(listed));
    }
  };
  auto operation = std::make_unique<Operation>();
  operation->table = registry_.Current();
  uint32_t wanted = KeyUsage::kAllLimits;
  if (!limit.empty()) {
    const limits::Limit* const found = operation->table->Find(limit);
    if (found == nullptr) {
      done(errors::NoLimitNamed("limit", limit, NearestLimit(*operation->table, limit)));
      return;
    }
    wanted = found->limit_id();
  }
  absl::flat_hash_map<uint32_t, const limits::Limit*> by_id;
  for (const limits::Limit* one : operation->table->limits()) by_id[one->limit_id()] = one;
  operation->top = usage_.MostUsed(order, wanted, most);
  operation->listed.sketch = KeyUsage::kSketch;
  operation->listed.total = operation->top.total;
  operation->listed.counters = operation->top.guaranteed;
  for (const KeyUsage::Key& key : operation->top.keys) {
    const auto it = by_id.find(key.limit_id);
    if (it == by_id.end()) continue;  // its limit was deleted
    operation->listed.keys.push_back(
        {std::string(it->second->name()), key.key, key.estimate, key.error, {}, {}, 0, 0});
    store::QueryItem& item = operation->queried.emplace_back();
    item.rule = &it->second->RuleFor(key.key);
    item.key = key.key;  // of operation->top
  }
  operation->done = std::move(done);
  if (operation->queried.empty()) {
    operation.release()->Done();
    return;
  }
  operation->items = absl::MakeSpan(operation->queried);
  store_.Query(operation.release());
}

ConfigStatus LimitAdmin::GetConfigStatus() const {
  ConfigStatus status = config_status_();
  status.store.kind = std::string(store_.Kind());
  status.store.health = store_.Health();
  if (!status.store.health.shared) return status;
  for (NamedLimitTotals& one : GetStats().limits) {
    const common::LimitTotals& totals = one.totals;
    if (totals.allowed_while_unavailable == 0 && totals.denied_while_unavailable == 0) continue;
    status.store.decided_while_unavailable.push_back(
        {std::move(one.limit), totals.allowed_while_unavailable, totals.denied_while_unavailable});
  }
  return status;
}

ServerStats LimitAdmin::GetStats() const {
  const std::shared_ptr<const limits::LimitTable> table = registry_.Current();
  common::MetricsSnapshot snapshot = metrics_.Snapshot(table->limit_id_end());
  ServerStats stats;
  stats.started_at_wall_ns = started_at_wall_ns_;
  stats.version = version_;
  stats.granted = snapshot.granted;
  stats.denied = snapshot.denied;
  for (const limits::Limit* limit : table->limits()) {
    stats.limits.push_back({std::string(limit->name()), snapshot.limits[limit->limit_id()],
                            store_.OvershootPermits(limit->limit_id())});
  }
  stats.methods = std::move(snapshot.methods);
  stats.transports = std::move(snapshot.transports);
  stats.store_kind = std::string(store_.Kind());
  stats.store = store_.Stats();
  stats.resident_bytes = ResidentBytes();
  stats.log_lines_suppressed = log_.suppressed();
  return stats;
}

}  // namespace sluice::service
