#include "server/store/redis/connection/endpoint.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/strings.h"
#include "server/store/redis/scripts/scripts.h"

namespace sluice::store::redis {
namespace {

constexpr int64_t kProbeEveryNs = 50'000'000;
// How late a timer may be on a loop that is not busy.
constexpr int64_t kTimerLatenessNs = 500'000;
// A connection that brings nothing for so long is opened again.
constexpr int64_t kProbeTimeoutNs = 1'000'000'000;

}  // namespace

Endpoint::Endpoint(net::EventLoop& loop, net::Resolver& resolver, EndpointOptions options,
                   ShardCounters& counters, Owner& owner)
    : loop_(loop),
      resolver_(resolver),
      options_(std::move(options)),
      counters_(counters),
      owner_(owner),
      window_(options_.budget_ns, options_.max_connections * options_.max_in_flight),
      script_size_(options_.max_script_runs),
      polling_(StepNs() + kTimerLatenessNs) {
  pipelines_.push_back(std::make_unique<Pipeline>(*this));
}

Endpoint::~Endpoint() {
  if (breaker_open_ && options_.breaker != nullptr) options_.breaker->Discard();
}

void Endpoint::Start() {
  starting_ = true;
  started_ns_ = loop_.now_ns();
  first().Start();
}

void Endpoint::Stop() {
  watch_.Cancel();
  for (const auto& pipeline : pipelines_) pipeline->connection.Stop();
}

bool Endpoint::stopped() const {
  return std::all_of(pipelines_.begin(), pipelines_.end(),
                     [](const auto& pipeline) { return pipeline->connection.stopped(); });
}

Endpoint::Pipeline* Endpoint::PipelineWithRoom() {
  if (in_flight_ >= window_.size()) return nullptr;
  for (const auto& pipeline : pipelines_) {
    if (pipeline->HasRoom()) return pipeline.get();
  }
  // Further ones are opened when first needed, and stay open.
  for (size_t i = 1; i < pipelines_.size(); ++i) {
    if (pipelines_[i]->connection.stopped()) {
      pipelines_[i]->connection.Start();
      return nullptr;
    }
    if (!pipelines_[i]->connection.ready()) return nullptr;
  }
  if (pipelines_.size() < options_.max_connections) {
    pipelines_.push_back(std::make_unique<Pipeline>(*this));
    pipelines_.back()->connection.Start();
  }
  return nullptr;
}

bool Endpoint::full() {
  return !unavailable() && (!room_waiters_.empty() || PipelineWithRoom() == nullptr);
}

void Endpoint::AwaitRoom(RoomWaiter& waiter) { room_waiters_.push_back(&waiter); }

void Endpoint::WakeWaiters() {
  if (!room_waiters_.empty() && !loop_.stopping()) loop_.BeforeSleep(*this);
}

// Continues until none waits or there is no room: a waiter may no longer have anything to send, or
// send it to another server. While there is no room, requests are in flight, and each reply leads
// here again.
void Endpoint::OnIterationEnd() {
  while (!room_waiters_.empty() && !loop_.stopping() &&
         (unavailable() || PipelineWithRoom() != nullptr)) {
    RoomWaiter* const next = room_waiters_.front();
    room_waiters_.pop_front();
    next->OnRoom(*this);
  }
}

void Endpoint::Request::OnReply(Reply* reply) {
  pipeline_->endpoint.Answered(*this);
  OnAnswered(reply);
}

void Endpoint::Request::TookPlaceAt(int64_t server_ns) {
  auto& last = pipeline_->last_script;
  // What is sent in one iteration of the loop is one write.
  if (place_ == last.place + 1 && sent_ns_ == last.sent_ns) {
    pipeline_->endpoint.script_size_.OnDecided(last.units, server_ns - last.server_ns);
  }
  last = {place_, sent_ns_, server_ns, units_};
}

void Endpoint::Answered(Request& request) {
  Pipeline& pipeline = *request.pipeline_;
  pipeline.in_flight.pop_front();
  --in_flight_;
  if (pipeline.connection.ready() && !unavailable()) {
    // Not polled time: a command that was sent waits in Redis also while this loop is busy.
    const int64_t answered_ns = loop_.now_ns() - pipeline.connection.UnreadNs();
    window_.OnAnswer(request.sent_ns_, answered_ns - request.sent_ns_, !room_waiters_.empty());
  }
  WakeWaiters();
}

Endpoint::Sent Endpoint::Send(Request& request, const std::vector<std::string>& words, bool urgent,
                              bool asking) {
  if (unavailable()) return Sent::kUnavailable;
  Pipeline* const pipeline = urgent ? pipelines_[0].get() : PipelineWithRoom();
  if (pipeline == nullptr) return Sent::kFull;
  Connection& connection = pipeline->connection;
  if (asking) connection.Call(std::vector<std::string>{"ASKING"}, [](const Reply*) {});
  connection.Send(words, &request);
  request.pipeline_ = pipeline;
  request.sent_polled_ns_ = PolledNs();
  request.sent_ns_ = loop_.now_ns();
  request.place_ = ++pipeline->sent;
  pipeline->in_flight.push_back(&request);
  ++in_flight_;
  counters_.commands.Add();
  Watch();
  return Sent::kYes;
}

void Endpoint::MoveTo(const net::Address& address, const absl::Status& why) {
  options_.connection.url.address = address;
  for (const auto& pipeline : pipelines_) pipeline->connection.MoveTo(address, why);
}

void Endpoint::OpenBreaker(std::string_view why) {
  if (std::exchange(breaker_open_, true)) return;
  counters_.breaker_opened.Add();
  if (options_.breaker != nullptr) options_.breaker->Open(why);
  // By index: callbacks may start operations, which are answered at once from here on.
  for (const auto& pipeline : pipelines_) {
    for (size_t i = 0; i < pipeline->in_flight.size(); ++i) {
      if (pipeline->in_flight[i]->abandoned()) continue;
      counters_.lost.Add();
      pipeline->in_flight[i]->Abandon();
    }
  }
  owner_.OnUnavailable();
  WakeWaiters();
  watch_.Cancel();
  Probe();
  Watch();
}

void Endpoint::CloseBreaker() {
  last_failure_.clear();
  window_.Reset(first().round_trip_ns());
  if (!std::exchange(breaker_open_, false)) return;
  if (options_.breaker != nullptr) options_.breaker->Close();
}

int64_t Endpoint::UnansweredNs() {
  int64_t longest_ns = -1;
  for (const auto& pipeline : pipelines_) {
    if (pipeline->in_flight.empty()) continue;
    longest_ns = std::max(longest_ns, PolledNs() - pipeline->in_flight.front()->sent_polled_ns_ -
                                          pipeline->connection.UnreadNs());
  }
  return longest_ns;
}

void Endpoint::Watch() {
  if (watch_.armed()) return;
  if (probing()) {
    if (first().ready()) loop_.ArmIn(watch_, kProbeEveryNs);
  } else if (in_flight_ > 0) {
    const int64_t left_ns = options_.budget_ns - UnansweredNs();
    loop_.ArmIn(watch_, std::clamp<int64_t>(left_ns, 0, StepNs()));
  }
}

void Endpoint::OnWatch() {
  if (probing()) {
    Probe();
  } else if (UnansweredNs() >= options_.budget_ns) {
    return OpenBreaker("no answer within the budget");
  }
  Watch();
}

void Endpoint::Probe() {
  if (!first().ready()) return;
  if (probe_sent_ns_ != 0) {
    if (loop_.now_ns() - probe_sent_ns_ > kProbeTimeoutNs) {
      first().Restart(absl::DeadlineExceededError("Redis has not answered for a second"));
    }
    return;
  }
  probe_sent_ns_ = loop_.now_ns();
  probe_polled_ns_ = PolledNs();
  first().Call(std::vector<std::string>{"PING"}, [this](const Reply* reply) { OnPong(reply); });
}

void Endpoint::OnPong(const Reply* reply) {
  probe_sent_ns_ = 0;
  const int64_t took_ns = PolledNs() - probe_polled_ns_ - first().UnreadNs();
  // Before the owner has admitted the server, a reply only shows that it is alive.
  if (reply == nullptr || reply->is_error() || !breaker_open_ || !admitted_) return;
  if (took_ns >= options_.budget_ns) return;
  CloseBreaker();
  owner_.OnAvailable();
}

void Endpoint::Serve() {
  if (!first().ready() || admitted_) return;
  starting_ = false;
  admitted_ = true;
  // It was armed for a probe. The first request arms it for the budget.
  watch_.Cancel();
  CloseBreaker();
  owner_.OnAvailable();
}

Endpoint::Pipeline::Pipeline(Endpoint& endpoint)
    : endpoint(endpoint),
      connection(endpoint.loop_, endpoint.resolver_, endpoint.options_.connection, *this) {}

absl::Status Endpoint::Pipeline::OnInfo(const std::string& info) {
  return this == endpoint.pipelines_[0].get() ? endpoint.owner_.OnInfo(info)
                                              : endpoint.owner_.OnFurtherInfo(info);
}

// Further connections only add room; requests that are lost with one got a null reply.
void Endpoint::Pipeline::OnReady() {
  if (this == endpoint.pipelines_[0].get()) {
    endpoint.owner_.OnReady();
    // The server may stop to answer before the owner admits it.
    endpoint.Watch();
  } else {
    endpoint.WakeWaiters();
  }
}
void Endpoint::Pipeline::OnLost(const absl::Status& why) {
  if (this == endpoint.pipelines_[0].get()) endpoint.OnLost(why);
}
void Endpoint::Pipeline::OnFailed(const absl::Status& why) {
  if (this == endpoint.pipelines_[0].get()) endpoint.OnFailed(why);
}

void Endpoint::OnLost(const absl::Status& why) {
  const bool was_admitted = std::exchange(admitted_, false);
  // The server that comes back may be another one.
  for (size_t i = 1; i < pipelines_.size(); ++i) pipelines_[i]->connection.Stop();
  OpenBreaker(common::ToStd(why.message()));
  // It never served: the owner may wait for the end of this attempt.
  if (!was_admitted) owner_.OnFailed(why);
}

void Endpoint::OnFailed(const absl::Status& why) {
  starting_ = false;
  const std::string_view what = common::ToStd(why.message());
  if (!std::exchange(breaker_open_, true)) {
    if (options_.breaker != nullptr) options_.breaker->Open(what);
  } else if (what != last_failure_) {
    // That it cannot be reached was logged when the breaker opened.
    if (!absl::IsUnavailable(why)) LogError("redis_connect", what);
    if (options_.breaker != nullptr) options_.breaker->SetReason(what);
  }
  last_failure_.assign(what);
  owner_.OnFailed(why);
}

void Endpoint::LoadScripts() {
  // On each connection, since the request may be sent on any. Once for all requests that got
  // NOSCRIPT: while a SCRIPT LOAD is in flight, it was sent after them.
  for (const auto& pipeline : pipelines_) {
    size_t& loading = pipeline->scripts_loading;
    if (loading > 0) continue;
    for (size_t i = 0; i < kScripts && pipeline->connection.ready(); ++i) {
      const std::vector<std::string> words = {"SCRIPT", "LOAD",
                                              TextOf(static_cast<Script>(i)).text};
      ++loading;
      pipeline->connection.Call(words, [&loading](const Reply*) { --loading; });
    }
  }
}

std::string ErrorText(const Reply& reply) {
  if (reply.HasCode("NOPERM")) {
    return absl::StrCat(reply.text,
                        "; the ACL user needs the keys of --redis_namespace (~sluice:*, "
                        "if it was not told) and the commands of docs/redis.md's list");
  }
  // Redis does not say which.
  return absl::StrContains(reply.text, "executing the script can't run this command")
             ? absl::StrCat(reply.text, "; the ACL user lacks a command of docs/redis.md's list")
             : reply.text;
}

void Endpoint::OnErrorReply(const Reply& reply) {
  counters_.errors.Add();
  LogError("redis_error", ErrorText(reply));
  // It became a replica, or is starting. The next connection checks it again.
  if (reply.HasCode("READONLY") || reply.HasCode("LOADING") || reply.HasCode("MASTERDOWN")) {
    first().Restart(absl::UnavailableError(reply.text));
  }
}

void Endpoint::LogError(std::string_view event, std::string_view what) {
  if (options_.log == nullptr) return;
  options_.log->Warning(
      event, {{"error", common::ToAbsl(what)}, {"store", options_.connection.url.ToString()}});
}

}  // namespace sluice::store::redis
