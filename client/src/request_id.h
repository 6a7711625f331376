// Request ids: which acquisitions are executed once, and the ids that the client gives them.
#ifndef SLUICE_CLIENT_SRC_REQUEST_ID_H_
#define SLUICE_CLIENT_SRC_REQUEST_ID_H_

#include <algorithm>
#include <span>
#include <string>

#include "client/src/retry_policy.h"
#include "sluice/connection.h"

namespace sluice::client_internal {

// 16 bytes from the system's random source: a generator of this process would repeat its numbers
// in a child after fork(), whose acquisitions would then be taken for repeated ones.
std::string NewRequestId();

inline Operation OperationOf(const Acquisition& acquisition) {
  return acquisition.request_id.empty() ? Operation::kAcquire : Operation::kAcquireOnce;
}
// A batch is executed once if each of its acquisitions is.
inline Operation OperationOf(std::span<const Acquisition> batch) {
  return std::all_of(batch.begin(), batch.end(),
                     [](const Acquisition& one) { return !one.request_id.empty(); })
             ? Operation::kAcquireOnce
             : Operation::kAcquire;
}

}  // namespace sluice::client_internal

#endif  // SLUICE_CLIENT_SRC_REQUEST_ID_H_
