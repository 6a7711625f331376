// UnaryUseCase: the handler of a method that decodes a request, lets the use case decide, and
// encodes the answer. Used by all unary methods but AcquireBatch, and by Envoy's rate-limit
// service.
#ifndef SLUICE_SERVER_TRANSPORT_SERVICES_UNARY_USE_CASE_H_
#define SLUICE_SERVER_TRANSPORT_SERVICES_UNARY_USE_CASE_H_

#include <algorithm>
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

// The steps that are the same for most methods. Beside them, a kind has Encode, kUnits: the work of
// one item of a call (ServerCall::Spend), and Decode or, for large requests, a Decoder: its class
// decodes in steps, as BatchDecoder does.
template <typename CallType, auto kDecide>
struct AnyKind {
  using Call = CallType;
  using Limiter = service::RateLimiter;
  // Whether a store that answers later may leave more() slices. Their cost is known, and spent,
  // when they are answered; that of other calls when they are asked.
  static constexpr bool kSlicesLater = false;
  // Whether Encode is called for each slice.
  static constexpr bool kEncodesSlices = false;
  // What an undecided call holds, beyond the price of every call. As slice_cost(), unless
  // kSlicesLater, it is read while a thread of the store may already answer the call.
  static size_t PendingBytes(const Call& call) { return call.request_memory(); }
  template <typename Limiter>
  static void Decide(Limiter& limiter, Call* call, int64_t deadline_ns, typename Call::DoneFn done,
                     void* context) {
    (limiter.*kDecide)(call, deadline_ns, done, context);
  }
  // Whether its memory is not kept (CallPool): it was held, or is large.
  static bool Drops(const Call&) { return false; }
  // Returns the units of work that it took, at most.
  template <typename Limiter>
  static int64_t Cancel(Limiter&, Call*) {
    return 0;
  }
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
    item.rpc = &rpc;
    item.owner = this;
    item.pool = &pool;
    item.loop = &rpc.loop();
    if constexpr (kDecodesInSteps) {
      item.decoder = Decoder(request, &item.call);
      rpc.set_state(&item);
      return DecodeSteps(item);
    } else {
      if (const absl::Status decoded = Kind::Decode(request, &item.call); !decoded.ok()) {
        pool.Give(item);
        rpc.Finish(decoded);
        return;
      }
      rpc.Spend(UnitsOf(request, Kind::kUnits, item.call.size()));
      rpc.set_state(&item);
      Start(item);
    }
  }

  void OnTurn(ServerCall& rpc) override {
    auto& item = *static_cast<Item*>(rpc.state());
    if constexpr (kDecodesInSteps) {
      if (!item.decoder.done()) return DecodeSteps(item);
    }
    Decide(item, [&](auto) { limiter_.Continue(&item.call); });
  }

  void OnCancelled(ServerCall& rpc) override {
    // The memory of a held call was not used for long.
    constexpr int64_t kCancelUnits = 30;
    rpc.Spend(kCancelUnits);
    auto& item = *static_cast<Item*>(rpc.state());
    item.rpc = nullptr;
    if (item.waits_for_turn) {
      item.pool->Give(item);
      return;
    }
    item.kept = std::make_unique<Kept>();
    rpc.KeepRequest(&item.kept->request);
    bool decided = false;
    item.decided = &decided;
    rpc.Spend(Kind::Cancel(limiter_, &item.call));  // completes a held call
    if (decided) return;
    item.decided = nullptr;
    item.kept->bytes = rpc.HoldCancelledBytes(sizeof(Item) + item.kept->request.capacity());
  }

 private:
  static constexpr bool kDecodesInSteps = requires { typename Kind::Decoder; };
  template <typename Of>
  struct DecoderOf {
    struct Type {};
  };
  template <typename Of>
    requires requires { typename Of::Decoder; }
  struct DecoderOf<Of> {
    using Type = typename Of::Decoder;
  };
  using Decoder = typename DecoderOf<Kind>::Type;
  static Decoder MakeDecoder(Call* call) {
    if constexpr (kDecodesInSteps) {
      return Decoder({}, call);
    } else {
      return {};
    }
  }
  static constexpr size_t kDecodeBytes = 16 << 10;

  // Of a cancelled call that is not decided.
  struct Kept {
    common::Buffer request;       // `call` has views into it
    std::shared_ptr<void> bytes;  // in the account
  };

  struct Item : Pooled<Item> {
    size_t memory() const { return sizeof(Item) + call.memory(); }

    Call call;
    [[no_unique_address]] Decoder decoder = MakeDecoder(&call);
    ServerCall* rpc = nullptr;  // null: the call was cancelled
    bool* decided = nullptr;    // while Decide or OnCancelled runs
    bool waits_for_turn = false;
    UnaryUseCase* owner = nullptr;
    net::EventLoop* loop = nullptr;
    CallPool<Item>* pool = nullptr;  // of the loop
    std::unique_ptr<Kept> kept;
  };

  // Decodes until the turn has ended, or starts the call.
  void DecodeSteps(Item& item) {
    ServerCall& rpc = *item.rpc;
    do {
      const absl::Status status = item.decoder.Step(kDecodeBytes);
      rpc.Spend(item.decoder.units());
      if (!status.ok()) {
        item.pool->Give(item);
        rpc.Finish(status);
        return;
      }
    } while (!item.decoder.done() && !rpc.turn_ended());
    if (!item.decoder.done()) return ContinueLater(item);
    rpc.Spend(Kind::kUnits * static_cast<int64_t>(item.call.size()));
    Start(item);
  }

  void Start(Item& item) {
    ServerCall& rpc = *item.rpc;
    if (rpc.caller() != nullptr) item.call.UseCaller(rpc.TakeCaller());
    item.call.DecideInSlices();
    Decide(item,
           [&](auto done) { Kind::Decide(limiter_, &item.call, rpc.deadline_ns(), done, &item); });
  }

  void ContinueLater(Item& item) {
    item.waits_for_turn = true;
    item.rpc->SetPendingBytes(item.memory());
    item.rpc->ContinueLater();
  }

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
    if constexpr (!Kind::kSlicesLater) rpc.Spend(static_cast<int64_t>(item.call.slice_cost()));
    rpc.SetPendingBytes(std::max(rpc.pending_bytes(), Kind::PendingBytes(item.call)));
  }

  void Decided(Item& item) {
    const bool at_once = item.decided != nullptr;
    if (at_once) *std::exchange(item.decided, nullptr) = true;
    if (item.rpc != nullptr && (at_once || Kind::kSlicesLater)) {
      item.rpc->Spend(static_cast<int64_t>(item.call.slice_cost()));
      if (item.call.more()) {
        if constexpr (Kind::kEncodesSlices) Kind::Encode(item.call, &item.rpc->response());
        return ContinueLater(item);
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
