// Query and Watch.
#include <atomic>
#include <memory>
#include <utility>

#include "common/errors.h"
#include "common/net/event_loop.h"
#include "server/transport/services/rate_limiter_codec.h"
#include "server/transport/services/rate_limiter_methods.h"
#include "server/transport/services/unary_use_case.h"

namespace sluice::transport {
namespace {

// Work of a bucket that is queried or watched (ServerCall::Spend).
constexpr int64_t kQueryUnits = 12;

struct QueryKind : AnyKind<service::QueryCall, &service::RateLimiter::Query> {
  static constexpr int64_t kUnits = kQueryUnits;
  static constexpr auto Decode = DecodeQuery;
  static constexpr auto Encode = EncodeQuery;
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
    rpc.Spend(UnitsOf(request, kQueryUnits, options.buckets.size()));
    std::shared_ptr<void> bytes = rpc.HoldLastingBytes(options.memory());
    if (bytes == nullptr) {
      rpc.Finish(common::errors::TooManyWatchedBuckets());
      return;
    }
    options.caller = rpc.caller();
    auto sink = std::make_shared<Sink>(&rpc, std::move(bytes));
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
    Sink(ServerCall* rpc, std::shared_ptr<void> bytes)
        : rpc(rpc), loop(rpc->loop()), bytes(std::move(bytes)) {}

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
    const std::shared_ptr<void> bytes;  // of the watch, until the hub forgets it
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

std::unique_ptr<UnaryMethod> MakeQuery(service::RateLimiter& limiter, size_t loops) {
  return std::make_unique<UnaryUseCase<QueryKind>>(limiter, loops);
}

std::unique_ptr<StreamingMethod> MakeWatch(service::WatchHub& hub) {
  return std::make_unique<Watch>(hub);
}

}  // namespace sluice::transport
