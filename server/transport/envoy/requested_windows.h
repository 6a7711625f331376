// RequestedWindows: the limits of the windows that requests bring along
// (--ratelimit_request_limits=on). A limit counts the hits of one window length; the number of
// requests per window is compared by the caller, so that it may differ from request to request.
#ifndef SLUICE_SERVER_TRANSPORT_ENVOY_REQUESTED_WINDOWS_H_
#define SLUICE_SERVER_TRANSPORT_ENVOY_REQUESTED_WINDOWS_H_

#include <cstddef>
#include <cstdint>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "common/mutex.h"
#include "server/envoy/descriptor_tree.h"
#include "server/limits/limit_registry.h"

namespace sluice::transport {

// Thread-safe. The registry outlives it.
class RequestedWindows {
 public:
  explicit RequestedWindows(limits::LimitRegistry& registry) : registry_(registry) {}

  // The limit of the window in the table; null: there is none yet, see Add.
  static const limits::Limit* Find(const limits::LimitTable& table, envoy::Unit unit,
                                   uint32_t unit_multiplier);

  // Whether the limit that Find has found counts all hits of its window: no file and no admin has
  // put another in its place.
  static bool IsAsMade(const limits::Limit& limit, int64_t window_ns);

  // Makes the limit; the next table has it. Waits for other changes of limits. REQUIRES: the window
  // is at most bounds::kMaxPeriodNs.
  //   RESOURCE_EXHAUSTED: bounds::kMaxRequestedWindows.
  absl::Status Add(envoy::Unit unit, uint32_t unit_multiplier);

 private:
  limits::LimitRegistry& registry_;
  common::Mutex mu_;
  size_t added_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace sluice::transport

#endif  // SLUICE_SERVER_TRANSPORT_ENVOY_REQUESTED_WINDOWS_H_
