// HealthBoard: whether each service serves, for probes and load balancers (grpc.health.v1).
// Shared by all transports.
#ifndef SLUICE_SERVER_TRANSPORT_SERVICES_HEALTH_BOARD_H_
#define SLUICE_SERVER_TRANSPORT_SERVICES_HEALTH_BOARD_H_

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "common/mutex.h"

namespace sluice::transport {

// The values are the wire's.
enum class Serving : uint8_t { kServing = 1, kNotServing = 2, kServiceUnknown = 3 };

// Told of changes, in order, on the thread that made them, under no lock of the board. Must not
// block.
class HealthWatcher {
 public:
  virtual ~HealthWatcher() = default;
  // Changes that come fast may be told twice or, but for the last, not at all.
  virtual void OnChange(Serving now) = 0;
  // The board closes: the watch ends, after what was told before.
  virtual void OnClose() = 0;
};

// Thread-safe.
class HealthBoard {
 public:
  // The empty name stands for the server as a whole. Starts as NOT_SERVING.
  explicit HealthBoard(std::vector<std::string> services);
  HealthBoard(const HealthBoard&) = delete;
  HealthBoard& operator=(const HealthBoard&) = delete;

  // kServiceUnknown: no such service.
  Serving Get(std::string_view service) const;

  // All services.
  void SetAll(Serving serving);

  // NOT_SERVING for good, and every watch ends.
  void Close();

  // Tells `watcher` the state now, and each change. Unwatch by the same pointer.
  void Watch(std::string_view service, std::shared_ptr<HealthWatcher> watcher);
  void Unwatch(const HealthWatcher* watcher);

 private:
  struct Watched {
    std::string service;
    std::shared_ptr<HealthWatcher> watcher;
  };

  Serving GetLocked(std::string_view service) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const std::vector<std::string> services_;
  mutable common::Mutex mu_;
  Serving serving_ ABSL_GUARDED_BY(mu_) = Serving::kNotServing;
  bool closed_ ABSL_GUARDED_BY(mu_) = false;
  absl::flat_hash_map<const HealthWatcher*, Watched> watchers_ ABSL_GUARDED_BY(mu_);
};

}  // namespace sluice::transport

#endif  // SLUICE_SERVER_TRANSPORT_SERVICES_HEALTH_BOARD_H_
