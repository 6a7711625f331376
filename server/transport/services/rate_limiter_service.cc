#include "server/transport/services/rate_limiter_service.h"

#include <atomic>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "common/errors.h"
#include "common/net/event_loop.h"
#include "common/strings.h"
#include "server/transport/rpc/loop_post.h"
#include "server/transport/rpc/server_call.h"
#include "server/transport/services/protobuf_wire.h"
#include "server/transport/services/rate_limiter_codec.h"
#include "server/transport/services/rate_limiter_messages.h"

namespace sluice::transport {
namespace {

namespace errors = common::errors;

// Objects that are used again and again on one loop.
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

// What Acquire, AcquireBatch, Query and Refund have in common. `Kind` knows the message.
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
    // Completes a held call, and may free the item.
    Kind::Cancel(limiter_, &item->call);
  }

 private:
  struct Item {
    Call call;
    ServerCall* rpc = nullptr;  // null: cancelled meanwhile
    UnaryUseCase* owner = nullptr;
    net::EventLoop* loop = nullptr;
    Pool<Item>* pool = nullptr;    // that of the loop
    std::unique_ptr<Buffer> kept;  // a cancelled call's request, into which `call` has views
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

void Append(const google::protobuf::MessageLite& message, Buffer* out) {
  const size_t size = message.ByteSizeLong();
  message.SerializeWithCachedSizesToArray(out->Reserve(size));
  out->Commit(size);
}

// For messages that are not worth code of their own.
template <typename Response, typename Call>
void EncodeByProtobuf(const Call& call, Buffer* out) {
  Response response;
  wire::Write(call, &response);
  Append(response, out);
}

struct AnyAcquire {
  using Call = service::AcquireCall;
  static void Decide(service::RateLimiter& limiter, Call* call, int64_t deadline_ns,
                     Call::DoneFn done, void* context) {
    limiter.Acquire(call, deadline_ns, done, context);
  }
};

struct AcquireKind : AnyAcquire {
  static absl::Status Decode(absl::Span<const uint8_t> bytes, Call* call) {
    return DecodeAcquire(bytes, call);
  }
  static void Cancel(service::RateLimiter& limiter, Call* call) { limiter.CancelHeld(call); }
  static absl::Status Outcome(const Call& call) {
    return call.status().ok() ? call.result(0).status : call.status();
  }
  static void Encode(const Call& call, Buffer* out) { EncodeAcquire(call, out); }
};

struct AcquireBatchKind : AnyAcquire {
  static absl::Status Decode(absl::Span<const uint8_t> bytes, Call* call) {
    return DecodeAcquireBatch(bytes, call);
  }
  static void Cancel(service::RateLimiter&, Call*) {}
  static absl::Status Outcome(const Call& call) { return call.status(); }
  static void Encode(const Call& call, Buffer* out) { EncodeAcquireBatch(call, out); }
};

struct QueryKind {
  using Call = service::QueryCall;
  static absl::Status Decode(absl::Span<const uint8_t> bytes, Call* call) {
    return DecodeQuery(bytes, call);
  }
  static void Decide(service::RateLimiter& limiter, Call* call, int64_t deadline_ns,
                     Call::DoneFn done, void* context) {
    limiter.Query(call, deadline_ns, done, context);
  }
  static void Cancel(service::RateLimiter&, Call*) {}
  static absl::Status Outcome(const Call& call) { return call.status(); }
  static void Encode(const Call& call, Buffer* out) {
    EncodeByProtobuf<v1::QueryResponse>(call, out);
  }
};

struct RefundKind {
  using Call = service::RefundCall;
  static absl::Status Decode(absl::Span<const uint8_t> bytes, Call* call) {
    WireReader reader(bytes);
    std::string_view receipt;
    while (reader.Next()) {
      if (reader.field() == 1) reader.ReadBytes(&receipt);
    }
    if (!reader.ok()) {
      return absl::InvalidArgumentError("RefundRequest: the bytes are not such a message");
    }
    call->Reset(receipt);
    return absl::OkStatus();
  }
  static void Decide(service::RateLimiter& limiter, Call* call, int64_t deadline_ns,
                     Call::DoneFn done, void* context) {
    limiter.Refund(call, deadline_ns, done, context);
  }
  static void Cancel(service::RateLimiter&, Call*) {}
  static absl::Status Outcome(const Call& call) { return call.status(); }
  static void Encode(const Call& call, Buffer* out) {
    EncodeByProtobuf<v1::RefundResponse>(call, out);
  }
};

class Lease final : public UnaryMethod {
 public:
  void OnCall(ServerCall& rpc, absl::Span<const uint8_t>) override {
    rpc.Finish(errors::LeaseUnimplemented());
  }
};

// One batch at a time: the next is taken when this one was answered, and not while many bytes of
// answers are unread.
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
    Buffer request;  // into which `call` has views
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
    // NOLINTNEXTLINE(performance-unnecessary-copy-initialization): it may be the stream's own.
    const absl::Status copy = status;
    ServerCall* const rpc = stream->rpc;
    delete stream;
    rpc->Finish(copy);
  }

  service::RateLimiter& limiter_;
};

// The hub calls its sink on its own thread; the call belongs to the loop's. What passes between
// them is posted.
class Watch final : public StreamingMethod {
 public:
  explicit Watch(service::WatchHub& hub) : hub_(hub) {}

  void OnMessage(ServerCall& rpc, absl::Span<const uint8_t> request) override {
    if (rpc.state() != nullptr) {
      End(rpc, absl::StatusCode::kUnimplemented,
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
    rpc.set_state(new std::shared_ptr<Sink>(std::move(sink)));
  }
  void OnRequestsDone(ServerCall& rpc) override {
    if (rpc.state() == nullptr) {
      rpc.Finish(absl::StatusCode::kUnimplemented,
                 "the method takes one request, and none was sent");
    }
  }
  void OnWritable(ServerCall& rpc) override { SinkOf(rpc)->ready.store(true); }
  void OnCancelled(ServerCall& rpc) override { Leave(rpc); }

 private:
  struct Sink final : public service::WatchSink, public std::enable_shared_from_this<Sink> {
    explicit Sink(ServerCall* rpc) : rpc(rpc), loop(rpc->loop()) {}

    bool Ready() override { return ready.load(); }
    void OnUpdate(absl::Span<const service::BucketStatus> changed, int64_t wall_ns) override {
      v1::QueryResponse response;
      wire::Write(changed, wall_ns, &response);
      ready.store(false);
      loop.Post([self = shared_from_this(), bytes = response.SerializeAsString()] {
        if (self->rpc == nullptr) return;
        self->rpc->response().Append(std::string_view(bytes));
        self->rpc->Send();
        if (!self->rpc->congested()) self->ready.store(true);
      });
    }
    void OnEnd(const absl::Status& status) override {
      loop.Post([self = shared_from_this(), status] {
        ServerCall* const rpc = std::exchange(self->rpc, nullptr);
        if (rpc == nullptr) return;
        delete static_cast<std::shared_ptr<Sink>*>(rpc->state());
        rpc->set_state(nullptr);
        rpc->Finish(status);
      });
    }

    ServerCall* rpc;  // on the loop only; null: the call has ended
    net::EventLoop& loop;
    uint64_t id = 0;
    // No answer is under way. Sequentially consistent: it is seldom touched.
    std::atomic<bool> ready{true};
  };

  static std::shared_ptr<Sink> SinkOf(ServerCall& rpc) {
    return *static_cast<std::shared_ptr<Sink>*>(rpc.state());
  }
  void Leave(ServerCall& rpc) {
    if (rpc.state() == nullptr) return;
    const std::shared_ptr<Sink> sink = SinkOf(rpc);
    delete static_cast<std::shared_ptr<Sink>*>(rpc.state());
    rpc.set_state(nullptr);
    sink->rpc = nullptr;
    hub_.Cancel(sink->id);
  }
  void End(ServerCall& rpc, absl::StatusCode code, std::string_view message) {
    Leave(rpc);
    rpc.Finish(code, message);
  }

  service::WatchHub& hub_;
};

// ---- Health ----

bool ReadService(absl::Span<const uint8_t> request, std::string_view* service) {
  WireReader reader(request);
  while (reader.Next()) {
    if (reader.field() == 1) reader.ReadBytes(service);
  }
  return reader.ok();
}

void WriteServing(Serving serving, ServerCall* rpc) {
  uint8_t* const start = rpc->response().Reserve(WireWriter::kFieldBytes);
  WireWriter writer(start);
  writer.Varint(1, static_cast<uint64_t>(serving));
  rpc->response().Commit(static_cast<size_t>(writer.at() - start));
}

class HealthCheck final : public UnaryMethod {
 public:
  explicit HealthCheck(HealthBoard& board) : board_(board) {}
  void OnCall(ServerCall& rpc, absl::Span<const uint8_t> request) override {
    std::string_view service;
    if (!ReadService(request, &service)) {
      rpc.Finish(absl::StatusCode::kInvalidArgument,
                 "HealthCheckRequest: the bytes are not such a message");
      return;
    }
    const Serving serving = board_.Get(service);
    if (serving == Serving::kServiceUnknown) {
      rpc.Finish(absl::StatusCode::kNotFound,
                 absl::StrCat("service: \"", absl::CHexEscape(common::ToAbsl(service)),
                              "\" is not served here"));
      return;
    }
    WriteServing(serving, &rpc);
    rpc.Finish();
  }

 private:
  HealthBoard& board_;
};

class HealthWatch final : public StreamingMethod {
 public:
  explicit HealthWatch(HealthBoard& board) : board_(board) {}

  void OnMessage(ServerCall& rpc, absl::Span<const uint8_t> request) override {
    std::string_view service;
    if (rpc.state() != nullptr || !ReadService(request, &service)) {
      Leave(rpc);
      rpc.Finish(absl::StatusCode::kInvalidArgument,
                 "Watch takes one request, a HealthCheckRequest");
      return;
    }
    auto* const held = new std::shared_ptr<Watcher>(std::make_shared<Watcher>(&rpc));
    rpc.set_state(held);
    board_.Watch(service, *held);
  }
  void OnRequestsDone(ServerCall& rpc) override {
    if (rpc.state() == nullptr) {
      rpc.Finish(absl::StatusCode::kUnimplemented,
                 "the method takes one request, and none was sent");
    }
  }
  void OnCancelled(ServerCall& rpc) override { Leave(rpc); }

 private:
  struct Watcher final : public HealthWatcher, public std::enable_shared_from_this<Watcher> {
    explicit Watcher(ServerCall* rpc) : rpc(rpc), loop(rpc->loop()) {}
    void OnChange(Serving now) override {
      loop.Post([self = shared_from_this(), now] {
        if (self->rpc == nullptr) return;
        WriteServing(now, self->rpc);
        self->rpc->Send();
      });
    }
    void OnClose() override {
      loop.Post([self = shared_from_this()] {
        ServerCall* const rpc = std::exchange(self->rpc, nullptr);
        if (rpc == nullptr) return;
        delete static_cast<std::shared_ptr<Watcher>*>(rpc->state());
        rpc->set_state(nullptr);
        rpc->Finish(errors::Draining());
      });
    }
    ServerCall* rpc;  // on the loop only; null: the call has ended
    net::EventLoop& loop;
  };

  void Leave(ServerCall& rpc) {
    if (rpc.state() == nullptr) return;
    auto* const held = static_cast<std::shared_ptr<Watcher>*>(rpc.state());
    (*held)->rpc = nullptr;
    board_.Unwatch(held->get());
    delete held;
    rpc.set_state(nullptr);
  }

  HealthBoard& board_;
};

// ---- Reflection ----

template <typename Request, typename Response>
class ReflectionInfo final : public StreamingMethod {
 public:
  explicit ReflectionInfo(const Reflection& reflection) : reflection_(reflection) {}
  void OnMessage(ServerCall& rpc, absl::Span<const uint8_t> bytes) override {
    Request request;
    if (!request.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) {
      rpc.Finish(absl::StatusCode::kInvalidArgument,
                 "ServerReflectionRequest: the bytes are not such a message");
      return;
    }
    Response response;
    reflection_.Answer(request, &response);
    Append(response, &rpc.response());
    rpc.Send();
  }
  void OnRequestsDone(ServerCall& rpc) override { rpc.Finish(absl::OkStatus()); }
  void OnDrain(ServerCall& rpc) override { rpc.Finish(errors::Draining()); }

 private:
  const Reflection& reflection_;
};

}  // namespace

struct RateLimiterBinding::Handlers {
  Handlers(service::RateLimiter& limiter, service::WatchHub& watches, size_t loops)
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
  Lease lease;
  AcquireStream stream;
  Watch watch;
};

RateLimiterBinding::RateLimiterBinding(service::RateLimiter& limiter, service::WatchHub& watches,
                                       size_t loops)
    : handlers_(std::make_unique<Handlers>(limiter, watches, loops)) {}
RateLimiterBinding::~RateLimiterBinding() = default;

void RateLimiterBinding::Register(MethodTable* methods) {
  methods->AddUnary("/sluice.v1.RateLimiter/Acquire", handlers_->acquire);
  methods->AddUnary("/sluice.v1.RateLimiter/AcquireBatch", handlers_->batch);
  methods->AddStreaming("/sluice.v1.RateLimiter/AcquireStream", handlers_->stream);
  methods->AddUnary("/sluice.v1.RateLimiter/Query", handlers_->query);
  methods->AddStreaming("/sluice.v1.RateLimiter/Watch", handlers_->watch);
  methods->AddUnary("/sluice.v1.RateLimiter/Refund", handlers_->refund);
  methods->AddUnary("/sluice.v1.RateLimiter/Lease", handlers_->lease);
}

struct HealthBinding::Handlers {
  explicit Handlers(HealthBoard& board) : check(board), watch(board) {}
  HealthCheck check;
  HealthWatch watch;
};

HealthBinding::HealthBinding(HealthBoard& board) : handlers_(std::make_unique<Handlers>(board)) {}
HealthBinding::~HealthBinding() = default;

void HealthBinding::Register(MethodTable* methods) {
  constexpr MethodOptions kExempt{.exempt_from_shedding = true, .max_request_bytes = 4096};
  methods->AddUnary("/grpc.health.v1.Health/Check", handlers_->check, kExempt);
  methods->AddStreaming("/grpc.health.v1.Health/Watch", handlers_->watch, kExempt);
}

struct ReflectionBinding::Handlers {
  explicit Handlers(const Reflection& reflection) : v1(reflection), v1alpha(reflection) {}
  ReflectionInfo<::grpc::reflection::v1::ServerReflectionRequest,
                 ::grpc::reflection::v1::ServerReflectionResponse>
      v1;
  ReflectionInfo<::grpc::reflection::v1alpha::ServerReflectionRequest,
                 ::grpc::reflection::v1alpha::ServerReflectionResponse>
      v1alpha;
};

ReflectionBinding::ReflectionBinding(const Reflection& reflection)
    : handlers_(std::make_unique<Handlers>(reflection)) {}
ReflectionBinding::~ReflectionBinding() = default;

void ReflectionBinding::Register(MethodTable* methods) {
  methods->AddStreaming("/grpc.reflection.v1.ServerReflection/ServerReflectionInfo", handlers_->v1);
  methods->AddStreaming("/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
                        handlers_->v1alpha);
}

}  // namespace sluice::transport
