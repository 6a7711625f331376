// RateLimitSource: brings Envoy's rate-limit configuration into force, from files or from a
// management server, and keeps it up to date.
#ifndef SLUICE_SERVER_RATE_LIMIT_SOURCE_H_
#define SLUICE_SERVER_RATE_LIMIT_SOURCE_H_

#include <signal.h>

#include <cstdint>
#include <optional>

#include "absl/status/status.h"
#include "common/clock.h"
#include "common/log.h"
#include "server/envoy/configuration.h"
#include "server/envoy/xds/ads_client.h"
#include "server/flags.h"
#include "server/limits/limit_registry.h"

namespace sluice {

// Used by the main thread, except Status.
class RateLimitSource {
 public:
  // All outlive it. REQUIRES: flags.HasRateLimitConfiguration().
  RateLimitSource(const Flags& flags, limits::LimitRegistry& registry, const common::Clock& clock,
                  common::Log& log);
  RateLimitSource(const RateLimitSource&) = delete;
  RateLimitSource& operator=(const RateLimitSource&) = delete;

  // Checks the files that the flags name. Before anything is started.
  static absl::Status CheckFiles(const Flags& flags);

  // Loads the files, or begins with `received`, if any, and connects to the management server. An
  // error of the files is none with --ratelimit_start_without_config: they are loaded when they
  // have been mended.
  absl::Status Start(std::optional<envoy::ReceivedTree> received);

  enum class First : uint8_t {
    kReceived,  // or files are used
    kSignal,    // SIGTERM or SIGINT
    kInput,     // `fd` has input, or was closed by the peer
  };
  // Waits for the management server's first configuration, or what comes before. `fd` may be -1.
  First AwaitFirst(const sigset_t& signals, int fd);
  // Loads the files, or the overrides, again.
  void Reload();
  // Nothing changes any more. Idempotent.
  void Stop();

  // Thread-safe.
  limits::FileStatus Status() const { return configuration_.Status(); }
  // The configuration of the management server that is in force.
  std::optional<envoy::ReceivedTree> Received() const { return configuration_.Received(); }

 private:
  const Flags& flags_;
  common::Log& log_;
  envoy::Configuration configuration_;
  envoy::AdsClient server_;  // not started if the configuration is in files
};

}  // namespace sluice

#endif  // SLUICE_SERVER_RATE_LIMIT_SOURCE_H_
