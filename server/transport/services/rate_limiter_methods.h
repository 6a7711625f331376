// The handlers of sluice.v1.RateLimiter's methods, one for each use case. They convert messages;
// service::RateLimiter and service::WatchHub decide.
//
// Handlers are thread-safe: all event loops call them. `loops`: the number of loops. The limiter
// and the hub outlive the handlers.
#ifndef SLUICE_SERVER_TRANSPORT_SERVICES_RATE_LIMITER_METHODS_H_
#define SLUICE_SERVER_TRANSPORT_SERVICES_RATE_LIMITER_METHODS_H_

#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/types/span.h"
#include "server/service/bucket_watch.h"
#include "server/service/connection_bookings.h"
#include "server/service/rate_limiter.h"
#include "server/transport/rpc/method.h"
#include "server/transport/rpc/server_call.h"
#include "server/transport/services/bookings_state.h"

namespace sluice::transport {

std::unique_ptr<UnaryMethod> MakeAcquire(service::RateLimiter& limiter, size_t loops);
std::unique_ptr<UnaryMethod> MakeQuery(service::RateLimiter& limiter, size_t loops);
std::unique_ptr<UnaryMethod> MakeRefund(service::RateLimiter& limiter, size_t loops);
std::unique_ptr<UnaryMethod> MakeRenew(service::RateLimiter& limiter, size_t loops);
std::unique_ptr<UnaryMethod> MakeSettle(service::RateLimiter& limiter, size_t loops);
std::unique_ptr<UnaryMethod> MakeSettleBatch(service::RateLimiter& limiter, size_t loops);
// Decide a batch in steps.
std::unique_ptr<UnaryMethod> MakeAcquireBatch(service::RateLimiter& limiter, size_t loops);
std::unique_ptr<StreamingMethod> MakeAcquireStream(service::RateLimiter& limiter, size_t loops);
std::unique_ptr<StreamingMethod> MakeWatch(service::WatchHub& hub);

// What the use cases keep for the call's connection.
inline service::ConnectionBookings* BookingsOf(ServerCall& rpc) {
  return &BookingsState::Of(rpc.connection_state());
}

// The work of a request: its decoding, and `units` for each of its items.
inline int64_t UnitsOf(absl::Span<const uint8_t> request, int64_t units, size_t items) {
  return static_cast<int64_t>(request.size() / 64) + units * static_cast<int64_t>(items);
}

}  // namespace sluice::transport

#endif  // SLUICE_SERVER_TRANSPORT_SERVICES_RATE_LIMITER_METHODS_H_
