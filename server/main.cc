// sluiced: flags, wiring, signals.
#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "common/clock.h"
#include "common/errors.h"
#include "common/log.h"
#include "common/metrics.h"
#include "common/net/loop_group.h"
#include "common/net/resolver.h"
#include "server/config/file_watcher.h"
#include "server/config/reloader.h"
#include "server/flags.h"
#include "server/limits/limit_registry.h"
#include "server/maintenance.h"
#include "server/service/bucket_watch.h"
#include "server/service/key_usage.h"
#include "server/service/limit_admin.h"
#include "server/service/rate_limiter.h"
#include "server/service/receipt.h"
#include "server/service/registry_rules.h"
#include "server/store/memory/memory_store.h"
#include "server/store/redis/redis_store.h"
#include "server/transport/grpc/bearer_token.h"
#include "server/transport/grpc/grpc_server.h"
#include "server/transport/grpc/health_service.h"
#include "server/transport/grpc/limit_admin_service.h"
#include "server/transport/grpc/rate_limiter_service.h"
#include "server/transport/grpc/reflection_service.h"
#include "server/transport/services/data_server.h"
#include "server/transport/services/health_board.h"
#include "server/transport/services/reflection.h"
#include "server/waiting/alarm_thread.h"
#include "server/waiting/held_callers.h"

namespace sluice {
namespace {

constexpr int kDone = 0;
constexpr int kFailed = 1;
constexpr int kBadInput = 2;

constexpr char kData[] = "sluice.v1.RateLimiter";
constexpr char kAdmin[] = "sluice.v1.LimitAdmin";
constexpr char kHealth[] = "grpc.health.v1.Health";
constexpr char kReflectionV1[] = "grpc.reflection.v1.ServerReflection";
constexpr char kReflectionV1Alpha[] = "grpc.reflection.v1alpha.ServerReflection";

int Fail(int code, absl::string_view message) {
  std::fprintf(stderr, "sluiced: %.*s\n", static_cast<int>(message.size()), message.data());
  return code;
}

// Reloads, and says in the log what came of it.
void Reload(config::Reloader& reloader, const limits::LimitRegistry& registry, common::Log& log) {
  const uint64_t before = reloader.Status().reloads;
  const absl::Status status = reloader.ReloadNow();
  const limits::FileStatus now = reloader.Status();
  if (!status.ok()) {
    log.Error("reload_failed", {{"error", status.message()}, {"active_version", now.version}});
  } else if (now.reloads != before) {
    log.Info("reload", {{"version", now.version}, {"limits", registry.Current()->limits().size()}});
  }
}

// SIGHUP, SIGTERM and SIGINT are taken by sigwait; they must be blocked before any thread starts.
sigset_t BlockSignals() {
  signal(SIGPIPE, SIG_IGN);
  sigset_t signals;
  sigemptyset(&signals);
  for (const int one : {SIGHUP, SIGTERM, SIGINT}) sigaddset(&signals, one);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  return signals;
}

// The event loops of the data plane, and what a Redis store stands on. Outlives the store.
class Loops {
 public:
  absl::Status Make(const Flags& flags, const common::Clock& clock) {
    if (flags.data_transport == DataTransport::kH2) {
      const int threads = flags.threads > 0
                              ? flags.threads
                              : static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
      auto made = transport::DataServer::MakeLoops(clock, threads);
      if (!made.ok()) return made.status();
      data_ = *std::move(made);
    }
    if (flags.redis.has_value() && (data_ == nullptr || flags.store_threads > 0)) {
      auto made =
          net::LoopGroup::Create(clock, {.threads = std::max(flags.store_threads, 1), .loop = {}});
      if (!made.ok()) return made.status();
      store_ = *std::move(made);
    }
    return absl::OkStatus();
  }

  // INVALID_ARGUMENT, or what Redis itself is not fit for. A Redis that is away is no error: it
  // is logged, and the limits' on_store_failure decides until it comes.
  absl::StatusOr<std::unique_ptr<store::RedisStore>> MakeRedisStore(
      store::RedisStoreOptions options, const common::Clock& clock, common::Log& log) {
    net::LoopGroup& loops = store_ != nullptr ? *store_ : *data_;
    resolver_ = std::make_unique<net::Resolver>();
    std::vector<net::EventLoop*> each;
    for (size_t i = 0; i < loops.size(); ++i) each.push_back(&loops.loop(i));
    auto store = store::RedisStore::Create(clock, each, *resolver_, std::move(options), &log);
    if (!store.ok()) return store.status();
    loops.Start();
    const absl::Status first = (*store)->AwaitFirstConnections();
    if (!first.ok() && !absl::IsUnavailable(first) && !absl::IsDeadlineExceeded(first)) {
      Stop();
      return first;
    }
    return *std::move(store);
  }

  // REQUIRES: the data plane is served by h2.
  net::LoopGroup& data() { return *data_; }

  // Idempotent.
  void Stop() {
    if (data_ != nullptr) data_->Stop();
    if (store_ != nullptr) store_->Stop();
  }

 private:
  std::unique_ptr<net::LoopGroup> data_;     // null: grpc++ serves the data plane
  std::unique_ptr<net::LoopGroup> store_;    // null: there is no Redis, or it is on data_
  std::unique_ptr<net::Resolver> resolver_;  // destroyed before the loops
};

int Run(const Flags& flags, const sigset_t& signals) {
  const common::SystemClock clock;
  common::Log log(clock, flags.log_level, STDERR_FILENO);
  common::Metrics metrics;

  // What can be wrong with the flags' files, before anything is started.
  auto credentials = transport::MakeCredentials(flags.tls, "tls_");
  if (!credentials.ok()) return Fail(kBadInput, credentials.status().message());
  auto admin_credentials = transport::MakeCredentials(flags.admin_tls, "admin_tls_");
  if (!admin_credentials.ok()) return Fail(kBadInput, admin_credentials.status().message());
  transport::BearerToken token;
  if (!flags.admin_token_file.empty()) {
    auto read = transport::BearerToken::FromFile(flags.admin_token_file);
    if (!read.ok()) {
      return Fail(kBadInput, absl::StrCat("--admin_token_file=", read.status().message()));
    }
    token = *std::move(read);
  }

  service::ReceiptSigner signer;
  Loops loops;
  if (const absl::Status made = loops.Make(flags, clock); !made.ok()) {
    return Fail(kFailed, made.message());
  }
  std::unique_ptr<store::Store> chosen_store;
  store::RedisStore* redis = nullptr;
  if (flags.redis.has_value()) {
    store::RedisStoreOptions options = *flags.redis;
    // What one node gives another redeems.
    options.receipt_key.proposal = [&signer] { return signer.Key(); };
    options.receipt_key.agreed = [&signer](std::string_view key) { return signer.UseKey(key); };
    auto made = loops.MakeRedisStore(std::move(options), clock, log);
    if (!made.ok()) {
      return Fail(absl::IsInvalidArgument(made.status()) ? kBadInput : kFailed,
                  absl::StrCat("--store: ", made.status().message()));
    }
    redis = made->get();
    chosen_store = *std::move(made);
  } else {
    chosen_store = std::make_unique<store::MemoryStore>(
        clock,
        store::MemoryStoreOptions{.max_buckets = flags.max_buckets, .overflow = flags.overflow});
  }
  // Before the store goes, and before what its answers reach.
  const absl::Cleanup stop_loops = [&] { loops.Stop(); };
  store::Store& store = *chosen_store;
  limits::LimitRegistry registry(&store);
  std::unique_ptr<config::Reloader> reloader;
  if (!flags.limits.empty()) {
    reloader = std::make_unique<config::Reloader>(flags.limits, &registry, &clock);
    if (absl::Status status = reloader->ReloadNow(); !status.ok()) {
      return Fail(kBadInput, status.message());
    }
  }
  if (redis != nullptr) redis->AwaitNodes();

  service::KeyUsage usage;
  service::RateLimiter limiter(registry, store, clock, metrics, usage, signer);
  service::RegistryRules rules(registry);
  waiting::AlarmThread alarm(clock);
  waiting::HeldCallers line(store, clock, rules, alarm);
  alarm.Start(line);
  registry.OnChange([&line] { line.LimitsChanged(); });
  const absl::Cleanup forget_line = [&registry] { registry.OnChange(nullptr); };
  limiter.UseHeldCallers(&line);
  service::WatchHub watches(limiter);
  service::LimitAdmin admin(registry, store, clock, metrics, usage, log, SLUICE_VERSION, [&] {
    return reloader != nullptr ? reloader->Status() : limits::FileStatus();
  });

  transport::HealthBoard data_health({kData});
  transport::HealthBoard admin_health({kAdmin});
  const transport::Reflection data_reflection({kData, kHealth, kReflectionV1, kReflectionV1Alpha});
  const transport::Reflection admin_reflection(
      {kAdmin, kHealth, kReflectionV1, kReflectionV1Alpha});

  transport::RateLimiterService data_service(limiter, watches, metrics);
  transport::HealthService data_health_service(data_health);
  transport::ReflectionServiceV1 data_reflection_v1(data_reflection);
  transport::ReflectionServiceV1Alpha data_reflection_v1alpha(data_reflection);
  transport::LimitAdminService admin_service(admin, token, log, clock, metrics);
  transport::HealthService admin_health_service(admin_health);
  transport::ReflectionServiceV1 admin_reflection_v1(admin_reflection);
  transport::ReflectionServiceV1Alpha admin_reflection_v1alpha(admin_reflection);

  // One of the two.
  std::unique_ptr<transport::DataServer> h2_data;
  std::unique_ptr<transport::GrpcServer> grpc_data;
  absl::Status listening;
  std::string data_address;
  if (flags.data_transport == DataTransport::kH2) {
    transport::DataServerOptions options;
    options.listen = flags.listen.ToString();
    options.max_connections = flags.max_connections;
    options.tls_cert = flags.tls.cert;
    options.tls_key = flags.tls.key;
    options.tls_client_ca = flags.tls.client_ca;
    auto started = transport::DataServer::Start(
        options, loops.data(), clock, metrics, limiter, watches, data_health, data_reflection,
        [&log](const absl::Status& status) {
          if (status.ok()) {
            log.Info("certificates_reloaded", {});
          } else {
            log.Error("certificates_not_reloaded", {{"error", status.message()}});
          }
        });
    listening = started.status();
    if (started.ok()) {
      h2_data = *std::move(started);
      data_address = h2_data->address();
    }
  } else {
    auto started = transport::GrpcServer::Start(
        flags.listen, *credentials,
        {&data_service, &data_health_service, &data_reflection_v1, &data_reflection_v1alpha});
    listening = started.status();
    if (started.ok()) {
      grpc_data = *std::move(started);
      data_address = grpc_data->address().ToString();
    }
  }
  if (!listening.ok()) {
    return Fail(kFailed,
                absl::StrCat("--listen=", flags.listen.ToString(), ": ", listening.message()));
  }
  const auto shut_down_data = [&](absl::Time deadline) {
    if (h2_data != nullptr) h2_data->Shutdown(deadline);
    if (grpc_data != nullptr) grpc_data->Shutdown(deadline);
  };
  auto admin_port = transport::GrpcServer::Start(
      flags.admin_listen, *admin_credentials,
      {&admin_service, &admin_health_service, &admin_reflection_v1, &admin_reflection_v1alpha});
  if (!admin_port.ok()) {
    shut_down_data(absl::Now());
    return Fail(kFailed, absl::StrCat("--admin_listen=", flags.admin_listen.ToString(), ": ",
                                      admin_port.status().message()));
  }

  Maintenance maintenance(store, registry);
  watches.StartThread();
  std::unique_ptr<config::FileWatcher> watcher;
  if (reloader != nullptr) {
    auto started =
        config::FileWatcher::Start(flags.limits, [&] { Reload(*reloader, registry, log); });
    if (started.ok()) {
      watcher = *std::move(started);
    } else {
      log.Warning("watch_failed", {{"path", flags.limits},
                                   {"error", started.status().message()},
                                   {"consequence", "only SIGHUP reloads"}});
    }
  }

  data_health.SetAll(transport::Serving::kServing);
  admin_health.SetAll(transport::Serving::kServing);
  log.Info("started", {{"version", SLUICE_VERSION},
                       {"data", data_address},
                       {"admin", (*admin_port)->address().ToString()},
                       {"limits", registry.Current()->limits().size()}});
  std::printf("ready data=%s admin=%s\n", data_address.c_str(),
              (*admin_port)->address().ToString().c_str());
  std::fflush(stdout);

  int signal_number = 0;
  while (sigwait(&signals, &signal_number) == 0 && signal_number == SIGHUP) {
    if (reloader != nullptr) Reload(*reloader, registry, log);
    if (h2_data != nullptr) h2_data->ReloadCertificates();
  }

  // From here on a second signal ends the process at once.
  for (const int one : {SIGTERM, SIGINT}) signal(one, SIG_DFL);
  signal(SIGHUP, SIG_IGN);
  pthread_sigmask(SIG_UNBLOCK, &signals, nullptr);
  const absl::Duration notice =
      signal_number == SIGTERM ? flags.drain_notice : absl::ZeroDuration();
  log.Info("draining", {{"signal", signal_number == SIGTERM ? "SIGTERM" : "SIGINT"},
                        {"notice", absl::FormatDuration(notice)},
                        {"timeout", absl::FormatDuration(flags.drain_timeout)}});
  // Balancers look at health now and then: what they send before they have looked is served.
  data_health.SetAll(transport::Serving::kNotServing);
  admin_health.SetAll(transport::Serving::kNotServing);
  absl::SleepFor(notice);
  const absl::Time deadline = absl::Now() + flags.drain_timeout;
  data_health.Close();
  admin_health.Close();
  if (grpc_data != nullptr) {
    data_service.TurnAway(std::min(flags.drain_timeout, absl::Milliseconds(500)));
  }
  data_service.Drain();
  watches.Drain(common::errors::Draining());
  line.Drain();
  std::thread admin_shutdown([&] { (*admin_port)->Shutdown(deadline); });
  shut_down_data(deadline);
  admin_shutdown.join();
  watcher.reset();
  alarm.Stop();
  if (redis != nullptr) redis->Leave();
  // Answers what is still asked of Redis, while those who asked are there.
  loops.Stop();
  const common::MetricsSnapshot totals = metrics.Snapshot(0);
  log.Info("stopped", {{"granted", totals.granted}, {"denied", totals.denied}});
  return kDone;
}

}  // namespace
}  // namespace sluice

int main(int argc, char** argv) {
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);
  const sigset_t signals = sluice::BlockSignals();
  auto flags = sluice::ParseFlags(std::vector<std::string>(argv + 1, argv + argc));
  if (!flags.ok()) return sluice::Fail(sluice::kBadInput, flags.status().message());
  if (flags->help) {
    std::fputs(sluice::FlagsHelp().c_str(), stdout);
    return sluice::kDone;
  }
  if (flags->version) {
    std::printf("sluiced %s\n", SLUICE_VERSION);
    return sluice::kDone;
  }
  return sluice::Run(*flags, signals);
}
