#include "sluice/admin_client.h"

#include <thread>
#include <utility>

#include "client/src/admin/grpc_channel.h"
#include "client/src/retry_policy.h"
#include "client/src/transport/connect_advice.h"
#include "sluice/v1/admin.grpc.pb.h"

namespace sluice {
namespace {

using client_internal::Operation;
using std::chrono::system_clock;

std::chrono::nanoseconds FromWire(const google::protobuf::Duration& duration) {
  // Saturates at 292 years.
  constexpr int64_t kMostSeconds = INT64_MAX / 1'000'000'000 - 3;
  if (duration.seconds() > kMostSeconds) return std::chrono::nanoseconds::max();
  if (duration.seconds() < -kMostSeconds) return std::chrono::nanoseconds::min();
  return std::chrono::seconds(duration.seconds()) + std::chrono::nanoseconds(duration.nanos());
}

void ToWire(std::chrono::nanoseconds time, google::protobuf::Duration* wire) {
  wire->set_seconds(time.count() / 1'000'000'000);
  wire->set_nanos(static_cast<int32_t>(time.count() % 1'000'000'000));
}

system_clock::time_point FromWire(const google::protobuf::Timestamp& at) {
  return system_clock::time_point(std::chrono::duration_cast<system_clock::duration>(
      std::chrono::seconds(at.seconds()) + std::chrono::nanoseconds(at.nanos())));
}

// The name of an enum value without its prefix: ALGORITHM_TOKEN_BUCKET -> "token_bucket".
std::string EnumText(std::string name, std::string_view prefix) {
  if (name.size() <= prefix.size()) return "";
  name.erase(0, prefix.size());
  for (char& c : name) c = static_cast<char>(tolower(c));
  return name;
}

// The reverse of EnumText; empty: the default. `prefix` is that of the enum's values.
template <typename Enum>
Status ParseEnum(const char* field, const std::string& text, const std::string& prefix,
                 Enum* value) {
  if (text.empty()) return Status();
  std::string name = prefix;
  for (const char c : text) name += static_cast<char>(toupper(c));
  const google::protobuf::EnumDescriptor& all = *google::protobuf::GetEnumDescriptor<Enum>();
  if (const auto* const found = all.FindValueByName(name); found != nullptr) {
    *value = static_cast<Enum>(found->number());
    return Status();
  }
  std::string valid;  // the first value is UNSPECIFIED
  for (int i = 1; i < all.value_count(); ++i) {
    if (i > 1) valid += i + 1 < all.value_count() ? ", " : " or ";
    valid += EnumText(all.value(i)->name(), prefix);
  }
  return Status(StatusCode::kInvalidArgument,
                std::string(field) + ": \"" + text + "\" is unknown; write " + valid);
}

LimitRate FromWire(const v1::Rate& rate) {
  LimitRate out;
  out.permits = rate.permits();
  if (rate.has_period()) out.period = FromWire(rate.period());
  return out;
}

void ToWire(const LimitRate& rate, v1::Rate* wire) {
  wire->set_permits(rate.permits);
  ToWire(rate.period, wire->mutable_period());
}

LimitInfo FromWire(const v1::Limit& limit) {
  LimitInfo out;
  out.name = limit.name();
  out.algorithm = limit.algorithm() == v1::ALGORITHM_UNSPECIFIED
                      ? "token_bucket"
                      : EnumText(v1::Algorithm_Name(limit.algorithm()), "ALGORITHM_");
  if (limit.has_rate()) out.rate = FromWire(limit.rate());
  if (limit.has_permits()) out.permits = limit.permits();
  if (limit.has_hold_for()) out.hold_for = FromWire(limit.hold_for());
  if (limit.has_burst()) out.burst = limit.burst();
  if (limit.has_debt()) out.debt = limit.debt();
  if (limit.has_max_owed()) out.max_owed = limit.max_owed();
  out.mode = limit.mode() == v1::MODE_UNSPECIFIED ? "enforce"
                                                  : EnumText(v1::Mode_Name(limit.mode()), "MODE_");
  out.on_store_failure =
      limit.on_store_failure() == v1::ON_STORE_FAILURE_UNSPECIFIED
          ? "deny"
          : EnumText(v1::OnStoreFailure_Name(limit.on_store_failure()), "ON_STORE_FAILURE_");
  out.sharing = limit.sharing() == v1::SHARING_UNSPECIFIED
                    ? "exact"
                    : EnumText(v1::Sharing_Name(limit.sharing()), "SHARING_");
  out.charges.assign(limit.charges().begin(), limit.charges().end());
  for (const v1::KeyOverride& key : limit.keys()) {
    LimitKeyOverride& override = out.keys.emplace_back();
    override.key = key.key();
    if (key.has_rate()) override.rate = FromWire(key.rate());
    if (key.has_burst()) override.burst = key.burst();
    if (key.has_debt()) override.debt = key.debt();
    if (key.has_permits()) override.permits = key.permits();
  }
  if (limit.has_sub_windows()) out.sub_windows = limit.sub_windows();
  if (limit.has_hash_tag()) out.hash_tag = limit.hash_tag();
  if (limit.has_utc_offset()) out.utc_offset = FromWire(limit.utc_offset());
  if (limit.has_max_wait()) out.max_wait = FromWire(limit.max_wait());
  if (limit.has_min_keys()) out.min_keys = limit.min_keys();
  out.direct = !limit.has_direct() || limit.direct();
  if (limit.origin() != v1::ORIGIN_UNSPECIFIED) {
    out.origin = EnumText(v1::Origin_Name(limit.origin()), "ORIGIN_");
  }
  out.defined_at = limit.defined_at();
  out.reason = limit.reason();
  if (limit.has_expires_in()) out.expires_in = FromWire(limit.expires_in());
  return out;
}

Status ToWire(const LimitInfo& limit, v1::Limit* wire) {
  wire->set_name(limit.name);
  if (limit.sharing == "leased") {
    return Status(StatusCode::kInvalidArgument,
                  "sharing: \"leased\" is not supported yet; write exact, split or relaxed");
  }
  v1::Algorithm algorithm = v1::ALGORITHM_UNSPECIFIED;
  v1::Mode mode = v1::MODE_UNSPECIFIED;
  v1::OnStoreFailure on_store_failure = v1::ON_STORE_FAILURE_UNSPECIFIED;
  v1::Sharing sharing = v1::SHARING_UNSPECIFIED;
  for (const Status& status : {ParseEnum("algorithm", limit.algorithm, "ALGORITHM_", &algorithm),
                               ParseEnum("mode", limit.mode, "MODE_", &mode),
                               ParseEnum("on_store_failure", limit.on_store_failure,
                                         "ON_STORE_FAILURE_", &on_store_failure),
                               ParseEnum("sharing", limit.sharing, "SHARING_", &sharing)}) {
    if (!status.ok()) return status;
  }
  wire->set_algorithm(algorithm);
  wire->set_mode(mode);
  wire->set_on_store_failure(on_store_failure);
  wire->set_sharing(sharing);
  if (algorithm != v1::ALGORITHM_CONCURRENCY) ToWire(limit.rate, wire->mutable_rate());
  if (limit.permits.has_value()) wire->set_permits(*limit.permits);
  if (limit.hold_for.has_value()) ToWire(*limit.hold_for, wire->mutable_hold_for());
  if (limit.burst.has_value()) wire->set_burst(*limit.burst);
  if (limit.debt.has_value()) wire->set_debt(*limit.debt);
  if (limit.max_owed.has_value()) wire->set_max_owed(*limit.max_owed);
  for (const std::string& parent : limit.charges) wire->add_charges(parent);
  for (const LimitKeyOverride& key : limit.keys) {
    v1::KeyOverride* override = wire->add_keys();
    override->set_key(key.key);
    if (key.rate.has_value()) ToWire(*key.rate, override->mutable_rate());
    if (key.burst.has_value()) override->set_burst(*key.burst);
    if (key.debt.has_value()) override->set_debt(*key.debt);
    if (key.permits.has_value()) override->set_permits(*key.permits);
  }
  if (limit.sub_windows.has_value()) wire->set_sub_windows(*limit.sub_windows);
  if (limit.hash_tag.has_value()) wire->set_hash_tag(*limit.hash_tag);
  if (limit.utc_offset.has_value()) ToWire(*limit.utc_offset, wire->mutable_utc_offset());
  if (limit.max_wait.has_value()) ToWire(*limit.max_wait, wire->mutable_max_wait());
  if (limit.min_keys.has_value()) wire->set_min_keys(*limit.min_keys);
  if (!limit.direct) wire->set_direct(false);
  return Status();
}

LatencyHistogram ToHistogram(const v1::Histogram& from) {
  LatencyHistogram to;
  to.upper_ns.assign(from.upper_ns().begin(), from.upper_ns().end());
  to.counts.assign(from.counts().begin(), from.counts().end());
  to.count = from.count();
  to.sum_ns = from.sum_ns();
  return to;
}

}  // namespace

std::chrono::nanoseconds LatencyHistogram::Quantile(double share) const {
  const double wanted = share * static_cast<double>(count);
  uint64_t seen = 0;
  for (size_t i = 0; i < counts.size() && i < upper_ns.size(); ++i) {
    seen += counts[i];
    if (seen > 0 && static_cast<double>(seen) >= wanted) {
      return std::chrono::nanoseconds(
          static_cast<int64_t>(std::min<uint64_t>(upper_ns[i], INT64_MAX)));
    }
  }
  return std::chrono::nanoseconds(0);
}

class AdminClient::Impl {
 public:
  Impl(std::shared_ptr<grpc::Channel> channel, AdminOptions options)
      : channel_(std::move(channel)),
        stub_(v1::LimitAdmin::NewStub(channel_)),
        options_(std::move(options)),
        policy_(RetryOptions{}, 1) {}

  template <typename Request, typename Response>
  Result<Response> Call(Operation operation,
                        grpc::Status (v1::LimitAdmin::Stub::*method)(grpc::ClientContext*,
                                                                     const Request&, Response*),
                        const Request& request) {
    const auto deadline = system_clock::now() + options_.deadline;
    for (int attempts = 1;; ++attempts) {
      grpc::ClientContext context;
      context.set_deadline(deadline);
      client_internal::AddToken(options_.token, &context);
      Response response;
      const grpc::Status status = ((*stub_).*method)(&context, request, &response);
      if (status.ok()) return response;
      Status failed = client_internal::FromGrpc(status, context, options_.tls);
      const auto pause = policy_.Pause(operation, failed, attempts, deadline - system_clock::now(),
                                       client_internal::Random());
      if (!pause.has_value()) return failed;
      std::this_thread::sleep_for(*pause);
    }
  }

 private:
  const std::shared_ptr<grpc::Channel> channel_;
  const std::unique_ptr<v1::LimitAdmin::Stub> stub_;
  const AdminOptions options_;
  const client_internal::RetryPolicy policy_;
};

Result<AdminClient> AdminClient::Create(AdminOptions options) {
  Result<std::shared_ptr<grpc::Channel>> channel =
      client_internal::MakeChannel(options.server, options.tls);
  if (!channel.ok()) return channel.status();
  return AdminClient(std::make_unique<Impl>(*std::move(channel), std::move(options)));
}

AdminClient::AdminClient(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
AdminClient::AdminClient(AdminClient&&) noexcept = default;
AdminClient& AdminClient::operator=(AdminClient&&) noexcept = default;
AdminClient::~AdminClient() = default;

Result<std::vector<LimitInfo>> AdminClient::ListLimits() {
  const auto response =
      impl_->Call(Operation::kQuery, &v1::LimitAdmin::Stub::ListLimits, v1::ListLimitsRequest());
  if (!response.ok()) return response.status();
  std::vector<LimitInfo> limits;
  for (const v1::Limit& limit : response->limits()) limits.push_back(FromWire(limit));
  return limits;
}

Result<LimitInfo> AdminClient::GetLimit(std::string_view name) {
  v1::GetLimitRequest request;
  request.set_name(name.data(), name.size());
  const auto response = impl_->Call(Operation::kQuery, &v1::LimitAdmin::Stub::GetLimit, request);
  if (!response.ok()) return response.status();
  return FromWire(*response);
}

Result<AdminClient::Put> AdminClient::PutLimit(const LimitInfo& limit, const PutOptions& options) {
  v1::PutLimitRequest request;
  request.set_reason(options.reason);
  if (options.expires_after.has_value()) {
    ToWire(*options.expires_after, request.mutable_expires_after());
  }
  if (Status bad = ToWire(limit, request.mutable_limit()); !bad.ok()) return bad;
  const auto response = impl_->Call(Operation::kAcquire, &v1::LimitAdmin::Stub::PutLimit, request);
  if (!response.ok()) return response.status();
  return Put{FromWire(response->limit()), response->replaced()};
}

Status AdminClient::DeleteLimit(std::string_view name) {
  v1::DeleteLimitRequest request;
  request.set_name(name.data(), name.size());
  return impl_->Call(Operation::kAcquire, &v1::LimitAdmin::Stub::DeleteLimit, request).status();
}

Result<bool> AdminClient::ResetKey(std::string_view limit, std::string_view key) {
  v1::ResetKeyRequest request;
  request.set_limit(limit.data(), limit.size());
  request.set_key(key.data(), key.size());
  const auto response = impl_->Call(Operation::kAcquire, &v1::LimitAdmin::Stub::ResetKey, request);
  if (!response.ok()) return response.status();
  return response->existed();
}

Result<HoldList> AdminClient::ListHolds(std::string_view limit, std::string_view key,
                                        uint32_t max_holds) {
  v1::ListHoldsRequest request;
  request.set_limit(limit.data(), limit.size());
  request.set_key(key.data(), key.size());
  request.set_max_holds(max_holds);
  const auto response = impl_->Call(Operation::kQuery, &v1::LimitAdmin::Stub::ListHolds, request);
  if (!response.ok()) return response.status();
  HoldList list;
  list.total = response->total();
  list.held = response->held();
  list.capacity = response->capacity();
  for (const v1::SlotHold& hold : response->holds()) {
    list.holds.push_back({hold.id(), hold.permits(), FromWire(hold.ends_in())});
  }
  return list;
}

Result<bool> AdminClient::EndHold(std::string_view limit, std::string_view key, uint64_t id) {
  v1::EndHoldRequest request;
  request.set_limit(limit.data(), limit.size());
  request.set_key(key.data(), key.size());
  request.set_id(id);
  const auto response = impl_->Call(Operation::kAcquire, &v1::LimitAdmin::Stub::EndHold, request);
  if (!response.ok()) return response.status();
  return response->ended();
}

Result<std::optional<system_clock::time_point>> AdminClient::LiftFloor(std::string_view limit) {
  v1::LiftFloorRequest request;
  request.set_limit(limit.data(), limit.size());
  const auto response = impl_->Call(Operation::kAcquire, &v1::LimitAdmin::Stub::LiftFloor, request);
  if (!response.ok()) return response.status();
  if (!response->has_floor()) return std::optional<system_clock::time_point>();
  return std::optional(FromWire(response->floor()));
}

Result<KeyList> AdminClient::ListKeys(std::string_view limit, KeyOrder order, uint32_t max_keys) {
  v1::ListKeysRequest request;
  request.set_limit(limit.data(), limit.size());
  request.set_order(order == KeyOrder::kUse ? v1::ListKeysRequest::ORDER_USE
                                            : v1::ListKeysRequest::ORDER_DENIALS);
  request.set_max_keys(max_keys);
  const auto response = impl_->Call(Operation::kQuery, &v1::LimitAdmin::Stub::ListKeys, request);
  if (!response.ok()) return response.status();
  KeyList list;
  list.sketch = response->sketch();
  list.total = response->total();
  list.counters = response->counters();
  list.since = FromWire(response->since());
  for (const v1::KeyUse& key : response->keys()) {
    list.keys.push_back({key.limit(), key.key(), key.estimate(), key.error(), key.remaining(),
                         key.capacity(), FromWire(key.reset_after()), key.waiting(),
                         FromWire(key.next_grant_after()), key.bucket_error()});
  }
  return list;
}

Result<ConfigStatus> AdminClient::GetConfigStatus() {
  const auto response = impl_->Call(Operation::kQuery, &v1::LimitAdmin::Stub::GetConfigStatus,
                                    v1::GetConfigStatusRequest());
  if (!response.ok()) return response.status();
  ConfigStatus status;
  for (const v1::StoreStatus::Node& one : response->store().nodes()) {
    status.store.nodes.push_back({one.id(), one.self(), one.lapsed(), one.divisor()});
  }
  status.version = response->version();
  status.active_since = FromWire(response->active_since());
  status.path = response->path();
  status.last_error = response->last_error();
  status.last_error_at = FromWire(response->last_error_at());
  status.reloads = response->reloads();
  status.failed_reloads = response->failed_reloads();
  status.limits = response->limits();
  status.admin_changes = response->admin_changes();
  const v1::StoreStatus& store = response->store();
  status.store.kind = store.kind();
  status.store.unavailable = store.state() == v1::StoreStatus::STATE_UNAVAILABLE;
  status.store.since = FromWire(store.since());
  status.store.times_unavailable = store.times_unavailable();
  status.store.last_error = store.last_error();
  for (const v1::StoreStatus::UnavailableDecisions& one : store.decided_while_unavailable()) {
    status.store.decided_while_unavailable.push_back({one.limit(), one.allowed(), one.denied()});
  }
  for (const v1::StoreStatus::DifferingLimit& one : store.differing()) {
    status.store.differing.push_back(
        {one.limit(), one.ours(), one.theirs(), one.times(), FromWire(one.last_at())});
  }
  return status;
}

Result<ServerStats> AdminClient::GetStats() {
  const auto response =
      impl_->Call(Operation::kQuery, &v1::LimitAdmin::Stub::GetStats, v1::GetStatsRequest());
  if (!response.ok()) return response.status();
  ServerStats stats;
  stats.started_at = FromWire(response->started_at());
  stats.version = response->version();
  stats.decisions = response->decisions();
  stats.granted = response->granted();
  stats.denied = response->denied();
  for (const v1::LimitStats& limit : response->limits()) {
    stats.limits.push_back({limit.limit(), limit.granted(), limit.denied(), limit.shadow_denied(),
                            limit.permits_granted(), limit.refunded_permits(),
                            limit.overflow_allowed(), limit.overflow_denied(),
                            limit.allowed_while_unavailable(), limit.denied_while_unavailable(),
                            limit.overshoot_permits(), limit.bookings_denied()});
  }
  for (const v1::MethodStats& method : response->methods()) {
    MethodStats& out = stats.methods.emplace_back();
    out.method = method.method();
    out.codes.insert(method.codes().begin(), method.codes().end());
    out.latency = ToHistogram(method.latency());
    out.bytes_received = method.bytes_received();
    out.bytes_sent = method.bytes_sent();
    out.messages_received = method.messages_received();
    out.messages_sent = method.messages_sent();
  }
  for (const v1::TransportStats& transport : response->transports()) {
    stats.transports.push_back(
        {.transport = transport.transport(),
         .connections = transport.connections(),
         .connections_accepted = transport.connections_accepted(),
         .streams = transport.streams(),
         .streams_accepted = transport.streams_accepted(),
         .sheds = transport.sheds(),
         .connections_refused = transport.connections_refused(),
         .connections_displaced = transport.connections_displaced(),
         .handshakes_displaced = transport.handshakes_displaced(),
         .calls_refused_over_memory = transport.calls_refused_over_memory(),
         .connections_closed_over_memory = transport.connections_closed_over_memory(),
         .stalls = transport.stalls()});
  }
  const v1::StoreStats& store = response->store();
  stats.store = store.kind();
  stats.buckets = store.buckets();
  stats.max_buckets = store.max_buckets();
  stats.memory_bytes = store.memory_bytes();
  stats.buckets_created = store.buckets_created();
  stats.buckets_dropped = store.buckets_dropped();
  stats.overflow_allowed = store.overflow_allowed();
  stats.overflow_denied = store.overflow_denied();
  stats.open_receipts = store.open_receipts();
  stats.receipts_evicted = store.receipts_evicted();
  stats.lock_yields = store.lock_yields();
  stats.store_commands = store.commands();
  stats.store_decisions = store.decisions();
  stats.store_unanswered = store.unanswered();
  stats.store_errors = store.errors();
  stats.store_conversions = store.conversions();
  stats.store_nodes = store.nodes();
  stats.store_clock_jumps = store.clock_jumps();
  stats.bookings = store.bookings();
  stats.resident_bytes = response->resident_bytes();
  stats.log_lines_suppressed = response->log_lines_suppressed();
  for (const v1::StepStats& step : response->steps()) {
    stats.steps.push_back({step.kind(), ToHistogram(step.time())});
  }
  return stats;
}

}  // namespace sluice
