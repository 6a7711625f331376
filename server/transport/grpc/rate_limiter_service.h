// sluice.v1.RateLimiter on grpc++'s callback API.
#ifndef SLUICE_SERVER_TRANSPORT_GRPC_RATE_LIMITER_SERVICE_H_
#define SLUICE_SERVER_TRANSPORT_GRPC_RATE_LIMITER_SERVICE_H_

#include <atomic>
#include <cstdint>
#include <memory>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_set.h"
#include "absl/time/time.h"
#include "common/metrics.h"
#include "common/mutex.h"
#include "server/service/bucket_watch.h"
#include "server/service/rate_limiter.h"
#include "server/transport/grpc/call_context.h"
#include "server/transport/grpc/call_pool.h"
#include "sluice/v1/rate_limiter.grpc.pb.h"

namespace sluice::transport {

// Thread-safe. Outlives its server, and its collaborators outlive it.
class RateLimiterService final : public v1::RateLimiter::CallbackService {
 public:
  RateLimiterService(service::RateLimiter& limiter, service::WatchHub& watches,
                     common::Metrics& metrics);

  // To be called before the server shuts down. From then on grpc++ cancels unary calls that it
  // reads, until their clients have heard of it, and a client cannot know that those were not
  // decided. So clients who know the mark of executed.h are refused with it, and go to other
  // servers; all others are served meanwhile. Blocks until no such call came for 50 ms, at most
  // for `most`.
  void TurnAway(absl::Duration most);

  // Ends AcquireStreams once what was read is answered. Messages that are still under way are not
  // decided; their callers see UNAVAILABLE.
  void Drain();

  ::grpc::ServerUnaryReactor* Acquire(::grpc::CallbackServerContext* context,
                                      const v1::AcquireRequest* request,
                                      v1::AcquireResponse* response) override;
  ::grpc::ServerUnaryReactor* AcquireBatch(::grpc::CallbackServerContext* context,
                                           const v1::AcquireBatchRequest* request,
                                           v1::AcquireBatchResponse* response) override;
  ::grpc::ServerBidiReactor<v1::AcquireBatchRequest, v1::AcquireBatchResponse>* AcquireStream(
      ::grpc::CallbackServerContext* context) override;
  ::grpc::ServerUnaryReactor* Query(::grpc::CallbackServerContext* context,
                                    const v1::QueryRequest* request,
                                    v1::QueryResponse* response) override;
  ::grpc::ServerWriteReactor<v1::QueryResponse>* Watch(::grpc::CallbackServerContext* context,
                                                       const v1::WatchRequest* request) override;
  ::grpc::ServerUnaryReactor* Refund(::grpc::CallbackServerContext* context,
                                     const v1::RefundRequest* request,
                                     v1::RefundResponse* response) override;
  ::grpc::ServerUnaryReactor* Lease(::grpc::CallbackServerContext* context,
                                    const v1::LeaseRequest* request,
                                    v1::LeaseResponse* response) override;

 private:
  class AcquireStreamReactor;
  class WatchReactor;

  // Whether the call is one to be turned away.
  bool TurnsAway(const ::grpc::CallbackServerContext& context);

  template <typename UseCase, typename Held, typename Request>
  ::grpc::ServerUnaryReactor* Serve(::grpc::CallbackServerContext* context, const Request& request,
                                    Held* held, MethodMeter& meter,
                                    ::grpc::ServerUnaryReactor* reactor);

  using AcquirePool = CallPool<v1::AcquireRequest, v1::AcquireResponse, service::AcquireCall>;
  using BatchPool =
      CallPool<v1::AcquireBatchRequest, v1::AcquireBatchResponse, service::AcquireCall>;
  using QueryPool = CallPool<v1::QueryRequest, v1::QueryResponse, service::QueryCall>;
  using RefundPool = CallPool<v1::RefundRequest, v1::RefundResponse, service::RefundCall>;

  service::RateLimiter& limiter_;
  service::WatchHub& watches_;

  MethodMeter acquire_meter_;
  MethodMeter batch_meter_;
  MethodMeter stream_meter_;
  MethodMeter query_meter_;
  MethodMeter watch_meter_;
  MethodMeter refund_meter_;
  MethodMeter lease_meter_;

  AcquirePool acquire_pool_;
  BatchPool batch_pool_;
  QueryPool query_pool_;
  RefundPool refund_pool_;

  // Seen by calls soon enough; the order of what is around them does not matter: relaxed.
  std::atomic<bool> turning_away_{false};
  std::atomic<int64_t> turned_away_ns_{0};  // the last one

  common::Mutex mu_;
  bool draining_ ABSL_GUARDED_BY(mu_) = false;
  absl::flat_hash_set<std::shared_ptr<AcquireStreamReactor>> streams_ ABSL_GUARDED_BY(mu_);
};

}  // namespace sluice::transport

#endif  // SLUICE_SERVER_TRANSPORT_GRPC_RATE_LIMITER_SERVICE_H_
