#include "server/transport/services/rate_limiter_service.h"

#include <atomic>
#include <string_view>
#include <utility>
#include <vector>

#include "common/errors.h"
#include "common/net/event_loop.h"
#include "server/transport/rpc/server_call.h"
#include "server/transport/services/rate_limiter_codec.h"

namespace sluice::transport {
namespace {

namespace errors = common::errors;

// Keeps objects of one loop for reuse.
template <typename T>
class Pool {
 public:
  ~Pool() {
    while (free_ != nullptr) delete std::exchange(free_, free_->next);
  }
  T* Take() {
    if (free_ == nullptr) return new T();
    return std::exchange(free_, free_->next);
  }
  void Give(T* item) {
    item->next = free_;
    free_ = item;
  }

 private:
  T* free_ = nullptr;
};

// Acquire, AcquireBatch, Query and Refund: decode, decide, encode. `Kind` has the steps of the
// method. A call's item is taken from the loop's pool, so that a call in steady state allocates
// nothing.
template <typename Kind>
class UnaryUseCase final : public UnaryMethod {
 public:
  using Call = typename Kind::Call;

  UnaryUseCase(service::RateLimiter& limiter, size_t loops) : limiter_(limiter), pools_(loops) {}

  void OnCall(ServerCall& rpc, absl::Span<const uint8_t> request) override {
    Pool<Item>& pool = pools_[rpc.loop_index()];
    Item* const item = pool.Take();
    if (const absl::Status decoded = Kind::Decode(request, &item->call); !decoded.ok()) {
      pool.Give(item);
      rpc.Finish(decoded);
      return;
    }
    item->rpc = &rpc;
    item->owner = this;
    item->pool = &pool;
    item->loop = &rpc.loop();
    rpc.set_state(item);
    Kind::Decide(
        limiter_, &item->call, rpc.deadline_ns(),
        [](void* of, Call*) {
          auto* const item = static_cast<Item*>(of);
          OnLoop(*item->loop, [item] { item->owner->Decided(item); });
        },
        item);
  }

  void OnCancelled(ServerCall& rpc) override {
    auto* const item = static_cast<Item*>(rpc.state());
    item->rpc = nullptr;
    item->kept = std::make_unique<Buffer>();
    rpc.KeepRequest(item->kept.get());
    // Completes a held call, and may return the item to its pool.
    Kind::Cancel(limiter_, &item->call);
  }

 private:
  struct Item {
    Call call;
    ServerCall* rpc = nullptr;  // null: the call was cancelled
    UnaryUseCase* owner = nullptr;
    net::EventLoop* loop = nullptr;
    Pool<Item>* pool = nullptr;    // of the loop
    std::unique_ptr<Buffer> kept;  // the request of a cancelled call; `call` has views into it
    Item* next = nullptr;
  };

  void Decided(Item* item) {
    if (ServerCall* const rpc = std::exchange(item->rpc, nullptr); rpc != nullptr) {
      const absl::Status status = Kind::Outcome(item->call);
      if (status.ok()) {
        Kind::Encode(item->call, &rpc->response());
        rpc->Finish();
      } else {
        rpc->Finish(status);
      }
    } else {
      item->kept.reset();
    }
    item->pool->Give(item);
  }

  service::RateLimiter& limiter_;
  std::vector<Pool<Item>> pools_;  // by loop
};

// The steps that are the same for most methods.
template <typename CallType, auto kDecide>
struct AnyKind {
  using Call = CallType;
  static void Decide(service::RateLimiter& limiter, Call* call, int64_t deadline_ns,
                     typename Call::DoneFn done, void* context) {
    (limiter.*kDecide)(call, deadline_ns, done, context);
  }
  static void Cancel(service::RateLimiter&, Call*) {}
  static absl::Status Outcome(const Call& call) { return call.status(); }
};

struct AcquireKind : AnyKind<service::AcquireCall, &service::RateLimiter::Acquire> {
  static constexpr auto Decode = DecodeAcquire;
  static constexpr auto Encode = EncodeAcquire;
  static void Cancel(service::RateLimiter& limiter, Call* call) { limiter.CancelHeld(call); }
  // The only acquisition's error is the call's.
  static absl::Status Outcome(const Call& call) {
    return call.status().ok() ? call.result(0).status : call.status();
  }
};

struct AcquireBatchKind : AnyKind<service::AcquireCall, &service::RateLimiter::Acquire> {
  static constexpr auto Decode = DecodeAcquireBatch;
  static constexpr auto Encode = EncodeAcquireBatch;
};

struct QueryKind : AnyKind<service::QueryCall, &service::RateLimiter::Query> {
  static constexpr auto Decode = DecodeQuery;
  static constexpr auto Encode = EncodeQuery;
};

struct RefundKind : AnyKind<service::RefundCall, &service::RateLimiter::Refund> {
  static constexpr auto Decode = DecodeRefund;
  static constexpr auto Encode = EncodeRefund;
};

// Decides one batch at a time: the next is read after this one was answered, and not while many
// bytes of answers are unsent.
class AcquireStream final : public StreamingMethod {
 public:
  explicit AcquireStream(service::RateLimiter& limiter) : limiter_(limiter) {}

  void OnStart(ServerCall& rpc) override { rpc.set_state(new Stream(&rpc)); }

  void OnMessage(ServerCall& rpc, absl::Span<const uint8_t> request) override {
    auto* const stream = static_cast<Stream*>(rpc.state());
    stream->request.Clear(kKeepBytes);
    stream->request.Append(request);
    const absl::Status decoded = DecodeAcquireBatch(stream->request.view(), &stream->call);
    if (!decoded.ok()) {
      End(stream, decoded);
      return;
    }
    stream->busy = true;
    rpc.PauseReading();
    limiter_.Acquire(
        &stream->call, rpc.deadline_ns(),
        [](void* of, service::AcquireCall*) {
          auto* const stream = static_cast<Stream*>(of);
          OnLoop(*stream->loop, [stream] { Decided(stream); });
        },
        stream);
  }

  void OnRequestsDone(ServerCall& rpc) override {
    End(static_cast<Stream*>(rpc.state()), absl::OkStatus());
  }

  void OnDrain(ServerCall& rpc) override {
    auto* const stream = static_cast<Stream*>(rpc.state());
    stream->draining = true;
    if (!stream->busy) End(stream, errors::Draining());
  }

  void OnCancelled(ServerCall& rpc) override {
    auto* const stream = static_cast<Stream*>(rpc.state());
    stream->rpc = nullptr;
    if (!stream->busy) delete stream;
  }

 private:
  // Bytes of a request's memory that a stream keeps.
  static constexpr size_t kKeepBytes = 64 << 10;

  struct Stream {
    explicit Stream(ServerCall* rpc) : rpc(rpc), loop(&rpc->loop()) {}
    ServerCall* rpc;  // null: cancelled
    net::EventLoop* const loop;
    service::AcquireCall call;
    Buffer request;  // `call` has views into it
    bool busy = false;
    bool draining = false;
  };

  static void Decided(Stream* stream) {
    stream->busy = false;
    if (stream->rpc == nullptr) {
      delete stream;
      return;
    }
    if (!stream->call.status().ok()) {
      End(stream, stream->call.status());
      return;
    }
    EncodeAcquireBatch(stream->call, &stream->rpc->response());
    stream->rpc->Send();
    if (stream->draining) {
      End(stream, errors::Draining());
    } else {
      stream->rpc->ResumeReading();
    }
  }

  static void End(Stream* stream, const absl::Status& status) {
    // NOLINTNEXTLINE(performance-unnecessary-copy-initialization): it may belong to the stream.
    const absl::Status copy = status;
    ServerCall* const rpc = stream->rpc;
    delete stream;
    rpc->Finish(copy);
  }

  service::RateLimiter& limiter_;
};

// The hub calls the sink on the hub's thread, while the call belongs to its loop: updates are
// posted to the loop.
class Watch final : public StreamingMethod {
 public:
  explicit Watch(service::WatchHub& hub) : hub_(hub) {}

  void OnMessage(ServerCall& rpc, absl::Span<const uint8_t> request) override {
    if (rpc.state() != nullptr) {
      Leave(rpc);
      rpc.Finish(absl::StatusCode::kUnimplemented,
                 "the method takes one request, and more were sent");
      return;
    }
    service::WatchOptions options;
    if (const absl::Status decoded = DecodeWatch(request, &options); !decoded.ok()) {
      rpc.Finish(decoded);
      return;
    }
    auto sink = std::make_shared<Sink>(&rpc);
    auto id = hub_.Start(std::move(options), sink);
    if (!id.ok()) {
      sink->rpc = nullptr;
      rpc.Finish(id.status());
      return;
    }
    sink->id = *id;
    rpc.set_state(sink.get());  // the hub or a task on its way to the loop keeps the sink
  }
  void OnRequestsDone(ServerCall& rpc) override {
    if (rpc.state() == nullptr) {
      rpc.Finish(absl::StatusCode::kUnimplemented,
                 "the method takes one request, and none was sent");
    }
  }
  void OnWritable(ServerCall& rpc) override { static_cast<Sink*>(rpc.state())->ready.store(true); }
  void OnCancelled(ServerCall& rpc) override { Leave(rpc); }

 private:
  struct Sink final : public service::WatchSink, public std::enable_shared_from_this<Sink> {
    explicit Sink(ServerCall* rpc) : rpc(rpc), loop(rpc->loop()) {}

    bool Ready() override { return ready.load(); }
    void OnUpdate(absl::Span<const service::BucketStatus> changed, int64_t wall_ns) override {
      ready.store(false);
      loop.Post([self = shared_from_this(), bytes = EncodeWatch(changed, wall_ns)] {
        if (self->rpc == nullptr) return;
        self->rpc->response().Append(std::string_view(bytes));
        self->rpc->Send();
        if (!self->rpc->congested()) self->ready.store(true);
      });
    }
    void OnEnd(const absl::Status& status) override {
      loop.Post([self = shared_from_this(), status] {
        if (self->rpc != nullptr) std::exchange(self->rpc, nullptr)->Finish(status);
      });
    }

    ServerCall* rpc;  // used on the loop only; null: the call has ended
    net::EventLoop& loop;
    uint64_t id = 0;
    // No answer is unsent. Sequentially consistent: it is rarely used.
    std::atomic<bool> ready{true};
  };

  void Leave(ServerCall& rpc) {
    auto* const sink = static_cast<Sink*>(rpc.state());
    if (sink == nullptr) return;
    sink->rpc = nullptr;
    hub_.Cancel(sink->id);  // which may destroy the sink
  }
  service::WatchHub& hub_;
};

}  // namespace

struct RateLimiterService::Methods {
  Methods(service::RateLimiter& limiter, service::WatchHub& watches, size_t loops)
      : acquire(limiter, loops),
        batch(limiter, loops),
        query(limiter, loops),
        refund(limiter, loops),
        stream(limiter),
        watch(watches) {}
  UnaryUseCase<AcquireKind> acquire;
  UnaryUseCase<AcquireBatchKind> batch;
  UnaryUseCase<QueryKind> query;
  UnaryUseCase<RefundKind> refund;
  AcquireStream stream;
  Watch watch;
};

RateLimiterService::RateLimiterService(service::RateLimiter& limiter, service::WatchHub& watches,
                                       size_t loops)
    : methods_(std::make_unique<Methods>(limiter, watches, loops)) {}
RateLimiterService::~RateLimiterService() = default;

void RateLimiterService::Register(MethodTable* methods) {
  methods->AddUnary("/sluice.v1.RateLimiter/Acquire", methods_->acquire);
  methods->AddUnary("/sluice.v1.RateLimiter/AcquireBatch", methods_->batch);
  methods->AddStreaming("/sluice.v1.RateLimiter/AcquireStream", methods_->stream);
  methods->AddUnary("/sluice.v1.RateLimiter/Query", methods_->query);
  methods->AddStreaming("/sluice.v1.RateLimiter/Watch", methods_->watch);
  methods->AddUnary("/sluice.v1.RateLimiter/Refund", methods_->refund);
}

}  // namespace sluice::transport
