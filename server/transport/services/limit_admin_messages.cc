#include "server/transport/services/limit_admin_messages.h"

#include <algorithm>
#include <iterator>
#include <optional>
#include <string>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "common/errors.h"
#include "common/histogram.h"
#include "common/strings.h"
#include "server/limits/spec_check.h"
#include "server/service/validation.h"
#include "server/transport/services/protobuf_messages.h"

namespace sluice::transport::wire {
namespace {

namespace errors = common::errors;

constexpr int64_t kSecond = 1'000'000'000;

// ---- Enums. On the wire, UNSPECIFIED stands for the first value; ours follow in their order. ----

static_assert(v1::Algorithm_MAX == std::size(algorithm::kKinds));
static_assert(v1::Mode_MAX == static_cast<int>(limits::Mode::kShadow) + 1);
static_assert(v1::OnStoreFailure_MAX == static_cast<int>(limits::OnStoreFailure::kSplit) + 1);
static_assert(v1::Sharing_MAX == static_cast<int>(store::Sharing::kRelaxed) + 1);
static_assert(v1::Origin_MAX == static_cast<int>(limits::Origin::kEnvoy) + 1);

// INVALID_ARGUMENT: `value` is not a value of the enum named `type`, whose last value is `max`.
template <typename Ours>
absl::Status ReadEnum(int value, int max, std::string_view field, std::string_view type,
                      Ours* out) {
  if (value < 0 || value > max) {
    return errors::Invalid(field, value, "; 0 to ", max, ", as in sluice.v1.",
                           common::ToAbsl(type));
  }
  *out = static_cast<Ours>(std::max(value - 1, 0));
  return absl::OkStatus();
}

template <typename Wire, typename Ours>
Wire WriteEnum(Ours value) {
  return static_cast<Wire>(static_cast<int>(value) + 1);
}

// ---- Messages ----

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
  SetTime(rate.period_ns, out->mutable_period());
}

void Write(const service::NamedLimitTotals& from, v1::LimitStats* to) {
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
  to->set_bookings_denied(from.totals.bookings_denied);
}

void Write(const common::HistogramTotals& from, v1::Histogram* to) {
  for (size_t i = 0; i < common::kHistogramBuckets; ++i) {
    if (from.counts[i] == 0) continue;
    to->add_upper_ns(common::HistogramUpperNs(i));
    to->add_counts(from.counts[i]);
  }
  to->set_count(from.count);
  to->set_sum_ns(from.sum_ns);
}

void Write(const common::MethodTotals& from, v1::MethodStats* to) {
  to->set_method(from.method);
  for (size_t code = 0; code < from.codes.size(); ++code) {
    if (from.codes[code] > 0) (*to->mutable_codes())[static_cast<int>(code)] = from.codes[code];
  }
  Write(from.latency, to->mutable_latency());
  to->set_bytes_received(from.bytes_received);
  to->set_bytes_sent(from.bytes_sent);
  to->set_messages_received(from.messages_received);
  to->set_messages_sent(from.messages_sent);
}

void Write(const common::TransportTotals& from, v1::TransportStats* to) {
  to->set_transport(from.transport);
  to->set_connections(from.connections_accepted - from.connections_closed);
  to->set_connections_accepted(from.connections_accepted);
  to->set_streams(from.streams_accepted - from.streams_closed);
  to->set_streams_accepted(from.streams_accepted);
  to->set_sheds(from.sheds);
  to->set_connections_refused(from.connections_refused);
  to->set_connections_displaced(from.connections_displaced);
  to->set_handshakes_displaced(from.handshakes_displaced);
  to->set_calls_refused_over_memory(from.calls_refused_over_memory);
  to->set_connections_closed_over_memory(from.connections_closed_over_memory);
  to->set_stalls(from.stalls);
}

void Write(const service::StoreStatus& status, v1::StoreStatus* out) {
  const store::StoreHealth& health = status.health;
  out->set_kind(status.kind);
  out->set_state(health.unavailable ? v1::StoreStatus::STATE_UNAVAILABLE
                                    : v1::StoreStatus::STATE_SERVING);
  if (health.since_wall_ns != 0) SetTime(health.since_wall_ns, out->mutable_since());
  out->set_times_unavailable(health.times_unavailable);
  out->set_last_error(health.why);
  for (const service::NamedLimitTotals& from : status.decided_while_unavailable) {
    v1::StoreStatus::UnavailableDecisions* const to = out->add_decided_while_unavailable();
    to->set_limit(from.limit);
    to->set_allowed(from.totals.allowed_while_unavailable);
    to->set_denied(from.totals.denied_while_unavailable);
  }
  for (const store::DifferingLimit& from : health.differing) {
    v1::StoreStatus::DifferingLimit* const to = out->add_differing();
    to->set_limit(from.limit);
    to->set_ours(from.ours);
    to->set_theirs(from.theirs);
    to->set_times(from.times);
    SetTime(from.last_wall_ns, to->mutable_last_at());
  }
  for (const store::StoreNode& from : health.nodes) {
    v1::StoreStatus::Node* const to = out->add_nodes();
    to->set_id(from.id);
    to->set_self(from.self);
    to->set_lapsed(from.lapsed);
    to->set_divisor(from.divisor);
  }
}

void Write(const std::string& kind, const store::StoreStats& from, v1::StoreStats* to) {
  to->set_kind(kind);
  to->set_buckets(from.buckets);
  to->set_max_buckets(from.max_buckets);
  to->set_memory_bytes(from.memory_bytes);
  to->set_buckets_created(from.created);
  to->set_buckets_dropped(from.dropped);
  to->set_overflow_allowed(from.overflow_allowed);
  to->set_overflow_denied(from.overflow_denied);
  to->set_open_receipts(from.open_receipts);
  to->set_receipts_evicted(from.receipts_evicted);
  to->set_lock_yields(from.lock_yields);
  to->set_commands(from.commands);
  to->set_decisions(from.decisions);
  to->set_unanswered(from.unanswered);
  to->set_errors(from.errors);
  to->set_conversions(from.conversions);
  to->set_nodes(from.nodes);
  to->set_bookings(from.bookings);
  to->set_clock_jumps(from.clock_jumps);
}

}  // namespace

absl::StatusOr<limits::LimitSpec> Read(const v1::Limit& limit) {
  limits::LimitSpec spec;
  spec.name = limit.name();
  absl::Status read = ReadEnum(limit.algorithm(), v1::Algorithm_MAX, "limit.algorithm", "Algorithm",
                               &spec.algorithm);
  read.Update(ReadEnum(limit.mode(), v1::Mode_MAX, "limit.mode", "Mode", &spec.mode));
  read.Update(ReadEnum(limit.on_store_failure(), v1::OnStoreFailure_MAX, "limit.on_store_failure",
                       "OnStoreFailure", &spec.on_store_failure));
  read.Update(
      ReadEnum(limit.sharing(), v1::Sharing_MAX, "limit.sharing", "Sharing", &spec.sharing));
  if (!read.ok()) return read;
  const bool slots = spec.algorithm == algorithm::Kind::kConcurrency;
  if (!limit.has_rate() && !slots) {
    return errors::Invalid("limit.rate", "absent; say permits and their period");
  }
  if (limit.has_rate()) {
    auto rate = ReadRate("limit.rate", limit.rate());
    if (!rate.ok()) return rate.status();
    spec.rate = *rate;
    if (const auto problem = limits::CheckHasRate(spec, true)) {
      return limits::ProblemStatus("limit.", spec, *problem);
    }
  }
  if (limit.has_permits()) spec.permits = limit.permits();
  if (limit.has_burst()) spec.burst = limit.burst();
  if (limit.has_debt()) spec.debt = limit.debt();
  if (limit.has_max_owed()) spec.max_owed = limit.max_owed();
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
    if (from.has_permits()) to.permits = from.permits();
  }
  if (limit.has_sub_windows()) spec.sub_windows = limit.sub_windows();
  if (limit.has_hash_tag()) spec.hash_tag = limit.hash_tag();
  const auto read_time = [&read](bool given, const google::protobuf::Duration& time,
                                 const char* field, std::optional<int64_t>* out) {
    if (!given) return;
    const auto ns = service::ToNanoseconds(field, {time.seconds(), time.nanos()});
    read.Update(ns.status());
    if (ns.ok()) *out = *ns;
  };
  read_time(limit.has_utc_offset(), limit.utc_offset(), "limit.utc_offset", &spec.utc_offset_ns);
  read_time(limit.has_hold_for(), limit.hold_for(), "limit.hold_for", &spec.hold_for_ns);
  read_time(limit.has_max_wait(), limit.max_wait(), "limit.max_wait", &spec.max_wait_ns);
  if (!read.ok()) return read;
  if (limit.has_min_keys()) spec.min_keys = limit.min_keys();
  if (limit.has_direct()) spec.direct = limit.direct();
  return spec;
}

service::PutOptions ReadOptions(const v1::PutLimitRequest& request) {
  service::PutOptions options;
  options.reason = request.reason();
  if (request.has_expires_after()) {
    options.expires_after = {request.expires_after().seconds(), request.expires_after().nanos()};
  }
  return options;
}

service::KeyOrder Read(v1::ListKeysRequest::Order order) {
  return order == v1::ListKeysRequest::ORDER_DENIALS ? service::KeyOrder::kDenials
                                                     : service::KeyOrder::kUse;
}

void Write(const limits::LimitSpec& spec, int64_t now_ns, v1::Limit* out) {
  out->set_name(spec.name);
  out->set_algorithm(WriteEnum<v1::Algorithm>(spec.algorithm));
  if (spec.algorithm != algorithm::Kind::kConcurrency) WriteRate(spec.rate, out->mutable_rate());
  if (spec.permits.has_value()) out->set_permits(*spec.permits);
  if (spec.hold_for_ns.has_value()) SetTime(*spec.hold_for_ns, out->mutable_hold_for());
  if (spec.burst.has_value()) out->set_burst(*spec.burst);
  if (spec.debt.has_value()) out->set_debt(*spec.debt);
  if (spec.max_owed.has_value()) out->set_max_owed(*spec.max_owed);
  out->set_mode(WriteEnum<v1::Mode>(spec.mode));
  out->set_on_store_failure(WriteEnum<v1::OnStoreFailure>(spec.on_store_failure));
  out->set_sharing(WriteEnum<v1::Sharing>(spec.sharing));
  for (const std::string& charge : spec.charges) out->add_charges(charge);
  for (const limits::KeyOverride& from : spec.keys) {
    v1::KeyOverride* const to = out->add_keys();
    to->set_key(from.key);
    if (from.rate.has_value()) WriteRate(*from.rate, to->mutable_rate());
    if (from.burst.has_value()) to->set_burst(*from.burst);
    if (from.debt.has_value()) to->set_debt(*from.debt);
    if (from.permits.has_value()) to->set_permits(*from.permits);
  }
  if (spec.sub_windows.has_value()) out->set_sub_windows(*spec.sub_windows);
  if (spec.hash_tag.has_value()) out->set_hash_tag(*spec.hash_tag);
  if (spec.utc_offset_ns.has_value()) SetTime(*spec.utc_offset_ns, out->mutable_utc_offset());
  if (spec.max_wait_ns.has_value()) SetTime(*spec.max_wait_ns, out->mutable_max_wait());
  if (spec.min_keys.has_value()) out->set_min_keys(*spec.min_keys);
  out->set_direct(spec.direct);
  out->set_origin(WriteEnum<v1::Origin>(spec.origin));
  out->set_defined_at(spec.defined_at);
  out->set_reason(spec.reason);
  if (spec.ends_at_ns.has_value()) {
    SetTime(std::max<int64_t>(0, *spec.ends_at_ns - now_ns), out->mutable_expires_in());
  }
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
    SetTime(from.level.reset_after_ns, to->mutable_reset_after());
    to->set_waiting(from.waiting);
    if (from.waiting > 0) {
      SetTime(from.next_grant_after_ns, to->mutable_next_grant_after());
    }
  }
  out->set_sketch(service::KeyUsage::kSketch);
  out->set_total(keys.total);
  out->set_counters(keys.counters);
  if (keys.since_wall_ns != 0) SetTime(keys.since_wall_ns, out->mutable_since());
}

void Write(const service::ListedHolds& holds, v1::ListHoldsResponse* out) {
  for (const store::HoldsOperation::Held& from : holds.holds) {
    v1::SlotHold* const to = out->add_holds();
    to->set_id(from.receipt_id);
    to->set_permits(from.permits);
    SetTime(from.ends_in_ns, to->mutable_ends_in());
  }
  out->set_total(holds.total);
  out->set_capacity(holds.level.capacity);
  out->set_held(
      static_cast<uint64_t>(static_cast<int64_t>(holds.level.capacity) - holds.level.remaining));
}

void Write(const service::ConfigStatus& status, v1::ConfigStatus* out) {
  const limits::FileStatus& file = status.file;
  out->set_version(file.version);
  if (file.active_since_wall_ns != 0) {
    SetTime(file.active_since_wall_ns, out->mutable_active_since());
  }
  out->set_path(file.path);
  out->set_last_error(file.last_error);
  if (file.last_error_at_wall_ns != 0) {
    SetTime(file.last_error_at_wall_ns, out->mutable_last_error_at());
  }
  out->set_reloads(file.reloads);
  out->set_failed_reloads(file.failed_reloads);
  out->set_limits(status.limits);
  out->set_admin_changes(status.admin_changes);
  Write(status.store, out->mutable_store());
}

void Write(const service::ServerStats& stats, v1::Stats* out) {
  SetTime(stats.started_at_wall_ns, out->mutable_started_at());
  out->set_version(stats.version);
  out->set_decisions(stats.totals.granted + stats.totals.denied);
  out->set_granted(stats.totals.granted);
  out->set_denied(stats.totals.denied);
  for (const auto& limit : stats.limits) Write(limit, out->add_limits());
  for (const auto& method : stats.totals.methods) Write(method, out->add_methods());
  for (const auto& transport : stats.totals.transports) Write(transport, out->add_transports());
  Write(stats.store_kind, stats.store, out->mutable_store());
  out->set_resident_bytes(stats.resident_bytes);
  out->set_log_lines_suppressed(stats.log_lines_suppressed);
  for (size_t i = 0; i < common::kStepNames.size(); ++i) {
    v1::StepStats* const step = out->add_steps();
    step->set_kind(common::kStepNames[i]);
    Write(stats.totals.steps[i], step->mutable_time());
  }
}

}  // namespace sluice::transport::wire
