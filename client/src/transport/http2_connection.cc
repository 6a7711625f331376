#include "client/src/transport/http2_connection.h"

#include <deque>
#include <new>
#include <utility>
#include <vector>

#include "client/src/transport/codec.h"
#include "client/src/transport/http2_core.h"

namespace sluice::client_internal {
namespace {

Status Malformed() {
  return Status::MaybeExecuted(StatusCode::kInternal,
                               "the server's answer is not a message of sluice.v1");
}

template <typename T>
Result<T> Decoded(std::string_view answer) {
  T value{};
  if (!Decode(answer, &value)) return Malformed();
  return value;
}

template <typename Answers>
Result<Answers> SameSize(Result<Answers> result, size_t size) {
  if (result.ok() && result->size() != size) {
    return Status::MaybeExecuted(StatusCode::kInternal,
                                 "the server's answer has another number of results");
  }
  return result;
}

// A call with one request and one answer.
template <typename T>
class UnaryCall final : public CallbackCall {
 public:
  UnaryCall(Method method, Callback<T> done) : CallbackCall(method), done_(std::move(done)) {}

  Callback<T>& done() { return done_; }

 private:
  Status OnMessage(std::string_view message) override {
    if (has_answer_) {
      return Status::MaybeExecuted(StatusCode::kInternal, "the server sent more than one answer");
    }
    has_answer_ = true;
    answer_.assign(message);
    return Status();
  }
  void OnFinished(Status status) override { status_ = std::move(status); }
  bool Deliver() override {
    if (status_.ok()) {
      done_(Decoded<T>(answer_));
    } else {
      done_(std::move(status_));
    }
    return true;
  }

  Callback<T> done_;
  bool has_answer_ = false;
  std::string answer_;
  Status status_;
};

// A call with any number of answers. Its handle may outlive it.
class StreamingCall : public CallbackCall {
 public:
  // What the handle and the call share. The core's lock guards `call`.
  struct Handle {
    std::weak_ptr<Http2Core> core;
    StreamingCall* call = nullptr;  // null: it is over
  };

  StreamingCall(Method method, std::shared_ptr<Http2Core> core)
      : CallbackCall(method), core_(std::move(core)), handle_(std::make_shared<Handle>()) {
    handle_->core = core_;
    handle_->call = this;
  }

  const std::shared_ptr<Handle>& handle() const { return handle_; }

  // By the handle; thread-safe.
  template <typename Fn>
  static void Change(const std::shared_ptr<Handle>& handle, Fn fn);
  static void CancelBy(const std::shared_ptr<Handle>& handle) {
    Change(handle, [](Http2Core& core, StreamingCall& call) {
      core.Cancel(call, BrokenCall(call.MayHaveBeenSent(), StatusCode::kCancelled,
                                   "the call was cancelled"));
    });
  }

 protected:
  bool can_rewind() const override { return false; }
  bool may_be_empty() const override { return true; }
  // Run the callbacks of the program. OnAnswer returns false if the answer is malformed.
  virtual bool OnAnswer(std::string_view message) = 0;
  virtual void OnClosed(Status status) = 0;

 private:
  Status OnMessage(std::string_view message) override {
    answers_.emplace_back(message);
    core_->Schedule(*this);
    return Status();
  }
  // While callbacks are behind, the server may not send more than its window.
  void OnConsumed(size_t bytes) override {
    if (answers_.empty()) return CallbackCall::OnConsumed(bytes);
    unconsumed_ += bytes;
  }
  void OnFinished(Status status) override {
    handle_->call = nullptr;
    finished_ = true;
    status_ = std::move(status);
  }
  bool Deliver() override;

  const std::shared_ptr<Http2Core> core_;
  const std::shared_ptr<Handle> handle_;
  std::deque<std::string> answers_;
  size_t unconsumed_ = 0;
  bool finished_ = false;
  bool malformed_ = false;  // used by the callback thread only
  Status status_;
};

bool StreamingCall::Deliver() {
  std::deque<std::string> answers;
  bool finished = false;
  core_->Change([&]() -> CallStream* {
    // If it is over now, it is destroyed next.
    core_->Unschedule(*this);
    answers.swap(answers_);
    finished = finished_;
    if (state == State::kOpen && unconsumed_ > 0) {
      CallbackCall::OnConsumed(std::exchange(unconsumed_, 0));
    }
    return this;
  });
  for (const std::string& answer : answers) {
    if (malformed_) break;
    malformed_ = !OnAnswer(answer);
    if (!malformed_) continue;
    core_->Change([&]() -> CallStream* {
      core_->Cancel(*this, Malformed());
      return this;
    });
  }
  if (!finished) return false;
  OnClosed(malformed_ ? Malformed() : std::move(status_));
  return true;
}

template <typename Fn>
void StreamingCall::Change(const std::shared_ptr<Handle>& handle, Fn fn) {
  const std::shared_ptr<Http2Core> core = handle->core.lock();
  if (core == nullptr || core->forked()) return;
  core->Change([&]() -> CallStream* {
    if (handle->call != nullptr) fn(*core, *handle->call);
    return handle->call;
  });
}

class BidiCall final : public StreamingCall {
 public:
  BidiCall(std::shared_ptr<Http2Core> core, StreamEvents events)
      : StreamingCall(Method::kAcquireStream, std::move(core)), events_(std::move(events)) {
    deadline = TimePoint::max();
  }

  static void Send(const std::shared_ptr<Handle>& handle, std::span<const Acquisition> batch) {
    thread_local std::string message;
    message.clear();
    EncodeAcquireBatch(batch, &message);
    Change(handle, [](Http2Core&, StreamingCall& call) {
      call.request.append(message);
      static_cast<BidiCall&>(call).ResumeRequest();
    });
    if (message.capacity() > kKeptBytes) message = std::string();
  }

 private:
  static constexpr size_t kKeptBytes = size_t{1} << 20;

  bool request_ends() const override { return false; }
  bool OnAnswer(std::string_view message) override {
    BatchDecisions decisions;
    if (!Decode(message, &decisions)) return false;
    events_.on_answers(std::move(decisions));
    return true;
  }
  void OnClosed(Status status) override { events_.on_closed(std::move(status)); }

  const StreamEvents events_;
};

class BidiHandle final : public StreamCall {
 public:
  explicit BidiHandle(std::shared_ptr<StreamingCall::Handle> handle) : handle_(std::move(handle)) {}
  ~BidiHandle() override { Cancel(); }
  void Send(std::span<const Acquisition> batch) override { BidiCall::Send(handle_, batch); }
  void Cancel() override { StreamingCall::CancelBy(handle_); }
  void GiveUp() override {
    StreamingCall::Change(handle_, [](Http2Core& core, StreamingCall& call) { core.GiveUp(call); });
  }

 private:
  const std::shared_ptr<StreamingCall::Handle> handle_;
};

class WatchStream final : public StreamingCall {
 public:
  WatchStream(std::shared_ptr<Http2Core> core, WatchEvents events)
      : StreamingCall(Method::kWatch, std::move(core)), events_(std::move(events)) {}

 private:
  bool OnAnswer(std::string_view message) override {
    std::vector<BucketStatus> buckets;
    if (!Decode(message, &buckets)) return false;
    events_.on_change(std::move(buckets));
    return true;
  }
  void OnClosed(Status status) override { events_.on_closed(std::move(status)); }

  const WatchEvents events_;
};

class WatchHandle final : public WatchCall {
 public:
  explicit WatchHandle(std::shared_ptr<StreamingCall::Handle> handle)
      : handle_(std::move(handle)) {}
  ~WatchHandle() override { Cancel(); }
  void Cancel() override { StreamingCall::CancelBy(handle_); }

 private:
  const std::shared_ptr<StreamingCall::Handle> handle_;
};

class Http2Connection final : public Connection {
 public:
  explicit Http2Connection(std::shared_ptr<Http2Core> core) : core_(std::move(core)) {}

  ~Http2Connection() override {
    if (core_->forked()) {
      // Its lock and its threads are the parent's: it can only be left as it is.
      static_cast<void>(new (std::nothrow) std::shared_ptr<Http2Core>(core_));
      return;
    }
    core_->Shutdown();
    core_->Stop();
  }

  void Shutdown() override {
    if (!core_->forked()) core_->Shutdown();
  }

  void Acquire(const Acquisition& acquisition, const Call& call, Callback<Decision> done) override {
    Begin<Decision>(Method::kAcquire, call, std::move(done),
                    [&](std::string* request) { EncodeAcquire(acquisition, request); });
  }

  void AcquireBatch(std::span<const Acquisition> batch, const Call& call,
                    Callback<BatchDecisions> done) override {
    Begin<BatchDecisions>(
        Method::kAcquireBatch, call,
        [size = batch.size(), done = std::move(done)](Result<BatchDecisions> result) {
          done(SameSize(std::move(result), size));
        },
        [&](std::string* request) { EncodeAcquireBatch(batch, request); });
  }

  void Query(std::span<const Bucket> buckets, const Call& call,
             Callback<std::vector<BucketStatus>> done) override {
    Begin<std::vector<BucketStatus>>(Method::kQuery, call, std::move(done),
                                     [&](std::string* request) { EncodeQuery(buckets, request); });
  }

  void Refund(std::string_view receipt, const Call& call, Callback<RefundResult> done) override {
    Begin<RefundResult>(Method::kRefund, call, std::move(done),
                        [&](std::string* request) { EncodeRefund(receipt, request); });
  }

  void Renew(std::span<const std::string> receipts, const Call& call,
             Callback<std::vector<Renewal>> done) override {
    Begin<std::vector<Renewal>>(
        Method::kRenew, call,
        [size = receipts.size(), done = std::move(done)](Result<std::vector<Renewal>> result) {
          done(SameSize(std::move(result), size));
        },
        [&](std::string* request) { EncodeRenew(receipts, request); });
  }

  Result<Decision> AcquireBlocking(const Acquisition& acquisition, const Call& call) override {
    return Run<Decision>(Method::kAcquire, call,
                         [&](std::string* request) { EncodeAcquire(acquisition, request); });
  }

  Result<BatchDecisions> AcquireBatchBlocking(std::span<const Acquisition> batch,
                                              const Call& call) override {
    return SameSize(
        Run<BatchDecisions>(Method::kAcquireBatch, call,
                            [&](std::string* request) { EncodeAcquireBatch(batch, request); }),
        batch.size());
  }

  Result<std::vector<BucketStatus>> QueryBlocking(std::span<const Bucket> buckets,
                                                  const Call& call) override {
    return Run<std::vector<BucketStatus>>(
        Method::kQuery, call, [&](std::string* request) { EncodeQuery(buckets, request); });
  }

  void Settle(const Settlement& settlement, const Call& call,
              Callback<SettleResult> done) override {
    Begin<SettleResult>(Method::kSettle, call, std::move(done),
                        [&](std::string* request) { EncodeSettle(settlement, request); });
  }
  Result<SettleResult> SettleBlocking(const Settlement& settlement, const Call& call) override {
    return Run<SettleResult>(Method::kSettle, call,
                             [&](std::string* request) { EncodeSettle(settlement, request); });
  }
  void SettleBatch(std::span<const Settlement> batch, const Call& call,
                   Callback<BatchSettlements> done) override {
    Begin<BatchSettlements>(
        Method::kSettleBatch, call,
        [size = batch.size(), done = std::move(done)](Result<BatchSettlements> result) {
          done(SameSize(std::move(result), size));
        },
        [&](std::string* request) { EncodeSettleBatch(batch, request); });
  }
  Result<BatchSettlements> SettleBatchBlocking(std::span<const Settlement> batch,
                                               const Call& call) override {
    return SameSize(
        Run<BatchSettlements>(Method::kSettleBatch, call,
                              [&](std::string* request) { EncodeSettleBatch(batch, request); }),
        batch.size());
  }
  Result<RefundResult> RefundBlocking(std::string_view receipt, const Call& call) override {
    return Run<RefundResult>(Method::kRefund, call,
                             [&](std::string* request) { EncodeRefund(receipt, request); });
  }

  Result<std::vector<Renewal>> RenewBlocking(std::span<const std::string> receipts,
                                             const Call& call) override {
    return SameSize(
        Run<std::vector<Renewal>>(Method::kRenew, call,
                                  [&](std::string* request) { EncodeRenew(receipts, request); }),
        receipts.size());
  }

  std::unique_ptr<StreamCall> OpenStream(StreamEvents events) override {
    const std::function<void(Status)> on_closed = events.on_closed;
    auto call = std::make_unique<BidiCall>(core_, std::move(events));
    auto handle = std::make_unique<BidiHandle>(call->handle());
    Open(std::move(call), on_closed);
    return handle;
  }

  std::unique_ptr<WatchCall> Watch(std::span<const Bucket> buckets, const WatchOptions& options,
                                   WatchEvents events) override {
    const std::function<void(Status)> on_closed = events.on_closed;
    auto call = std::make_unique<WatchStream>(core_, std::move(events));
    EncodeWatch(buckets, options.min_interval, &call->request);
    auto handle = std::make_unique<WatchHandle>(call->handle());
    Open(std::move(call), on_closed);
    return handle;
  }

  void RunAfter(std::chrono::nanoseconds delay, std::function<void()> fn) override {
    if (core_->forked()) return fn();
    core_->RunAfter(delay, std::move(fn));
  }

  bool on_system_clock() const override { return true; }

  void Sleep(std::chrono::nanoseconds time) override {
    if (!core_->forked()) core_->Sleep(time);
  }

 private:
  template <typename T, typename Encode>
  void Begin(Method method, const Call& options, Callback<T> done, const Encode& encode) {
    if (core_->forked()) return done(ForkedError());
    auto call = std::make_unique<UnaryCall<T>>(method, std::move(done));
    call->deadline = options.deadline;
    encode(&call->request);
    UnaryCall<T>& refused = *call;
    std::unique_ptr<CallbackCall> begun = std::move(call);
    Status status = core_->Begin(&begun);
    if (!status.ok()) refused.done()(std::move(status));
  }

  template <typename T, typename Encode>
  Result<T> Run(Method method, const Call& options, const Encode& encode) {
    if (core_->forked()) return ForkedError();
    // Their memory is used by all calls of the thread.
    thread_local std::string request;
    thread_local std::string answer;
    constexpr size_t kKeptBytes = size_t{64} << 10;
    BlockingCall call(method);
    call.deadline = options.deadline;
    call.request.swap(request);
    call.answer.swap(answer);
    call.request.clear();
    call.answer.clear();
    encode(&call.request);
    core_->Run(call);
    Result<T> result = call.status.ok() ? Decoded<T>(call.answer) : std::move(call.status);
    if (call.request.capacity() <= kKeptBytes) call.request.swap(request);
    if (call.answer.capacity() <= kKeptBytes) call.answer.swap(answer);
    return result;
  }

  // A stream that cannot begin is closed, within the call.
  void Open(std::unique_ptr<StreamingCall> call, const std::function<void(Status)>& on_closed) {
    if (core_->forked()) {
      call->handle()->call = nullptr;
      // Like a client that was shut down: nothing will be sent any more.
      return on_closed(ForkedError(StatusCode::kCancelled));
    }
    const std::shared_ptr<StreamingCall::Handle> handle = call->handle();
    std::unique_ptr<CallbackCall> begun = std::move(call);
    Status status = core_->Begin(&begun);
    if (status.ok()) return;
    handle->call = nullptr;  // no other thread knows it yet
    on_closed(std::move(status));
  }

  const std::shared_ptr<Http2Core> core_;
};

}  // namespace

Result<std::shared_ptr<Connection>> MakeHttp2Connection(const std::string& server,
                                                        const TlsOptions& tls,
                                                        const std::string& token,
                                                        const TransportOptions& options) {
  Result<ServerAddress> address = ServerAddress::Parse(server);
  if (!address.ok()) return address.status();
  std::shared_ptr<const TlsSetup> setup;
  if (tls.in_use()) {
    Result<std::shared_ptr<const TlsSetup>> made = TlsSetup::Create(tls, *address);
    if (!made.ok()) return made.status();
    setup = *std::move(made);
  }
  return std::shared_ptr<Connection>(std::make_shared<Http2Connection>(
      std::make_shared<Http2Core>(*std::move(address), tls, std::move(setup), token, options)));
}

}  // namespace sluice::client_internal
