#include "client/src/transport/http2_core.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "client/src/transport/futex.h"
#include "client/src/transport/own_thread.h"
#include "client/src/transport/time_after.h"
#include "common/random.h"

namespace sluice::client_internal {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using std::chrono::steady_clock;

constexpr seconds kDialTimeout{5};
constexpr milliseconds kFirstPause{50};
constexpr milliseconds kLongestPause{1000};
// After so long without a reader, a link may have been closed by the server.
constexpr milliseconds kUnread{10};
// Connections on which one call may fail without having been looked at.
constexpr int kMaxResends = 3;

Status ShutDown() { return Status(StatusCode::kCancelled, "the client was shut down"); }

// 50 ms, doubled up to 1 s, and randomized by a fifth either way.
std::chrono::nanoseconds PauseAfter(int failures) {
  const auto pause = std::min<std::chrono::nanoseconds>(
      kFirstPause * (1 << std::min(failures - 1, 10)), kLongestPause);
  return pause * static_cast<int64_t>(800 + common::RandomWord() % 400) / 1000;
}

std::string Authority(const ServerAddress& server, const TlsOptions& tls) {
  if (!tls.server_name.empty()) return tls.server_name;
  return server.is_unix() ? "localhost" : server.text;
}

}  // namespace

Http2Core::Http2Core(ServerAddress server, const TlsOptions& tls,
                     std::shared_ptr<const TlsSetup> setup, const std::string& token,
                     const TransportOptions& options)
    : server_(server),
      options_(options),
      headers_(setup != nullptr, Authority(server, tls), token),
      dialer_(std::move(server), tls, std::move(setup), options.resolver),
      thread_wake_fd_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {}

Http2Core::~Http2Core() { close(thread_wake_fd_); }

void Http2Core::Unlock() {
  while (!ended_.empty()) {
    auto& call = static_cast<BlockingCall&>(ended_.PopFront());
    call.done_.store(true, std::memory_order_release);
  }
  const uint32_t bits = std::exchange(wake_bits_, 0);
  const bool wake_thread = std::exchange(wake_thread_, false);
  if (bits != 0) wakes_.fetch_add(1, std::memory_order_release);
  mu_.Unlock();
  if (bits != 0) FutexWake(&wakes_, bits);
  if (wake_thread) {
    const uint64_t one = 1;
    [[maybe_unused]] const ssize_t n = write(thread_wake_fd_, &one, sizeof(one));
  }
}

// ---- Calls

Status Http2Core::Start(CallStream& call, TimePoint now) {
  if (closed_) return ShutDown();
  if (now >= call.deadline) {
    return Status(StatusCode::kDeadlineExceeded,
                  "the deadline passed before the call was sent; nothing was taken");
  }
  if (current_ != nullptr) CatchUp(*current_, now);
  if (current_ != nullptr && waiting_.empty() && current_->has_room()) {
    current_->Open(call);
    return Status();
  }
  if (current_ == nullptr && dialing_ == Dialing::kPausing && now < retry_at_) return dial_error_;
  call.state = CallStream::State::kWaiting;
  waiting_.PushBack(call);
  if (current_ == nullptr) Dial();
  return Status();
}

void Http2Core::FillRoom(const Link& changed) {
  bool opened = false;
  while (!waiting_.empty() && current_ != nullptr && current_->has_room()) {
    current_->Open(waiting_.PopFront());
    opened = true;
  }
  if (!opened) return;
  if (current_ != &changed) current_->WakeLeader();
  // Their threads sleep; maybe no other one leads.
  HandOver(*current_);
}

void Http2Core::Finish(CallStream& call, Status status) {
  call.state = CallStream::State::kDone;
  call.OnFinished(std::move(status));
  if (!call.blocking) return Schedule(static_cast<CallbackCall&>(call));
  auto& waited = static_cast<BlockingCall&>(call);
  ended_.PushBack(call);
  ++woken_;
  WakeThreadOf(waited);
}

bool Http2Core::Resend(CallStream& call) {
  if (closed_ || call.failed() || !call.can_rewind() || call.resends >= kMaxResends) return false;
  ++call.resends;
  call.Rewind();
  call.state = CallStream::State::kWaiting;
  waiting_.PushBack(call);
  return true;
}

void Http2Core::Cancel(CallStream& call, Status status) ABSL_NO_THREAD_SAFETY_ANALYSIS {
  switch (call.state) {
    case CallStream::State::kWaiting:
      waiting_.Remove(call);
      return Finish(call, std::move(status));
    case CallStream::State::kOpen:
      if (call.failed()) return;  // ended already; the session has yet to say so
      call.Fail(std::move(status));
      return call.link->session().Reset(call, http2::ErrorCode::kCancel);
    case CallStream::State::kNew:
    case CallStream::State::kDone:
      return;
  }
}

void Http2Core::GiveUp(CallStream& call) ABSL_NO_THREAD_SAFETY_ANALYSIS {
  Expire(call, steady_clock::now());
}

void Http2Core::Expire(CallStream& call, TimePoint now) {
  constexpr StatusCode kCode = StatusCode::kDeadlineExceeded;
  // While callbacks blocked their thread, no thread read: its answer, or a PING's, may be there.
  if (call.state == CallStream::State::kOpen) CatchUp(*call.link, now);
  if (call.state == CallStream::State::kWaiting) {
    return Cancel(call,
                  Status(kCode, current_ == nullptr
                                    ? "could not connect to " + server_.text + " in time"
                                    : "the server accepts no more calls at once; none ended in "
                                      "time"));
  }
  if (call.state != CallStream::State::kOpen) return;
  Link& link = *call.link;
  Cancel(call, BrokenCall(call.MayHaveBeenSent(), kCode, "no answer before the deadline"));
  if (!link.NoteTimeout(now)) BreakLink(link, "the server does not answer");
}

void Http2Core::EndAll(Calls& calls, const std::function<Status(const CallStream&)>& status) {
  while (!calls.empty()) {
    CallStream& call = calls.PopFront();
    Finish(call, status(call));
  }
}

// ---- Link::Events. The session calls them under the lock.

void Http2Core::OnCallClosed(CallStream& call,
                             const http2::StreamEnd& end) ABSL_NO_THREAD_SAFETY_ANALYSIS {
  // A server that refuses single calls is overloaded: its callers decide when they try again. One
  // that goes away has not looked at the call.
  const Link& link = *call.link;
  const bool unseen = end.kind == http2::StreamEnd::Kind::kNotProcessed && !link.usable();
  if (!unseen || !Resend(call)) Finish(call, call.Outcome(end));
  FillRoom(link);
}

void Http2Core::OnRoomChanged(Link& link) ABSL_NO_THREAD_SAFETY_ANALYSIS {
  if (!link.usable() && current_ == &link) current_ = nullptr;
  FillRoom(link);
}

// ---- Links

void Http2Core::Dial() {
  if (closed_ || dialing_ == Dialing::kRunning) return;
  dialing_ = Dialing::kRunning;
  const bool started =
      StartOwnThread([core = shared_from_this()] { core->MakeLink(); }, "sluice-connect",
                     /*thread=*/nullptr);
  if (started) return;
  dialing_ = Dialing::kIdle;
  EndAll(waiting_, [](const CallStream&) {
    return Status(StatusCode::kUnavailable, "cannot connect: the system starts no more threads");
  });
}

void Http2Core::MakeLink() {
  std::unique_ptr<Link> link;
  Status status =
      dialer_.Dial(steady_clock::now() + kDialTimeout, dial_cancel_,
                   [&](std::unique_ptr<Channel> channel, TimePoint deadline) {
                     link = std::make_unique<Link>(*this, headers_, options_, std::move(channel));
                     return link->Greet(deadline, dial_cancel_);
                   });
  Lock();
  dialing_ = Dialing::kIdle;
  if (status.ok() && !closed_) {
    failures_ = 0;
    Link& made = *link;
    links_.push_back(std::move(link));
    current_ = &made;
    FillRoom(made);
    Flush(made);
    HandOver(made);
  } else if (!closed_) {
    dialing_ = Dialing::kPausing;
    retry_at_ = steady_clock::now() + PauseAfter(++failures_);
    dial_error_ = status;
    EndAll(waiting_, [&](const CallStream&) { return status; });
  }
  Sweep();
  link = nullptr;  // under the lock: the thread in Stop may end the process then
  changed_.SignalAll();
  Unlock();
}

void Http2Core::BreakLink(Link& link, const std::string& cause) {
  if (link.broken()) return;
  if (current_ == &link) current_ = nullptr;
  link.Break(cause);
  for (const bool blocking : {true, false}) {
    Calls& calls = link.calls(blocking);
    while (!calls.empty()) {
      CallStream& call = calls.PopFront();
      const bool sent = call.MayHaveBeenSent();
      if (!sent && Resend(call)) continue;
      Status status = BrokenCall(sent, StatusCode::kUnavailable,
                                 "the connection to " + server_.text + " broke: " + cause);
      if (call.failed()) status = call.Outcome({});
      Finish(call, std::move(status));
    }
  }
  FillRoom(link);
  if (!waiting_.empty() && current_ == nullptr) Dial();
}

void Http2Core::Settle(Link& link) {
  if (link.broken()) return;
  http2::ClientSession& session = link.session();
  if (session.ended()) {
    BreakLink(link, "it breaks HTTP/2's rules: " + std::string(session.error_text()));
  } else if (!link.usable()) {
    if (current_ == &link) current_ = nullptr;
    if (!waiting_.empty() && current_ == nullptr) Dial();
    if (link.idle()) BreakLink(link, "the server ended it");
  }
}

void Http2Core::Sweep() {
  std::erase_if(links_, [](const std::unique_ptr<Link>& link) {
    return link->broken() && !link->leader && !link->writing;
  });
}

void Http2Core::Flush(Link& link) {
  link.CollectOutput();
  if (link.writing || link.blocked || link.write_failed) return;
  link.writing = true;
  while (!link.write_failed && !link.broken()) {
    link.CollectOutput();
    if (link.in_flight.empty() && !link.TakeOutput()) break;
    const std::span<const uint8_t> bytes(link.in_flight.data(), link.in_flight.size());
    Channel::IoResult wrote;
    if (link.channel->tls()) {
      wrote = link.channel->Write(bytes);
    } else {
      Unlock();
      wrote = link.channel->Write(bytes);
      Lock();
    }
    if (wrote.io == Channel::Io::kDone) {
      link.in_flight.Consume(wrote.bytes);
      continue;
    }
    if (wrote.io == Channel::Io::kClosed) {
      // What the server said last is still to be read, by the leader: maybe a GOAWAY.
      link.write_failed = true;
      if (!link.channel->tls()) link.Untake(link.in_flight.size());
      link.in_flight.Clear();
    } else {
      link.blocked = true;
    }
    link.WakeLeader();
    break;
  }
  link.writing = false;
  Settle(link);
}

void Http2Core::FlushFor(CallStream& call) {
  // The callback thread sends before it sleeps, for all calls that its callbacks made.
  if (call.state == CallStream::State::kOpen && !OnCallbackThread()) Flush(*call.link);
}

void Http2Core::TakeInput(Link& link, const Channel::IoResult& read) {
  if (read.io == Channel::Io::kBlocked) return;
  if (read.io == Channel::Io::kClosed) return BreakLink(link, link.channel->error());
  woken_ = 0;
  link.Receive({link.input.data(), read.bytes}, steady_clock::now());
  link.expected = woken_;
  Settle(link);
}

// It never blocks, so it may read under the lock.
void Http2Core::CatchUp(Link& link, TimePoint now) {
  if (link.leader || now - link.last_received() < kUnread) return;
  bool any = false;
  while (!link.broken()) {
    const Channel::IoResult read = link.channel->Read(link.input);
    TakeInput(link, read);
    if (read.io != Channel::Io::kDone) break;
    any = true;
  }
  if (!any) return;
  // The call of a thread that was woken to lead may be over now. Others may have been opened.
  link.WakeLeader();
  HandOver(link);
}

// ---- Shutdown

void Http2Core::Shutdown() {
  dial_cancel_.Cancel();
  Lock();
  closed_ = true;
  EndAll(waiting_, [](const CallStream&) { return ShutDown(); });
  // Not under an iterator: the lock is released while a link writes.
  for (size_t i = 0; i < links_.size(); ++i) {
    Link& link = *links_[i];
    for (const bool blocking : {true, false}) {
      EndAll(link.calls(blocking), [](const CallStream& call) {
        return BrokenCall(call.MayHaveBeenSent(), StatusCode::kCancelled,
                          "the client was shut down");
      });
    }
    if (!link.broken()) BreakLink(link, "the client was shut down");
  }
  WakeThread();
  changed_.SignalAll();
  // Not at once what Unlock would do: the wait below releases the lock without it.
  Unlock();
  if (OnCallbackThread()) return;
  Lock();
  while (pending_ > 0) changed_.Wait(&mu_);
  Sweep();
  Unlock();
}

void Http2Core::Sleep(std::chrono::nanoseconds time) {
  const TimePoint end = After(steady_clock::now(), time);
  Lock();
  while (!closed_) {
    const auto left = end - steady_clock::now();
    if (left.count() <= 0) break;
    changed_.WaitFor(&mu_, left);
  }
  Unlock();
}

}  // namespace sluice::client_internal
