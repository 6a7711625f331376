// Http2Core: the calls of one client to one server, over HTTP/2 connections (links) of our own.
//
// Threads. A blocking call does its own I/O: its thread sends, and one of the waiting threads, the
// leader, reads for all (blocking_calls.cc). The others wait on one futex; a batch of answers wakes
// them by one system call. A leader whose call ends hands over to another one. A thread for
// callbacks (callback_thread.cc) starts with the first call that has a callback; it leads the links
// that have such calls and no leader. Connections are made by a thread that ends when one is made.
//
// One lock guards everything. No callback and no system call that may block runs under it, except
// TLS's reads and writes, since OpenSSL's connections are not thread-safe.
#ifndef SLUICE_CLIENT_SRC_TRANSPORT_HTTP2_CORE_H_
#define SLUICE_CLIENT_SRC_TRANSPORT_HTTP2_CORE_H_

#include <poll.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "client/src/transport/call_stream.h"
#include "client/src/transport/dialer.h"
#include "client/src/transport/fork_mark.h"
#include "client/src/transport/link.h"
#include "client/src/transport/transport_options.h"
#include "common/mutex.h"
#include "sluice/connection.h"

namespace sluice::client_internal {

using EndedCalls = common::IntrusiveList<CallStream, CallsToEnd>;

// A call whose thread waits for it.
class BlockingCall final : public CallStream {
 public:
  explicit BlockingCall(Method method) : CallStream(method, /*blocking=*/true) {}

  void OnFinished(Status ended) override { status = std::move(ended); }

  // Valid when the call is over.
  Status status;
  std::string answer;

 private:
  friend class Http2Core;
  Status OnMessage(std::string_view message) override;

  bool has_answer_ = false;
  uint32_t bit_ = 0;     // of the futex's bit set
  bool asleep_ = false;  // its thread waits on the futex, or is about to
  // Released when the call is over and nothing uses it any more.
  std::atomic<bool> done_{false};
};

// A call whose answers are given to callbacks. Its owner is itself, until it is over.
class CallbackCall : public CallStream {
 public:
  explicit CallbackCall(Method method) : CallStream(method, /*blocking=*/false) {}

  // Runs the callbacks that are due; without the lock, on the callback thread. Returns whether it
  // was the last time; the call is then destroyed.
  virtual bool Deliver() = 0;

 private:
  friend class Http2Core;
  bool due_ = false;
};

class Http2Core final : public std::enable_shared_from_this<Http2Core>, public Link::Events {
 public:
  Http2Core(ServerAddress server, const TlsOptions& tls, std::shared_ptr<const TlsSetup> setup,
            const std::string& token, const TransportOptions& options);
  ~Http2Core() override;

  // Blocks until the call is over. Its request and deadline are set.
  void Run(BlockingCall& call) ABSL_LOCKS_EXCLUDED(mu_);
  // Never blocks. Takes the call; Deliver follows, on the callback thread. Returns the error, and
  // does not take it, if it is too late, no server can be reached, or the client was shut down.
  Status Begin(std::unique_ptr<CallbackCall>* call) ABSL_LOCKS_EXCLUDED(mu_);
  // Runs `change()` under the lock. It returns the call that may have something to send, or null.
  template <typename Fn>
  void Change(Fn change) ABSL_LOCKS_EXCLUDED(mu_) {
    Lock();
    CallStream* const call = change();
    if (call != nullptr) FlushFor(*call);
    Unlock();
  }
  // Ends a call before its answer. REQUIRES: within Change.
  void Cancel(CallStream& call, Status status);
  // As Cancel, since no answer came in time: also finds out whether the server still answers.
  // REQUIRES: within Change.
  void GiveUp(CallStream& call);
  // A callback is due: Deliver follows. REQUIRES: within Change or an event of the call.
  void Schedule(CallbackCall& call);
  // Whoever handles the call now also handles what was scheduled since Deliver began. REQUIRES:
  // within Change.
  void Unschedule(CallbackCall& call);

  void RunAfter(std::chrono::nanoseconds delay, std::function<void()> fn) ABSL_LOCKS_EXCLUDED(mu_);
  // Blocks for the time, or until Shutdown.
  void Sleep(std::chrono::nanoseconds time) ABSL_LOCKS_EXCLUDED(mu_);
  void Shutdown() ABSL_LOCKS_EXCLUDED(mu_);
  // Ends the threads. After Shutdown.
  void Stop() ABSL_LOCKS_EXCLUDED(mu_);

  // Whether the process was forked since the core was made: the child has none of its threads, and
  // its lock may be held for ever.
  bool forked() const { return fork_mark_.forked(); }

 private:
  enum class Dialing : uint8_t {
    kIdle,     // connected, or nothing to connect for
    kRunning,  // a thread makes a connection
    kPausing,  // the last try failed: calls fail at once until retry_at_
  };

  // Unlock publishes what was decided under the lock: calls that are over, threads to wake.
  void Lock() ABSL_EXCLUSIVE_LOCK_FUNCTION(mu_) { mu_.Lock(); }
  void Unlock() ABSL_UNLOCK_FUNCTION(mu_);

  // ---- Calls (http2_core.cc)
  Status Start(CallStream& call, TimePoint now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Opens calls that wait. Whoever handles `changed` sends for it; the leader of another link does.
  void FillRoom(const Link& changed) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Finish(CallStream& call, Status status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Sends it on another link, if it may be. Returns false if not.
  bool Resend(CallStream& call) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Expire(CallStream& call, TimePoint now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Ends all calls in the list.
  void EndAll(Calls& calls, const std::function<Status(const CallStream&)>& status)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  // ---- Link::Events
  void OnCallClosed(CallStream& call, const http2::StreamEnd& end) override;
  void OnRoomChanged(Link& link) override;

  // ---- Links (http2_core.cc)
  void Dial() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void MakeLink() ABSL_LOCKS_EXCLUDED(mu_);
  void BreakLink(Link& link, const std::string& cause) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Breaks the link if its session has ended or nothing needs it. After its events.
  void Settle(Link& link) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Destroys links that are broken and that no thread uses.
  void Sweep() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Sends what there is to send. Releases the lock meanwhile, if there is no TLS.
  void Flush(Link& link) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void FlushFor(CallStream& call) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Handles one read of the link.
  void TakeInput(Link& link, const Channel::IoResult& read) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Reads what arrived while no call waited and no thread led: a GOAWAY, a PING, the end.
  void CatchUp(Link& link, TimePoint now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  // ---- Leading (leading.cc): a leader waits for its links and reads them. Prepare, Wait, Finish.
  struct Turn {
    Link* link;
    Channel::IoResult read = {};
    bool readable = false;
    bool writable = false;
  };
  // Fills two entries.
  void PrepareTurn(Link& link, pollfd* polled) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Without the lock, unless the link has TLS.
  static void ReadTurn(const pollfd* polled, Turn* turn);
  void FinishTurn(const Turn& turn) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  // ---- Blocking calls (blocking_calls.cc)
  bool MayLead(const Link& link) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // The link on which the call is open, or waits for room; null: none yet.
  Link* LinkOf(const BlockingCall& call) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // The first of the calls that wait for room on a link without open calls: the server accepts
  // none now, and one of these has to read when it does. Null: none.
  CallStream* FirstWaiting(const Link& link, bool blocking) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Lead(Link& link, BlockingCall& call) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Names another leader if calls wait.
  void HandOver(Link& link) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void WakeThreadOf(BlockingCall& call) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Releases the lock and waits until the call's bit is woken. Returns false at its deadline.
  bool AwaitWake(BlockingCall& call) ABSL_UNLOCK_FUNCTION(mu_);
  // Ends a call at its deadline.
  void GiveUp(BlockingCall& call) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  // ---- Callbacks (callback_thread.cc)
  bool StartThread() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void RunThread() ABSL_LOCKS_EXCLUDED(mu_);
  // Wakes the thread if it sleeps past `until`.
  void WakeThread(TimePoint until = TimePoint::min()) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  bool OnCallbackThread() const;
  // Whether the callback thread leads the link, or will at once.
  bool CallbackThreadLeads(const Link& link) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return !delivering_ && (!link.calls(/*blocking=*/false).empty() ||
                            FirstWaiting(link, /*blocking=*/false) != nullptr);
  }
  // Returns whether callbacks ran; the lock was released then.
  bool DeliverDue() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void ExpireCallbacks(TimePoint now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Sends for all links. Returns whether there was anything to send.
  bool FlushAll() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Leads the links that have callback calls and no leader, and sleeps until something is due.
  void SleepThread() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const ServerAddress server_;
  const TransportOptions options_;
  const RequestHeaders headers_;
  const Dialer dialer_;
  const ForkMark fork_mark_;
  DialCancel dial_cancel_;
  const int thread_wake_fd_;
  // Futex of blocking calls; counts wakes. Each call waits for its own bit of the set.
  std::atomic<uint32_t> wakes_{0};

  common::Mutex mu_;
  common::CondVar changed_;
  bool closed_ ABSL_GUARDED_BY(mu_) = false;

  std::vector<std::unique_ptr<Link>> links_ ABSL_GUARDED_BY(mu_);
  Link* current_ ABSL_GUARDED_BY(mu_) = nullptr;  // takes new calls
  Calls waiting_ ABSL_GUARDED_BY(mu_);            // calls without a link
  Dialing dialing_ ABSL_GUARDED_BY(mu_) = Dialing::kIdle;
  int failures_ ABSL_GUARDED_BY(mu_) = 0;  // to connect, in a row
  TimePoint retry_at_ ABSL_GUARDED_BY(mu_){};
  Status dial_error_ ABSL_GUARDED_BY(mu_);

  // What Unlock publishes.
  EndedCalls ended_ ABSL_GUARDED_BY(mu_);  // blocking ones
  uint32_t wake_bits_ ABSL_GUARDED_BY(mu_) = 0;
  bool wake_thread_ ABSL_GUARDED_BY(mu_) = false;
  uint32_t next_bit_ ABSL_GUARDED_BY(mu_) = 0;
  int woken_ ABSL_GUARDED_BY(mu_) = 0;  // threads woken by the present batch

  std::thread thread_ ABSL_GUARDED_BY(mu_);
  std::atomic<std::thread::id> thread_id_{};
  bool stop_ ABSL_GUARDED_BY(mu_) = false;
  bool asleep_ ABSL_GUARDED_BY(mu_) = false;
  bool delivering_ ABSL_GUARDED_BY(mu_) = false;  // it runs callbacks
  TimePoint sleeps_until_ ABSL_GUARDED_BY(mu_){};
  EndedCalls due_ ABSL_GUARDED_BY(mu_);  // calls with callbacks to run
  // Of the thread, kept for their memory.
  std::vector<CallbackCall*> delivered_;
  std::vector<pollfd> polled_;
  std::vector<Turn> turns_;
  size_t pending_ ABSL_GUARDED_BY(mu_) = 0;  // callback calls and timers that are not over
  // At or before the first deadline of a callback call.
  TimePoint first_deadline_ ABSL_GUARDED_BY(mu_) = TimePoint::max();
  std::multimap<TimePoint, std::function<void()>> timers_ ABSL_GUARDED_BY(mu_);
};

}  // namespace sluice::client_internal

#endif  // SLUICE_CLIENT_SRC_TRANSPORT_HTTP2_CORE_H_
