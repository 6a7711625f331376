#include "sluice/connection.h"

#include <future>
#include <utility>

namespace sluice {
namespace {

// Blocks until `start(done)` calls back.
template <typename T, typename Start>
Result<T> Await(const Start& start) {
  auto answer = std::make_shared<std::promise<Result<T>>>();
  std::future<Result<T>> future = answer->get_future();
  start([answer](Result<T> result) { answer->set_value(std::move(result)); });
  return future.get();
}

}  // namespace

Result<Decision> Connection::AcquireBlocking(const Acquisition& acquisition, const Call& call) {
  return Await<Decision>(
      [&](Callback<Decision> done) { Acquire(acquisition, call, std::move(done)); });
}

Result<BatchDecisions> Connection::AcquireBatchBlocking(std::span<const Acquisition> batch,
                                                        const Call& call) {
  return Await<BatchDecisions>(
      [&](Callback<BatchDecisions> done) { AcquireBatch(batch, call, std::move(done)); });
}

Result<std::vector<BucketStatus>> Connection::QueryBlocking(std::span<const Bucket> buckets,
                                                            const Call& call) {
  return Await<std::vector<BucketStatus>>(
      [&](Callback<std::vector<BucketStatus>> done) { Query(buckets, call, std::move(done)); });
}

Result<RefundResult> Connection::RefundBlocking(std::string_view receipt, const Call& call) {
  return Await<RefundResult>(
      [&](Callback<RefundResult> done) { Refund(receipt, call, std::move(done)); });
}

void Connection::Sleep(std::chrono::nanoseconds time) {
  auto over = std::make_shared<std::promise<void>>();
  RunAfter(time, [over] { over->set_value(); });
  over->get_future().wait();
}

}  // namespace sluice
