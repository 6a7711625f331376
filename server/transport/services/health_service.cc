#include "server/transport/services/health_service.h"

#include <algorithm>
#include <utility>

#include "common/bounds.h"
#include "common/errors.h"
#include "common/net/event_loop.h"
#include "common/protobuf_wire.h"
#include "server/transport/rpc/server_call.h"

namespace sluice::transport {
namespace {

namespace errors = common::errors;
using common::ReadFirstField;
using common::WireWriter;

// HealthCheckResponse.
void WriteStatus(uint64_t status, ServerCall* call) {
  uint8_t* const start = call->response().Reserve(WireWriter::kFieldBytes);
  WireWriter writer(start);
  writer.Varint(1, status);
  call->response().Commit(static_cast<size_t>(writer.at() - start));
}

}  // namespace

// One Watch call. The service keeps it until the call ends, and each task on its way to the loop
// keeps it too.
struct HealthService::Watcher : std::enable_shared_from_this<Watcher> {
  Watcher(ServerCall* call, std::string_view service)
      : service(service), loop(call->loop()), call(call) {}

  void Tell(Serving state) {
    loop.Post([self = shared_from_this(), state] {
      if (self->call == nullptr) return;
      WriteStatus(static_cast<uint64_t>(state), self->call);
      self->call->Send();
    });
  }
  void End(HealthService& health) {
    loop.Post([self = shared_from_this(), &health] {
      if (self->call == nullptr) return;
      health.Remove(self.get());
      std::exchange(self->call, nullptr)->Finish(errors::Draining());
    });
  }

  const std::string service;
  net::EventLoop& loop;
  ServerCall* call;  // used on the loop only; null: the call has ended
};

HealthService::HealthService(std::string service) : service_(std::move(service)) {}

void HealthService::Register(MethodTable* methods) {
  const MethodOptions exempt{.exempt_from_shedding = true,
                             .max_request_bytes = common::bounds::kMaxNameRequestBytes};
  methods->AddUnary("/grpc.health.v1.Health/Check", *this, exempt);
  methods->AddStreaming("/grpc.health.v1.Health/Watch", *this, exempt);
}

// ---- Check

void HealthService::OnCall(ServerCall& call, absl::Span<const uint8_t> request) {
  std::string_view service;
  if (!ReadFirstField(request, &service)) {
    call.Finish(absl::StatusCode::kInvalidArgument,
                "HealthCheckRequest: the bytes are not such a message");
    return;
  }
  const Serving state = Get(service);
  if (state == Serving::kServiceUnknown) {
    call.Finish(errors::NoSuchService(service));
    return;
  }
  WriteStatus(static_cast<uint64_t>(state), &call);
  call.Finish();
}

// ---- Watch

void HealthService::OnMessage(ServerCall& call, absl::Span<const uint8_t> request) {
  std::string_view service;
  if (call.state() != nullptr || !ReadFirstField(request, &service)) {
    OnCancelled(call);
    call.Finish(absl::StatusCode::kInvalidArgument,
                "Watch takes one request, a HealthCheckRequest");
    return;
  }
  if (!call.TrySetLastingBytes(sizeof(Watcher) + service.size())) {
    call.Finish(errors::TooManyWatchedBuckets());
    return;
  }
  const auto watcher = std::make_shared<Watcher>(&call, service);
  call.set_state(watcher.get());
  Add(watcher);
}

void HealthService::OnRequestsDone(ServerCall& call) {
  if (call.state() == nullptr) {
    call.Finish(absl::StatusCode::kUnimplemented,
                "the method takes one request, and none was sent");
  }
}

// Of Check, whose calls have no state, nothing is to be done.
void HealthService::OnCancelled(ServerCall& call) {
  auto* const watcher = static_cast<Watcher*>(call.state());
  if (watcher == nullptr) return;
  watcher->call = nullptr;
  Remove(watcher);
}

// ---- The state

void HealthService::SetServing(bool serving) {
  common::MutexLock lock(&mu_);
  if (closed_ || serving_ == serving) return;
  serving_ = serving;
  TellAll();
}

void HealthService::Close() {
  common::MutexLock lock(&mu_);
  if (closed_) return;
  closed_ = true;
  if (std::exchange(serving_, false)) TellAll();
  for (const auto& [_, watcher] : watchers_) watcher->End(*this);
}

HealthService::Serving HealthService::StateOf(std::string_view service) const {
  if (!service.empty() && service != service_ &&
      std::find(more_names_.begin(), more_names_.end(), service) == more_names_.end()) {
    return Serving::kServiceUnknown;
  }
  return serving_ ? Serving::kServing : Serving::kNotServing;
}

HealthService::Serving HealthService::Get(std::string_view service) const {
  common::MutexLock lock(&mu_);
  return StateOf(service);
}

// Under the lock, so that every watch sees the changes in their order.
void HealthService::TellAll() {
  for (const auto& [_, watcher] : watchers_) {
    const Serving state = StateOf(watcher->service);
    if (state != Serving::kServiceUnknown) watcher->Tell(state);
  }
}

void HealthService::Add(const std::shared_ptr<Watcher>& watcher) {
  common::MutexLock lock(&mu_);
  watcher->Tell(StateOf(watcher->service));
  if (closed_) watcher->End(*this);
  watchers_.emplace(watcher.get(), watcher);
}

void HealthService::Remove(const Watcher* watcher) {
  common::MutexLock lock(&mu_);
  watchers_.erase(watcher);
}

}  // namespace sluice::transport
