#include "sluice/client.h"

#include <utility>

#include "client/src/client_core.h"
#include "client/src/hold_keeper.h"
#include "client/src/request_id.h"
#include "client/src/round_robin.h"
#include "client/src/stream_core.h"
#include "client/src/transport/http2_connection.h"

namespace sluice {

using client_internal::ClientCore;
using client_internal::Operation;
using client_internal::RunAttempts;

namespace client_internal {

bool IsUnavailable(const Status& status) {
  return status.code() == StatusCode::kUnavailable ||
         status.code() == StatusCode::kDeadlineExceeded ||
         status.code() == StatusCode::kResourceExhausted;
}

Result<Decision> ClientCore::Settle(Result<Decision> result, OnUnavailable on_unavailable) const {
  if (result.ok()) return result;
  Status status = result.status();
  if (!IsUnavailable(status)) return result;
  Decision decision;
  decision.granted = on_unavailable == OnUnavailable::kAllow;
  decision.source = Source::kUnavailable;
  if (!decision.granted) decision.retry_after = options_.unavailable_retry_after;
  decision.status = std::move(status);
  return decision;
}

Result<BatchDecisions> ClientCore::SettleBatch(Result<BatchDecisions> result, size_t size,
                                               OnUnavailable on_unavailable) const {
  if (result.ok()) {
    for (Result<Decision>& one : *result) {
      if (!one.ok()) one = Settle(std::move(one), on_unavailable);
    }
  } else if (IsUnavailable(result.status())) {
    return BatchDecisions(size, Settle(result.status(), on_unavailable));
  }
  return result;
}

namespace {

// The acquisition, which gets a request id if it is to be executed once; then it is copied.
class WithId {
 public:
  WithId(const Acquisition& acquisition, bool exactly_once) : asked_(&acquisition) {
    if (!exactly_once || !acquisition.request_id.empty()) return;
    copy_ = acquisition;
    copy_.request_id = NewRequestId();
    asked_ = &copy_;
  }
  WithId(const WithId&) = delete;
  WithId& operator=(const WithId&) = delete;
  const Acquisition& operator*() const { return *asked_; }

 private:
  const Acquisition* asked_;
  Acquisition copy_;
};

void AddIds(std::vector<Acquisition>* batch) {
  for (Acquisition& one : *batch) {
    if (one.request_id.empty()) one.request_id = NewRequestId();
  }
}

// The attempts of a call that blocks. `attempt(connection, call)` is one.
template <typename T, typename Attempt>
Result<T> RunBlocking(const ClientCore& core, Operation operation, Call call, int* attempts,
                      const Attempt& attempt) {
  call = core.Bounded(operation, call);
  bool may_have_executed = false;
  for (*attempts = 1;; ++*attempts) {
    Result<T> result = attempt(core.connection(), core.CallOfAttempt(operation, *attempts, call));
    const Status failed = FailureOf(operation, result);
    if (failed.ok()) return result;
    const auto pause = core.Pause(operation, failed, *attempts, call);
    if (!pause.has_value()) {
      if (may_have_executed) MarkMaybeExecuted(&result);
      return result;
    }
    // Of a batch that was answered, some acquisitions may have been granted.
    may_have_executed |= failed.may_have_executed() || result.ok();
    if (pause->count() > 0) core.connection().Sleep(*pause);
  }
}

}  // namespace
}  // namespace client_internal

namespace {

Status CheckKeepalive(const KeepaliveOptions& keepalive) {
  using std::chrono::hours;
  using std::chrono::nanoseconds;
  using std::chrono::seconds;
  const auto refused = [](const char* field, nanoseconds value, const char* valid) {
    return Status(StatusCode::kInvalidArgument, std::string("ClientOptions::keepalive.") + field +
                                                    " is " + std::to_string(value.count()) +
                                                    " ns; valid is " + valid);
  };
  const nanoseconds time = keepalive.time;
  if (time != nanoseconds(0) && (time < seconds(10) || time > hours(24))) {
    return refused("time", time, "10 s to 24 h, or 0 for no PINGs");
  }
  if (keepalive.timeout < seconds(1) || keepalive.timeout > hours(1)) {
    return refused("timeout", keepalive.timeout, "1 s to 1 h");
  }
  return Status();
}

Result<BatchSettlements> WithAttempts(Result<BatchSettlements> results, int attempts) {
  if (!results.ok()) return results;
  for (Result<SettleResult>& one : *results) {
    if (one.ok()) one->attempts = attempts;
  }
  return results;
}

}  // namespace

Result<Client> Client::Create(ClientOptions options) {
  if (options.servers.empty()) {
    return Status(StatusCode::kInvalidArgument,
                  "ClientOptions::servers is empty: name at least one HOST:PORT");
  }
  if (Status bad = CheckKeepalive(options.keepalive); !bad.ok()) return bad;
  client_internal::TransportOptions transport;
  transport.keepalive = options.keepalive;
  std::vector<std::shared_ptr<Connection>> connections;
  for (const std::string& server : options.servers) {
    Result<std::shared_ptr<Connection>> connection =
        client_internal::MakeHttp2Connection(server, options.tls, options.token, transport);
    if (!connection.ok()) return connection.status();
    connections.push_back(*std::move(connection));
  }
  std::shared_ptr<Connection> connection = connections.front();
  if (connections.size() > 1) {
    connection = std::make_shared<client_internal::RoundRobin>(std::move(connections));
  }
  return Client(std::move(connection), std::move(options));
}

Client::Client(std::shared_ptr<Connection> connection, ClientOptions options)
    : core_(std::make_shared<ClientCore>(std::move(connection), std::move(options))),
      keeper_(std::make_shared<client_internal::HoldKeeper>(core_)) {}

Client::Client(Client&&) noexcept = default;

Client& Client::operator=(Client&& other) noexcept {
  if (this != &other) {
    ShutDown();
    core_ = std::move(other.core_);
    keeper_ = std::move(other.keeper_);
  }
  return *this;
}

Client::~Client() { ShutDown(); }

void Client::ShutDown() {
  if (core_ == nullptr) return;
  keeper_->Close();
  core_->connection().Shutdown();
}

Result<Decision> Client::Acquire(const Acquisition& acquisition, const CallOptions& options) {
  // Keeps the core alive: destroying the client meanwhile cancels this call.
  const std::shared_ptr<ClientCore> core = core_;
  const Call call = core->MakeCall(options, acquisition);
  const client_internal::WithId asked(acquisition, core->ExactlyOnce(options));
  int attempts = 0;
  Result<Decision> result = client_internal::RunBlocking<Decision>(
      *core, client_internal::OperationOf(*asked), call, &attempts,
      [&](Connection& connection, const Call& attempt) {
        return connection.AcquireBlocking(*asked, attempt);
      });
  if (result.ok()) return result;
  return core->Settle(std::move(result), core->OnUnavailableOf(options));
}

Result<Decision> Client::Acquire(std::string_view limit, std::string_view key, uint64_t permits,
                                 const CallOptions& options) {
  return Acquire(Acquisition(std::string(limit), std::string(key), permits), options);
}

Result<std::chrono::nanoseconds> Client::TryAcquire(std::string_view limit, std::string_view key,
                                                    uint64_t permits, const CallOptions& options) {
  Result<Decision> decision = Acquire(limit, key, permits, options);
  if (!decision.ok()) return decision.status();
  if (decision->granted) return std::chrono::nanoseconds(0);
  return std::max(decision->retry_after, std::chrono::nanoseconds(1));
}

void Client::AcquireAsync(Acquisition acquisition, Callback<Decision> done,
                          const CallOptions& options) {
  const OnUnavailable on_unavailable = core_->OnUnavailableOf(options);
  const Call call = core_->MakeCall(options, acquisition);
  if (core_->ExactlyOnce(options) && acquisition.request_id.empty()) {
    acquisition.request_id = client_internal::NewRequestId();
  }
  const Operation operation = client_internal::OperationOf(acquisition);
  RunAttempts<Decision>(
      core_, operation, call,
      [core = core_.get(), acquisition = std::move(acquisition)](const Call& call,
                                                                 Callback<Decision> ended) {
        core->connection().Acquire(acquisition, call, std::move(ended));
      },
      [core = core_, on_unavailable, done = std::move(done)](Result<Decision> result, int) {
        done(core->Settle(std::move(result), on_unavailable));
      });
}

std::future<Result<Decision>> Client::AcquireFuture(Acquisition acquisition,
                                                    const CallOptions& options) {
  auto answer = std::make_shared<std::promise<Result<Decision>>>();
  std::future<Result<Decision>> future = answer->get_future();
  AcquireAsync(
      std::move(acquisition),
      [answer](Result<Decision> result) { answer->set_value(std::move(result)); }, options);
  return future;
}

void Client::AcquireBatchAsync(std::vector<Acquisition> batch, Callback<BatchDecisions> done,
                               const CallOptions& options) {
  const OnUnavailable on_unavailable = core_->OnUnavailableOf(options);
  const size_t size = batch.size();
  if (core_->ExactlyOnce(options)) client_internal::AddIds(&batch);
  const Operation operation = client_internal::OperationOf(batch);
  RunAttempts<BatchDecisions>(
      core_, operation, core_->MakeCall(options),
      [core = core_.get(), batch = std::move(batch)](const Call& call,
                                                     Callback<BatchDecisions> ended) {
        core->connection().AcquireBatch(batch, call, std::move(ended));
      },
      [core = core_, on_unavailable, size, done = std::move(done)](Result<BatchDecisions> result,
                                                                   int) {
        done(core->SettleBatch(std::move(result), size, on_unavailable));
      });
}

Result<BatchDecisions> Client::AcquireBatch(std::span<const Acquisition> batch,
                                            const CallOptions& options) {
  const std::shared_ptr<ClientCore> core = core_;
  const Call call = core->MakeCall(options);
  std::vector<Acquisition> with_ids;
  if (core->ExactlyOnce(options)) {
    with_ids.assign(batch.begin(), batch.end());
    client_internal::AddIds(&with_ids);
    batch = with_ids;
  }
  int attempts = 0;
  return core->SettleBatch(client_internal::RunBlocking<BatchDecisions>(
                               *core, client_internal::OperationOf(batch), call, &attempts,
                               [&](Connection& connection, const Call& attempt) {
                                 return connection.AcquireBatchBlocking(batch, attempt);
                               }),
                           batch.size(), core->OnUnavailableOf(options));
}

namespace {

// Results that say how many attempts they took.
template <typename T>
void SetAttempts(int attempts, Result<T>* result) {
  if constexpr (requires(T value) { value.attempts; }) {
    if (result->ok()) (*result)->attempts = attempts;
  }
}

// `ask` is the connection's function. The copy keeps the core alive: destroying the client
// meanwhile cancels this call.
template <typename T, typename Request, typename Asked>
// NOLINTNEXTLINE(performance-unnecessary-value-param)
Result<T> Ask(const std::shared_ptr<ClientCore> core, Operation operation,
              const CallOptions& options, const Request& request,
              Result<T> (Connection::*ask)(Asked, const Call&)) {
  int attempts = 0;
  Result<T> result =
      client_internal::RunBlocking<T>(*core, operation, core->MakeCall(options), &attempts,
                                      [&](Connection& connection, const Call& attempt) {
                                        return (connection.*ask)(request, attempt);
                                      });
  SetAttempts(attempts, &result);
  return result;
}

template <typename T, typename Request, typename Asked>
void AskAsync(const std::shared_ptr<ClientCore>& core, Operation operation,
              const CallOptions& options, Request request,
              void (Connection::*ask)(Asked, const Call&, Callback<T>), Callback<T> done) {
  RunAttempts<T>(
      core, operation, core->MakeCall(options),
      [core = core.get(), ask, request = std::move(request)](const Call& call, Callback<T> ended) {
        (core->connection().*ask)(request, call, std::move(ended));
      },
      [done = std::move(done)](Result<T> result, int attempts) {
        SetAttempts(attempts, &result);
        done(std::move(result));
      });
}

}  // namespace

void Client::QueryAsync(std::vector<Bucket> buckets, Callback<std::vector<BucketStatus>> done,
                        const CallOptions& options) {
  AskAsync(core_, Operation::kQuery, options, std::move(buckets), &Connection::Query,
           std::move(done));
}

Result<std::vector<BucketStatus>> Client::Query(std::span<const Bucket> buckets,
                                                const CallOptions& options) {
  return Ask(core_, Operation::kQuery, options, buckets, &Connection::QueryBlocking);
}

void Client::RefundAsync(std::string receipt, Callback<RefundResult> done,
                         const CallOptions& options) {
  AskAsync(core_, Operation::kRefund, options, std::move(receipt), &Connection::Refund,
           std::move(done));
}

Result<RefundResult> Client::Refund(std::string_view receipt, const CallOptions& options) {
  return Ask(core_, Operation::kRefund, options, receipt, &Connection::RefundBlocking);
}

Result<RefundResult> Client::Refund(const Decision& decision, CallOptions options) {
  options.server = decision.server;
  return Refund(decision.receipt, options);
}

Result<std::vector<Renewal>> Client::Renew(std::span<const std::string> receipts,
                                           const CallOptions& options) {
  return Ask(core_, Operation::kRenew, options, receipts, &Connection::RenewBlocking);
}

void Client::RenewAsync(std::vector<std::string> receipts, Callback<std::vector<Renewal>> done,
                        const CallOptions& options) {
  AskAsync(core_, Operation::kRenew, options, std::move(receipts), &Connection::Renew,
           std::move(done));
}

void Client::SettleAsync(Settlement settlement, Callback<SettleResult> done,
                         const CallOptions& options) {
  AskAsync(core_, Operation::kSettle, options, std::move(settlement), &Connection::Settle,
           std::move(done));
}

Result<SettleResult> Client::Settle(const Settlement& settlement, const CallOptions& options) {
  return Ask(core_, Operation::kSettle, options, settlement, &Connection::SettleBlocking);
}

Result<SettleResult> Client::Settle(const Decision& decision, std::vector<Charge> actual,
                                    CallOptions options) {
  options.server = decision.server;
  return Settle({decision.receipt, std::move(actual)}, options);
}

Result<BatchSettlements> Client::SettleBatch(std::span<const Settlement> batch,
                                             const CallOptions& options) {
  const std::shared_ptr<ClientCore> core = core_;
  const Call call = core->MakeCall(options);
  int attempts = 0;
  Result<BatchSettlements> results = client_internal::RunBlocking<BatchSettlements>(
      *core, Operation::kSettle, call, &attempts, [&](Connection& connection, const Call& attempt) {
        return connection.SettleBatchBlocking(batch, attempt);
      });
  return WithAttempts(std::move(results), attempts);
}

void Client::SettleBatchAsync(std::vector<Settlement> batch, Callback<BatchSettlements> done,
                              const CallOptions& options) {
  RunAttempts<BatchSettlements>(
      core_, Operation::kSettle, core_->MakeCall(options),
      [core = core_.get(), batch = std::move(batch)](const Call& call,
                                                     Callback<BatchSettlements> ended) {
        core->connection().SettleBatch(batch, call, std::move(ended));
      },
      [done = std::move(done)](Result<BatchSettlements> result, int attempts) {
        done(WithAttempts(std::move(result), attempts));
      });
}

std::unique_ptr<WatchCall> Client::Watch(std::span<const Bucket> buckets,
                                         const WatchOptions& options, WatchEvents events) {
  return core_->connection().Watch(buckets, options, std::move(events));
}

AcquireStream Client::OpenStream(const StreamOptions& options) {
  return AcquireStream(std::make_shared<client_internal::StreamCore>(core_, options));
}

}  // namespace sluice
