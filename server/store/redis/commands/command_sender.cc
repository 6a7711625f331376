#include "server/store/redis/commands/command_sender.h"

#include <algorithm>
#include <iterator>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "server/store/redis/commands/command.h"
#include "server/store/redis/scripts/scripts.h"
#include "server/store/redis/topology/router.h"

namespace sluice::store::redis {
namespace {

// Sent again at most so often; the first of them at once.
constexpr int kMaxTries = 8;
constexpr int kTriesAtOnce = 2;

// Redis checks these before it starts a script, or before the script's first write.
bool RefusedAsAWhole(const Reply& error) {
  static constexpr const char* kCodes[] = {"NOSCRIPT",   kFenceReplaced, kClockSet,    "OOM",
                                           "NOREPLICAS", "READONLY",     "MISCONF",    "LOADING",
                                           "MASTERDOWN", "BUSY",         "NOAUTH",     "MOVED",
                                           "ASK",        "TRYAGAIN",     "CLUSTERDOWN"};
  // Unless the right is of a command within the script, which may have written before.
  if (error.HasCode("NOPERM")) return !absl::StrContains(error.text, "script");
  return std::any_of(std::begin(kCodes), std::end(kCodes),
                     [&](const char* code) { return error.HasCode(code); });
}

}  // namespace

void CommandSender::Start(Command& command) {
  CommandSender& sender = command.sender_;
  Endpoint* const endpoint = sender.context_.router().EndpointOf(command.RoutingKey());
  if (endpoint == nullptr || command.urgent() || !endpoint->full()) return StartInTurn(command);
  if (!sender.AwaitRoom(*endpoint)) sender.End();
}

void CommandSender::StartInTurn(Command& command) {
  if (!command.sender_.SendAgain()) command.sender_.End();
}

void CommandSender::OnAnswered(Reply* reply) {
  if (abandoned()) return End();
  answer_missing_ = reply == nullptr || (reply->is_error() && !RefusedAsAWhole(*reply));
  bool in_flight = false;
  if (reply == nullptr) {
    context_.counters().lost.Add();
    Abandon();
  } else if (reply->is_error()) {
    in_flight = OnErrorReply(*reply);
  } else {
    const Next next = command_.OnReply(*reply);
    switch (next.what) {
      case Next::What::kDone:
        break;
      case Next::What::kAbandon:
        Abandon();
        break;
      case Next::What::kRetry:
        if (!MayRetry()) break;
        [[fallthrough]];
      case Next::What::kSend:
        in_flight = next.after_ns > 0 ? SendLater(next.after_ns) : SendAgain();
        break;
    }
  }
  if (!in_flight) End();
}

bool CommandSender::OnErrorReply(const Reply& error) {
  if (error.HasCode("NOSCRIPT")) {
    // Flushed, or lost in a failover.
    endpoint_->LoadScripts();
    return MayRetry() && SendTo(endpoint_, asking_);
  }
  const Course course = context_.router().OnError(*endpoint_, command_.RoutingKey(), error);
  // The router may have closed the server, and abandoned what was in flight there.
  if (abandoned()) return false;
  switch (course.what) {
    case Course::What::kSendAgain:
      if (!MayRetry()) return false;
      // Servers that do not agree yet redirect it to each other.
      if (tries_ > kTriesAtOnce) return SendLater(context_.settings().retry_ns);
      return course.endpoint == nullptr ? SendAgain() : SendTo(course.endpoint, course.asking);
    case Course::What::kSendLater:
      // What it waits for may be behind thousands of commands.
      return MayRetry() && SendLater(course.after_ns << (tries_ - 1));
    case Course::What::kGiveUp:
      break;
  }
  command_.OnError(error);
  return false;
}

bool CommandSender::SendLater(int64_t after_ns) {
  if (timer_ == nullptr) {
    timer_ = std::make_unique<net::Timer>(net::Timer::To<&CommandSender::OnTimer>, this);
  }
  context_.sends().waiting.insert(this);
  context_.loop().ArmIn(*timer_, after_ns);
  return true;
}

void CommandSender::OnTimer() {
  context_.sends().waiting.erase(this);
  if (abandoned() || !SendAgain()) End();
}

void CommandSender::Resume() { OnTimer(); }

void CommandSender::Drop() {
  Abandon();
  End();
}

void CommandSender::Abandon() {
  if (abandoned_) return;
  abandoned_ = true;
  command_.OnUnavailable();
}

bool CommandSender::MayRetry() {
  if (++tries_ < kMaxTries) return true;
  Abandon();
  return false;
}

bool CommandSender::SendAgain() {
  return SendTo(context_.router().EndpointOf(command_.RoutingKey()), /*asking=*/false);
}

bool CommandSender::SendTo(Endpoint* endpoint, bool asking) {
  // A server that a slot was moved to, and that is being connected to.
  if (endpoint != nullptr && endpoint->starting()) {
    return MayRetry() && SendLater(context_.settings().retry_ns);
  }
  if (endpoint == nullptr) {
    Abandon();
    return false;
  }
  endpoint_ = endpoint;
  asking_ = asking;
  if (!command_.Ready()) {
    if (context_.MayWait(context_.sends().waiting.size())) {
      context_.sends().waiting.insert(this);
      return true;
    }
    Abandon();
    return false;
  }
  std::vector<std::string>& words = context_.sends().words;
  if (!command_.Build(&words)) return false;
  units_ = command_.units();
  switch (endpoint->Send(*this, words, command_.urgent(), asking)) {
    case Endpoint::Sent::kYes:
      answer_missing_ = true;
      return true;
    case Endpoint::Sent::kFull:
      return AwaitRoom(*endpoint);
    case Endpoint::Sent::kUnavailable:
      break;
  }
  Abandon();
  return false;
}

bool CommandSender::AwaitRoom(Endpoint& endpoint) {
  if (!context_.MayWait(endpoint.room_waiters())) {
    Abandon();
    return false;
  }
  context_.sends().waiting.insert(this);
  endpoint.AwaitRoom(*this);
  return true;
}

void CommandSender::OnRoom(Endpoint& endpoint) {
  context_.sends().waiting.erase(this);
  // After ASK it is for this server alone.
  if (abandoned() || !(asking_ ? SendTo(&endpoint, true) : SendAgain())) End();
}

void CommandSender::End() { command_.OnEnd(); }

}  // namespace sluice::store::redis
