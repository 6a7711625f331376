#include "client/src/grpc_connection.h"

#include <grpcpp/alarm.h>
#include <grpcpp/grpcpp.h>

#include <atomic>
#include <deque>
#include <thread>
#include <utility>
#include <vector>

#include "client/src/grpc_channel.h"
#include "client/src/wire.h"
#include "common/mutex.h"
#include "sluice/v1/rate_limiter.grpc.pb.h"

namespace sluice::client_internal {
namespace {

using common::MutexLock;

// A tag of the completion queue.
class Tag {
 public:
  virtual ~Tag() = default;
  virtual void Complete(bool ok) = 0;
};

// A call or alarm that Shutdown cancels; an element of the registry's list.
class Pending {
 public:
  virtual ~Pending() = default;
  virtual void Cancel() = 0;

 private:
  friend class Registry;
  Pending* previous_ = nullptr;
  Pending* next_ = nullptr;
};

// The list of all pending calls and alarms. Thread-safe.
class Registry {
 public:
  // Returns false after Close. Else runs `start` under the lock, so that Cancel always follows it;
  // `start` must not call back.
  template <typename Start>
  bool Add(Pending* pending, Start start) {
    MutexLock lock(&mu_);
    if (closed_) return false;
    pending->next_ = first_;
    pending->previous_ = nullptr;
    if (first_ != nullptr) first_->previous_ = pending;
    first_ = pending;
    start();
    return true;
  }
  bool Add(Pending* pending) {
    return Add(pending, [] {});
  }

  void Remove(Pending* pending) {
    MutexLock lock(&mu_);
    if (pending->previous_ != nullptr) pending->previous_->next_ = pending->next_;
    if (pending->next_ != nullptr) pending->next_->previous_ = pending->previous_;
    if (first_ == pending) first_ = pending->next_;
    if (first_ == nullptr && closed_) empty_.SignalAll();
  }

  void Close() {
    MutexLock lock(&mu_);
    closed_ = true;
    for (Pending* pending = first_; pending != nullptr; pending = pending->next_) {
      pending->Cancel();
    }
  }

  bool closed() {
    MutexLock lock(&mu_);
    return closed_;
  }

  void AwaitEmpty() {
    MutexLock lock(&mu_);
    while (first_ != nullptr) empty_.Wait(&mu_);
  }

 private:
  common::Mutex mu_;
  common::CondVar empty_;
  bool closed_ ABSL_GUARDED_BY(mu_) = false;
  Pending* first_ ABSL_GUARDED_BY(mu_) = nullptr;
};

// grpc++ rounds deadlines up to milliseconds, so it would send a call whose deadline has passed.
bool IsLate(const Call& call) { return std::chrono::steady_clock::now() >= call.deadline; }

Status TooLate() {
  return Status(StatusCode::kDeadlineExceeded,
                "the deadline passed before the call was sent; nothing was taken");
}

gpr_timespec GrpcDeadline(TimePoint deadline) {
  const int64_t left =
      std::chrono::nanoseconds(deadline - std::chrono::steady_clock::now()).count();
  return gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC), gpr_time_from_nanos(left, GPR_TIMESPAN));
}

Status ShutDown() { return Status(StatusCode::kCancelled, "the client was shut down"); }

// The channel, the completion queue and the pending calls. Shared with the queue's thread.
struct Transport {
  Transport(std::shared_ptr<grpc::Channel> to, std::string name, TlsOptions files,
            std::string bearer)
      : channel(std::move(to)),
        stub(v1::RateLimiter::NewStub(channel)),
        server(std::move(name)),
        tls(std::move(files)),
        token(std::move(bearer)) {}

  // REQUIRES: !status.ok(). CANCELLED means that Shutdown cancelled the call. If the server did so
  // (at the end of a drain), it becomes UNAVAILABLE.
  Status Failure(const grpc::Status& status, const grpc::ClientContext& context) {
    Status failed = FromGrpc(status, context, tls);
    if (failed.code() != StatusCode::kCancelled || registry.closed()) return failed;
    if (!failed.may_have_executed()) return Status(StatusCode::kUnavailable, failed.message());
    return Status::MaybeExecuted(StatusCode::kUnavailable,
                                 "the server cancelled the call: " + failed.message());
  }

  const std::shared_ptr<grpc::Channel> channel;
  const std::unique_ptr<v1::RateLimiter::Stub> stub;
  const std::string server;
  const TlsOptions tls;
  const std::string token;
  grpc::CompletionQueue queue;
  Registry registry;
};

// Waits until the channel is connected, before a call is started. A call that fails here was
// certainly not sent; later grpc++ does not tell. Deletes itself.
class ConnectGate final : public Tag, public Pending {
 public:
  // `go` runs once, maybe within this call: with OK (connected), UNAVAILABLE, DEADLINE_EXCEEDED or
  // CANCELLED.
  static void Await(Transport* transport, TimePoint deadline, std::function<void(Status)> go) {
    const grpc_connectivity_state state = transport->channel->GetState(/*try_to_connect=*/true);
    if (state == GRPC_CHANNEL_READY) return go(Status());
    auto* self = new ConnectGate(transport, deadline, std::move(go));
    if (!transport->registry.Add(self)) {
      const std::function<void(Status)> refused = self->go_;
      delete self;
      return refused(ShutDown());
    }
    self->Look(state);
  }

  // A state notification cannot be cancelled; it ends after 20 ms.
  void Cancel() override { cancelled_.store(true, std::memory_order_relaxed); }

  void Complete(bool) override {
    if (probing_) {
      // A call without effects: only the text of its error matters.
      return End(Status(StatusCode::kUnavailable,
                        "cannot connect to " + transport_->server +
                            (status_.error_code() == grpc::StatusCode::UNAVAILABLE
                                 ? ": " + Explained(status_.error_message(), transport_->tls)
                                 : "")));
    }
    Look(transport_->channel->GetState(true));
  }

 private:
  ConnectGate(Transport* transport, TimePoint deadline, std::function<void(Status)> go)
      : transport_(transport), deadline_(deadline), go_(std::move(go)) {}

  void Look(grpc_connectivity_state state) {
    const TimePoint now = std::chrono::steady_clock::now();
    if (cancelled_.load(std::memory_order_relaxed)) return End(ShutDown());
    if (state == GRPC_CHANNEL_READY) return End(Status());
    if (state == GRPC_CHANNEL_TRANSIENT_FAILURE || state == GRPC_CHANNEL_SHUTDOWN) return Probe();
    if (now >= deadline_) {
      return End(Status(StatusCode::kDeadlineExceeded,
                        "could not connect to " + transport_->server + " in time"));
    }
    const TimePoint soon = now + std::chrono::milliseconds(20);
    transport_->channel->NotifyOnStateChange(state, GrpcDeadline(std::min(soon, deadline_)),
                                             &transport_->queue, static_cast<Tag*>(this));
  }

  void Probe() {
    probing_ = true;
    context_.set_deadline(GrpcDeadline(
        std::min(deadline_, std::chrono::steady_clock::now() + std::chrono::milliseconds(100))));
    reader_ = transport_->stub->PrepareAsyncQuery(&context_, {}, &transport_->queue);
    reader_->StartCall();
    reader_->Finish(&response_, &status_, static_cast<Tag*>(this));
  }

  void End(Status status) {
    go_(std::move(status));
    transport_->registry.Remove(this);
    delete this;
  }

  Transport* const transport_;
  const TimePoint deadline_;
  const std::function<void(Status)> go_;
  std::atomic<bool> cancelled_{false};  // relaxed: read after the next notification
  bool probing_ = false;
  grpc::ClientContext context_;
  v1::QueryResponse response_;
  grpc::Status status_;
  std::unique_ptr<grpc::ClientAsyncResponseReader<v1::QueryResponse>> reader_;
};

// A unary call. Deletes itself.
template <typename Response, typename Value>
class UnaryCall final : public Tag, public Pending {
 public:
  using Reader = std::unique_ptr<grpc::ClientAsyncResponseReader<Response>>;

  // `prepare(request, context)` makes the reader.
  template <typename Request, typename Prepare>
  static void Start(Transport* transport, const Call& call, Request request, Callback<Value> done,
                    Prepare prepare) {
    if (IsLate(call)) return done(TooLate());
    if (transport->channel->GetState(false) == GRPC_CHANNEL_READY) {
      return Send(transport, call, request, std::move(done), prepare);
    }
    auto waiting =
        std::make_shared<std::pair<Request, Callback<Value>>>(std::move(request), std::move(done));
    ConnectGate::Await(transport, call.deadline,
                       [transport, call, waiting, prepare](Status status) {
                         if (!status.ok()) return waiting->second(std::move(status));
                         Send(transport, call, waiting->first, std::move(waiting->second), prepare);
                       });
  }

  void Complete(bool) override {
    if (status_.ok()) {
      done_(FromWire(&response_));
    } else {
      done_(transport_->Failure(status_, context_));
    }
    transport_->registry.Remove(this);
    delete this;
  }

  void Cancel() override { context_.TryCancel(); }

 private:
  UnaryCall(Transport* transport, Callback<Value> done)
      : transport_(transport), done_(std::move(done)) {}

  template <typename Request, typename Prepare>
  static void Send(Transport* transport, const Call& call, const Request& request,
                   Callback<Value> done, const Prepare& prepare) {
    auto* self = new UnaryCall(transport, std::move(done));
    self->context_.set_deadline(GrpcDeadline(call.deadline));
    AddToken(transport->token, &self->context_);
    if (!transport->registry.Add(self)) {
      Callback<Value> refused = std::move(self->done_);
      delete self;
      return refused(ShutDown());
    }
    self->reader_ = prepare(request, &self->context_);
    self->reader_->StartCall();
    self->reader_->Finish(&self->response_, &self->status_, static_cast<Tag*>(self));
  }

  Transport* const transport_;
  Callback<Value> done_;
  grpc::ClientContext context_;
  Response response_;
  grpc::Status status_;
  Reader reader_;
};

// A timer. Deletes itself.
class Alarm final : public Tag, public Pending {
 public:
  static void Start(Transport* transport, std::chrono::nanoseconds delay,
                    std::function<void()> fn) {
    auto* self = new Alarm(transport, std::move(fn));
    const bool started = transport->registry.Add(self, [&] {
      self->alarm_.Set(&transport->queue, GrpcDeadline(std::chrono::steady_clock::now() + delay),
                       static_cast<Tag*>(self));
    });
    if (started) return;
    const std::function<void()> run_now = std::move(self->fn_);
    delete self;
    run_now();
  }

  void Complete(bool) override {
    fn_();
    transport_->registry.Remove(this);
    delete this;
  }

  void Cancel() override { alarm_.Cancel(); }

 private:
  Alarm(Transport* transport, std::function<void()> fn)
      : transport_(transport), fn_(std::move(fn)) {}

  Transport* const transport_;
  std::function<void()> fn_;
  grpc::Alarm alarm_;
};

// A blocking call, which Shutdown can cancel.
class Blocking final : public Pending {
 public:
  void Cancel() override { context.TryCancel(); }
  grpc::ClientContext context;
};

// The tag of one kind of operation of a stream.
template <typename Owner>
class StepTag final : public Tag {
 public:
  using Step = void (Owner::*)(bool);
  StepTag(Owner* owner, Step step) : owner_(owner), step_(step) {}
  void Complete(bool ok) override { (owner_->*step_)(ok); }

 private:
  Owner* const owner_;
  const Step step_;
};

// An AcquireStream call. Lives until the queue has returned all of its tags.
class BidiStream final : public Pending {
 public:
  static std::shared_ptr<BidiStream> Start(Transport* transport, StreamEvents events) {
    auto self = std::make_shared<BidiStream>(transport, std::move(events));
    AddToken(transport->token, &self->context_);
    self->self_ = self;
    if (!transport->registry.Add(self.get())) {
      {
        MutexLock lock(&self->mu_);
        self->dead_ = true;
      }
      self->self_.reset();
      self->events_.on_closed(ShutDown());
      return self;
    }
    ConnectGate::Await(transport, std::chrono::steady_clock::now() + std::chrono::seconds(5),
                       [self](Status status) { self->Begin(std::move(status)); });
    return self;
  }

  BidiStream(Transport* transport, StreamEvents events)
      : transport_(transport), events_(std::move(events)) {}

  void Send(std::span<const Acquisition> batch) {
    std::unique_ptr<v1::AcquireBatchRequest> message = SpareMessage();
    ToWire(batch, message.get());
    MutexLock lock(&mu_);
    if (dead_) return;
    if (!started_ || writing_) {
      unsent_.push_back(std::move(message));
      return;
    }
    WriteLocked(std::move(message));
  }

  void Cancel() override { context_.TryCancel(); }

 private:
  std::unique_ptr<v1::AcquireBatchRequest> SpareMessage() {
    {
      MutexLock lock(&mu_);
      if (!spare_.empty()) {
        std::unique_ptr<v1::AcquireBatchRequest> message = std::move(spare_.back());
        spare_.pop_back();
        return message;
      }
    }
    return std::make_unique<v1::AcquireBatchRequest>();
  }

  // grpc++ serializes the message here and does not call back.
  void WriteLocked(std::unique_ptr<v1::AcquireBatchRequest> message)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    writing_ = true;
    call_->Write(*message, &written_tag_);
    // A cleared message keeps its memory for the next batch.
    message->Clear();
    if (spare_.size() < 4) spare_.push_back(std::move(message));
  }

  void Begin(Status status) {
    if (!status.ok()) {
      {
        MutexLock lock(&mu_);
        dead_ = true;
      }
      if (status.code() == StatusCode::kDeadlineExceeded) {
        status = Status(StatusCode::kUnavailable, status.message());
      }
      return Close(std::move(status));
    }
    call_ = transport_->stub->PrepareAsyncAcquireStream(&context_, &transport_->queue);
    call_->StartCall(&started_tag_);
  }

  void OnStarted(bool ok) {
    if (!ok) return Finish();
    {
      MutexLock lock(&mu_);
      started_ = true;
      WriteNextLocked();
    }
    call_->Read(&response_, &read_tag_);
  }

  void WriteNextLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    if (unsent_.empty() || dead_) return;
    std::unique_ptr<v1::AcquireBatchRequest> message = std::move(unsent_.front());
    unsent_.pop_front();
    WriteLocked(std::move(message));
  }

  void OnRead(bool ok) {
    if (!ok) return Finish();
    events_.on_answers(FromWire(&response_));
    call_->Read(&response_, &read_tag_);
  }

  void OnWritten(bool ok) {
    bool last = false;
    {
      MutexLock lock(&mu_);
      writing_ = false;
      if (ok) WriteNextLocked();
      last = finished_ && !writing_;
    }
    if (last) End();
  }

  void Finish() {
    {
      MutexLock lock(&mu_);
      dead_ = true;
    }
    call_->Finish(&status_, &finished_tag_);
  }

  void OnFinished(bool) {
    bool last = false;
    {
      MutexLock lock(&mu_);
      finished_ = true;
      last = !writing_;
    }
    if (last) End();
  }

  void End() { Close(status_.ok() ? Status() : transport_->Failure(status_, context_)); }

  void Close(Status status) {
    events_.on_closed(std::move(status));
    transport_->registry.Remove(this);
    const std::shared_ptr<BidiStream> last = std::move(self_);
  }

  Transport* const transport_;
  const StreamEvents events_;
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientAsyncReaderWriter<v1::AcquireBatchRequest, v1::AcquireBatchResponse>>
      call_;
  v1::AcquireBatchResponse response_;
  grpc::Status status_;
  std::shared_ptr<BidiStream> self_;
  StepTag<BidiStream> started_tag_{this, &BidiStream::OnStarted};
  StepTag<BidiStream> read_tag_{this, &BidiStream::OnRead};
  StepTag<BidiStream> written_tag_{this, &BidiStream::OnWritten};
  StepTag<BidiStream> finished_tag_{this, &BidiStream::OnFinished};

  common::Mutex mu_;
  bool started_ ABSL_GUARDED_BY(mu_) = false;
  bool writing_ ABSL_GUARDED_BY(mu_) = false;
  bool dead_ ABSL_GUARDED_BY(mu_) = false;
  bool finished_ ABSL_GUARDED_BY(mu_) = false;
  std::deque<std::unique_ptr<v1::AcquireBatchRequest>> unsent_ ABSL_GUARDED_BY(mu_);
  std::vector<std::unique_ptr<v1::AcquireBatchRequest>> spare_ ABSL_GUARDED_BY(mu_);
};

class BidiHandle final : public StreamCall {
 public:
  explicit BidiHandle(std::shared_ptr<BidiStream> stream) : stream_(std::move(stream)) {}
  ~BidiHandle() override { stream_->Cancel(); }
  void Send(std::span<const Acquisition> batch) override { stream_->Send(batch); }
  void Cancel() override { stream_->Cancel(); }

 private:
  const std::shared_ptr<BidiStream> stream_;
};

// A Watch call.
class WatchStream final : public Pending {
 public:
  static std::shared_ptr<WatchStream> Start(Transport* transport, const v1::WatchRequest& request,
                                            WatchEvents events) {
    auto self = std::make_shared<WatchStream>(transport, std::move(events));
    AddToken(transport->token, &self->context_);
    self->self_ = self;
    if (!transport->registry.Add(self.get())) {
      self->self_.reset();
      self->events_.on_closed(ShutDown());
      return self;
    }
    self->call_ = transport->stub->PrepareAsyncWatch(&self->context_, request, &transport->queue);
    self->call_->StartCall(&self->started_tag_);
    return self;
  }

  WatchStream(Transport* transport, WatchEvents events)
      : transport_(transport), events_(std::move(events)) {}

  void Cancel() override {
    cancelled_.store(true, std::memory_order_relaxed);
    context_.TryCancel();
  }

 private:
  void OnStarted(bool ok) {
    if (!ok) return call_->Finish(&status_, &finished_tag_);
    call_->Read(&response_, &read_tag_);
  }

  void OnRead(bool ok) {
    if (!ok) return call_->Finish(&status_, &finished_tag_);
    events_.on_change(FromWire(&response_));
    call_->Read(&response_, &read_tag_);
  }

  void OnFinished(bool) {
    if (status_.ok()) {
      events_.on_closed(Status());
    } else if (cancelled_.load(std::memory_order_relaxed)) {
      events_.on_closed(FromGrpc(status_, context_, transport_->tls));
    } else {
      events_.on_closed(transport_->Failure(status_, context_));
    }
    transport_->registry.Remove(this);
    const std::shared_ptr<WatchStream> last = std::move(self_);
  }

  Transport* const transport_;
  const WatchEvents events_;
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientAsyncReader<v1::QueryResponse>> call_;
  v1::QueryResponse response_;
  grpc::Status status_;
  std::atomic<bool> cancelled_{false};  // by the handle; relaxed: the queue orders the rest
  std::shared_ptr<WatchStream> self_;
  StepTag<WatchStream> started_tag_{this, &WatchStream::OnStarted};
  StepTag<WatchStream> read_tag_{this, &WatchStream::OnRead};
  StepTag<WatchStream> finished_tag_{this, &WatchStream::OnFinished};
};

class WatchHandle final : public WatchCall {
 public:
  explicit WatchHandle(std::shared_ptr<WatchStream> stream) : stream_(std::move(stream)) {}
  ~WatchHandle() override { stream_->Cancel(); }
  void Cancel() override { stream_->Cancel(); }

 private:
  const std::shared_ptr<WatchStream> stream_;
};

class GrpcConnection final : public Connection {
 public:
  GrpcConnection(std::shared_ptr<grpc::Channel> channel, std::string server, const TlsOptions& tls,
                 std::string token)
      : transport_(std::make_shared<Transport>(std::move(channel), std::move(server), tls,
                                               std::move(token))),
        thread_([transport = transport_] {
          void* tag = nullptr;
          bool ok = false;
          while (transport->queue.Next(&tag, &ok)) static_cast<Tag*>(tag)->Complete(ok);
        }) {}

  ~GrpcConnection() override {
    Shutdown();
    transport_->queue.Shutdown();
    // A callback destroys the connection: its thread continues until the queue is empty.
    if (OnOwnThread()) {
      thread_.detach();
    } else {
      thread_.join();
    }
  }

  void Shutdown() override {
    transport_->registry.Close();
    if (!OnOwnThread()) transport_->registry.AwaitEmpty();
  }

  void Acquire(const Acquisition& acquisition, const Call& call, Callback<Decision> done) override {
    v1::AcquireRequest request;
    ToWire(acquisition, &request);
    UnaryCall<v1::AcquireResponse, Decision>::Start(
        transport_.get(), call, std::move(request), std::move(done),
        [transport = transport_.get()](const auto& wire, grpc::ClientContext* context) {
          return transport->stub->PrepareAsyncAcquire(context, wire, &transport->queue);
        });
  }

  void AcquireBatch(std::span<const Acquisition> batch, const Call& call,
                    Callback<BatchDecisions> done) override {
    v1::AcquireBatchRequest request;
    ToWire(batch, &request);
    const size_t size = batch.size();
    UnaryCall<v1::AcquireBatchResponse, BatchDecisions>::Start(
        transport_.get(), call, std::move(request),
        [size, done = std::move(done)](Result<BatchDecisions> result) {
          if (result.ok() && result->size() != size) {
            result = Status::MaybeExecuted(
                StatusCode::kInternal, "the server answered a different number of acquisitions");
          }
          done(std::move(result));
        },
        [transport = transport_.get()](const auto& wire, grpc::ClientContext* context) {
          return transport->stub->PrepareAsyncAcquireBatch(context, wire, &transport->queue);
        });
  }

  void Query(std::span<const Bucket> buckets, const Call& call,
             Callback<std::vector<BucketStatus>> done) override {
    v1::QueryRequest request;
    AddBuckets(buckets, &request);
    UnaryCall<v1::QueryResponse, std::vector<BucketStatus>>::Start(
        transport_.get(), call, std::move(request), std::move(done),
        [transport = transport_.get()](const auto& wire, grpc::ClientContext* context) {
          return transport->stub->PrepareAsyncQuery(context, wire, &transport->queue);
        });
  }

  void Refund(std::string_view receipt, const Call& call, Callback<RefundResult> done) override {
    v1::RefundRequest request;
    request.set_receipt(receipt.data(), receipt.size());
    UnaryCall<v1::RefundResponse, RefundResult>::Start(
        transport_.get(), call, std::move(request), std::move(done),
        [transport = transport_.get()](const auto& wire, grpc::ClientContext* context) {
          return transport->stub->PrepareAsyncRefund(context, wire, &transport->queue);
        });
  }

  std::unique_ptr<StreamCall> OpenStream(StreamEvents events) override {
    return std::make_unique<BidiHandle>(BidiStream::Start(transport_.get(), std::move(events)));
  }

  std::unique_ptr<WatchCall> Watch(std::span<const Bucket> buckets, const WatchOptions& options,
                                   WatchEvents events) override {
    v1::WatchRequest request;
    AddBuckets(buckets, &request);
    ToWire(options.min_interval, request.mutable_min_interval());
    return std::make_unique<WatchHandle>(
        WatchStream::Start(transport_.get(), request, std::move(events)));
  }

  // The calling thread reads the socket, which saves two thread switches.
  Result<Decision> AcquireBlocking(const Acquisition& acquisition, const Call& call) override {
    if (IsLate(call)) return TooLate();
    if (transport_->channel->GetState(false) != GRPC_CHANNEL_READY) {
      return Connection::AcquireBlocking(acquisition, call);
    }
    v1::AcquireRequest request;
    ToWire(acquisition, &request);
    Blocking pending;
    pending.context.set_deadline(GrpcDeadline(call.deadline));
    AddToken(transport_->token, &pending.context);
    if (!transport_->registry.Add(&pending)) return ShutDown();
    v1::AcquireResponse response;
    const grpc::Status status = transport_->stub->Acquire(&pending.context, request, &response);
    transport_->registry.Remove(&pending);
    if (!status.ok()) return transport_->Failure(status, pending.context);
    return FromWire(&response);
  }

  void RunAfter(std::chrono::nanoseconds delay, std::function<void()> fn) override {
    Alarm::Start(transport_.get(), delay, std::move(fn));
  }

 private:
  template <typename Request>
  static void AddBuckets(std::span<const Bucket> buckets, Request* request) {
    for (const Bucket& bucket : buckets) {
      v1::QueryRequest::Bucket* wire = request->add_buckets();
      wire->set_limit(bucket.limit);
      wire->set_key(bucket.key);
    }
  }

  bool OnOwnThread() const { return std::this_thread::get_id() == thread_.get_id(); }

  const std::shared_ptr<Transport> transport_;
  std::thread thread_;
};

}  // namespace

Result<std::shared_ptr<Connection>> MakeGrpcConnection(const std::string& server,
                                                       const TlsOptions& tls,
                                                       const std::string& token) {
  Result<std::shared_ptr<grpc::Channel>> channel = MakeChannel(server, tls);
  if (!channel.ok()) return channel.status();
  return std::shared_ptr<Connection>(
      std::make_shared<GrpcConnection>(*std::move(channel), server, tls, token));
}

}  // namespace sluice::client_internal
