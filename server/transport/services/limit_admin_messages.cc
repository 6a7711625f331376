#include "server/transport/services/limit_admin_messages.h"

#include "absl/strings/str_cat.h"
#include "common/errors.h"
#include "common/histogram.h"
#include "server/service/validation.h"
#include "server/transport/services/rate_limiter_messages.h"

namespace sluice::transport::wire {
namespace {

namespace errors = common::errors;

constexpr int64_t kSecond = 1'000'000'000;

absl::StatusOr<algorithm::Rate> ReadRate(const std::string& path, const v1::Rate& rate) {
  algorithm::Rate out;
  out.permits = rate.permits();
  out.period_ns = kSecond;
  if (rate.has_period()) {
    const auto period =
        service::ToNanoseconds(path + ".period", {rate.period().seconds(), rate.period().nanos()});
    if (!period.ok()) return period.status();
    out.period_ns = *period;
  }
  return out;
}

void WriteRate(const algorithm::Rate& rate, v1::Rate* out) {
  out->set_permits(rate.permits);
  SetDuration(rate.period_ns, out->mutable_period());
}

}  // namespace

absl::StatusOr<limits::LimitSpec> Read(const v1::Limit& limit) {
  limits::LimitSpec spec;
  spec.name = limit.name();
  switch (limit.algorithm()) {
    case v1::ALGORITHM_UNSPECIFIED:
    case v1::ALGORITHM_TOKEN_BUCKET:
      spec.algorithm = algorithm::Kind::kTokenBucket;
      break;
    case v1::ALGORITHM_SLIDING_LOG:
      spec.algorithm = algorithm::Kind::kSlidingLog;
      break;
    case v1::ALGORITHM_SLIDING_WINDOW:
      spec.algorithm = algorithm::Kind::kSlidingWindow;
      break;
    case v1::ALGORITHM_FIXED_WINDOW:
      spec.algorithm = algorithm::Kind::kFixedWindow;
      break;
    default:
      return errors::FieldOutOfBounds("limit.algorithm", static_cast<int>(limit.algorithm()),
                                      "0 to 4, as in sluice.v1.Algorithm");
  }
  if (!limit.has_rate()) {
    return errors::FieldMissing("limit.rate", "say permits and their period");
  }
  auto rate = ReadRate("limit.rate", limit.rate());
  if (!rate.ok()) return rate.status();
  spec.rate = *rate;
  if (limit.has_burst()) spec.burst = limit.burst();
  if (limit.has_debt()) spec.debt = limit.debt();
  switch (limit.mode()) {
    case v1::MODE_UNSPECIFIED:
    case v1::MODE_ENFORCE:
      spec.mode = limits::Mode::kEnforce;
      break;
    case v1::MODE_SHADOW:
      spec.mode = limits::Mode::kShadow;
      break;
    default:
      return errors::FieldOutOfBounds("limit.mode", static_cast<int>(limit.mode()),
                                      "0 to 2, as in sluice.v1.Mode");
  }
  switch (limit.on_store_failure()) {
    case v1::ON_STORE_FAILURE_UNSPECIFIED:
    case v1::ON_STORE_FAILURE_DENY:
      spec.on_store_failure = limits::OnStoreFailure::kDeny;
      break;
    case v1::ON_STORE_FAILURE_ALLOW:
      spec.on_store_failure = limits::OnStoreFailure::kAllow;
      break;
    case v1::ON_STORE_FAILURE_SPLIT:
      spec.on_store_failure = limits::OnStoreFailure::kSplit;
      break;
    default:
      return errors::FieldOutOfBounds("limit.on_store_failure",
                                      static_cast<int>(limit.on_store_failure()),
                                      "0 to 3, as in sluice.v1.OnStoreFailure");
  }
  switch (limit.sharing()) {
    case v1::SHARING_UNSPECIFIED:
    case v1::SHARING_EXACT:
      spec.sharing = store::Sharing::kExact;
      break;
    case v1::SHARING_SPLIT:
      spec.sharing = store::Sharing::kSplit;
      break;
    case v1::SHARING_RELAXED:
      spec.sharing = store::Sharing::kRelaxed;
      break;
    default:
      return errors::FieldOutOfBounds("limit.sharing", static_cast<int>(limit.sharing()),
                                      "0 to 3, as in sluice.v1.Sharing");
  }
  spec.charges.assign(limit.charges().begin(), limit.charges().end());
  for (int i = 0; i < limit.keys_size(); ++i) {
    const v1::KeyOverride& from = limit.keys(i);
    limits::KeyOverride& to = spec.keys.emplace_back();
    to.key = from.key();
    if (from.has_rate()) {
      auto own = ReadRate(absl::StrCat("limit.keys[", i, "].rate"), from.rate());
      if (!own.ok()) return own.status();
      to.rate = *own;
    }
    if (from.has_burst()) to.burst = from.burst();
    if (from.has_debt()) to.debt = from.debt();
  }
  if (limit.has_sub_windows()) spec.sub_windows = limit.sub_windows();
  if (limit.has_hash_tag()) spec.hash_tag = limit.hash_tag();
  if (limit.has_utc_offset()) {
    const auto offset = service::ToNanoseconds(
        "limit.utc_offset", {limit.utc_offset().seconds(), limit.utc_offset().nanos()});
    if (!offset.ok()) return offset.status();
    spec.utc_offset_ns = *offset;
  }
  return spec;
}

service::KeyOrder Read(v1::ListKeysRequest::Order order) {
  return order == v1::ListKeysRequest::ORDER_DENIALS ? service::KeyOrder::kDenials
                                                     : service::KeyOrder::kUse;
}

void Write(const limits::LimitSpec& spec, v1::Limit* out) {
  out->set_name(spec.name);
  switch (spec.algorithm) {
    case algorithm::Kind::kTokenBucket:
      out->set_algorithm(v1::ALGORITHM_TOKEN_BUCKET);
      break;
    case algorithm::Kind::kSlidingLog:
      out->set_algorithm(v1::ALGORITHM_SLIDING_LOG);
      break;
    case algorithm::Kind::kSlidingWindow:
      out->set_algorithm(v1::ALGORITHM_SLIDING_WINDOW);
      break;
    case algorithm::Kind::kFixedWindow:
      out->set_algorithm(v1::ALGORITHM_FIXED_WINDOW);
      break;
  }
  WriteRate(spec.rate, out->mutable_rate());
  if (spec.burst.has_value()) out->set_burst(*spec.burst);
  if (spec.debt.has_value()) out->set_debt(*spec.debt);
  out->set_mode(spec.mode == limits::Mode::kShadow ? v1::MODE_SHADOW : v1::MODE_ENFORCE);
  switch (spec.on_store_failure) {
    case limits::OnStoreFailure::kDeny:
      out->set_on_store_failure(v1::ON_STORE_FAILURE_DENY);
      break;
    case limits::OnStoreFailure::kAllow:
      out->set_on_store_failure(v1::ON_STORE_FAILURE_ALLOW);
      break;
    case limits::OnStoreFailure::kSplit:
      out->set_on_store_failure(v1::ON_STORE_FAILURE_SPLIT);
      break;
  }
  switch (spec.sharing) {
    case store::Sharing::kExact:
      out->set_sharing(v1::SHARING_EXACT);
      break;
    case store::Sharing::kSplit:
      out->set_sharing(v1::SHARING_SPLIT);
      break;
    case store::Sharing::kRelaxed:
      out->set_sharing(v1::SHARING_RELAXED);
      break;
  }
  for (const std::string& charge : spec.charges) out->add_charges(charge);
  for (const limits::KeyOverride& from : spec.keys) {
    v1::KeyOverride* const to = out->add_keys();
    to->set_key(from.key);
    if (from.rate.has_value()) WriteRate(*from.rate, to->mutable_rate());
    if (from.burst.has_value()) to->set_burst(*from.burst);
    if (from.debt.has_value()) to->set_debt(*from.debt);
  }
  if (spec.sub_windows.has_value()) out->set_sub_windows(*spec.sub_windows);
  if (spec.hash_tag.has_value()) out->set_hash_tag(*spec.hash_tag);
  if (spec.utc_offset_ns.has_value()) SetDuration(*spec.utc_offset_ns, out->mutable_utc_offset());
  switch (spec.origin) {
    case limits::Origin::kFile:
      out->set_origin(v1::ORIGIN_FILE);
      break;
    case limits::Origin::kAdmin:
      out->set_origin(v1::ORIGIN_ADMIN);
      break;
    case limits::Origin::kAdminOverFile:
      out->set_origin(v1::ORIGIN_ADMIN_OVER_FILE);
      break;
  }
  out->set_defined_at(spec.defined_at);
}

void Write(const service::ListedKeys& keys, v1::ListKeysResponse* out) {
  for (const service::ListedKey& from : keys.keys) {
    v1::KeyUse* const to = out->add_keys();
    to->set_limit(from.limit);
    to->set_key(from.key);
    to->set_estimate(from.estimate);
    to->set_error(from.error);
    to->set_capacity(from.level.capacity);
    if (!from.bucket.ok()) {
      to->set_bucket_error(std::string(from.bucket.message()));
      continue;
    }
    to->set_remaining(from.level.remaining);
    SetDuration(from.level.reset_after_ns, to->mutable_reset_after());
    to->set_waiting(from.waiting);
    if (from.waiting > 0) {
      SetDuration(from.next_grant_after_ns, to->mutable_next_grant_after());
    }
  }
  out->set_sketch(keys.sketch);
  out->set_total(keys.total);
  out->set_counters(keys.counters);
}

void Write(const service::ConfigStatus& status, v1::ConfigStatus* out) {
  const limits::FileStatus& file = status.file;
  out->set_version(file.version);
  if (file.active_since_wall_ns != 0) {
    SetTimestamp(file.active_since_wall_ns, out->mutable_active_since());
  }
  out->set_path(file.path);
  out->set_last_error(file.last_error);
  if (file.last_error_at_wall_ns != 0) {
    SetTimestamp(file.last_error_at_wall_ns, out->mutable_last_error_at());
  }
  out->set_reloads(file.reloads);
  out->set_failed_reloads(file.failed_reloads);
  out->set_limits(status.limits);
  out->set_admin_changes(status.admin_changes);
  v1::StoreStatus* const store = out->mutable_store();
  const store::StoreHealth& health = status.store.health;
  store->set_kind(status.store.kind);
  store->set_state(health.away ? v1::StoreStatus::STATE_UNAVAILABLE
                               : v1::StoreStatus::STATE_SERVING);
  if (health.since_wall_ns != 0) SetTimestamp(health.since_wall_ns, store->mutable_since());
  store->set_times_unavailable(health.times_unavailable);
  store->set_last_error(health.why);
  for (const service::UnavailableDecisions& from : status.store.decided_while_unavailable) {
    v1::StoreStatus::UnavailableDecisions* const to = store->add_decided_while_unavailable();
    to->set_limit(from.limit);
    to->set_allowed(from.allowed);
    to->set_denied(from.denied);
  }
  for (const store::DifferingLimit& from : health.differing) {
    v1::StoreStatus::DifferingLimit* const to = store->add_differing();
    to->set_limit(from.limit);
    to->set_ours(from.ours);
    to->set_theirs(from.theirs);
    to->set_times(from.times);
    SetTimestamp(from.last_wall_ns, to->mutable_last_at());
  }
  for (const store::StoreNode& from : status.store.health.nodes) {
    v1::StoreStatus::Node* const to = store->add_nodes();
    to->set_id(from.id);
    to->set_self(from.self);
    to->set_lapsed(from.lapsed);
    to->set_divisor(from.divisor);
  }
}

void Write(const service::ServerStats& stats, v1::Stats* out) {
  SetTimestamp(stats.started_at_wall_ns, out->mutable_started_at());
  out->set_version(stats.version);
  out->set_decisions(stats.granted + stats.denied);
  out->set_granted(stats.granted);
  out->set_denied(stats.denied);
  for (const service::NamedLimitTotals& from : stats.limits) {
    v1::LimitStats* const to = out->add_limits();
    to->set_limit(from.limit);
    to->set_granted(from.totals.granted);
    to->set_denied(from.totals.denied);
    to->set_shadow_denied(from.totals.shadow_denied);
    to->set_permits_granted(from.totals.permits_granted);
    to->set_refunded_permits(from.totals.refunded_permits);
    to->set_overflow_allowed(from.totals.overflow_allowed);
    to->set_overflow_denied(from.totals.overflow_denied);
    to->set_allowed_while_unavailable(from.totals.allowed_while_unavailable);
    to->set_denied_while_unavailable(from.totals.denied_while_unavailable);
    to->set_overshoot_permits(from.overshoot_permits);
  }
  for (const common::MethodTotals& from : stats.methods) {
    v1::MethodStats* const to = out->add_methods();
    to->set_method(from.method);
    for (size_t code = 0; code < from.codes.size(); ++code) {
      if (from.codes[code] > 0) (*to->mutable_codes())[static_cast<int>(code)] = from.codes[code];
    }
    v1::Histogram* const latency = to->mutable_latency();
    for (size_t i = 0; i < common::kHistogramBuckets; ++i) {
      if (from.latency.counts[i] == 0) continue;
      latency->add_upper_ns(common::HistogramUpperNs(i));
      latency->add_counts(from.latency.counts[i]);
    }
    latency->set_count(from.latency.count);
    latency->set_sum_ns(from.latency.sum_ns);
    to->set_bytes_received(from.bytes_received);
    to->set_bytes_sent(from.bytes_sent);
    to->set_messages_received(from.messages_received);
    to->set_messages_sent(from.messages_sent);
  }
  v1::StoreStats* const store = out->mutable_store();
  store->set_kind(stats.store_kind);
  store->set_buckets(stats.store.buckets);
  store->set_max_buckets(stats.store.max_buckets);
  store->set_memory_bytes(stats.store.memory_bytes);
  store->set_buckets_created(stats.store.created);
  store->set_buckets_dropped(stats.store.dropped);
  store->set_overflow_allowed(stats.store.overflow_allowed);
  store->set_overflow_denied(stats.store.overflow_denied);
  store->set_open_receipts(stats.store.open_receipts);
  store->set_receipts_evicted(stats.store.receipts_evicted);
  store->set_lock_yields(stats.store.lock_yields);
  store->set_commands(stats.store.commands);
  store->set_decisions(stats.store.decisions);
  store->set_unanswered(stats.store.unanswered);
  store->set_errors(stats.store.errors);
  store->set_conversions(stats.store.conversions);
  store->set_nodes(stats.store.nodes);
  for (const common::TransportTotals& from : stats.transports) {
    v1::TransportStats* const to = out->add_transports();
    to->set_transport(from.transport);
    to->set_connections(from.connections_accepted - from.connections_closed);
    to->set_connections_accepted(from.connections_accepted);
    to->set_streams(from.streams_accepted - from.streams_closed);
    to->set_streams_accepted(from.streams_accepted);
    to->set_sheds(from.sheds);
    to->set_connections_refused(from.connections_refused);
  }
  out->set_resident_bytes(stats.resident_bytes);
  out->set_log_lines_suppressed(stats.log_lines_suppressed);
}

}  // namespace sluice::transport::wire
