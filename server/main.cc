// sluiced: its signals, and the order of start and stop.
#include <fcntl.h>
#include <malloc.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/clock.h"
#include "common/errors.h"
#include "common/log.h"
#include "common/memory_account.h"
#include "common/memory_limit.h"
#include "common/metrics.h"
#include "common/mutex.h"
#include "google/protobuf/stubs/logging.h"
#include "server/access/audit_log.h"
#include "server/client_list.h"
#include "server/config/reloader.h"
#include "server/envoy/matcher.h"
#include "server/flags.h"
#include "server/inherited.h"
#include "server/limits/limit_registry.h"
#include "server/loops.h"
#include "server/maintenance.h"
#include "server/ports.h"
#include "server/process_setup.h"
#include "server/rate_limit_source.h"
#include "server/reloads.h"
#include "server/service/receipt.h"
#include "server/state/resumed_clock.h"
#include "server/state/state_folder.h"
#include "server/state/state_keeper.h"
#include "server/store/memory/memory_store.h"
#include "server/store/redis/redis_store.h"
#include "server/takeover/giver.h"
#include "server/takeover/taker.h"
#include "server/transport/services/bearer_token.h"
#include "server/transport/services/tls_files.h"
#include "server/transport/web/access.h"
#include "server/use_cases.h"

namespace sluice {
namespace {

constexpr int kDone = 0;
constexpr int kFailed = 1;
constexpr int kBadInput = 2;
// All callers wait for a hand-over. A caller that reads its connection late, as an idle one of
// grpc++ does, calls again after the GOAWAY: what it sent meanwhile was not executed.
constexpr int64_t kHandOverNoticeNs = int64_t{50} * 1'000'000;
constexpr int kStopped = -1;  // no exit code: a signal ended the start

int Fail(int code, absl::string_view message) {
  std::fprintf(stderr, "sluiced: %.*s\n", static_cast<int>(message.size()), message.data());
  return code;
}

// A signalfd reads SIGHUP, SIGTERM and SIGINT; they are blocked before any thread starts.
sigset_t BlockSignals() {
  signal(SIGPIPE, SIG_IGN);
  signal(SIGXFSZ, SIG_IGN);  // a file at its limit of bytes is an error of that file
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

// Why a server stops to serve.
enum class End : uint8_t {
  kTerminate,  // SIGTERM
  kInterrupt,  // SIGINT
  kHandOver,   // another process asks for the state
  kShared,     // another process serves with the same Redis
};

// All of sluiced. Used by the main thread. `inherited` outlives it, with all sockets.
class Server {
 public:
  // `signals` are blocked.
  Server(const Flags& flags, Inherited& inherited, const sigset_t& signals)
      : flags_(flags), inherited_(inherited), signals_(signals) {}
  // No member is destroyed while a loop may still use it.
  ~Server() { loops_.Stop(); }
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  // Starts everything, and announces the ports. Returns kDone; an exit code after the reason was
  // printed; or kStopped.
  int Start();
  // Reloads the limits, the clients, the certificates, the token and Envoy's configuration at each
  // SIGHUP, until the server is to stop. `giver` may be null.
  End AwaitEnd(takeover::Giver* giver);
  // Ends all calls, in order, and stops all threads.
  // Returns the exit code.
  int Drain(End end);
  // The same for another process, which takes the sockets: puts the state into `inherited`.
  // Returns an exit code.
  int EndForHandOver();

 private:
  int CheckFiles();
  void WarnOfOpenAdminPort();
  int LoadLimitsFile(config::Reloader* reloader);
  int CheckLimitsLoad();
  int AwaitRateLimits(RateLimitSource& source);
  int TakeState();
  int OpenState();
  int OpenStore();
  int OpenRedis();
  limits::FileStatus FileStatus() const;
  int LoadLimits();
  int LoadRateLimits();
  int LoadState();
  int ConfirmLoaded();
  int SaveState();
  void EndCalls(absl::Duration notice, bool leave_sockets);
  void SetServing(bool serving);
  void UpdateHealth();
  void Announce();

  const Flags& flags_;
  Inherited& inherited_;
  const sigset_t signals_;
  state::ResumedClock clock_;
  common::Log log_{clock_, flags_.log_level, STDERR_FILENO};
  common::Metrics metrics_;
  // Bytes: half for the buckets, half for what peers make the server hold.
  const int64_t memory_limit_ = flags_.memory_limit > 0 ? flags_.memory_limit
                                                        : common::MachineMemory() / 4 * 3;
  common::MemoryBudget memory_{memory_limit_ / 2};
  std::unique_ptr<transport::BearerToken> token_;  // null: none is required
  std::unique_ptr<ClientList> clients_;            // null: all callers are served
  std::unique_ptr<access::AuditLog> audit_;        // null: none
  service::ReceiptSigner signer_;
  Loops loops_;
  std::unique_ptr<store::Store> store_;
  store::MemoryStore* memory_store_ = nullptr;  // null: the store is in Redis
  store::RedisStore* redis_ = nullptr;          // null: the store is in memory
  std::unique_ptr<limits::LimitRegistry> registry_;
  std::unique_ptr<state::StateKeeper> state_;   // null: nothing is kept over a restart
  std::unique_ptr<config::Reloader> reloader_;  // null: no limits file
  std::unique_ptr<UseCases> use_cases_;
  std::unique_ptr<RateLimitSource> rate_limits_;  // null: no configuration of Envoy
  std::unique_ptr<Ports> ports_;
  std::unique_ptr<Maintenance> maintenance_;
  std::unique_ptr<Reloads> reloads_;
  common::Mutex health_mu_;
  bool serving_ ABSL_GUARDED_BY(health_mu_) = false;
};

// ---- Start ----

int Server::Start() {
  SetProcessLimits(flags_, log_);
  for (const auto step : {&Server::CheckFiles, &Server::TakeState, &Server::OpenState,
                          &Server::OpenStore, &Server::LoadLimits}) {
    if (const int code = (this->*step)(); code != kDone) return code;
  }
  use_cases_ = std::make_unique<UseCases>(*store_, *registry_, clock_, log_, metrics_, memory_,
                                          signer_, [this] { return FileStatus(); });
  if (const int code = LoadRateLimits(); code != kDone) return code;
  if (const int code = LoadState(); code != kDone) return code;
  if (!flags_.in_redis) {
    if (const int code = ConfirmLoaded(); code != kDone) return code;
  }
  // Until then the process before this one may go on, and write its own.
  if (state_ != nullptr) state_->StartCopies();
  ports_ = std::make_unique<Ports>(Ports::Collaborators{
      flags_, clock_, log_, metrics_, memory_, loops_, *use_cases_, token_.get(),
      clients_ != nullptr ? &clients_->clients() : nullptr, audit_.get(),
      [this] { return rate_limits_ != nullptr ? rate_limits_->Status() : limits::FileStatus(); },
      inherited_.sockets});
  if (const absl::Status status = ports_->Listen(); !status.ok()) {
    // A port that listens already may have decided.
    loops_.Stop();
    SaveState();
    return Fail(kFailed, status.message());
  }
  maintenance_ = std::make_unique<Maintenance>(*store_, *registry_, memory_, use_cases_->usage,
                                               clock_, [this] { ports_->RelieveMemory(); });
  registry_->OnChange([this] {
    use_cases_->held.LimitsChanged();
    UpdateHealth();
  });
  use_cases_->watches.StartThread();
  reloads_ = std::make_unique<Reloads>(Reloads::Collaborators{
      flags_, log_, *registry_, reloader_.get(), token_.get(), clients_.get(), *ports_});
  Announce();
  const int code = flags_.in_redis ? ConfirmLoaded() : kDone;
  if (code != kDone) EndCalls(absl::ZeroDuration(), /*leave_sockets=*/false);
  return code;
}

// Checks the files that the flags name before anything is started.
int Server::CheckFiles() {
  for (const auto& [files, prefix] :
       {std::pair(&flags_.tls, "tls_"), std::pair(&flags_.admin_tls, "admin_tls_"),
        std::pair(&flags_.http_tls, "http_tls_")}) {
    const absl::Status checked = transport::CheckTlsFiles(*files, prefix);
    if (!checked.ok()) return Fail(kBadInput, checked.message());
  }
  if (const absl::Status checked = RateLimitSource::CheckFiles(flags_); !checked.ok()) {
    return Fail(kBadInput, checked.message());
  }
  WarnOfOpenAdminPort();
  if (!flags_.admin_token_file.empty()) {
    auto token = transport::BearerToken::FromFile(flags_.admin_token_file);
    if (!token.ok()) {
      return Fail(kBadInput, absl::StrCat("--admin_token_file=", token.status().message()));
    }
    token_ = *std::move(token);
    token_->WarnIfOthersMayRead(log_);
  }
  if (!flags_.audit_log.empty()) {
    auto audit = access::AuditLog::Open(flags_.audit_log, clock_);
    if (!audit.ok()) {
      return Fail(kBadInput, absl::StrCat("--audit_log: ", audit.status().message()));
    }
    audit_ = *std::move(audit);
  }
  if (flags_.clients.empty()) return kDone;
  auto clients = ClientList::Load(flags_.clients, token_.get(), &log_);
  if (!clients.ok()) {
    const absl::Status& why = clients.status();
    return Fail(kBadInput, absl::IsInvalidArgument(why)
                               ? std::string(why.message())
                               : absl::StrCat("--clients: ", why.message()));
  }
  clients_ = *std::move(clients);
  if (flags_.in_redis) clients_->WarnOfKeyBounds(log_);
  return kDone;
}

void Server::WarnOfOpenAdminPort() {
  if (!flags_.admin_listen.has_value() || flags_.admin_listen->is_unix()) return;
  if (!flags_.admin_token_file.empty() || flags_.admin_tls.mutual()) return;
  if (!flags_.clients.empty()) return;
  log_.Warning("admin_port_open",
               {{"address", flags_.admin_listen->ToString()},
                {"consequence", "every user and program of this machine can change limits"},
                {"advice",
                 "set --admin_token_file or --admin_tls_client_ca, or listen on "
                 "unix:/PATH in a folder that only admins enter"}});
}

// Loads the limits once and drops them, so that an error in a file is found while the running
// process still serves. Keeps what a management server sends, which may be down a moment later.
int Server::CheckLimitsLoad() {
  store::MemoryStore store(clock_, store::MemoryStoreOptions{});
  limits::LimitRegistry registry(&store);
  if (!flags_.limits.empty()) {
    config::Reloader reloader(flags_.limits, &registry, &clock_);
    if (const int code = LoadLimitsFile(&reloader); code != kDone) return code;
  }
  if (!flags_.HasRateLimitConfiguration()) return kDone;
  if (flags_.xds.server.empty() && flags_.start_without_config) return kDone;
  RateLimitSource source(flags_, registry, clock_, log_);
  if (const absl::Status status = source.Start(std::nullopt); !status.ok()) {
    return Fail(kBadInput, status.message());
  }
  if (const int code = AwaitRateLimits(source); code != kDone) return code;
  inherited_.rate_limits = source.Received();
  return kDone;
}

// While another process serves, this one waits for a configuration in any case: else the one in
// force would be lost.
int Server::AwaitRateLimits(RateLimitSource& source) {
  takeover::Taker* const taker = inherited_.taker.get();
  if (flags_.start_without_config && taker == nullptr) return kDone;
  switch (source.AwaitFirst(signals_, taker != nullptr ? taker->fd() : -1)) {
    case RateLimitSource::First::kReceived:
      return kDone;
    case RateLimitSource::First::kSignal:
      return kStopped;
    case RateLimitSource::First::kInput:
      return Fail(kFailed,
                  absl::StrCat("--takeover=", flags_.takeover,
                               taker->IsTakenBack() ? ": the running server has ended the takeover"
                                                    : ": the running server has ended",
                               ": the management server ", flags_.xds.server,
                               " has sent no configuration by then"));
  }
  return kFailed;
}

// What can fail is done before the running process ends its calls.
int Server::TakeState() {
  if (inherited_.taker == nullptr || flags_.in_redis) return kDone;
  if (const int code = CheckLimitsLoad(); code != kDone) return code;
  if (!flags_.state_dir.empty()) {
    const absl::Status status = state::StateFolder::Probe(flags_.state_dir);
    if (!status.ok()) {
      return Fail(kFailed, absl::StrCat("--state_dir=", flags_.state_dir, ": ", status.message()));
    }
  }
  if (const absl::Status status = OpenOtherPorts(flags_, &inherited_.sockets); !status.ok()) {
    return Fail(kFailed, status.message());
  }
  auto state = inherited_.taker->TakeState();
  if (!state.ok()) {
    return Fail(kFailed,
                absl::StrCat("--takeover=", flags_.takeover, ": ", state.status().message()));
  }
  inherited_.state = std::move(state->file);
  inherited_.lock = std::move(state->lock);
  return kDone;
}

// Before anything reads the clock, which the state sets.
int Server::OpenState() {
  const bool handed_over = inherited_.state.open();
  if (flags_.state_dir.empty() && !handed_over) return kDone;
  auto opened = state::StateKeeper::Open(
      {.folder = flags_.state_dir,
       .after_crash = flags_.after_crash,
       .handed_over =
           handed_over ? absl::StrCat("/proc/self/fd/", inherited_.state.get()) : std::string(),
       .taken_back = handed_over && inherited_.taker == nullptr,
       .lock = inherited_.lock.get()},
      &log_);
  if (!opened.ok() && handed_over) {
    return Fail(kFailed,
                absl::StrCat("--takeover=", flags_.takeover, ": ", opened.status().message()));
  }
  if (!opened.ok()) {
    return Fail(absl::IsFailedPrecondition(opened.status()) ? kFailed : kBadInput,
                absl::StrCat("--state_dir=", flags_.state_dir, ": ", opened.status().message()));
  }
  state_ = *std::move(opened);
  clock_.SetAhead(state_->clock_ahead_ns());
  return kDone;
}

int Server::OpenStore() {
  if (const absl::Status made = loops_.Make(flags_, clock_, metrics_); !made.ok()) {
    return Fail(kFailed, made.message());
  }
  if (flags_.in_redis) return OpenRedis();
  store::MemoryStoreOptions options{.max_buckets = flags_.max_buckets,
                                    .max_bytes = static_cast<uint64_t>(memory_limit_) / 2,
                                    .overflow = flags_.overflow};
  if (state_ != nullptr) state_->SetOptions(&options);
  auto store = std::make_unique<store::MemoryStore>(clock_, options);
  memory_store_ = store.get();
  store_ = std::move(store);
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
  redis_->SetMaxLocalBytes(static_cast<size_t>(memory_limit_) / 4);
  store_ = *std::move(store);
  loops_.redis().Start();
  const absl::Status first = redis_->AwaitFirstConnections();
  const bool unavailable = absl::IsUnavailable(first) || absl::IsDeadlineExceeded(first);
  return first.ok() || unavailable ? kDone : fail(first);
}

int Server::LoadLimitsFile(config::Reloader* reloader) {
  const absl::Status status = reloader->ReloadNow();
  if (status.ok()) return kDone;
  // An error of the text has its place: FILE:LINE:COLUMN.
  return Fail(kBadInput, absl::IsInvalidArgument(status)
                             ? std::string(status.message())
                             : absl::StrCat("--limits: ", status.message()));
}

int Server::LoadLimits() {
  registry_ = std::make_unique<limits::LimitRegistry>(store_.get());
  if (state_ != nullptr) state_->RestoreIds(registry_.get());
  if (!flags_.limits.empty()) {
    reloader_ = std::make_unique<config::Reloader>(flags_.limits, registry_.get(), &clock_);
    if (const int code = LoadLimitsFile(reloader_.get()); code != kDone) return code;
  }
  if (redis_ != nullptr) redis_->AwaitNodes();
  return kDone;
}

int Server::LoadRateLimits() {
  if (!flags_.HasRateLimitConfiguration()) return kDone;
  rate_limits_ = std::make_unique<RateLimitSource>(flags_, *registry_, clock_, log_);
  if (const absl::Status status = rate_limits_->Start(std::exchange(inherited_.rate_limits, {}));
      !status.ok()) {
    return Fail(kBadInput, status.message());
  }
  return AwaitRateLimits(*rate_limits_);
}

// The last step before decisions are made.
int Server::LoadState() {
  if (state_ == nullptr) return kDone;
  absl::Status status = state_->Load(memory_store_, registry_.get());
  if (status.ok() && !state_->receipt_key().empty()) {
    status = signer_.UseKey(state_->receipt_key());
  }
  if (status.ok()) {
    status = state_->Begin({clock_, *memory_store_, *registry_, [this] { return signer_.Key(); }});
  }
  inherited_.state = {};
  inherited_.lock = {};
  if (status.ok()) return kDone;
  return Fail(kFailed, absl::StrCat("--state_dir=", flags_.state_dir, ": ", status.message()));
}

// From here on the process before this one decides nothing more (with Redis: soon).
int Server::ConfirmLoaded() {
  if (inherited_.taker == nullptr) return kDone;
  const absl::Status status = inherited_.taker->ConfirmLoaded();
  inherited_.taker.reset();
  if (!status.ok()) {
    return Fail(kFailed, absl::StrCat("--takeover=", flags_.takeover, ": ", status.message()));
  }
  log_.Info("taken_over", {{"socket", flags_.takeover}});
  return kDone;
}

// Returns the exit code.
int Server::SaveState() {
  if (state_ == nullptr) return kDone;
  const absl::Status status = state_->Save();
  if (status.ok()) return kDone;
  log_.Error("state_not_saved",
             {{"error", status.message()}, {"consequence", "the next start is one after a crash"}});
  return kFailed;
}

limits::FileStatus Server::FileStatus() const {
  if (reloader_ != nullptr) return reloader_->Status();
  return rate_limits_ != nullptr ? rate_limits_->Status() : limits::FileStatus();
}

void Server::SetServing(bool serving) {
  {
    const common::MutexLock lock(&health_mu_);
    serving_ = serving;
  }
  UpdateHealth();
}

// Any thread calls it when the limits have changed.
void Server::UpdateHealth() {
  const envoy::Matcher* const matcher = envoy::MatcherOf(*registry_->Current());
  const bool configured = matcher != nullptr && !matcher->limits().empty();
  const common::MutexLock lock(&health_mu_);
  ports_->SetServing(serving_ && (configured || !flags_.healthy_with_config));
}

void Server::Announce() {
  SetServing(true);
  log_.Info("started", {{"version", SLUICE_VERSION},
                        {"data", ports_->data_address()},
                        {"admin", ports_->admin_address()},
                        {"http", ports_->http_address()},
                        {"limits", registry_->Current()->limits().size()}});
  std::printf("ready data=%s admin=%s http=%s", ports_->data_address().c_str(),
              ports_->admin_address().c_str(), ports_->http_address().c_str());
  std::printf("%s\n", ports_->further_addresses().c_str());
  std::fflush(stdout);
}

// ---- Run ----

End Server::AwaitEnd(takeover::Giver* giver) {
  const net::Descriptor waiting(signalfd(-1, &signals_, SFD_CLOEXEC | SFD_NONBLOCK));
  while (true) {
    pollfd inputs[] = {{waiting.get(), POLLIN, 0},
                       {giver != nullptr ? giver->fd() : -1, POLLIN, 0}};
    const int ready = poll(inputs, 2, giver != nullptr ? giver->timeout_ms() : -1);
    signalfd_siginfo signal;
    while (read(waiting.get(), &signal, sizeof(signal)) == sizeof(signal)) {
      if (signal.ssi_signo != SIGHUP) {
        return signal.ssi_signo == SIGTERM ? End::kTerminate : End::kInterrupt;
      }
      reloads_->ReloadNow();
      if (rate_limits_ != nullptr) rate_limits_->Reload();
    }
    if (giver == nullptr || (ready != 0 && inputs[1].revents == 0)) continue;
    switch (giver->Proceed()) {
      case takeover::Giver::State::kListening:
      case takeover::Giver::State::kOffered:
        break;
      case takeover::Giver::State::kAsked:
        return End::kHandOver;
      case takeover::Giver::State::kShared:
        if (giver->SendYours()) return End::kShared;
    }
  }
}

// ---- Drain ----

void Server::EndCalls(absl::Duration notice, bool leave_sockets) {
  // Load balancers check health at intervals: calls that they send before the next check are
  // served.
  SetServing(false);
  absl::SleepFor(notice);
  const absl::Time deadline = absl::Now() + absl::Nanoseconds(flags_.drain_timeout_ns);
  ports_->CloseHealth();
  use_cases_->watches.Drain(common::errors::Draining());
  use_cases_->held.Drain();
  if (leave_sockets) ports_->LeaveSockets();
  ports_->Drain(leave_sockets ? kHandOverNoticeNs : std::numeric_limits<int64_t>::max());
  ports_->AwaitDrained(deadline);
  reloads_.reset();
  if (rate_limits_ != nullptr) rate_limits_->Stop();
  use_cases_->alarm.Stop();
  if (redis_ != nullptr) {
    redis_->Leave(absl::ToInt64Nanoseconds(std::max(deadline - absl::Now(), absl::ZeroDuration())));
  }
  loops_.Stop();
}

int Server::Drain(End end) {
  const absl::Duration notice =
      absl::Nanoseconds(end == End::kTerminate ? flags_.drain_notice_ns : 0);
  log_.Info("draining",
            {{"signal", end == End::kTerminate   ? "SIGTERM"
                        : end == End::kInterrupt ? "SIGINT"
                                                 : "none"},
             {"notice", absl::FormatDuration(notice)},
             {"timeout", absl::FormatDuration(absl::Nanoseconds(flags_.drain_timeout_ns))}});
  EndCalls(notice, /*leave_sockets=*/false);
  const int code = SaveState();
  const common::MetricsSnapshot totals = metrics_.Snapshot(0);
  log_.Info("stopped", {{"granted", totals.granted}, {"denied", totals.denied}});
  return code;
}

int Server::EndForHandOver() {
  log_.Info("handing_over", {});
  EndCalls(absl::ZeroDuration(), /*leave_sockets=*/true);
  // Until then the management server may send another one.
  if (rate_limits_ != nullptr) inherited_.rate_limits = rate_limits_->Received();
  auto written = state::WriteHandedState(
      {clock_, *memory_store_, *registry_, [this] { return signer_.Key(); }});
  if (!written.ok()) {
    log_.Error("state_not_handed_over",
               {{"error", written.status().message()}, {"consequence", "both processes end"}});
    SaveState();
    return kFailed;
  }
  inherited_.state = net::Descriptor(*written);
  // The folder stays locked for the next process. The copies end here.
  if (state_ != nullptr) inherited_.lock = net::Descriptor(state_->ShareLock());
  state_.reset();
  return kDone;
}

// ---- Takeover ----

net::Descriptor Duplicate(const net::Descriptor& from) {
  return net::Descriptor(from.open() ? fcntl(from.get(), F_DUPFD_CLOEXEC, 0) : -1);
}

// The sockets, with the files of Unix sockets, are another process's.
void GiveUpFiles(const takeover::PortSockets& sockets) {
  for (const auto& [name, port] : sockets) port.sockets->GiveUpFile();
}

int Run(Flags flags, const sigset_t& signals) {
  Inherited inherited;
  if (const absl::Status status = Inherit(&flags, &inherited); !status.ok()) {
    return Fail(absl::IsInvalidArgument(status) ? kBadInput : kFailed, status.message());
  }
  const common::SystemClock clock;
  common::Log log(clock, flags.log_level, STDERR_FILENO);
  std::unique_ptr<takeover::Giver> giver;
  if (!flags.takeover.empty()) {
    giver = std::make_unique<takeover::Giver>(
        takeover::Giver::Options{
            .version = SLUICE_VERSION,
            .in_redis = flags.in_redis,
            .drain_limit = std::chrono::duration_cast<std::chrono::milliseconds>(
                std::chrono::nanoseconds(flags.drain_timeout_ns))},
        inherited.sockets, log);
  }
  while (true) {
    auto server = std::make_unique<Server>(flags, inherited, signals);
    if (const int code = server->Start(); code != kDone) {
      return code == kStopped ? kDone : code;
    }
    const End end = server->AwaitEnd(giver.get());
    if (end != End::kHandOver) {
      UnblockSignals(signals);
      if (end == End::kShared) GiveUpFiles(inherited.sockets);
      return server->Drain(end);
    }
    if (const int code = server->EndForHandOver(); code != kDone) return code;
    giver->SendState(Duplicate(inherited.state), Duplicate(inherited.lock));
    server.reset();
    const absl::StatusOr<bool> loaded = giver->AwaitLoaded();
    if (!loaded.ok()) return Fail(kFailed, loaded.status().message());
    if (*loaded) {
      GiveUpFiles(inherited.sockets);
      log.Info("handed_over", {});
      return kDone;
    }
    // It goes on with the state that the other process did not load.
  }
}

}  // namespace
}  // namespace sluice

int main(int argc, char** argv) {
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);
  // Both else rise to tens of megabytes with the sizes that are freed, and malloc keeps that much,
  // the second for each loop.
  mallopt(M_MMAP_THRESHOLD, 1 << 20);
  mallopt(M_TRIM_THRESHOLD, 1 << 20);
  // A small chunk that is freed joins its neighbours at once. Else malloc joins all of them now and
  // then, which takes an event loop milliseconds after thousands of calls have ended.
  mallopt(M_MXFAST, 0);
  // protobuf prints a line for each message that is not UTF-8: any caller could fill the log.
  google::protobuf::SetLogHandler(nullptr);
  const sigset_t signals = sluice::BlockSignals();
  auto flags = sluice::ParseFlags(std::vector<std::string>(argv + 1, argv + argc));
  if (!flags.ok()) return sluice::Fail(sluice::kBadInput, flags.status().message());
  sluice::HidePasswords(argc, argv);
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
