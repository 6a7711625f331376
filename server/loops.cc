#include "server/loops.h"

#include <algorithm>
#include <thread>
#include <utility>

#include "absl/status/statusor.h"
#include "server/transport/services/port_server.h"

namespace sluice {

absl::Status Loops::Make(const Flags& flags, const common::Clock& clock, common::Metrics& metrics) {
  const int cores = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  const int threads = flags.threads > 0 ? flags.threads : cores;
  auto data = transport::PortServer::MakeLoops(clock, threads, &metrics);
  if (!data.ok()) return data.status();
  data_ = *std::move(data);
  auto admin = transport::PortServer::MakeLoops(clock, 1, nullptr);
  if (!admin.ok()) return admin.status();
  admin_ = *std::move(admin);
  auto background = transport::PortServer::MakeLoops(clock, 1, nullptr);
  if (!background.ok()) return background.status();
  background_ = *std::move(background);
  background_->Start();
  if (!flags.in_redis) return absl::OkStatus();
  resolver_ = std::make_unique<net::Resolver>();
  if (flags.store_threads == 0) return absl::OkStatus();
  auto redis = net::LoopGroup::Create(clock, {.threads = flags.store_threads, .loop = {}});
  if (!redis.ok()) return redis.status();
  redis_ = *std::move(redis);
  return absl::OkStatus();
}

void Loops::Stop() {
  for (net::LoopGroup* one : {admin_.get(), data_.get(), background_.get(), redis_.get()}) {
    if (one != nullptr) one->Stop();
  }
}

}  // namespace sluice
