#include "sluice/throttler.h"

#include <utility>

#include "client/src/throttler/core.h"

namespace sluice {

using throttler_internal::ChannelState;
using throttler_internal::Core;

ThrottlerChannel::ThrottlerChannel(std::shared_ptr<Core> core, std::shared_ptr<ChannelState> state)
    : core_(std::move(core)), state_(std::move(state)) {}

Status ThrottlerChannel::Start(const StartOptions& options) const {
  return core_->Start(state_, options);
}

Result<std::chrono::nanoseconds> ThrottlerChannel::TryStart(uint64_t permits) const {
  return core_->TryStart(*state_, permits);
}

void ThrottlerChannel::SubmitWork(std::unique_ptr<throttler_internal::Work> work,
                                  const StartOptions& options) const {
  core_->Submit(state_, std::move(work), options);
}

size_t ThrottlerChannel::waiting() const { return state_->waiting.load(std::memory_order_relaxed); }

Throttler::Throttler(std::shared_ptr<Core> core, std::shared_ptr<ChannelState> state,
                     AtShutdown at_destruction)
    : ThrottlerChannel(std::move(core), std::move(state)), at_destruction_(at_destruction) {}

Throttler& Throttler::operator=(Throttler&& other) noexcept {
  if (this != &other) {
    if (core_ != nullptr) core_->Shutdown(at_destruction_);
    at_destruction_ = other.at_destruction_;
    ThrottlerChannel::operator=(std::move(other));
  }
  return *this;
}

Throttler::~Throttler() {
  if (core_ != nullptr) core_->Shutdown(at_destruction_);
}

Result<ThrottlerChannel> Throttler::Channel(std::string limit, std::string key) const {
  Result<std::shared_ptr<ChannelState>> state = core_->Open(std::move(limit), std::move(key));
  if (!state.ok()) return state.status();
  return ThrottlerChannel(core_, *std::move(state));
}

void Throttler::Shutdown(AtShutdown what_waits) { core_->Shutdown(what_waits); }

ThrottlerStats Throttler::stats() const { return core_->stats(); }

}  // namespace sluice
