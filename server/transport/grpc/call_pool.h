// CallPool: keeps a unary call's messages and its service call, so that a call in steady state
// allocates neither: messages are cleared and keep what their fields had grown to.
#ifndef SLUICE_SERVER_TRANSPORT_GRPC_CALL_POOL_H_
#define SLUICE_SERVER_TRANSPORT_GRPC_CALL_POOL_H_

#include <grpcpp/support/message_allocator.h>
#include <grpcpp/support/server_callback.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "common/per_thread.h"
#include "server/transport/grpc/call_context.h"

namespace sluice::transport {

// Thread-safe; outlives the server.
template <typename Request, typename Response, typename Call>
class CallPool final : public ::grpc::MessageAllocator<Request, Response> {
 public:
  class Held final : public ::grpc::MessageHolder<Request, Response> {
   public:
    explicit Held(CallPool* pool) : pool_(pool) {
      this->set_request(&request_);
      this->set_response(&response_);
    }

    Call call;
    // Of the call under way, for its completion. After Finish nothing here may be touched.
    ::grpc::ServerUnaryReactor* reactor = nullptr;
    ::grpc::CallbackServerContext* context = nullptr;
    MethodMeter* meter = nullptr;
    int64_t started_ns = 0;
    // It grew: not worth keeping.
    bool large = false;

   private:
    friend class CallPool;
    // grpc++ is through with the call.
    void Release() override { pool_->Return(this); }

    CallPool* const pool_;
    Request request_;
    Response response_;
  };

  ::grpc::MessageHolder<Request, Response>* AllocateMessages() override {
    Free& free = free_.Local();
    if (free.held.empty()) return new Held(this);
    Held* const held = free.held.back().release();
    free.held.pop_back();
    return held;
  }

 private:
  // A thread's own: calls that it released, for those that it starts.
  struct Free {
    std::vector<std::unique_ptr<Held>> held;
  };
  static constexpr size_t kKeep = 256;

  void Return(Held* held) {
    std::unique_ptr<Held> owned(held);
    Free& free = free_.Local();
    if (free.held.size() >= kKeep || held->large) return;
    held->request_.Clear();
    held->response_.Clear();
    free.held.push_back(std::move(owned));
  }

  common::PerThread<Free> free_;
};

}  // namespace sluice::transport

#endif  // SLUICE_SERVER_TRANSPORT_GRPC_CALL_POOL_H_
