#include "server/transport/services/rate_limiter_service.h"

#include <atomic>
#include <memory>
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

// Keeps objects of one loop for reuse, the last one first.
template <typename T>
class Pool {
 public:
  ~Pool() {
    while (free_ != nullptr) delete std::exchange(free_, free_->next);
  }
  T* Take() {
    if (free_ == nullptr) return new T();
    kept_bytes_ -= free_->bytes;
    return std::exchange(free_, free_->next);
  }
  void Give(T* item) {
    item->bytes = item->memory();
    if (kept_bytes_ + item->bytes > kMaxKeptBytes) {
      delete item;
      return;
    }
    kept_bytes_ += item->bytes;
    item->next = free_;
    free_ = item;
  }

 private:
  // Room for the largest usual batch, 4096 acquisitions with one charge each, or for hundreds of
  // single ones.
  static constexpr size_t kMaxKeptBytes = size_t{3} << 19;

  T* free_ = nullptr;
  size_t kept_bytes_ = 0;
};

// What is in a Pool.
template <typename T>
struct Pooled {
  T* next = nullptr;
  size_t bytes = 0;  // while it is in the pool

 private:
  friend T;
  Pooled() = default;
};

// What the use cases keep for the call's connection.
service::ConnectionBookings* BookingsOf(ServerCall& rpc) {
  std::shared_ptr<void>& kept = rpc.connection_state();
  if (kept == nullptr) kept = std::make_shared<service::ConnectionBookings>();
  return static_cast<service::ConnectionBookings*>(kept.get());
}

// The work (ServerCall::Spend) of a request: its decoding, and `units` for each of its items.
int64_t UnitsOf(absl::Span<const uint8_t> request, int64_t units, size_t items) {
  return static_cast<int64_t>(request.size() / 64) + units * static_cast<int64_t>(items);
}

// Acquire, Query and Refund: decode, decide, encode. `Kind` has the steps of the
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
    rpc.Spend(UnitsOf(request, Kind::kUnits, item->call.size()));
    item->rpc = &rpc;
    item->owner = this;
    item->pool = &pool;
    item->loop = &rpc.loop();
    rpc.set_state(item);
    if constexpr (requires { item->call.UseConnection(nullptr); }) {
      item->call.UseConnection(BookingsOf(rpc));
    }
    bool decided = false;
    item->decided = &decided;
    Kind::Decide(
        limiter_, &item->call, rpc.deadline_ns(),
        [](void* of, Call*) {
          auto* const item = static_cast<Item*>(of);
          OnLoop(*item->loop, [item] { item->owner->Decided(item); });
        },
        item);
    if (decided) return;
    item->decided = nullptr;
    rpc.SetPendingBytes(Kind::PendingBytes(item->call));
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
  struct Item : Pooled<Item> {
    size_t memory() const { return sizeof(Item) + call.memory(); }

    Call call;
    ServerCall* rpc = nullptr;  // null: the call was cancelled
    bool* decided = nullptr;    // while OnCall runs
    UnaryUseCase* owner = nullptr;
    net::EventLoop* loop = nullptr;
    Pool<Item>* pool = nullptr;    // of the loop
    std::unique_ptr<Buffer> kept;  // the request of a cancelled call; `call` has views into it
  };

  void Decided(Item* item) {
    if (item->decided != nullptr) *item->decided = true;
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

// The steps that are the same for most methods. Beside them, a kind has kUnits, the work of one
// item of a call (ServerCall::Spend).
template <typename CallType, auto kDecide>
struct AnyKind {
  using Call = CallType;
  // What an undecided call holds, beyond the price of every call.
  static size_t PendingBytes(const Call&) { return 0; }
  static void Decide(service::RateLimiter& limiter, Call* call, int64_t deadline_ns,
                     typename Call::DoneFn done, void* context) {
    (limiter.*kDecide)(call, deadline_ns, done, context);
  }
  static void Cancel(service::RateLimiter&, Call*) {}
  static absl::Status Outcome(const Call& call) { return call.status(); }
};

struct AcquireKind : AnyKind<service::AcquireCall, &service::RateLimiter::Acquire> {
  static constexpr int64_t kUnits = 2;
  static constexpr auto Decode = DecodeAcquire;
  static constexpr auto Encode = EncodeAcquire;
  static void Cancel(service::RateLimiter& limiter, Call* call) { limiter.CancelHeld(call); }
  // The only acquisition's error is the call's.
  static absl::Status Outcome(const Call& call) {
    return call.status().ok() ? call.result(0).status : call.status();
  }
};

struct QueryKind : AnyKind<service::QueryCall, &service::RateLimiter::Query> {
  static constexpr int64_t kUnits = 12;
  static size_t PendingBytes(const Call& call) { return call.memory(); }
  static constexpr auto Decode = DecodeQuery;
  static constexpr auto Encode = EncodeQuery;
};

struct RefundKind : AnyKind<service::RefundCall, &service::RateLimiter::Refund> {
  static constexpr int64_t kUnits = 10;
  static constexpr auto Decode = DecodeRefund;
  static constexpr auto Encode = EncodeRefund;
};

// One batch after another: decoded, decided and encoded in steps, as many as fit the turns of the
// call's connection. On the loop of the call.
class BatchSteps {
 public:
  BatchSteps(const BatchSteps&) = delete;
  BatchSteps& operator=(const BatchSteps&) = delete;

  // Handles a batch. `request` stays until OnDone or OnAbandoned.
  void Begin(service::RateLimiter& limiter, ServerCall& rpc, absl::Span<const uint8_t> request) {
    limiter_ = &limiter;
    rpc_ = &rpc;
    loop_ = &rpc.loop();
    decoder_ = BatchDecoder(request, &call_);
    call_.DecideInSlices();
    phase_ = Phase::kDecoding;
    Run();
  }
  // ServerCall::ContinueLater was called.
  void OnTurn() { Run(); }
  // Bytes of memory, with that of former batches.
  size_t memory() const { return call_.memory(); }
  // The call is gone. Returns whether OnAbandoned follows, once the decision under way is made.
  bool Abandon() {
    rpc_ = nullptr;
    return phase_ == Phase::kDeciding;
  }

 protected:
  BatchSteps() = default;
  ~BatchSteps() = default;

  // The answer is written to response(), or the batch failed. May destroy this.
  virtual void OnDone(ServerCall& rpc, const absl::Status& status) = 0;
  virtual void OnAbandoned() = 0;

  bool idle() const { return phase_ == Phase::kIdle; }

 private:
  enum class Phase : uint8_t {
    kIdle,      // no batch
    kDecoding,  // and nothing is decided
    kAsking,    // the next slice is to be decided
    kDeciding,  // the store has the slice
    kDecided,   // the slice is to be answered
  };
  static constexpr size_t kDecodeBytes = 16 << 10;

  void Run() {
    running_ = true;
    if (rpc_ != nullptr) rpc_->SetPendingBytes(0);
    while (phase_ != Phase::kDeciding) {
      if (phase_ == Phase::kDecided && rpc_ == nullptr) {
        phase_ = Phase::kIdle;
        OnAbandoned();
        return;
      }
      absl::Status status;
      if (Step(&status)) {
        running_ = false;
        phase_ = Phase::kIdle;
        OnDone(*rpc_, status);
        return;
      }
      if (phase_ != Phase::kDeciding && phase_ != Phase::kDecided && rpc_->turn_ended()) {
        rpc_->ContinueLater();
        break;
      }
    }
    running_ = false;
    // Not between two turns: the batch could wait for itself.
    if (phase_ == Phase::kDeciding && rpc_ != nullptr)
      rpc_->SetPendingBytes(call_.request_memory());
  }

  // Returns whether it was the last.
  bool Step(absl::Status* status) {
    switch (phase_) {
      case Phase::kIdle:
      case Phase::kDeciding:
        break;
      case Phase::kDecoding:
        *status = decoder_.Step(kDecodeBytes);
        if (!status->ok()) return true;
        if (decoder_.done()) phase_ = Phase::kAsking;
        rpc_->Spend(kDecodeBytes / 32);
        break;
      case Phase::kAsking:
        phase_ = Phase::kDeciding;
        call_.UseConnection(BookingsOf(*rpc_));
        if (call_.end() == 0) {
          limiter_->Acquire(&call_, rpc_->deadline_ns(), &Decided, this);
        } else {
          limiter_->Continue(&call_);
        }
        break;
      case Phase::kDecided:
        *status = call_.status();
        if (!status->ok()) return true;
        EncodeAcquireBatch(call_, &rpc_->response());
        rpc_->Spend(static_cast<int64_t>(call_.slice_cost()));
        if (!call_.more()) return true;
        phase_ = Phase::kAsking;
        break;
    }
    return false;
  }

  static void Decided(void* of, service::AcquireCall*) {
    auto* const steps = static_cast<BatchSteps*>(of);
    OnLoop(*steps->loop_, [steps] {
      steps->phase_ = Phase::kDecided;
      if (!steps->running_) steps->Run();
    });
  }

  service::RateLimiter* limiter_ = nullptr;
  ServerCall* rpc_ = nullptr;  // null: the call is gone
  net::EventLoop* loop_ = nullptr;
  service::AcquireCall call_;
  BatchDecoder decoder_{{}, &call_};  // of the last batch
  Phase phase_ = Phase::kIdle;
  bool running_ = false;
};

class AcquireBatch final : public UnaryMethod {
 public:
  AcquireBatch(service::RateLimiter& limiter, size_t loops) : limiter_(limiter), pools_(loops) {}

  void OnCall(ServerCall& rpc, absl::Span<const uint8_t> request) override {
    Pool<Item>& pool = pools_[rpc.loop_index()];
    Item* const item = pool.Take();
    item->pool = &pool;
    rpc.set_state(item);
    item->Begin(limiter_, rpc, request);
  }

  void OnTurn(ServerCall& rpc) override { static_cast<Item*>(rpc.state())->OnTurn(); }

  void OnCancelled(ServerCall& rpc) override {
    auto* const item = static_cast<Item*>(rpc.state());
    if (item->Abandon()) {
      item->kept = std::make_unique<Buffer>();
      rpc.KeepRequest(item->kept.get());
    } else {
      item->pool->Give(item);
    }
  }

 private:
  struct Item final : BatchSteps, Pooled<Item> {
    void OnDone(ServerCall& rpc, const absl::Status& status) override {
      status.ok() ? rpc.Finish() : rpc.Finish(status);
      pool->Give(this);
    }
    void OnAbandoned() override {
      kept.reset();
      pool->Give(this);
    }

    Pool<Item>* pool = nullptr;    // of the loop
    std::unique_ptr<Buffer> kept;  // the request of a cancelled call, to which there are views
  };

  service::RateLimiter& limiter_;
  std::vector<Pool<Item>> pools_;  // by loop
};

// Decides one batch at a time: the next is read after this one was answered, and not while many
// bytes of answers are unsent. A stream that waits for its next batch holds hardly any memory.
class AcquireStream final : public StreamingMethod {
 public:
  AcquireStream(service::RateLimiter& limiter, size_t loops) : limiter_(limiter), pools_(loops) {}

  void OnStart(ServerCall& rpc) override { rpc.set_state(new Stream()); }

  void OnMessage(ServerCall& rpc, absl::Span<const uint8_t> request) override {
    auto* const stream = static_cast<Stream*>(rpc.state());
    Pool<Batch>& pool = pools_[rpc.loop_index()];
    Batch* const batch = pool.Take();
    stream->batch = batch;
    batch->stream = stream;
    batch->pool = &pool;
    batch->request.Clear();
    batch->request.Append(request);
    rpc.PauseReading();
    batch->Begin(limiter_, rpc, batch->request.view());
  }

  void OnTurn(ServerCall& rpc) override { static_cast<Stream*>(rpc.state())->batch->OnTurn(); }

  void OnRequestsDone(ServerCall& rpc) override {
    End(static_cast<Stream*>(rpc.state()), rpc, absl::OkStatus());
  }

  void OnDrain(ServerCall& rpc) override {
    auto* const stream = static_cast<Stream*>(rpc.state());
    stream->draining = true;
    if (stream->batch == nullptr) End(stream, rpc, errors::Draining());
  }

  void OnCancelled(ServerCall& rpc) override {
    auto* const stream = static_cast<Stream*>(rpc.state());
    if (stream->batch != nullptr && !stream->batch->Abandon()) stream->batch->Give();
    delete stream;
  }

 private:
  struct Batch;

  struct Stream {
    Batch* batch = nullptr;  // that is under way
    bool draining = false;
  };

  struct Batch final : BatchSteps, Pooled<Batch> {
    size_t memory() const { return sizeof(Batch) + BatchSteps::memory() + request.capacity(); }
    void OnDone(ServerCall& rpc, const absl::Status& status) override {
      Stream* const of = stream;
      of->batch = nullptr;
      if (!status.ok()) {
        End(of, rpc, status);
        Give();
        return;
      }
      Give();
      rpc.Send();
      if (of->draining) {
        End(of, rpc, errors::Draining());
      } else {
        rpc.ResumeReading();
      }
    }
    void OnAbandoned() override { Give(); }
    void Give() { pool->Give(this); }

    Stream* stream = nullptr;
    Pool<Batch>* pool = nullptr;  // of the loop
    Buffer request;               // to which there are views
  };

  static void End(Stream* stream, ServerCall& rpc, const absl::Status& status) {
    delete stream;
    rpc.Finish(status);
  }

  service::RateLimiter& limiter_;
  std::vector<Pool<Batch>> pools_;  // by loop
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
    rpc.Spend(UnitsOf(request, QueryKind::kUnits, options.buckets.size()));
    if (!rpc.TrySetLastingBytes(MemoryOf(options))) {
      rpc.Finish(errors::TooManyWatchedBuckets());
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

  // What the hub will hold for a watch.
  static size_t MemoryOf(const service::WatchOptions& options) {
    // Of a bucket: its part of the query, and what the last update said.
    constexpr size_t kBucketBytes = sizeof(service::WatchedBucket) + 256;
    size_t bytes = sizeof(Sink) + 1024;
    for (const service::WatchedBucket& bucket : options.buckets) {
      bytes += kBucketBytes + bucket.limit.capacity() + bucket.key.capacity();
    }
    return bytes;
  }

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
        stream(limiter, loops),
        watch(watches) {}
  UnaryUseCase<AcquireKind> acquire;
  AcquireBatch batch;
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
  // Only batches are decoded in steps.
  const MethodOptions small = {.max_request_bytes = common::bounds::kMaxAcquisitionBytes};
  const MethodOptions query = {.max_request_bytes = common::bounds::kMaxQueryBytes};
  methods->AddUnary("/sluice.v1.RateLimiter/Acquire", methods_->acquire, small);
  methods->AddUnary("/sluice.v1.RateLimiter/AcquireBatch", methods_->batch);
  methods->AddStreaming("/sluice.v1.RateLimiter/AcquireStream", methods_->stream);
  methods->AddUnary("/sluice.v1.RateLimiter/Query", methods_->query, query);
  methods->AddStreaming("/sluice.v1.RateLimiter/Watch", methods_->watch, query);
  methods->AddUnary("/sluice.v1.RateLimiter/Refund", methods_->refund, small);
}

}  // namespace sluice::transport
