// AcquireBatch and AcquireStream.
#include <algorithm>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "common/buffer.h"
#include "common/errors.h"
#include "common/net/event_loop.h"
#include "server/service/acquire_call.h"
#include "server/transport/services/call_pool.h"
#include "server/transport/services/rate_limiter_codec.h"
#include "server/transport/services/rate_limiter_methods.h"

namespace sluice::transport {
namespace {

namespace errors = common::errors;

class Batch;

// An AcquireStream. It decides one batch at a time: the next is read after this one was answered,
// and not while many bytes of answers are unsent. While it waits for its next batch, it holds
// hardly any memory.
struct Stream {
  // The batch was answered, or failed. May destroy this.
  void OnBatchDone(ServerCall& rpc, const absl::Status& status);
  // Destroys this.
  void End(ServerCall& rpc, const absl::Status& status);

  Batch* batch = nullptr;  // that is under way
  bool draining = false;
};

// One batch: decodes it, then decides and encodes slice by slice, in as many turns of the call's
// connection as that takes. Returns to its pool at the end. On the loop of the call.
class Batch final : public Pooled<Batch> {
 public:
  // `stream`: null for an AcquireBatch, whose request stays until the call ends.
  void Begin(service::RateLimiter& limiter, CallPool<Batch>& pool, ServerCall& rpc, Stream* stream,
             absl::Span<const uint8_t> request) {
    limiter_ = &limiter;
    pool_ = &pool;
    rpc_ = &rpc;
    loop_ = &rpc.loop();
    stream_ = stream;
    if (stream != nullptr) request = rpc.KeepMessage(request, &request_);
    decoder_ = BatchDecoder(request, &call_);
    call_.DecideInSlices();
    phase_ = Phase::kDecoding;
    Run();
  }

  // Goes on after ServerCall::ContinueLater.
  void OnTurn() { Run(); }

  // The call is gone. The store may still need the request.
  void Abandon() {
    if (phase_ != Phase::kDeciding) return End();
    if (stream_ == nullptr) rpc_->KeepRequest(&request_);
    cancelled_bytes_ = rpc_->HoldCancelledBytes(sizeof(Batch) + request_.capacity());
    rpc_ = nullptr;
  }

  size_t memory() const { return sizeof(Batch) + call_.memory() + request_.capacity(); }

 private:
  enum class Phase : uint8_t {
    kDecoding,  // nothing is decided
    kAsking,    // the next slice is to be decided
    kDeciding,  // the store has the slice
    kDecided,   // the slice is to be answered
  };
  static constexpr size_t kDecodeBytes = 16 << 10;

  // Works until the batch ends, the store has it, or the turn has ended.
  void Run() {
    running_ = true;
    do {
      absl::Status status;
      if (Step(&status)) return Finish(status);
    } while (phase_ == Phase::kDecided || (phase_ != Phase::kDeciding && !rpc_->turn_ended()));
    running_ = false;
    if (phase_ == Phase::kDeciding) {
      rpc_->SetPendingBytes(
          std::max(rpc_->pending_bytes(), call_.request_memory() + request_.capacity()));
    } else {
      CountMemory();
      rpc_->ContinueLater();
    }
  }

  // Not while the store has the slice.
  void CountMemory() { rpc_->SetPendingBytes(memory()); }

  // Returns whether it was the last.
  bool Step(absl::Status* status) {
    switch (phase_) {
      case Phase::kDecoding:
        *status = decoder_.Step(kDecodeBytes);
        rpc_->Spend(decoder_.units());
        if (decoder_.done()) phase_ = Phase::kAsking;
        return !status->ok();
      case Phase::kAsking:
        phase_ = Phase::kDeciding;
        call_.UseConnection(BookingsOf(*rpc_));
        if (call_.end() == 0) {
          if (rpc_->caller() != nullptr) {
            // The transport has counted the call, but of a stream not its messages.
            call_.UseCaller(rpc_->caller(), /*counted=*/stream_ == nullptr ? 1 : 0);
          }
          limiter_->Acquire(&call_, rpc_->deadline_ns(), &OnDecided, this);
        } else {
          CountMemory();
          limiter_->Continue(&call_);
        }
        return false;
      case Phase::kDeciding:
        return false;
      case Phase::kDecided:
        *status = call_.status();
        if (!status->ok()) return true;
        EncodeAcquireBatch(call_, &rpc_->response());
        rpc_->Spend(static_cast<int64_t>(call_.slice_cost()));
        phase_ = Phase::kAsking;
        return !call_.more();
    }
    return true;
  }

  static void OnDecided(void* of, service::AcquireCall*) {
    auto* const batch = static_cast<Batch*>(of);
    OnLoop(*batch->loop_, [batch] { batch->Decided(); });
  }
  void Decided() {
    if (rpc_ == nullptr) return End();
    phase_ = Phase::kDecided;
    if (running_) return;  // the store has answered at once
    Run();
  }

  void Finish(const absl::Status& status) {
    ServerCall& rpc = *rpc_;
    Stream* const stream = stream_;
    End();
    if (stream != nullptr) {
      stream->OnBatchDone(rpc, status);
    } else {
      status.ok() ? rpc.Finish() : rpc.Finish(status);
    }
  }

  void End() {
    cancelled_bytes_.reset();
    pool_->Give(*this);
  }

  service::RateLimiter* limiter_ = nullptr;
  CallPool<Batch>* pool_ = nullptr;  // of the loop
  ServerCall* rpc_ = nullptr;        // null: the call is gone
  net::EventLoop* loop_ = nullptr;
  Stream* stream_ = nullptr;
  service::AcquireCall call_;
  BatchDecoder decoder_{{}, &call_};
  // Of a stream, or of a call that is gone: the request, into which the call has views.
  common::Buffer request_;
  std::shared_ptr<void> cancelled_bytes_;  // of a call that is gone, in the account
  Phase phase_ = Phase::kDecoding;
  bool running_ = false;
};

void Stream::OnBatchDone(ServerCall& rpc, const absl::Status& status) {
  batch = nullptr;
  if (!status.ok()) return End(rpc, status);
  rpc.Send();
  rpc.SetPendingBytes(0);
  draining ? End(rpc, errors::Draining()) : rpc.ResumeReading();
}

void Stream::End(ServerCall& rpc, const absl::Status& status) {
  delete this;
  rpc.Finish(status);
}

class AcquireBatch final : public UnaryMethod {
 public:
  AcquireBatch(service::RateLimiter& limiter, size_t loops) : limiter_(limiter), pools_(loops) {}

  void OnCall(ServerCall& rpc, absl::Span<const uint8_t> request) override {
    CallPool<Batch>& pool = pools_[rpc.loop_index()];
    Batch& batch = pool.Take();
    rpc.set_state(&batch);
    batch.Begin(limiter_, pool, rpc, /*stream=*/nullptr, request);
  }
  void OnTurn(ServerCall& rpc) override { static_cast<Batch*>(rpc.state())->OnTurn(); }
  void OnCancelled(ServerCall& rpc) override { static_cast<Batch*>(rpc.state())->Abandon(); }

 private:
  service::RateLimiter& limiter_;
  std::vector<CallPool<Batch>> pools_;  // by loop
};

class AcquireStream final : public StreamingMethod {
 public:
  AcquireStream(service::RateLimiter& limiter, size_t loops) : limiter_(limiter), pools_(loops) {}

  void OnStart(ServerCall& rpc) override { rpc.set_state(new Stream()); }

  void OnMessage(ServerCall& rpc, absl::Span<const uint8_t> request) override {
    CallPool<Batch>& pool = pools_[rpc.loop_index()];
    Stream& stream = Of(rpc);
    stream.batch = &pool.Take();
    rpc.PauseReading();
    stream.batch->Begin(limiter_, pool, rpc, &stream, request);
  }

  void OnTurn(ServerCall& rpc) override { Of(rpc).batch->OnTurn(); }

  void OnRequestsDone(ServerCall& rpc) override { Of(rpc).End(rpc, absl::OkStatus()); }

  void OnDrain(ServerCall& rpc) override {
    Stream& stream = Of(rpc);
    stream.draining = true;
    if (stream.batch == nullptr) stream.End(rpc, errors::Draining());
  }

  void OnCancelled(ServerCall& rpc) override {
    Stream& stream = Of(rpc);
    if (stream.batch != nullptr) stream.batch->Abandon();
    delete &stream;
  }

 private:
  static Stream& Of(ServerCall& rpc) { return *static_cast<Stream*>(rpc.state()); }

  service::RateLimiter& limiter_;
  std::vector<CallPool<Batch>> pools_;  // by loop
};

}  // namespace

std::unique_ptr<UnaryMethod> MakeAcquireBatch(service::RateLimiter& limiter, size_t loops) {
  return std::make_unique<AcquireBatch>(limiter, loops);
}

std::unique_ptr<StreamingMethod> MakeAcquireStream(service::RateLimiter& limiter, size_t loops) {
  return std::make_unique<AcquireStream>(limiter, loops);
}

}  // namespace sluice::transport
