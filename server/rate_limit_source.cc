#include "server/rate_limit_source.h"

#include <poll.h>
#include <time.h>

#include <chrono>
#include <string>
#include <utility>

namespace sluice {

RateLimitSource::RateLimitSource(const Flags& flags, limits::LimitRegistry& registry,
                                 const common::Clock& clock, common::Log& log)
    : flags_(flags),
      log_(log),
      configuration_(flags.ratelimit, registry, clock, log),
      server_(
          flags.xds,
          [this](envoy::ReceivedTree received) {
            return configuration_.Apply(std::move(received));
          },
          log) {}

absl::Status RateLimitSource::CheckFiles(const Flags& flags) {
  return flags.xds.server.empty() ? absl::OkStatus() : envoy::AdsClient::CheckFiles(flags.xds);
}

absl::Status RateLimitSource::Start(std::optional<envoy::ReceivedTree> received) {
  absl::Status loaded = configuration_.Start();
  if (received.has_value()) loaded.Update(configuration_.Apply(*std::move(received)));
  if (!loaded.ok() && !flags_.start_without_config) return loaded;
  configuration_.Watch();
  if (!flags_.xds.server.empty()) server_.Start();
  return absl::OkStatus();
}

RateLimitSource::First RateLimitSource::AwaitFirst(const sigset_t& signals, int fd) {
  if (flags_.xds.server.empty() || Received().has_value()) return First::kReceived;
  log_.Info("xds_waiting", {{"server", flags_.xds.server}, {"node", flags_.xds.node}});
  while (!server_.AwaitConfiguration(std::chrono::milliseconds(100))) {
    const timespec now{};
    const int signal = sigtimedwait(&signals, nullptr, &now);
    if (signal == SIGTERM || signal == SIGINT) return First::kSignal;
    pollfd input{fd, POLLIN, 0};
    if (poll(&input, 1, 0) > 0) return First::kInput;
  }
  return First::kReceived;
}

void RateLimitSource::Reload() { configuration_.Reload().IgnoreError(); }

void RateLimitSource::Stop() {
  server_.Stop();
  configuration_.Stop();
}

}  // namespace sluice
