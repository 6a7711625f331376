// sluiced: wiring, signals, and the order of start and stop.
#include <malloc.h>
#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "common/bounds.h"
#include "common/clock.h"
#include "common/errors.h"
#include "common/log.h"
#include "common/memory_account.h"
#include "common/memory_limit.h"
#include "common/metrics.h"
#include "common/net/loop_group.h"
#include "common/net/resolver.h"
#include "google/protobuf/stubs/logging.h"
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
#include "server/transport/services/bearer_token.h"
#include "server/transport/services/limit_admin_service.h"
#include "server/transport/services/port_server.h"
#include "server/transport/services/rate_limiter_service.h"
#include "server/transport/services/tls_files.h"
#include "server/transport/web/access.h"
#include "server/transport/web/check_handler.h"
#include "server/transport/web/health_routes.h"
#include "server/transport/web/http_port.h"
#include "server/transport/web/json_api.h"
#include "server/transport/web/json_codec.h"
#include "server/transport/web/metrics/scraper.h"
#include "server/transport/web/metrics_routes.h"
#include "server/transport/web/page/overview.h"
#include "server/transport/web/page/page_files.h"
#include "server/waiting/alarm_thread.h"
#include "server/waiting/held_callers.h"

namespace sluice {
namespace {

constexpr int kDone = 0;
constexpr int kFailed = 1;
constexpr int kBadInput = 2;

// OpenSSL takes about 33 KiB of an idle connection (bounds::kDefaultMaxConnections).
constexpr size_t kTlsConnectionBytes = size_t{36} << 10;

int Fail(int code, absl::string_view message) {
  std::fprintf(stderr, "sluiced: %.*s\n", static_cast<int>(message.size()), message.data());
  return code;
}

// sigwait takes SIGHUP, SIGTERM and SIGINT; they must be blocked before any thread starts.
sigset_t BlockSignals() {
  signal(SIGPIPE, SIG_IGN);
  sigset_t signals;
  sigemptyset(&signals);
  for (const int one : {SIGHUP, SIGTERM, SIGINT}) sigaddset(&signals, one);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  return signals;
}

// Gives the signals their default effect again: a second one ends the process at once.
void UnblockSignals(const sigset_t& signals) {
  for (const int one : {SIGTERM, SIGINT}) signal(one, SIG_DFL);
  signal(SIGHUP, SIG_IGN);
  pthread_sigmask(SIG_UNBLOCK, &signals, nullptr);
}

// The event loops of the ports and of Redis. Outlives the store and the ports.
class Loops {
 public:
  absl::Status Make(const Flags& flags, const common::Clock& clock, common::Metrics& metrics) {
    const int cores = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
    const int threads = flags.threads > 0 ? flags.threads : cores;
    auto data = transport::PortServer::MakeLoops(clock, threads, &metrics);
    if (!data.ok()) return data.status();
    data_ = *std::move(data);
    // A loop of its own: an admin call may take long, and must not delay a decision.
    auto admin = transport::PortServer::MakeLoops(clock, 1, nullptr);
    if (!admin.ok()) return admin.status();
    admin_ = *std::move(admin);
    // Long work for HTTP, whose connections are on the data port's loops.
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

  net::LoopGroup& data() { return *data_; }
  net::LoopGroup& admin() { return *admin_; }
  net::EventLoop& background() { return background_->loop(0); }
  // REQUIRES for these two: the store is Redis.
  net::LoopGroup& redis() { return redis_ != nullptr ? *redis_ : *data_; }
  net::Resolver& resolver() { return *resolver_; }

  // The loops of Redis last: operations in progress are answered while their callers exist.
  // Idempotent.
  void Stop() {
    for (net::LoopGroup* one : {admin_.get(), data_.get(), background_.get(), redis_.get()}) {
      if (one != nullptr) one->Stop();
    }
  }

 private:
  std::unique_ptr<net::LoopGroup> data_;
  std::unique_ptr<net::LoopGroup> admin_;
  std::unique_ptr<net::LoopGroup> background_;
  std::unique_ptr<net::LoopGroup> redis_;    // null: there is no Redis, or it uses data_
  std::unique_ptr<net::Resolver> resolver_;  // null: there is no Redis; destroyed before the loops
};

// The use cases over a store. The store outlives it, and so do the other arguments.
struct UseCases {
  UseCases(store::Store& store, limits::LimitRegistry& registry, const common::Clock& clock,
           common::Log& log, common::Metrics& metrics, common::MemoryBudget& memory,
           const service::ReceiptSigner& signer, std::function<limits::FileStatus()> file_status)
      : registry(registry),
        limiter(registry, store, clock, metrics, usage, signer),
        rules(registry),
        alarm(clock),
        held(store, clock, rules, alarm, &memory),
        watches(limiter),
        admin({registry, store, clock, metrics, usage, signer}, log, SLUICE_VERSION,
              std::move(file_status)) {
    alarm.Start(held);
    registry.OnChange([this] { held.LimitsChanged(); });
    limiter.UseHeldCallers(&held);
  }
  ~UseCases() {
    registry.OnChange(nullptr);
    alarm.Stop();
  }

  limits::LimitRegistry& registry;
  service::KeyUsage usage;
  service::RateLimiter limiter;
  service::RegistryRules rules;
  waiting::AlarmThread alarm;
  waiting::HeldCallers held;
  service::WatchHub watches;
  service::LimitAdmin admin;
};

// All of sluiced. Used by the main thread.
class Server {
 public:
  explicit Server(const Flags& flags) : flags_(flags) {}
  // No member is destroyed while a loop may still use it.
  ~Server() { loops_.Stop(); }
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  // Starts everything, and announces the ports. Returns kDone, or an exit code after the reason was
  // printed.
  int Start();
  // Reloads the limits, the certificates and the token at each SIGHUP. Returns SIGTERM or SIGINT.
  int WaitForSignals(const sigset_t& signals);
  // Ends all calls, in order, and stops all threads.
  void Drain(int signal_number);

 private:
  int CheckFiles();
  int OpenStore();
  int OpenRedis();
  int LoadLimits();
  transport::PortServerOptions PortOptions(const transport::TlsFiles& tls);
  int Listen();
  void MakeHttpPort();
  void MakeMetrics();
  template <typename Port>
  int ListenOn(Port& port, const char* name, const char* flag, const net::Address& address);
  void WatchFiles();
  void WatchFile(const std::string& path, std::function<void()> on_change);
  void Announce();
  void ReloadLimits();
  void ReloadToken();

  const Flags& flags_;
  const common::SystemClock clock_;
  common::Log log_{clock_, flags_.log_level, STDERR_FILENO};
  common::Metrics metrics_;
  // Bytes: half for the buckets, half for what peers make the server hold.
  const int64_t memory_limit_ = flags_.memory_limit > 0 ? flags_.memory_limit
                                                        : common::MachineMemory() / 4 * 3;
  common::MemoryBudget memory_{memory_limit_ / 2};
  std::unique_ptr<transport::BearerToken> token_;  // null: none is required
  service::ReceiptSigner signer_;
  Loops loops_;
  std::unique_ptr<store::Store> store_;
  store::RedisStore* redis_ = nullptr;  // null: the store is in memory
  std::unique_ptr<limits::LimitRegistry> registry_;
  std::unique_ptr<config::Reloader> reloader_;  // null: no limits file
  std::unique_ptr<UseCases> use_cases_;
  std::unique_ptr<transport::RateLimiterService> data_service_;
  std::unique_ptr<transport::LimitAdminService> admin_service_;
  std::unique_ptr<transport::PortServer> data_;
  std::unique_ptr<transport::PortServer> admin_;
  std::unique_ptr<web::Access> access_;
  const web::JsonCodec json_;
  std::unique_ptr<web::CheckHandler> check_;
  std::unique_ptr<web::JsonApi> json_api_;
  web::HealthRoutes health_;
  std::unique_ptr<metrics::Scraper> scraper_;
  std::unique_ptr<web::MetricsRoutes> metrics_routes_;
  std::unique_ptr<web::Overview> overview_;
  web::PageFiles page_files_;
  std::unique_ptr<web::HttpPort> http_;
  std::unique_ptr<web::HttpPort> metrics_port_;  // null: there is none
  std::unique_ptr<Maintenance> maintenance_;
  std::vector<std::unique_ptr<config::FileWatcher>> watchers_;
};

// ---- Start ----

int Server::Start() {
  for (const auto step : {&Server::CheckFiles, &Server::OpenStore, &Server::LoadLimits}) {
    if (const int code = (this->*step)(); code != kDone) return code;
  }
  use_cases_ = std::make_unique<UseCases>(
      *store_, *registry_, clock_, log_, metrics_, memory_, signer_,
      [this] { return reloader_ != nullptr ? reloader_->Status() : limits::FileStatus(); });
  if (const int code = Listen(); code != kDone) return code;
  maintenance_ = std::make_unique<Maintenance>(*store_, *registry_, memory_, [this] {
    data_->RelieveMemory();
    admin_->RelieveMemory();
    http_->RelieveMemory();
    if (metrics_port_ != nullptr) metrics_port_->RelieveMemory();
  });
  use_cases_->watches.StartThread();
  WatchFiles();
  Announce();
  return kDone;
}

// Checks the files that the flags name before anything is started.
int Server::CheckFiles() {
  for (const auto& [files, prefix] :
       {std::pair(&flags_.tls, "tls_"), std::pair(&flags_.admin_tls, "admin_tls_"),
        std::pair(&flags_.http_tls, "http_tls_")}) {
    const absl::Status checked = transport::CheckTlsFiles(*files, prefix);
    if (!checked.ok()) return Fail(kBadInput, checked.message());
  }
  if (flags_.admin_token_file.empty()) return kDone;
  auto token = transport::BearerToken::FromFile(flags_.admin_token_file);
  if (!token.ok()) {
    return Fail(kBadInput, absl::StrCat("--admin_token_file=", token.status().message()));
  }
  token_ = *std::move(token);
  return kDone;
}

int Server::OpenStore() {
  if (const absl::Status made = loops_.Make(flags_, clock_, metrics_); !made.ok()) {
    return Fail(kFailed, made.message());
  }
  if (flags_.in_redis) return OpenRedis();
  store_ = std::make_unique<store::MemoryStore>(
      clock_, store::MemoryStoreOptions{.max_buckets = flags_.max_buckets,
                                        .max_bytes = static_cast<uint64_t>(memory_limit_) / 2,
                                        .overflow = flags_.overflow});
  return kDone;
}

// A Redis that is unavailable is not an error: the store logs it, and each limit's on_store_failure
// decides until Redis answers. A Redis that is unfit is one.
int Server::OpenRedis() {
  store::RedisStoreOptions options = flags_.redis;
  // All nodes sign receipts with one key, so each accepts the receipts of the others.
  options.receipt_key.proposal = [this] { return signer_.Key(); };
  options.receipt_key.agreed = [this](std::string_view key) { return signer_.UseKey(key); };
  std::vector<net::EventLoop*> loops;
  loops.reserve(loops_.redis().size());
  for (size_t i = 0; i < loops_.redis().size(); ++i) loops.push_back(&loops_.redis().loop(i));
  const auto fail = [](const absl::Status& status) {
    return Fail(absl::IsInvalidArgument(status) ? kBadInput : kFailed,
                absl::StrCat("--store: ", status.message()));
  };
  auto store =
      store::RedisStore::Create(clock_, loops, loops_.resolver(), std::move(options), &log_);
  if (!store.ok()) return fail(store.status());
  redis_ = store->get();
  store_ = *std::move(store);
  loops_.redis().Start();
  const absl::Status first = redis_->AwaitFirstConnections();
  const bool unavailable = absl::IsUnavailable(first) || absl::IsDeadlineExceeded(first);
  return first.ok() || unavailable ? kDone : fail(first);
}

int Server::LoadLimits() {
  registry_ = std::make_unique<limits::LimitRegistry>(store_.get());
  if (!flags_.limits.empty()) {
    reloader_ = std::make_unique<config::Reloader>(flags_.limits, registry_.get(), &clock_);
    if (const absl::Status status = reloader_->ReloadNow(); !status.ok()) {
      return Fail(kBadInput, status.message());
    }
  }
  if (redis_ != nullptr) redis_->AwaitNodes();
  return kDone;
}

// What both gRPC ports have in common.
transport::PortServerOptions Server::PortOptions(const transport::TlsFiles& tls) {
  transport::PortServerOptions options;
  options.tls = tls;
  options.rpc.memory = &memory_;
  options.rpc.log = &log_;
  options.rpc.stall_timeout_ns = flags_.stall_timeout_ns;
  if (tls.enabled()) options.rpc.connection_bytes = kTlsConnectionBytes;
  return options;
}

int Server::Listen() {
  transport::PortServerOptions data = PortOptions(flags_.tls);
  data.service = "sluice.v1.RateLimiter";
  data.listen = flags_.listen;
  data.max_connections = flags_.max_connections;
  data.log = &log_;
  data.rpc.metrics_name = "data";
  data.rpc.max_loop_buffered_bytes = common::bounds::kMaxPortRequestBytes / loops_.data().size();
  data_ = std::make_unique<transport::PortServer>(data, loops_.data(), clock_, metrics_);
  data_service_ = std::make_unique<transport::RateLimiterService>(
      use_cases_->limiter, use_cases_->watches, loops_.data().size());
  data_service_->Register(&data_->methods());

  transport::PortServerOptions admin = PortOptions(flags_.admin_tls);
  admin.service = "sluice.v1.LimitAdmin";
  admin.listen = flags_.admin_listen;
  admin.max_connections = common::bounds::kMaxAdminConnections;
  admin.log = &log_;
  admin.rpc.metrics_name = "admin";
  admin.rpc.max_loop_buffered_bytes = common::bounds::kMaxAdminRequestBytes;
  admin.rpc.max_queue_ns = 0;  // a call waits for a long one before it, and is not shed
  admin_ = std::make_unique<transport::PortServer>(admin, loops_.admin(), clock_, metrics_);
  admin_service_ =
      std::make_unique<transport::LimitAdminService>(use_cases_->admin, token_.get(), log_);
  admin_service_->Register(&admin_->methods());

  MakeHttpPort();
  MakeMetrics();
  int code = ListenOn(*data_, "data", "listen", flags_.listen);
  if (code == kDone) code = ListenOn(*admin_, "admin", "admin_listen", flags_.admin_listen);
  if (code == kDone) code = ListenOn(*http_, "http", "http_listen", flags_.http_listen);
  if (code == kDone && metrics_port_ != nullptr) {
    code = ListenOn(*metrics_port_, "metrics", "metrics_listen", *flags_.metrics_listen);
  }
  return code;
}

// The HTTP port uses the data port's loops: /v1/check decides there.
void Server::MakeHttpPort() {
  access_ = std::make_unique<web::Access>(
      web::AccessOptions{.listen = flags_.http_listen,
                         .client_certificates = flags_.http_tls.mutual(),
                         .data_client_certificates = flags_.tls.mutual(),
                         .token = token_.get(),
                         .hosts = flags_.http_hosts,
                         .log = &log_});
  web::HttpPortOptions http;
  http.listen = flags_.http_listen;
  http.tls = flags_.http_tls;
  http.http.gate = &access_->site();
  http.http.memory = &memory_;
  http.http.log = &log_;
  http.http.stall_timeout_ns = flags_.stall_timeout_ns;
  if (flags_.http_tls.enabled()) http.http.connection_bytes = kTlsConnectionBytes;
  http_ = std::make_unique<web::HttpPort>(http, loops_.data(), clock_, metrics_);
  check_ = std::make_unique<web::CheckHandler>(use_cases_->limiter, json_, loops_.data().size());
  check_->Register(*access_, &http_->routes());
  json_api_ = std::make_unique<web::JsonApi>(
      web::JsonApi::Collaborators{use_cases_->limiter, use_cases_->watches, *admin_service_, json_,
                                  loops_.background()},
      SLUICE_VERSION);
  json_api_->Register(*access_, &http_->routes());
  overview_ = std::make_unique<web::Overview>(web::OverviewSources{.admin = use_cases_->admin,
                                                                   .usage = use_cases_->usage,
                                                                   .held = use_cases_->held,
                                                                   .clock = clock_,
                                                                   .changes = token_ != nullptr},
                                              loops_.data(), loops_.background());
  overview_->Register(&http_->routes(), access_->reading());
  overview_->Start();
  page_files_.Register(&http_->routes());
}

// What the HTTP port and the metrics port serve of it. The data port's loops only pass the answers
// on.
void Server::MakeMetrics() {
  scraper_ = std::make_unique<metrics::Scraper>(
      metrics::Sources{use_cases_->admin, use_cases_->held, use_cases_->watches, memory_});
  metrics_routes_ = std::make_unique<web::MetricsRoutes>(*scraper_);
  metrics_routes_->Register(&access_->reading(), &http_->routes());
  health_.Register(&http_->routes());
  if (!flags_.metrics_listen.has_value()) return;
  web::HttpPortOptions options;
  options.listen = *flags_.metrics_listen;
  options.http.metrics_name = "metrics";
  options.http.memory = &memory_;
  options.http.log = &log_;
  options.http.stall_timeout_ns = flags_.stall_timeout_ns;
  metrics_port_ = std::make_unique<web::HttpPort>(options, loops_.data(), clock_, metrics_);
  metrics_routes_->Register(nullptr, &metrics_port_->routes());
  health_.Register(&metrics_port_->routes());
}

template <typename Port>
int Server::ListenOn(Port& port, const char* name, const char* flag, const net::Address& address) {
  const absl::Status listening = port.Listen([this, name](const absl::Status& status) {
    if (status.ok()) {
      log_.Info("certificates_reloaded", {{"port", name}});
    } else {
      log_.Error("certificates_not_reloaded", {{"port", name}, {"error", status.message()}});
    }
  });
  if (listening.ok()) return kDone;
  return Fail(kFailed,
              absl::StrCat("--", flag, "=", address.ToString(), ": ", listening.message()));
}

void Server::WatchFiles() {
  if (reloader_ != nullptr) WatchFile(flags_.limits, [this] { ReloadLimits(); });
  if (token_ != nullptr) WatchFile(flags_.admin_token_file, [this] { ReloadToken(); });
}

void Server::WatchFile(const std::string& path, std::function<void()> on_change) {
  auto watcher = config::FileWatcher::Start(path, std::move(on_change));
  if (watcher.ok()) {
    watchers_.push_back(*std::move(watcher));
  } else {
    log_.Warning("watch_failed", {{"path", path},
                                  {"error", watcher.status().message()},
                                  {"consequence", "only SIGHUP reloads"}});
  }
}

void Server::Announce() {
  data_->health().SetServing(true);
  admin_->health().SetServing(true);
  health_.SetReady(true);
  log_.Info("started", {{"version", SLUICE_VERSION},
                        {"data", data_->address()},
                        {"admin", admin_->address()},
                        {"http", http_->address()},
                        {"limits", registry_->Current()->limits().size()}});
  std::printf("ready data=%s admin=%s http=%s", data_->address().c_str(), admin_->address().c_str(),
              http_->address().c_str());
  if (metrics_port_ != nullptr) std::printf(" metrics=%s", metrics_port_->address().c_str());
  std::printf("\n");
  std::fflush(stdout);
}

// ---- Run ----

int Server::WaitForSignals(const sigset_t& signals) {
  int signal_number = 0;
  while (sigwait(&signals, &signal_number) == 0 && signal_number == SIGHUP) {
    if (reloader_ != nullptr) ReloadLimits();
    if (token_ != nullptr) ReloadToken();
    data_->ReloadCertificates();
    admin_->ReloadCertificates();
    http_->ReloadCertificates();
  }
  return signal_number;
}

void Server::ReloadLimits() {
  const uint64_t before = reloader_->Status().reloads;
  const absl::Status status = reloader_->ReloadNow();
  const limits::FileStatus now = reloader_->Status();
  if (!status.ok()) {
    log_.Error("reload_failed", {{"error", status.message()}, {"active_version", now.version}});
  } else if (now.reloads != before) {
    log_.Info("reload",
              {{"version", now.version}, {"limits", registry_->Current()->limits().size()}});
  }
}

void Server::ReloadToken() {
  const absl::StatusOr<bool> changed = token_->Reload();
  if (!changed.ok()) {
    log_.Error("admin_token_not_reloaded", {{"error", changed.status().message()}});
  } else if (*changed) {
    log_.Info("admin_token_reloaded", {});
  }
}

// ---- Drain ----

void Server::Drain(int signal_number) {
  const absl::Duration notice =
      absl::Nanoseconds(signal_number == SIGTERM ? flags_.drain_notice_ns : 0);
  const absl::Duration timeout = absl::Nanoseconds(flags_.drain_timeout_ns);
  log_.Info("draining", {{"signal", signal_number == SIGTERM ? "SIGTERM" : "SIGINT"},
                         {"notice", absl::FormatDuration(notice)},
                         {"timeout", absl::FormatDuration(timeout)}});
  // Load balancers check health at intervals: calls that they send before the next check are
  // served.
  data_->health().SetServing(false);
  admin_->health().SetServing(false);
  health_.SetReady(false);
  absl::SleepFor(notice);
  const absl::Time deadline = absl::Now() + timeout;
  data_->health().Close();
  admin_->health().Close();
  use_cases_->watches.Drain(common::errors::Draining());
  use_cases_->held.Drain();
  data_->Drain();
  admin_->Drain();
  http_->Drain();
  if (metrics_port_ != nullptr) metrics_port_->Drain();
  data_->AwaitDrained(deadline);
  admin_->AwaitDrained(deadline);
  http_->AwaitDrained(deadline);
  if (metrics_port_ != nullptr) metrics_port_->AwaitDrained(deadline);
  watchers_.clear();
  use_cases_->alarm.Stop();
  if (redis_ != nullptr) redis_->Leave();
  loops_.Stop();
  const common::MetricsSnapshot totals = metrics_.Snapshot(0);
  log_.Info("stopped", {{"granted", totals.granted}, {"denied", totals.denied}});
}

int Run(const Flags& flags, const sigset_t& signals) {
  Server server(flags);
  if (const int code = server.Start(); code != kDone) return code;
  const int signal_number = server.WaitForSignals(signals);
  UnblockSignals(signals);
  server.Drain(signal_number);
  return kDone;
}

}  // namespace
}  // namespace sluice

int main(int argc, char** argv) {
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);
  // Both else rise to tens of megabytes with the sizes that are freed, and malloc keeps that much.
  mallopt(M_MMAP_THRESHOLD, 1 << 20);
  mallopt(M_TRIM_THRESHOLD, 4 << 20);
  // protobuf prints a line for each message that is not UTF-8: any caller could fill the log.
  google::protobuf::SetLogHandler(nullptr);
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
