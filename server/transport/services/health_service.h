// HealthService: grpc.health.v1.Health of one port, for probes and load balancers.
#ifndef SLUICE_SERVER_TRANSPORT_SERVICES_HEALTH_SERVICE_H_
#define SLUICE_SERVER_TRANSPORT_SERVICES_HEALTH_SERVICE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "common/mutex.h"
#include "server/transport/rpc/method.h"

namespace sluice::transport {

// Answers Check, and tells each Watch of changes. Calls are never shed. The port's service, the
// added names and the empty name (the server as a whole) have one common state; every other name is
// unknown.
//
// Thread-safe. Outlives the event loops that serve it.
class HealthService final : private UnaryMethod, private StreamingMethod {
 public:
  // `service`: the full name of the port's service, as "sluice.v1.RateLimiter". The state begins as
  // NOT_SERVING.
  explicit HealthService(std::string service);
  HealthService(const HealthService&) = delete;
  HealthService& operator=(const HealthService&) = delete;

  void Register(MethodTable* methods);

  // Another name with the port's state. REQUIRES: nothing is served yet.
  void AddName(std::string name) { more_names_.push_back(std::move(name)); }

  // Neither blocks: watches are told on their event loops.
  void SetServing(bool serving);
  // NOT_SERVING for good; ends every Watch with UNAVAILABLE.
  void Close();

 private:
  struct Watcher;

  // As on the wire.
  enum class Serving : uint8_t { kServing = 1, kNotServing = 2, kServiceUnknown = 3 };

  // Check
  void OnCall(ServerCall& call, absl::Span<const uint8_t> request) override;
  // Watch
  void OnMessage(ServerCall& call, absl::Span<const uint8_t> request) override;
  void OnRequestsDone(ServerCall& call) override;
  // Both
  void OnCancelled(ServerCall& call) override;

  Serving StateOf(std::string_view service) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  Serving Get(std::string_view service) const;
  void TellAll() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Add(const std::shared_ptr<Watcher>& watcher);
  void Remove(const Watcher* watcher);

  const std::string service_;
  std::vector<std::string> more_names_;
  mutable common::Mutex mu_;
  bool serving_ ABSL_GUARDED_BY(mu_) = false;
  bool closed_ ABSL_GUARDED_BY(mu_) = false;
  absl::flat_hash_map<const Watcher*, std::shared_ptr<Watcher>> watchers_ ABSL_GUARDED_BY(mu_);
};

}  // namespace sluice::transport

#endif  // SLUICE_SERVER_TRANSPORT_SERVICES_HEALTH_SERVICE_H_
