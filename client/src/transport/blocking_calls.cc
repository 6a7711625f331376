// Calls whose thread waits: it sends, and then reads for all or sleeps.
//
// Threads that share a link do not take turns one by one: a leader wakes all whose answers came in
// one batch, and each of them, knowing that others were just woken, yields once before it sends. So
// the requests of a batch leave together too.
#include <sched.h>

#include <algorithm>
#include <chrono>
#include <ctime>
#include <utility>

#include "client/src/transport/futex.h"
#include "client/src/transport/http2_core.h"

namespace sluice::client_internal {
namespace {

using std::chrono::steady_clock;

timespec Until(TimePoint deadline) {
  const int64_t ns =
      std::max<int64_t>(0, std::chrono::nanoseconds(deadline - steady_clock::now()).count());
  return {static_cast<time_t>(ns / 1'000'000'000), static_cast<long>(ns % 1'000'000'000)};
}

}  // namespace

Status BlockingCall::OnMessage(std::string_view message) {
  if (std::exchange(has_answer_, true)) {
    return Status::MaybeExecuted(StatusCode::kInternal, "the server sent more than one answer");
  }
  answer.assign(message);
  return Status();
}

void Http2Core::Run(BlockingCall& call) {
  const TimePoint now = steady_clock::now();
  Lock();
  call.bit_ = uint32_t{1} << (next_bit_++ % 32);
  if (Status refused = Start(call, now); !refused.ok()) {
    Unlock();
    call.status = std::move(refused);
    return;
  }
  if (call.state == CallStream::State::kOpen) {
    Link& link = *call.link;
    if (link.expected > 0) --link.expected;
    if (link.expected > 0) {
      Unlock();
      sched_yield();
      Lock();
    }
    // It may be over already: the first thread that sends does so for all.
    if (call.state == CallStream::State::kOpen) Flush(*call.link);
  }
  while (call.state != CallStream::State::kDone) {
    if (Link* const link = LinkOf(call); link != nullptr && MayLead(*link)) {
      Lead(*link, call);
    } else {
      const bool timely = AwaitWake(call);
      // Over, and nothing uses it any more: no need to take the lock again.
      if (call.done_.load(std::memory_order_acquire)) return;
      Lock();
      call.asleep_ = false;
      if (!timely) GiveUp(call);
    }
  }
  Unlock();
}

// While callbacks wait too, their thread is the leader: else both would take turns, at two switches
// of threads for each call. Except while it runs callbacks, which may take long.
bool Http2Core::MayLead(const Link& link) {
  if (link.leader) return false;
  if (!CallbackThreadLeads(link) || OnCallbackThread()) return true;
  WakeThread();
  return false;
}

Link* Http2Core::LinkOf(const BlockingCall& call) const {
  switch (call.state) {
    case CallStream::State::kOpen:
      return call.link;
    case CallStream::State::kWaiting:
      return current_ != nullptr && current_->idle() ? current_ : nullptr;
    case CallStream::State::kNew:
    case CallStream::State::kDone:
      break;
  }
  return nullptr;
}

void Http2Core::Lead(Link& link, BlockingCall& call) {
  while (LinkOf(call) == &link) {
    pollfd polled[2];
    PrepareTurn(link, polled);
    const TimePoint until = std::min(call.deadline, link.keepalive_at());
    Unlock();
    const bool timed = until != TimePoint::max();
    const timespec limit = timed ? Until(until) : timespec{};
    Turn turn{&link};
    const int ready = ppoll(polled, 2, timed ? &limit : nullptr, nullptr);
    if (ready > 0) ReadTurn(polled, &turn);
    Lock();
    FinishTurn(turn);
    if (ready != 0) continue;
    // Else it was time for a PING.
    if (const TimePoint now = steady_clock::now(); now >= call.deadline) {
      Expire(call, now);
      if (!link.broken()) Flush(link);
    }
  }
  link.leader = false;
  HandOver(link);
  Sweep();
}

void Http2Core::WakeThreadOf(BlockingCall& call) {
  if (call.asleep_) wake_bits_ |= call.bit_;
}

bool Http2Core::AwaitWake(BlockingCall& call) {
  call.asleep_ = true;
  const uint32_t seen = wakes_.load(std::memory_order_relaxed);
  Unlock();
  return FutexWait(&wakes_, seen, call.deadline, call.bit_);
}

void Http2Core::GiveUp(BlockingCall& call) {
  if (call.state == CallStream::State::kDone) return;
  Link* const link = LinkOf(call);
  Expire(call, steady_clock::now());
  if (link == nullptr || link->broken()) return;
  Flush(*link);
  // It may have been woken to lead.
  HandOver(*link);
}

}  // namespace sluice::client_internal
