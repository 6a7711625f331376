#include "server/store/redis/connection/endpoint.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/strings.h"
#include "server/store/redis/commands/command.h"
#include "server/store/redis/scripts/scripts.h"

namespace sluice::store::redis {
namespace {

constexpr int64_t kProbeEveryNs = 50'000'000;
// A timer may be so late on a loop that is not.
constexpr int64_t kTimerLatenessNs = 500'000;
// A connection on which nothing comes for so long is made anew.
constexpr int64_t kProbeTimeoutNs = 1'000'000'000;

// Answers to what nobody waits for: ASKING.
class Ignored final : public Connection::Waiter {
 public:
  static Ignored& Get() {
    static Ignored ignored;
    return ignored;
  }
  void OnReply(Reply*) override {}
};

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

Endpoint::Endpoint(net::EventLoop& loop, net::Resolver& resolver, EndpointOptions options,
                   ShardCounters& counters, Owner& owner)
    : loop_(loop),
      resolver_(resolver),
      options_(std::move(options)),
      counters_(counters),
      owner_(owner),
      window_(options_.budget_ns, options_.max_connections * options_.max_in_flight),
      attention_(StepNs() + kTimerLatenessNs) {
  lanes_.push_back(std::make_unique<Lane>(*this));
}

Endpoint::~Endpoint() {
  if (breaker_open_ && options_.availability != nullptr) options_.availability->Leave();
}

void Endpoint::Start() {
  starting_ = true;
  started_ns_ = loop_.now_ns();
  first().Start();
}

void Endpoint::Stop() {
  watch_.Cancel();
  for (const auto& lane : lanes_) lane->connection.Stop();
}

bool Endpoint::stopped() const {
  return std::all_of(lanes_.begin(), lanes_.end(),
                     [](const auto& lane) { return lane->connection.stopped(); });
}

Endpoint::Lane* Endpoint::LaneWithRoom() {
  if (in_flight_ >= window_.size()) return nullptr;
  for (const auto& lane : lanes_) {
    if (lane->HasRoom()) return lane.get();
  }
  // Those beyond the first come when they are needed first, and stay.
  for (size_t i = 1; i < lanes_.size(); ++i) {
    if (lanes_[i]->connection.stopped()) {
      lanes_[i]->connection.Start();
      return nullptr;
    }
    if (!lanes_[i]->connection.ready()) return nullptr;
  }
  if (lanes_.size() < options_.max_connections) {
    lanes_.push_back(std::make_unique<Lane>(*this));
    lanes_.back()->connection.Start();
  }
  return nullptr;
}

bool Endpoint::full() { return !away() && (!room_waiters_.empty() || LaneWithRoom() == nullptr); }

void Endpoint::AwaitRoom(RoomWaiter& waiter) { room_waiters_.push_back(&waiter); }

void Endpoint::TellWaiters() {
  if (!room_waiters_.empty() && !loop_.stopping()) loop_.BeforeSleep(*this);
}

// Until none waits or there is no room, whatever becomes of those who are told: whose turn it is
// may want nothing any more, or go elsewhere. While there is no room commands are in flight, and
// each answer leads here again.
void Endpoint::OnIterationEnd() {
  while (!room_waiters_.empty() && !loop_.stopping() && (away() || LaneWithRoom() != nullptr)) {
    RoomWaiter* const next = room_waiters_.front();
    room_waiters_.pop_front();
    next->OnRoom(*this);
  }
}

void Endpoint::Answered(Command& command) {
  Lane& lane = *command.lane_;
  Endpoint& endpoint = lane.endpoint;
  lane.in_flight.pop_front();
  --endpoint.in_flight_;
  if (lane.connection.ready() && !endpoint.away()) {
    // Not of attention: when the loop is busy itself, what it sent waits in Redis nevertheless.
    const int64_t answered_ns = endpoint.loop_.now_ns() - lane.connection.UnreadNs();
    endpoint.window_.OnAnswer(command.sent_at_ns_, answered_ns - command.sent_at_ns_,
                              !endpoint.room_waiters_.empty());
  }
  endpoint.TellWaiters();
}

Endpoint::Sent Endpoint::Send(Command& command, const std::vector<std::string>& words,
                              bool asking) {
  if (away()) return Sent::kAway;
  Lane* const lane = command.GoesAhead() ? lanes_[0].get() : LaneWithRoom();
  if (lane == nullptr) return Sent::kFull;
  Connection& connection = lane->connection;
  if (asking) connection.Send(std::vector<std::string>{"ASKING"}, &Ignored::Get());
  connection.Send(words, &command);
  command.lane_ = lane;
  command.sent_ns_ = Attention();
  command.sent_at_ns_ = loop_.now_ns();
  lane->in_flight.push_back(&command);
  ++in_flight_;
  counters_.commands.Add();
  Watch();
  return Sent::kYes;
}

void Endpoint::Call(const std::vector<std::string>& words,
                    absl::AnyInvocable<void(const Reply*)> done) {
  auto* const waiter = new CallWaiter(std::move(done));
  if (!first().ready()) return waiter->OnReply(nullptr);
  first().Send(words, waiter);
}

void Endpoint::MoveTo(const net::Address& address, const absl::Status& why) {
  options_.connection.url.address = address;
  for (const auto& lane : lanes_) lane->connection.MoveTo(address, why);
}

void Endpoint::OpenBreaker(std::string_view why) {
  if (std::exchange(breaker_open_, true)) return;
  counters_.breaker_opened.Add();
  TellAway(why);
  // By place: callbacks may start operations, which are answered at once from here on.
  for (const auto& lane : lanes_) {
    for (size_t i = 0; i < lane->in_flight.size(); ++i) {
      if (lane->in_flight[i]->given_up()) continue;
      counters_.lost.Add();
      lane->in_flight[i]->Abandon();
    }
  }
  owner_.OnUnavailable(*this);
  TellWaiters();
  watch_.Cancel();
  Probe();
  Watch();
}

void Endpoint::TellAway(std::string_view why) {
  if (options_.availability != nullptr) options_.availability->Away(why);
}

void Endpoint::CloseBreaker() {
  last_failure_.clear();
  window_.Reset(first().round_trip_ns());
  if (!std::exchange(breaker_open_, false)) return;
  if (options_.availability != nullptr) options_.availability->Back();
}

int64_t Endpoint::UnansweredNs() {
  int64_t longest_ns = -1;
  for (const auto& lane : lanes_) {
    if (lane->in_flight.empty()) continue;
    longest_ns = std::max(
        longest_ns, Attention() - lane->in_flight.front()->sent_ns_ - lane->connection.UnreadNs());
  }
  return longest_ns;
}

void Endpoint::Watch() {
  if (watch_.armed()) return;
  if (breaker_open_) {
    if (first().ready()) loop_.ArmIn(watch_, kProbeEveryNs);
  } else if (in_flight_ > 0) {
    const int64_t left_ns = options_.budget_ns - UnansweredNs();
    loop_.ArmIn(watch_, std::clamp<int64_t>(left_ns, 0, StepNs()));
  }
}

void Endpoint::OnWatch() {
  if (breaker_open_) {
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
  first().Send(std::vector<std::string>{"PING"}, this);
  probe_sent_ns_ = loop_.now_ns();
  probe_attention_ns_ = Attention();
}

void Endpoint::OnReply(Reply* reply) {
  probe_sent_ns_ = 0;
  const int64_t took_ns = Attention() - probe_attention_ns_ - first().UnreadNs();
  if (reply == nullptr || reply->is_error() || !breaker_open_) return;
  if (took_ns >= options_.budget_ns) return;
  CloseBreaker();
  if (admitted_) owner_.OnBack(*this);
}

void Endpoint::OnReady() {
  if (owner_.OnReady(*this)) Serve();
}

void Endpoint::Serve() {
  if (!first().ready() || admitted_) return;
  starting_ = false;
  admitted_ = true;
  CloseBreaker();
  owner_.OnBack(*this);
}

Endpoint::Lane::Lane(Endpoint& endpoint)
    : endpoint(endpoint),
      connection(endpoint.loop_, endpoint.resolver_, endpoint.options_.connection, *this) {}

absl::Status Endpoint::Lane::OnInfo(const std::string& info) {
  return this == endpoint.lanes_[0].get() ? endpoint.owner_.OnInfo(endpoint, info)
                                          : endpoint.owner_.OnFurtherInfo(endpoint, info);
}

// What becomes of the further ones changes nothing but where commands find room; what was lost with
// one was told so.
void Endpoint::Lane::OnReady() {
  if (this == endpoint.lanes_[0].get()) {
    endpoint.OnReady();
  } else {
    endpoint.TellWaiters();
  }
}
void Endpoint::Lane::OnLost(const absl::Status& why) {
  if (this == endpoint.lanes_[0].get()) endpoint.OnLost(why);
}
void Endpoint::Lane::OnFailed(const absl::Status& why) {
  if (this == endpoint.lanes_[0].get()) endpoint.OnFailed(why);
}

void Endpoint::OnLost(const absl::Status& why) {
  admitted_ = false;
  // The server that comes back may be another one.
  for (size_t i = 1; i < lanes_.size(); ++i) lanes_[i]->connection.Stop();
  OpenBreaker(common::ToStd(why.message()));
}

void Endpoint::OnFailed(const absl::Status& why) {
  starting_ = false;
  const std::string_view what = common::ToStd(why.message());
  if (!std::exchange(breaker_open_, true)) {
    TellAway(what);
  } else if (what != last_failure_) {
    // Mere absence is what was said when it went away.
    if (!absl::IsUnavailable(why)) LogError("redis_connect", what);
    if (options_.availability != nullptr) options_.availability->StillAway(what);
  }
  last_failure_.assign(what);
  owner_.OnFailed(*this, why);
}

void Endpoint::LoadScripts() {
  // On each: a command follows on any of them. Once for all commands that were on their way:
  // answers come in order, so where one is awaited the scripts were loaded after what was told
  // NOSCRIPT.
  for (const auto& lane : lanes_) {
    if (lane->loads.under_way > 0) continue;
    for (size_t i = 0; i < kScripts && lane->connection.ready(); ++i) {
      const std::vector<std::string> words = {"SCRIPT", "LOAD",
                                              TextOf(static_cast<Script>(i)).text};
      lane->connection.Send(words, &lane->loads);
      ++lane->loads.under_way;
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
  // It became a replica, or starts: not the server it was. The next connection looks again.
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
