// UnaryUseCase: the handler of a method that decodes a request, lets the use case decide, and
// encodes the answer. Used by Acquire, Query, Refund and Envoy's rate-limit service.
#ifndef SLUICE_SERVER_TRANSPORT_SERVICES_UNARY_USE_CASE_H_
#define SLUICE_SERVER_TRANSPORT_SERVICES_UNARY_USE_CASE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "common/buffer.h"
#include "common/net/event_loop.h"
#include "server/service/rate_limiter.h"
#include "server/transport/rpc/method.h"
#include "server/transport/rpc/server_call.h"
#include "server/transport/services/call_pool.h"
#include "server/transport/services/rate_limiter_methods.h"

namespace sluice::transport {

// The steps that are the same for most methods. Beside them, a kind has Decode, Encode, and kUnits:
// the work of one item of a call (ServerCall::Spend).
template <typename CallType, auto kDecide>
struct AnyKind {
  using Call = CallType;
  using Limiter = service::RateLimiter;
  // What an undecided call holds, beyond the price of every call.
  static size_t PendingBytes(const Call&) { return 0; }
  template <typename Limiter>
  static void Decide(Limiter& limiter, Call* call, int64_t deadline_ns, typename Call::DoneFn done,
                     void* context) {
    (limiter.*kDecide)(call, deadline_ns, done, context);
  }
  // Whether its memory is not kept (CallPool): it was held, or is large.
  static bool Drops(const Call&) { return false; }
  template <typename Limiter>
  static void Cancel(Limiter&, Call*) {}
  static absl::Status Outcome(const Call& call) { return call.status(); }
};

template <typename Kind>
class UnaryUseCase final : public UnaryMethod {
 public:
  using Call = typename Kind::Call;
  using Limiter = typename Kind::Limiter;

  UnaryUseCase(Limiter& limiter, size_t loops) : limiter_(limiter), pools_(loops) {}

  void OnCall(ServerCall& rpc, absl::Span<const uint8_t> request) override {
    CallPool<Item>& pool = pools_[rpc.loop_index()];
    Item& item = pool.Take();
    if (const absl::Status decoded = Kind::Decode(request, &item.call); !decoded.ok()) {
      pool.Give(item);
      rpc.Finish(decoded);
      return;
    }
    rpc.Spend(UnitsOf(request, Kind::kUnits, item.call.size()));
    if (rpc.caller() != nullptr) item.call.UseCaller(rpc.TakeCaller());
    item.call.DecideInSlices();
    item.rpc = &rpc;
    item.owner = this;
    item.pool = &pool;
    item.loop = &rpc.loop();
    rpc.set_state(&item);
    Decide(item,
           [&](auto done) { Kind::Decide(limiter_, &item.call, rpc.deadline_ns(), done, &item); });
  }

  void OnTurn(ServerCall& rpc) override {
    auto& item = *static_cast<Item*>(rpc.state());
    Decide(item, [&](auto) { limiter_.Continue(&item.call); });
  }

  void OnCancelled(ServerCall& rpc) override {
    // A held call is refunded, and its memory was not used for long.
    constexpr int64_t kCancelUnits = 30;
    rpc.Spend(kCancelUnits);
    auto& item = *static_cast<Item*>(rpc.state());
    item.rpc = nullptr;
    if (item.waits_for_turn) {
      item.pool->Give(item);
      return;
    }
    item.kept = std::make_unique<common::Buffer>();
    rpc.KeepRequest(item.kept.get());
    // Completes a held call, and may return the item to its pool.
    Kind::Cancel(limiter_, &item.call);
  }

 private:
  struct Item : Pooled<Item> {
    size_t memory() const { return sizeof(Item) + call.memory(); }

    Call call;
    ServerCall* rpc = nullptr;  // null: the call was cancelled
    bool* decided = nullptr;    // while Decide runs
    bool waits_for_turn = false;
    UnaryUseCase* owner = nullptr;
    net::EventLoop* loop = nullptr;
    CallPool<Item>* pool = nullptr;  // of the loop
    std::unique_ptr<common::Buffer>
        kept;  // the request of a cancelled call; `call` has views into it
  };

  // Decides the next slice: start(done) starts that.
  template <typename Start>
  void Decide(Item& item, Start start) {
    ServerCall& rpc = *item.rpc;
    if constexpr (requires { item.call.UseConnection(nullptr); }) {
      item.call.UseConnection(BookingsOf(rpc));
    }
    bool decided = false;
    item.decided = &decided;
    item.waits_for_turn = false;
    start([](void* of, Call*) {
      auto* const item = static_cast<Item*>(of);
      OnLoop(*item->loop, [item] { item->owner->Decided(*item); });
    });
    if (decided) return;
    item.decided = nullptr;
    rpc.Spend(static_cast<int64_t>(item.call.slice_cost()));
    rpc.SetPendingBytes(Kind::PendingBytes(item.call));
  }

  void Decided(Item& item) {
    if (item.decided != nullptr) {
      *std::exchange(item.decided, nullptr) = true;
      item.rpc->Spend(static_cast<int64_t>(item.call.slice_cost()));
      if (item.call.more()) {
        item.waits_for_turn = true;
        item.rpc->ContinueLater();
        return;
      }
    }
    if (ServerCall* const rpc = std::exchange(item.rpc, nullptr); rpc != nullptr) {
      const absl::Status status = Kind::Outcome(item.call);
      if (status.ok()) {
        Kind::Encode(item.call, &rpc->response());
        rpc->Finish();
      } else {
        rpc->Finish(status);
      }
    } else {
      item.kept.reset();
    }
    item.pool->Give(item, Kind::Drops(item.call));
  }

  Limiter& limiter_;
  std::vector<CallPool<Item>> pools_;  // by loop
};

}  // namespace sluice::transport

#endif  // SLUICE_SERVER_TRANSPORT_SERVICES_UNARY_USE_CASE_H_
