#include "sluice/connection.h"

#include <future>
#include <utility>

#include "client/src/await.h"
#include "client/src/transport/boot_clock.h"

namespace sluice {

using client_internal::Await;

namespace {

template <typename T>
void Refuse(Callback<T>&& done, const char* why) {
  done(Status(StatusCode::kUnimplemented, why));
}

}  // namespace

Result<Decision> Connection::AcquireBlocking(const Acquisition& acquisition, const Call& call) {
  return Await<Result<Decision>>(
      [&](Callback<Decision> done) { Acquire(acquisition, call, std::move(done)); });
}

Result<BatchDecisions> Connection::AcquireBatchBlocking(std::span<const Acquisition> batch,
                                                        const Call& call) {
  return Await<Result<BatchDecisions>>(
      [&](Callback<BatchDecisions> done) { AcquireBatch(batch, call, std::move(done)); });
}

Result<std::vector<BucketStatus>> Connection::QueryBlocking(std::span<const Bucket> buckets,
                                                            const Call& call) {
  return Await<Result<std::vector<BucketStatus>>>(
      [&](Callback<std::vector<BucketStatus>> done) { Query(buckets, call, std::move(done)); });
}

Result<RefundResult> Connection::RefundBlocking(std::string_view receipt, const Call& call) {
  return Await<Result<RefundResult>>(
      [&](Callback<RefundResult> done) { Refund(receipt, call, std::move(done)); });
}

void Connection::Renew(std::span<const std::string> /*receipts*/, const Call& /*call*/,
                       Callback<std::vector<Renewal>> done) {
  Refuse(std::move(done), "this connection has no slots to renew");
}

Result<std::vector<Renewal>> Connection::RenewBlocking(std::span<const std::string> receipts,
                                                       const Call& call) {
  return Await<Result<std::vector<Renewal>>>(
      [&](Callback<std::vector<Renewal>> done) { Renew(receipts, call, std::move(done)); });
}

void Connection::Settle(const Settlement&, const Call&, Callback<SettleResult> done) {
  Refuse(std::move(done), "this connection does not settle");
}

Result<SettleResult> Connection::SettleBlocking(const Settlement& settlement, const Call& call) {
  return Await<Result<SettleResult>>(
      [&](Callback<SettleResult> done) { Settle(settlement, call, std::move(done)); });
}

void Connection::SettleBatch(std::span<const Settlement> /*batch*/, const Call& /*call*/,
                             Callback<BatchSettlements> done) {
  Refuse(std::move(done), "this connection does not settle");
}

Result<BatchSettlements> Connection::SettleBatchBlocking(std::span<const Settlement> batch,
                                                         const Call& call) {
  return Await<Result<BatchSettlements>>(
      [&](Callback<BatchSettlements> done) { SettleBatch(batch, call, std::move(done)); });
}

TimePoint Connection::BootNow() const { return client_internal::BootNow(); }

void Connection::Sleep(std::chrono::nanoseconds time) {
  auto over = std::make_shared<std::promise<void>>();
  RunAfter(time, [over] { over->set_value(); });
  over->get_future().wait();
}

}  // namespace sluice
