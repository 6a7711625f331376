// RateLimitService: Envoy's rate-limit service and Kuadrant's as methods of a MethodTable.
#ifndef SLUICE_SERVER_TRANSPORT_ENVOY_RATE_LIMIT_SERVICE_H_
#define SLUICE_SERVER_TRANSPORT_ENVOY_RATE_LIMIT_SERVICE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "server/envoy/hit_counters.h"
#include "server/service/collaborators.h"
#include "server/transport/envoy/descriptor_call.h"
#include "server/transport/envoy/requested_windows.h"
#include "server/transport/rpc/method.h"

namespace sluice::transport {

// Decides requests, for any transport. Thread-safe; never blocks. Outlives its calls.
class DescriptorLimiter {
 public:
  DescriptorLimiter(const service::Collaborators& with, DescriptorOptions options)
      : options_(std::move(options)),
        windows_(with.registry),
        with_{with, windows_, counters_, options_} {}

  // `deadline_ns` is on the time line of Clock::NowNs: past it nothing is counted.
  void Decide(DescriptorCall* call, int64_t deadline_ns, DescriptorCall::DoneFn done,
              void* context) {
    call->Start(with_, deadline_ns, done, context);
  }
  // Decides the next slice of a call that has more().
  void Continue(DescriptorCall* call) { call->Continue(); }

  const envoy::HitCounters& counters() const { return counters_; }
  const limits::LimitRegistry& registry() const { return with_.service.registry; }

 private:
  const DescriptorOptions options_;
  RequestedWindows windows_;
  envoy::HitCounters counters_;
  const DescriptorCollaborators with_;
};

// Thread-safe: all event loops call its methods. Outlives the loops and the decisions in progress.
class RateLimitService {
 public:
  // The full names of the services, for reflection; and the name by which health checks ask.
  static std::vector<std::string> ServiceNames();
  static constexpr char kHealthName[] = "ratelimit";

  // `limiter` null: there is no configuration, and calls are UNIMPLEMENTED. `loops`: the number of
  // event loops that serve it.
  RateLimitService(DescriptorLimiter* limiter, size_t loops);
  ~RateLimitService();

  void Register(MethodTable* methods);

 private:
  const std::unique_ptr<UnaryMethod> should_rate_limit_;
  const std::unique_ptr<UnaryMethod> check_;
  const std::unique_ptr<UnaryMethod> report_;
  const std::unique_ptr<UnaryMethod> reserve_;
  const std::unique_ptr<UnaryMethod> commit_;
};

}  // namespace sluice::transport

#endif  // SLUICE_SERVER_TRANSPORT_ENVOY_RATE_LIMIT_SERVICE_H_
