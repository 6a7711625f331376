#include "client/src/round_robin.h"

#include <algorithm>
#include <utility>

namespace sluice::client_internal {
namespace {

constexpr std::chrono::milliseconds kFirstSkip{100};
constexpr std::chrono::milliseconds kLongestSkip{5000};
constexpr int kTimeoutsInARow = 3;

template <typename T>
Status StatusOf(const Result<T>& result) {
  return result.ok() ? Status() : result.status();
}

void SetServer(uint32_t index, Result<BatchDecisions>* result) {
  if (!result->ok()) return;
  for (Result<Decision>& decision : **result) {
    if (decision.ok()) decision->server = index;
  }
}

}  // namespace

void ServerHealth::Note(const Status& status, TimePoint now) {
  if (status.code() == StatusCode::kCancelled) return;  // says nothing about the server
  if (status.code() == StatusCode::kDeadlineExceeded) {
    if (timeouts_.fetch_add(1, std::memory_order_relaxed) + 1 < kTimeoutsInARow) return;
  } else if (status.code() != StatusCode::kUnavailable) {
    // Read first: successful calls then write nothing that other threads read.
    if (failures_.load(std::memory_order_relaxed) != 0) {
      failures_.store(0, std::memory_order_relaxed);
      skip_until_.store(INT64_MIN, std::memory_order_relaxed);
    }
    if (timeouts_.load(std::memory_order_relaxed) != 0) {
      timeouts_.store(0, std::memory_order_relaxed);
    }
    return;
  }
  const int failures = std::min(failures_.fetch_add(1, std::memory_order_relaxed), 10);
  const auto skip = std::min(kFirstSkip * (1 << failures), kLongestSkip);
  skip_until_.store((now + skip).time_since_epoch().count(), std::memory_order_relaxed);
}

RoundRobin::RoundRobin(std::vector<std::shared_ptr<Connection>> connections)
    : servers_(std::make_shared<Servers>(connections.size())) {
  for (size_t i = 0; i < connections.size(); ++i) {
    (*servers_)[i].connection = std::move(connections[i]);
  }
}

RoundRobin::Server& RoundRobin::Pick(const Call* call) {
  Servers& servers = *servers_;
  if (call != nullptr && call->server.has_value() && *call->server < servers.size()) {
    return servers[*call->server];
  }
  const uint32_t first = next_.fetch_add(1, std::memory_order_relaxed);
  const TimePoint now = Now();
  for (uint32_t i = 0; i < servers.size(); ++i) {
    Server& server = servers[(first + i) % servers.size()];
    if (!server.health.skipped(now)) return server;
  }
  return servers[first % servers.size()];
}

uint32_t RoundRobin::IndexOf(const Server& server) const {
  return static_cast<uint32_t>(&server - servers_->data());
}

void RoundRobin::Acquire(const Acquisition& acquisition, const Call& call,
                         Callback<Decision> done) {
  Server& server = Pick(&call);
  server.connection->Acquire(acquisition, call,
                             [all = servers_, &server, index = IndexOf(server),
                              done = std::move(done)](Result<Decision> result) {
                               server.health.Note(StatusOf(result), server.connection->Now());
                               if (result.ok()) result->server = index;
                               done(std::move(result));
                             });
}

Result<Decision> RoundRobin::AcquireBlocking(const Acquisition& acquisition, const Call& call) {
  Server& server = Pick(&call);
  Result<Decision> result = server.connection->AcquireBlocking(acquisition, call);
  server.health.Note(StatusOf(result), server.connection->Now());
  if (result.ok()) result->server = IndexOf(server);
  return result;
}

Result<BatchDecisions> RoundRobin::AcquireBatchBlocking(std::span<const Acquisition> batch,
                                                        const Call& call) {
  Server& server = Pick(&call);
  Result<BatchDecisions> result = server.connection->AcquireBatchBlocking(batch, call);
  server.health.Note(StatusOf(result), server.connection->Now());
  SetServer(IndexOf(server), &result);
  return result;
}

Result<std::vector<BucketStatus>> RoundRobin::QueryBlocking(std::span<const Bucket> buckets,
                                                            const Call& call) {
  Server& server = Pick(&call);
  Result<std::vector<BucketStatus>> result = server.connection->QueryBlocking(buckets, call);
  server.health.Note(StatusOf(result), server.connection->Now());
  return result;
}

Result<RefundResult> RoundRobin::RefundBlocking(std::string_view receipt, const Call& call) {
  Server& server = Pick(&call);
  Result<RefundResult> result = server.connection->RefundBlocking(receipt, call);
  server.health.Note(StatusOf(result), server.connection->Now());
  return result;
}

Result<SettleResult> RoundRobin::SettleBlocking(const Settlement& settlement, const Call& call) {
  Server& server = Pick(&call);
  Result<SettleResult> result = server.connection->SettleBlocking(settlement, call);
  server.health.Note(StatusOf(result), server.connection->Now());
  return result;
}

void RoundRobin::AcquireBatch(std::span<const Acquisition> batch, const Call& call,
                              Callback<BatchDecisions> done) {
  Server& server = Pick(&call);
  server.connection->AcquireBatch(batch, call,
                                  [all = servers_, &server, index = IndexOf(server),
                                   done = std::move(done)](Result<BatchDecisions> result) {
                                    server.health.Note(StatusOf(result), server.connection->Now());
                                    SetServer(index, &result);
                                    done(std::move(result));
                                  });
}

void RoundRobin::Query(std::span<const Bucket> buckets, const Call& call,
                       Callback<std::vector<BucketStatus>> done) {
  Server& server = Pick(&call);
  server.connection->Query(
      buckets, call,
      [all = servers_, &server, done = std::move(done)](Result<std::vector<BucketStatus>> result) {
        server.health.Note(StatusOf(result), server.connection->Now());
        done(std::move(result));
      });
}

void RoundRobin::Refund(std::string_view receipt, const Call& call, Callback<RefundResult> done) {
  Server& server = Pick(&call);
  server.connection->Refund(
      receipt, call,
      [all = servers_, &server, done = std::move(done)](Result<RefundResult> result) {
        server.health.Note(StatusOf(result), server.connection->Now());
        done(std::move(result));
      });
}

void RoundRobin::Renew(std::span<const std::string> receipts, const Call& call,
                       Callback<std::vector<Renewal>> done) {
  Server& server = Pick(&call);
  server.connection->Renew(
      receipts, call,
      [all = servers_, &server, done = std::move(done)](Result<std::vector<Renewal>> result) {
        server.health.Note(StatusOf(result), server.connection->Now());
        done(std::move(result));
      });
}

Result<std::vector<Renewal>> RoundRobin::RenewBlocking(std::span<const std::string> receipts,
                                                       const Call& call) {
  Server& server = Pick(&call);
  Result<std::vector<Renewal>> result = server.connection->RenewBlocking(receipts, call);
  server.health.Note(StatusOf(result), server.connection->Now());
  return result;
}

void RoundRobin::Settle(const Settlement& settlement, const Call& call,
                        Callback<SettleResult> done) {
  Server& server = Pick(&call);
  server.connection->Settle(
      settlement, call,
      [all = servers_, &server, done = std::move(done)](Result<SettleResult> result) {
        server.health.Note(StatusOf(result), server.connection->Now());
        done(std::move(result));
      });
}

void RoundRobin::SettleBatch(std::span<const Settlement> batch, const Call& call,
                             Callback<BatchSettlements> done) {
  Server& server = Pick(&call);
  server.connection->SettleBatch(
      batch, call,
      [all = servers_, &server, done = std::move(done)](Result<BatchSettlements> result) {
        server.health.Note(StatusOf(result), server.connection->Now());
        done(std::move(result));
      });
}

Result<BatchSettlements> RoundRobin::SettleBatchBlocking(std::span<const Settlement> batch,
                                                         const Call& call) {
  Server& server = Pick(&call);
  Result<BatchSettlements> result = server.connection->SettleBatchBlocking(batch, call);
  server.health.Note(StatusOf(result), server.connection->Now());
  return result;
}

std::unique_ptr<StreamCall> RoundRobin::OpenStream(StreamEvents events) {
  Server& server = Pick(nullptr);
  StreamEvents wrapped;
  wrapped.on_answers = [&server, index = IndexOf(server),
                        inner = std::move(events.on_answers)](BatchDecisions answers) {
    server.health.Note(Status(), TimePoint());
    for (Result<Decision>& decision : answers) {
      if (decision.ok()) decision->server = index;
    }
    inner(std::move(answers));
  };
  wrapped.on_closed = [all = servers_, &server,
                       inner = std::move(events.on_closed)](Status status) {
    if (!status.ok()) server.health.Note(status, server.connection->Now());
    inner(std::move(status));
  };
  return server.connection->OpenStream(std::move(wrapped));
}

std::unique_ptr<WatchCall> RoundRobin::Watch(std::span<const Bucket> buckets,
                                             const WatchOptions& options, WatchEvents events) {
  return Pick(nullptr).connection->Watch(buckets, options, std::move(events));
}

void RoundRobin::RunAfter(std::chrono::nanoseconds delay, std::function<void()> fn) {
  servers_->front().connection->RunAfter(delay, std::move(fn));
}

void RoundRobin::Sleep(std::chrono::nanoseconds time) { servers_->front().connection->Sleep(time); }

TimePoint RoundRobin::Now() const { return servers_->front().connection->Now(); }

TimePoint RoundRobin::BootNow() const { return servers_->front().connection->BootNow(); }

bool RoundRobin::on_system_clock() const { return servers_->front().connection->on_system_clock(); }

void RoundRobin::Shutdown() {
  for (Server& server : *servers_) server.connection->Shutdown();
}

uint32_t RoundRobin::servers() const { return static_cast<uint32_t>(servers_->size()); }

}  // namespace sluice::client_internal
