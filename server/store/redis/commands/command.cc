#include "server/store/redis/commands/command.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "server/store/redis/shard/shard.h"
#include "server/store/redis/topology/router.h"

namespace sluice::store::redis {
namespace {

// How often a command that was not executed is sent again: its script was flushed, its bucket is
// of other parameters, its slot moves. Each time somebody else did something that seldom happens.
constexpr int kMaxTries = 8;
constexpr int kTriesAtOnce = 2;

// Redis checks these before a script, or before what a script writes first: nothing was written.
bool RefusedAsAWhole(const Reply& error) {
  static constexpr const char* kCodes[] = {"NOSCRIPT", "MARKER",   "OOM",        "NOREPLICAS",
                                           "READONLY", "MISCONF",  "LOADING",    "MASTERDOWN",
                                           "BUSY",     "NOPERM",   "NOAUTH",     "MOVED",
                                           "ASK",      "TRYAGAIN", "CLUSTERDOWN"};
  return std::any_of(std::begin(kCodes), std::end(kCodes),
                     [&](const char* code) { return error.HasCode(code); });
}

}  // namespace

void Command::Start(std::unique_ptr<Command> command) {
  Endpoint* const endpoint = command->shard_.router().EndpointOf(command->RoutingKey());
  if (endpoint == nullptr || command->GoesAhead() || !endpoint->full()) {
    return StartInTurn(std::move(command));
  }
  Command* const self = command.release();
  if (!self->AwaitRoom(*endpoint)) self->End();
}

void Command::StartInTurn(std::unique_ptr<Command> command) {
  Command* const self = command.release();
  if (!self->SendAgain()) self->End();
}

void Command::OnReply(Reply* reply) {
  Endpoint::Answered(*this);
  if (given_up_) return End();
  answer_missing_ = reply == nullptr || (reply->is_error() && !RefusedAsAWhole(*reply));
  if (reply == nullptr) {
    shard_.counters().lost.Add();
    Abandon();
  } else if (reply->is_error()) {
    if (Cure(*reply)) return;
  } else if (OnAnswer(*reply) == Next::kInFlight) {
    return;
  }
  End();
}

bool Command::Cure(const Reply& error) {
  if (error.HasCode("NOSCRIPT")) {
    // Flushed, or a script was lost in a failover. Nothing was executed.
    endpoint_->LoadScripts();
    return MayTry() && SendTo(endpoint_, asking_);
  }
  const Course course = shard_.router().OnError(*endpoint_, RoutingKey(), error);
  // The router may have given up the server, and all that was in flight there.
  if (given_up_) return false;
  switch (course.what) {
    case Course::What::kSendAgain:
      if (!MayTry()) return false;
      // Servers that do not agree yet send it to and fro.
      if (tries_ > kTriesAtOnce) {
        SendLater(shard_.retry_ns());
        return true;
      }
      return course.endpoint == nullptr ? SendAgain() : SendTo(course.endpoint, course.asking);
    case Course::What::kSendLater:
      if (!MayTry()) return false;
      // What it waits for may be behind thousands of commands.
      SendLater(course.after_ns << (tries_ - 1));
      return true;
    case Course::What::kGiveUp:
      break;
  }
  OnError(error);
  return false;
}

void Command::SendLater(int64_t after_ns) {
  if (later_ == nullptr) {
    later_ = std::make_unique<net::Timer>(net::Timer::To<&Command::OnLater>, this);
  }
  shard_.SendsLater(this);
  shard_.loop().ArmIn(*later_, after_ns);
}

void Command::OnLater() {
  shard_.SendsNow(this);
  if (given_up_ || !SendAgain()) End();
}

void Command::Drop() {
  Abandon();
  End();
}

void Command::Abandon() {
  if (given_up_) return;
  given_up_ = true;
  AnswerUnavailable();
}

bool Command::MayTry() {
  if (++tries_ < kMaxTries) return true;
  Abandon();
  return false;
}

bool Command::SendAgain() { return SendTo(shard_.router().EndpointOf(RoutingKey()), false); }

bool Command::SendTo(Endpoint* endpoint, bool asking) {
  // A server that was not heard of before, to which a slot was moved.
  if (endpoint != nullptr && endpoint->starting()) {
    if (!MayTry()) return false;
    SendLater(shard_.retry_ns());
    return true;
  }
  if (endpoint == nullptr) {
    Abandon();
    return false;
  }
  endpoint_ = endpoint;
  asking_ = asking;
  std::vector<std::string>& words = shard_.words();
  if (!Build(&words)) return false;
  switch (endpoint->Send(*this, words, asking)) {
    case Endpoint::Sent::kYes:
      answer_missing_ = true;
      return true;
    case Endpoint::Sent::kFull:
      return AwaitRoom(*endpoint);
    case Endpoint::Sent::kAway:
      break;
  }
  Abandon();
  return false;
}

bool Command::AwaitRoom(Endpoint& endpoint) {
  if (!shard_.MayWait(endpoint.room_waiters())) {
    Abandon();
    return false;
  }
  shard_.SendsLater(this);
  endpoint.AwaitRoom(*this);
  return true;
}

void Command::OnRoom(Endpoint& endpoint) {
  shard_.SendsNow(this);
  // What is asked of just this server stays there.
  if (given_up_ || !(asking_ ? SendTo(&endpoint, true) : SendAgain())) End();
}

void Command::End() {
  Finish();
  delete this;
}

}  // namespace sluice::store::redis
