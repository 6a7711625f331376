#include "server/store/redis/connection/connection.h"

#include <algorithm>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "server/store/redis/scripts/scripts.h"

namespace sluice::store::redis {
namespace {

constexpr int64_t kLeastPauseNs = 10'000'000;

class CallWaiter final : public Connection::Waiter {
 public:
  explicit CallWaiter(absl::AnyInvocable<void(const Reply*)> done) : done_(std::move(done)) {}
  void OnReply(Reply* reply) override {
    done_(reply);
    delete this;
  }

 private:
  absl::AnyInvocable<void(const Reply*)> done_;
};

}  // namespace

Connection::Connection(net::EventLoop& loop, net::Resolver& resolver,
                       const ConnectionOptions& options, Owner& owner)
    : loop_(loop),
      resolver_(resolver),
      options_(options),
      owner_(owner),
      random_(std::random_device{}()) {}

Connection::~Connection() = default;

void Connection::Start() {
  stopped_ = false;
  // One that still closes comes back by itself.
  if (stream_ == nullptr && !timer_.armed()) Connect();
}

void Connection::Stop() {
  stopped_ = true;
  if (stream_ == nullptr) {
    timer_.Cancel();
  } else {
    Restart(absl::CancelledError("no longer needed"));
  }
}

void Connection::Connect() {
  if (loop_.stopping()) return;
  state_ = State::kConnecting;
  failure_ = absl::OkStatus();
  answered_ = false;
  reader_ = std::make_unique<ReplyReader>();
  net::ConnectOptions options;
  options.timeout_ns = options_.connect_timeout_ns;
  options.tls = options_.tls;
  options.server_name = options_.url.server_name;
  stream_ = net::Connect(loop_, options_.url.address, resolver_, options, *this);
}

void Connection::OnTimer() {
  if (state_ == State::kClosed) {
    Connect();
  } else if (state_ == State::kPreparing) {
    stream_->Abort(absl::DeadlineExceededError("Redis does not answer"));
  }
}

void Connection::OnOpen() {
  state_ = State::kPreparing;
  loop_.ArmIn(timer_, options_.connect_timeout_ns);
  const RedisUrl& url = options_.url;
  output_.clear();
  const auto add = [&](Step step, const std::vector<std::string>& words) {
    AppendCommand(words, &output_);
    steps_.push_back(step);
  };
  steps_.clear();
  if (!url.password.empty()) {
    if (url.user.empty()) {
      add(Step::kAuth, {"AUTH", url.password});
    } else {
      add(Step::kAuth, {"AUTH", url.user, url.password});
    }
  }
  if (url.database != 0) add(Step::kSelect, {"SELECT", absl::StrCat(url.database)});
  add(Step::kInfo, {"INFO"});
  stream_->Write({reinterpret_cast<const uint8_t*>(output_.data()), output_.size()});
}

void Connection::SendScripts() {
  output_.clear();
  for (size_t i = 0; i < kScripts; ++i) {
    AppendCommand(std::vector<std::string>{"SCRIPT", "LOAD", TextOf(static_cast<Script>(i)).text},
                  &output_);
    steps_.push_back(Step::kScript);
  }
  stream_->Write({reinterpret_cast<const uint8_t*>(output_.data()), output_.size()});
}

absl::Status Connection::Prepared(const Reply& reply) {
  const Step step = steps_.front();
  steps_.pop_front();
  const std::string at = options_.url.ToString();
  if (reply.HasCode("NOAUTH")) {
    return absl::UnauthenticatedError(
        absl::StrCat(at, " asks for a password; write it into the URL, or ?password_file=FILE"));
  }
  if (reply.HasCode("NOPERM")) {
    return absl::PermissionDeniedError(
        absl::StrCat(at, ": ", reply.text,
                     "; the ACL user needs +info +ping +select +script|load +evalsha +time +get "
                     "+mget +set +setrange +del +exists +pexpire +lrange +llen +rpush +ltrim +lset "
                     "+object +append "
                     "+hget +hgetall +hmget +hset +hdel and the name space's keys"));
  }
  if (reply.HasCode("LOADING")) {
    return absl::UnavailableError(absl::StrCat(at, " is loading its data set"));
  }
  if (reply.is_error()) {
    const RedisUrl& url = options_.url;
    const std::string what =
        step == Step::kAuth     ? absl::StrCat("refuses user or password of \"",
                                           url.user.empty() ? "default" : url.user, "\"")
        : step == Step::kSelect ? absl::StrCat("has no database ", url.database)
        : step == Step::kInfo   ? "does not tell about itself"
                                : "does not take a script";
    const char* const right =
        step == Step::kAuth
            ? "; write USER:PASSWORD@ (or :PASSWORD@) as that server has it, or ?password_file=FILE"
        : step == Step::kSelect
            ? "; write one below its `databases` (16, if it was not told), or leave it out for 0"
            : "";
    return absl::FailedPreconditionError(
        absl::StrCat(at, " ", what, ": ", absl::StripSuffix(reply.text, "."), right));
  }
  if (step != Step::kInfo) return absl::OkStatus();
  if (const absl::Status status = CheckInfo(reply.text); !status.ok()) return status;
  if (const absl::Status status = owner_.OnInfo(reply.text); !status.ok()) return status;
  if (!options_.any_role) SendScripts();
  return absl::OkStatus();
}

absl::Status Connection::CheckInfo(const std::string& info) const {
  const std::string at = options_.url.ToString();
  const std::string version = InfoField(info, "redis_version");
  const std::vector<absl::string_view> numbers = absl::StrSplit(version, '.');
  int major = 0;
  int minor = 0;
  if (numbers.size() < 2 || !absl::SimpleAtoi(numbers[0], &major) ||
      !absl::SimpleAtoi(numbers[1], &minor)) {
    return absl::FailedPreconditionError(absl::StrCat(at, ": no version in its INFO"));
  }
  if (major < 6 || (major == 6 && minor < 2)) {
    return absl::FailedPreconditionError(
        absl::StrCat(at, " is Redis ", version, "; 6.2 or newer is needed"));
  }
  if (InfoField(info, "loading") == "1") {
    return absl::UnavailableError(absl::StrCat(at, " is loading its data set"));
  }
  const RedisUrl& url = options_.url;
  const bool cluster = InfoField(info, "cluster_enabled") == "1";
  if (cluster != (url.topology == Topology::kCluster)) {
    RedisUrl right = url;
    right.topology = cluster ? Topology::kCluster : Topology::kServer;
    right.seeds = {url.address};
    return absl::FailedPreconditionError(absl::StrCat(
        url.address.ToString(), " is ", cluster ? "" : "not ", "part of a Cluster; write ",
        url.address.is_unix() ? "redis-cluster://HOST:PORT" : right.ToString()));
  }
  if (options_.any_role) return absl::OkStatus();
  if (const std::string role = InfoField(info, "role"); role != "master") {
    return absl::FailedPreconditionError(
        absl::StrCat(at, " is a replica (role ", role, "); name its master, ",
                     InfoField(info, "master_host"), ":", InfoField(info, "master_port")));
  }
  const std::string policy = InfoField(info, "maxmemory_policy");
  const std::string bound = InfoField(info, "maxmemory");
  if (!options_.allow_eviction && bound != "0" && policy != "noeviction") {
    return absl::FailedPreconditionError(absl::StrCat(
        at, " has maxmemory-policy ", policy,
        ", which fills buckets by evicting them; set noeviction (or, if over-admission is "
        "acceptable, --redis_allow_eviction)"));
  }
  return absl::OkStatus();
}

void Connection::OnData(absl::Span<const uint8_t> data) {
  read_at_ns_ = loop_.now_ns();
  unread_ns_ = read_at_ns_ - stream_->ready_since_ns();
  reader_->Feed(data);
  Reply reply;
  while (failure_.ok()) {
    const absl::StatusOr<bool> next = reader_->Next(&reply);
    if (!next.ok()) return Restart(next.status());
    if (!*next) return;
    answered_ = true;
    if (state_ == State::kPreparing) {
      if (const absl::Status status = Prepared(reply); !status.ok()) return Restart(status);
      if (!steps_.empty()) continue;
      state_ = State::kReady;
      pause_ns_ = 0;
      was_ready_ = true;
      timer_.Cancel();
      owner_.OnReady();
      continue;
    }
    if (pending_.empty()) return Restart(absl::InternalError("Redis answers what was not asked"));
    Waiter* const waiter = pending_.front();
    pending_.pop_front();
    waiter->OnReply(&reply);
  }
}

void Connection::OnEnd() { Restart(absl::UnavailableError("Redis closed the connection")); }

void Connection::Send(absl::Span<const std::string> words, Waiter* waiter) {
  pending_.push_back(waiter);
  output_.clear();
  AppendCommand(words, &output_);
  stream_->Write({reinterpret_cast<const uint8_t*>(output_.data()), output_.size()});
}

void Connection::Call(absl::Span<const std::string> words,
                      absl::AnyInvocable<void(const Reply*)> done) {
  if (!ready()) return done(nullptr);
  Send(words, new CallWaiter(std::move(done)));
}

void Connection::Restart(absl::Status why) {
  if (stream_ == nullptr || !failure_.ok()) return;
  failure_ = std::move(why);
  if (state_ == State::kReady) state_ = State::kConnecting;
  stream_->Abort(failure_);
}

void Connection::MoveTo(const net::Address& address, absl::Status why) {
  options_.url.address = address;
  if (state_ == State::kClosed && timer_.armed()) loop_.ArmIn(timer_, 0);
  Restart(std::move(why));
}

absl::Status Connection::Unreached(const absl::Status& why) const {
  const RedisUrl& url = options_.url;
  if (absl::IsUnavailable(why) || absl::IsDeadlineExceeded(why)) {
    const bool connected = stream_->peer_address() != net::kNotConnected;
    if (options_.tls != nullptr && connected) {
      return absl::Status(why.code(),
                          absl::StrCat(url.ToString(), ": ", why.message(),
                                       "; it is tried again: if the server does not speak TLS "
                                       "there, write ",
                                       SchemeOf(url.topology, /*tls=*/false)));
    }
    return absl::Status(why.code(),
                        absl::StrCat(why.message(),
                                     "; it is tried again: start Redis there, let this host reach "
                                     "it, or write into --store where it is"));
  }
  if (absl::IsUnauthenticated(why) && options_.tls != nullptr) {
    const std::string& ca = url.tls_options.trusted_ca_file;
    return absl::Status(
        why.code(), absl::StrCat(url.ToString(), ": ", why.message(),
                                 "; its certificate must be valid now, for \"",
                                 url.server_name.empty() ? url.address.host : url.server_name,
                                 "\" (?server_name=NAME: for another name) and of an authority in ",
                                 ca.empty() ? "the system's list" : ca,
                                 " (?ca=FILE: in another file), and the server must speak TLS"));
  }
  return why;
}

void Connection::OnClosed(const absl::Status& why) {
  const bool was_ready = std::exchange(was_ready_, false);
  absl::Status reason = std::exchange(failure_, absl::OkStatus());
  if (reason.ok()) reason = why.ok() ? absl::UnavailableError("Redis closed the connection") : why;
  if (!was_ready && state_ == State::kConnecting) reason = Unreached(reason);
  if (state_ == State::kPreparing && options_.tls == nullptr && !answered_ &&
      absl::IsUnavailable(reason)) {
    reason = absl::UnavailableError(absl::StrCat(options_.url.ToString(), ": ", reason.message(),
                                                 " before it answered; if the server speaks TLS "
                                                 "there, write ",
                                                 SchemeOf(options_.url.topology, /*tls=*/true)));
  }
  stream_ = nullptr;
  state_ = State::kClosed;
  if (!loop_.stopping() && !stopped_) {
    pause_ns_ = std::max(std::min(pause_ns_ * 2, options_.most_pause_ns), kLeastPauseNs);
    std::uniform_int_distribution<int64_t> spread(pause_ns_ / 2, pause_ns_);
    loop_.ArmIn(timer_, spread(random_));
  } else {
    timer_.Cancel();
  }
  std::deque<Waiter*> lost;
  lost.swap(pending_);
  for (Waiter* waiter : lost) waiter->OnReply(nullptr);
  if (stopped_) return;
  if (was_ready) {
    owner_.OnLost(reason);
  } else {
    owner_.OnFailed(reason);
  }
}

}  // namespace sluice::store::redis
