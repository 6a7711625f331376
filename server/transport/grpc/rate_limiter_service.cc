#include "server/transport/grpc/rate_limiter_service.h"

#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "common/errors.h"
#include "server/transport/services/rate_limiter_messages.h"

namespace sluice::transport {
namespace {

namespace errors = common::errors;

// A batch above this is not kept in the pool: some 100 KB.
constexpr int kKeepAcquisitions = 512;

}  // namespace

RateLimiterService::RateLimiterService(service::RateLimiter& limiter, service::WatchHub& watches,
                                       common::Metrics& metrics)
    : limiter_(limiter),
      watches_(watches),
      acquire_meter_(metrics, limiter.clock(), "/sluice.v1.RateLimiter/Acquire"),
      batch_meter_(metrics, limiter.clock(), "/sluice.v1.RateLimiter/AcquireBatch"),
      stream_meter_(metrics, limiter.clock(), "/sluice.v1.RateLimiter/AcquireStream"),
      query_meter_(metrics, limiter.clock(), "/sluice.v1.RateLimiter/Query"),
      watch_meter_(metrics, limiter.clock(), "/sluice.v1.RateLimiter/Watch"),
      refund_meter_(metrics, limiter.clock(), "/sluice.v1.RateLimiter/Refund"),
      lease_meter_(metrics, limiter.clock(), "/sluice.v1.RateLimiter/Lease") {
  SetMessageAllocatorFor_Acquire(&acquire_pool_);
  SetMessageAllocatorFor_AcquireBatch(&batch_pool_);
  SetMessageAllocatorFor_Query(&query_pool_);
  SetMessageAllocatorFor_Refund(&refund_pool_);
}

// ---- Turning away ----

bool RateLimiterService::TurnsAway(const ::grpc::CallbackServerContext& context) {
  if (!turning_away_.load(std::memory_order_relaxed)) return false;
  const auto agent = context.client_metadata().find("user-agent");
  if (agent == context.client_metadata().end() ||
      !agent->second.starts_with(common::kMarkKnowingAgent)) {
    return false;
  }
  turned_away_ns_.store(limiter_.clock().NowNs(), std::memory_order_relaxed);
  return true;
}

void RateLimiterService::TurnAway(absl::Duration most) {
  const common::Clock& clock = limiter_.clock();
  const int64_t quiet_ns = 50'000'000;
  const int64_t end_ns = clock.NowNs() + absl::ToInt64Nanoseconds(most);
  turned_away_ns_.store(clock.NowNs(), std::memory_order_relaxed);
  turning_away_.store(true, std::memory_order_relaxed);
  // A poll is all that a shutdown needs.
  for (int64_t now_ns = clock.NowNs();
       now_ns < end_ns && now_ns < turned_away_ns_.load(std::memory_order_relaxed) + quiet_ns;
       now_ns = clock.NowNs()) {
    absl::SleepFor(absl::Milliseconds(5));
  }
}

// ---- Unary ----

namespace {

// Of an Acquire that may be held: a caller who goes away gives its place up.
class HeldReactor final : public ::grpc::ServerUnaryReactor {
 public:
  HeldReactor(service::RateLimiter& limiter, service::AcquireCall* call)
      : limiter_(limiter), call_(call) {}
  // The call's memory is released after OnDone, and OnDone comes after this has returned.
  void OnCancel() override { limiter_.CancelHeld(call_); }
  void OnDone() override { delete this; }

 private:
  service::RateLimiter& limiter_;
  service::AcquireCall* const call_;
};

struct Batch {
  using Call = service::AcquireCall;
  static void Start(service::RateLimiter& limiter, Call* call, int64_t deadline_ns,
                    Call::DoneFn done, void* context) {
    limiter.Acquire(call, deadline_ns, done, context);
  }
  static absl::Status Outcome(const Call& call) { return call.status(); }
};

// Its only acquisition's error is the call's.
struct OneAcquire : Batch {
  static absl::Status Outcome(const Call& call) {
    return call.status().ok() ? call.result(0).status : call.status();
  }
};

struct OneQuery {
  using Call = service::QueryCall;
  static void Start(service::RateLimiter& limiter, Call* call, int64_t deadline_ns,
                    Call::DoneFn done, void* context) {
    limiter.Query(call, deadline_ns, done, context);
  }
  static absl::Status Outcome(const Call& call) { return call.status(); }
};

struct OneRefund {
  using Call = service::RefundCall;
  static void Start(service::RateLimiter& limiter, Call* call, int64_t deadline_ns,
                    Call::DoneFn done, void* context) {
    limiter.Refund(call, deadline_ns, done, context);
  }
  static absl::Status Outcome(const Call& call) { return call.status(); }
};

}  // namespace

// What the unary calls have in common, from arrival to answer. `UseCase` knows how it is begun.
template <typename UseCase, typename Held, typename Request>
::grpc::ServerUnaryReactor* RateLimiterService::Serve(::grpc::CallbackServerContext* context,
                                                      const Request& request, Held* held,
                                                      MethodMeter& meter,
                                                      ::grpc::ServerUnaryReactor* reactor) {
  held->reactor = reactor;
  held->context = context;
  held->meter = &meter;
  held->started_ns = meter.Start();
  meter.Received(request.ByteSizeLong());
  absl::Status refused;
  if (TurnsAway(*context)) {
    refused = errors::Draining();
  } else if (context->IsCancelled()) {
    refused = errors::CancelledBeforeDecision();
  }
  if (!refused.ok()) {
    meter.Finish(held->started_ns, refused.code());
    reactor->Finish(ToGrpc(refused, context));
    return reactor;
  }
  wire::Read(request, &held->call);
  UseCase::Start(
      limiter_, &held->call, DeadlineNs(*context, limiter_.clock()),
      [](void* of, typename UseCase::Call* call) {
        auto* const held = static_cast<Held*>(of);
        const absl::Status status = UseCase::Outcome(*call);
        if (status.ok()) {
          wire::Write(*call, held->response());
          held->meter->Sent(held->response()->ByteSizeLong());
        }
        held->meter->Finish(held->started_ns, status.code());
        held->reactor->Finish(status.ok() ? ::grpc::Status::OK : ToGrpc(status, held->context));
      },
      held);
  return reactor;
}

::grpc::ServerUnaryReactor* RateLimiterService::Acquire(::grpc::CallbackServerContext* context,
                                                        const v1::AcquireRequest* request,
                                                        v1::AcquireResponse*) {
  auto* const held = static_cast<AcquirePool::Held*>(context->GetRpcAllocatorState());
  return Serve<OneAcquire>(
      context, *request, held, acquire_meter_,
      request->hold() ? new HeldReactor(limiter_, &held->call) : context->DefaultReactor());
}

::grpc::ServerUnaryReactor* RateLimiterService::AcquireBatch(::grpc::CallbackServerContext* context,
                                                             const v1::AcquireBatchRequest* request,
                                                             v1::AcquireBatchResponse*) {
  auto* const held = static_cast<BatchPool::Held*>(context->GetRpcAllocatorState());
  held->large = held->large || request->acquisitions_size() > kKeepAcquisitions;
  return Serve<Batch>(context, *request, held, batch_meter_, context->DefaultReactor());
}

::grpc::ServerUnaryReactor* RateLimiterService::Query(::grpc::CallbackServerContext* context,
                                                      const v1::QueryRequest* request,
                                                      v1::QueryResponse*) {
  auto* const held = static_cast<QueryPool::Held*>(context->GetRpcAllocatorState());
  return Serve<OneQuery>(context, *request, held, query_meter_, context->DefaultReactor());
}

::grpc::ServerUnaryReactor* RateLimiterService::Refund(::grpc::CallbackServerContext* context,
                                                       const v1::RefundRequest* request,
                                                       v1::RefundResponse*) {
  auto* const held = static_cast<RefundPool::Held*>(context->GetRpcAllocatorState());
  return Serve<OneRefund>(context, *request, held, refund_meter_, context->DefaultReactor());
}

::grpc::ServerUnaryReactor* RateLimiterService::Lease(::grpc::CallbackServerContext* context,
                                                      const v1::LeaseRequest*, v1::LeaseResponse*) {
  const absl::Status status = errors::LeaseUnimplemented();
  lease_meter_.Finish(lease_meter_.Start(), status.code());
  ::grpc::ServerUnaryReactor* const reactor = context->DefaultReactor();
  reactor->Finish(ToGrpc(status));
  return reactor;
}

// ---- AcquireStream ----

// One batch at a time: read, decide, write, and only then the next read. grpc++ reads ahead no
// more than its window, which is the flow control.
class RateLimiterService::AcquireStreamReactor final
    : public ::grpc::ServerBidiReactor<v1::AcquireBatchRequest, v1::AcquireBatchResponse> {
 public:
  AcquireStreamReactor(RateLimiterService& service, ::grpc::CallbackServerContext* context)
      : service_(service), context_(context), started_ns_(service.stream_meter_.Start()) {}

  // By Drain, from outside of the stream's own callbacks.
  void Drain() {
    {
      common::MutexLock lock(&mu_);
      draining_ = true;
      if (busy_ || finished_) return;
      finished_ = true;
    }
    End(errors::Draining());
  }

  void OnReadDone(bool ok) override {
    {
      common::MutexLock lock(&mu_);
      if (finished_) return;  // came too late: nothing is decided
      if (!ok) {
        finished_ = true;
      } else {
        busy_ = true;
      }
    }
    if (!ok) {
      // The client is through, or gone.
      End(context_->IsCancelled() ? errors::CancelledBeforeDecision() : absl::OkStatus());
      return;
    }
    service_.stream_meter_.Received(request_.ByteSizeLong());
    if (context_->IsCancelled()) {
      EndBusy(errors::CancelledBeforeDecision());
      return;
    }
    wire::Read(request_, &call_);
    service_.limiter_.Acquire(
        &call_, DeadlineNs(*context_, service_.limiter_.clock()),
        [](void* of, service::AcquireCall*) { static_cast<AcquireStreamReactor*>(of)->Decided(); },
        this);
  }

  void OnWriteDone(bool ok) override {
    bool drain;
    {
      common::MutexLock lock(&mu_);
      busy_ = false;
      drain = draining_;
      if (drain || !ok) finished_ = true;
    }
    if (drain || !ok) {
      // Without its answer the caller may not be told that nothing was executed.
      End(ok ? errors::Draining() : absl::CancelledError("the caller left before its answer"));
      return;
    }
    if (request_.acquisitions_size() > kKeepAcquisitions) {
      v1::AcquireBatchRequest().Swap(&request_);
      v1::AcquireBatchResponse().Swap(&response_);
    }
    StartRead(&request_);
  }

  void OnDone() override {
    common::MutexLock lock(&service_.mu_);
    service_.streams_.erase(shared_);
    shared_.reset();  // `lock` is of the service, which is still there
  }

  // Starts reading, and keeps itself until OnDone.
  void Begin(std::shared_ptr<AcquireStreamReactor> self) {
    bool draining;
    {
      common::MutexLock lock(&service_.mu_);
      shared_ = std::move(self);
      service_.streams_.insert(shared_);
      draining = service_.draining_;
    }
    if (draining) {
      Drain();
    } else {
      StartRead(&request_);
    }
  }

 private:
  void Decided() {
    if (!call_.status().ok()) {
      EndBusy(call_.status());
      return;
    }
    response_.Clear();
    wire::Write(call_, &response_);
    service_.stream_meter_.Sent(response_.ByteSizeLong());
    StartWrite(&response_);
  }

  void EndBusy(const absl::Status& status) {
    {
      common::MutexLock lock(&mu_);
      finished_ = true;
    }
    End(status);
  }

  // Whoever set finished_ calls this, once.
  void End(const absl::Status& status) {
    service_.stream_meter_.Finish(started_ns_, status.code());
    Finish(ToGrpc(status, context_));
  }

  RateLimiterService& service_;
  ::grpc::CallbackServerContext* const context_;
  const int64_t started_ns_;
  std::shared_ptr<AcquireStreamReactor> shared_;

  // Of the batch under way.
  v1::AcquireBatchRequest request_;
  v1::AcquireBatchResponse response_;
  service::AcquireCall call_;

  common::Mutex mu_;
  bool busy_ ABSL_GUARDED_BY(mu_) = false;  // from a read batch until its answer was taken
  bool draining_ ABSL_GUARDED_BY(mu_) = false;
  bool finished_ ABSL_GUARDED_BY(mu_) = false;
};

::grpc::ServerBidiReactor<v1::AcquireBatchRequest, v1::AcquireBatchResponse>*
RateLimiterService::AcquireStream(::grpc::CallbackServerContext* context) {
  auto stream = std::make_shared<AcquireStreamReactor>(*this, context);
  AcquireStreamReactor* const reactor = stream.get();
  reactor->Begin(std::move(stream));
  return reactor;
}

void RateLimiterService::Drain() {
  std::vector<std::shared_ptr<AcquireStreamReactor>> streams;
  {
    common::MutexLock lock(&mu_);
    draining_ = true;
    streams.assign(streams_.begin(), streams_.end());
  }
  for (const auto& stream : streams) stream->Drain();
}

// ---- Watch ----

// Shared by grpc++ (until OnDone) and the hub (until the watch ended).
class RateLimiterService::WatchReactor final : public ::grpc::ServerWriteReactor<v1::QueryResponse>,
                                               public service::WatchSink {
 public:
  WatchReactor(RateLimiterService& service, ::grpc::CallbackServerContext* context)
      : service_(service), context_(context), started_ns_(service.watch_meter_.Start()) {}

  void Begin(std::shared_ptr<WatchReactor> self, const v1::WatchRequest& request) {
    service_.watch_meter_.Received(request.ByteSizeLong());
    self_ = self;
    absl::StatusOr<uint64_t> id = service_.watches_.Start(wire::Read(request), std::move(self));
    if (id.ok()) {
      id_ = *id;
    } else {
      OnEnd(id.status());
    }
  }

  // ---- The hub's.
  bool Ready() override {
    common::MutexLock lock(&mu_);
    return !writing_ && end_ == nullptr;
  }
  void OnUpdate(absl::Span<const service::BucketStatus> changed, int64_t wall_ns) override {
    {
      common::MutexLock lock(&mu_);
      if (writing_ || end_ != nullptr) return;
      writing_ = true;
    }
    response_.Clear();
    wire::Write(changed, wall_ns, &response_);
    service_.watch_meter_.Sent(response_.ByteSizeLong());
    StartWrite(&response_);
  }
  void OnEnd(const absl::Status& status) override {
    {
      common::MutexLock lock(&mu_);
      if (end_ != nullptr) return;
      end_ = std::make_unique<absl::Status>(status);
      if (writing_) return;  // OnWriteDone ends it
    }
    End();
  }

  // ---- grpc++'s.
  void OnWriteDone(bool ok) override {
    bool end;
    {
      common::MutexLock lock(&mu_);
      writing_ = false;
      end = end_ != nullptr;
    }
    if (end) {
      End();
    } else if (!ok) {
      OnCancel();
    }
  }
  void OnCancel() override {
    service_.watches_.Cancel(id_);
    OnEnd(absl::CancelledError("the watcher left"));
  }
  void OnDone() override {
    service_.watches_.Cancel(id_);
    const std::shared_ptr<WatchReactor> self = std::move(self_);
  }

 private:
  // Once: by whoever finds the end set and no write under way.
  void End() {
    absl::Status status;
    {
      common::MutexLock lock(&mu_);
      status = *end_;
    }
    service_.watch_meter_.Finish(started_ns_, status.code());
    Finish(ToGrpc(status, context_));
  }

  RateLimiterService& service_;
  ::grpc::CallbackServerContext* const context_;
  const int64_t started_ns_;
  std::shared_ptr<WatchReactor> self_;
  uint64_t id_ = 0;
  v1::QueryResponse response_;  // of the write under way

  common::Mutex mu_;
  bool writing_ ABSL_GUARDED_BY(mu_) = false;
  std::unique_ptr<absl::Status> end_ ABSL_GUARDED_BY(mu_);  // null: goes on
};

::grpc::ServerWriteReactor<v1::QueryResponse>* RateLimiterService::Watch(
    ::grpc::CallbackServerContext* context, const v1::WatchRequest* request) {
  auto watch = std::make_shared<WatchReactor>(*this, context);
  WatchReactor* const reactor = watch.get();
  reactor->Begin(std::move(watch), *request);
  return reactor;
}

}  // namespace sluice::transport
