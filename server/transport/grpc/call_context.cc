#include "server/transport/grpc/call_context.h"

#include <grpc/support/time.h>

#include "server/store/store.h"

namespace sluice::transport {

int64_t DeadlineNs(const ::grpc::CallbackServerContext& context, const common::Clock& clock) {
  const gpr_timespec deadline = context.raw_deadline();
  if (gpr_time_cmp(deadline, gpr_inf_future(deadline.clock_type)) == 0) return store::kNoDeadline;
  const gpr_timespec left = gpr_time_sub(deadline, gpr_now(deadline.clock_type));
  // Years ahead: none, rather than a number that does not fit.
  constexpr int64_t kMostSeconds = int64_t{10} * 365 * 24 * 3600;
  if (left.tv_sec > kMostSeconds) return store::kNoDeadline;
  if (left.tv_sec < -kMostSeconds) return 0;
  return clock.NowNs() + left.tv_sec * 1'000'000'000 + left.tv_nsec;
}

}  // namespace sluice::transport
