// Throttler: runs functions at the rate that a limit allows, in order, and never above it.
//
//   auto embedded = sluice::Embedded::Create({{.name = "mail", .rate = {50, 1s}}});
//   auto throttler = sluice::Throttler::Create(*embedded, {.limit = "mail"});
//   throttler->Run([&] { Send(message); });                // blocks until the moment, then runs it
//   auto sent = throttler->Submit([=] { Send(message); }); // runs it later, on an executor
//   if (throttler->TryStart()->count() == 0) Send(message);  // now, or how long to sleep
//
// The same against a server: Throttler::Create(client, {...}).
//
// Moments. Each function gets the earliest moment that the limit has left, at once: permits are
// booked, nobody polls. Within a channel moments are given in the order of submission; a channel
// that waits for a limit of its own does not hold back the others. Functions run in the order of
// their moments, those of one moment in the order in which they were submitted. Limits are kept at
// these moments; a function that starts late adds its own jitter, and the executor's.
//
// Cost: Run, Start, TryRun and TryStart take no lock and do not allocate while permits are there,
// embedded, on a token bucket.
#ifndef SLUICE_THROTTLER_H_
#define SLUICE_THROTTLER_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

#include "sluice/clock.h"
#include "sluice/executor.h"
#include "sluice/status.h"

namespace sluice {

class Client;
class Embedded;

// How far ahead a moment may lie: the longest wait that can be asked for.
inline constexpr std::chrono::nanoseconds kMaxThrottlerWait = std::chrono::hours(24);

struct StartOptions {
  uint64_t permits = 1;  // at least 1
  // 0: now or DEADLINE_EXCEEDED. Negative or above kMaxThrottlerWait: INVALID_ARGUMENT.
  std::chrono::nanoseconds max_wait = kMaxThrottlerWait;
  // Cancels while it waits: CANCELLED, and the permits are given back. Embedded, those behind it
  // move up; with a server the moments that were given stand.
  std::stop_token cancel = {};
};

// What becomes of what waits when a throttler is shut down.
enum class AtShutdown {
  kWait,  // all of it runs first, at its moments
  kDrop,  // answered CANCELLED; permits are given back
};

struct ThrottlerOptions {
  // Of the main channel. A channel of its own is a limit whose `charges` name this one.
  std::string limit = {};
  std::string key = {};
  // Submitted functions and blocked callers that wait for their moment, over all channels; one
  // more is refused, RESOURCE_EXHAUSTED.
  size_t max_waiting = 100'000;
  // Null: one thread of the throttler's own, so that functions run one after the other.
  std::shared_ptr<Executor> executor = {};
  AtShutdown at_destruction = AtShutdown::kWait;
  // With a server only (embedded has its own): null is the system's.
  std::shared_ptr<Clock> clock = {};
};

struct ThrottlerStats {
  size_t waiting = 0;  // for their moments, blocked callers included
  size_t running = 0;  // given to the executor and not ended
  // Until the first moment among those that wait; absent: nobody waits.
  std::optional<std::chrono::nanoseconds> next_grant_after = {};
  uint64_t finished = 0;   // submitted functions that have run
  uint64_t refused = 0;    // max_waiting
  uint64_t denied = 0;     // no moment within max_wait, or refused by the limit
  uint64_t cancelled = 0;  // by their tokens or by a shutdown
};

namespace throttler_internal {

class Core;
struct ChannelState;

// What is done at a moment, or else told why not: one of the two, once.
class Work {
 public:
  virtual ~Work() = default;
  virtual void Run() = 0;  // does not throw
  virtual void Fail(Status status) = 0;
};

// What a function's result comes to: Status for void, Result<T> for T; Status and Result<T> stay
// what they are.
template <typename T>
struct Outcome {
  using Type = Result<T>;
};
template <>
struct Outcome<void> {
  using Type = Status;
};
template <>
struct Outcome<Status> {
  using Type = Status;
};
template <typename T>
struct Outcome<Result<T>> {
  using Type = Result<T>;
};
template <typename Fn>
using OutcomeOf = typename Outcome<std::decay_t<std::invoke_result_t<Fn&>>>::Type;

template <typename Fn>
OutcomeOf<Fn> Invoke(Fn& fn) {
  if constexpr (std::is_void_v<std::invoke_result_t<Fn&>>) {
    fn();
    return Status();
  } else {
    return fn();
  }
}

template <typename Fn>
class FunctionWork final : public Work {
 public:
  explicit FunctionWork(Fn fn) : fn_(std::move(fn)) {}
  std::future<OutcomeOf<Fn>> future() { return promise_.get_future(); }

  void Run() override {
    try {
      promise_.set_value(Invoke(fn_));
    } catch (...) {
      promise_.set_exception(std::current_exception());
    }
  }
  void Fail(Status status) override { promise_.set_value(std::move(status)); }

 private:
  Fn fn_;
  std::promise<OutcomeOf<Fn>> promise_;
};

}  // namespace throttler_internal

// One limit and key of a throttler. A handle: cheap to copy, and safe to use after the throttler
// was shut down (FAILED_PRECONDITION). Thread-safe.
//
// Errors of all calls: INVALID_ARGUMENT (permits 0, or more than the limit could ever grant;
// max_wait), NOT_FOUND (the limit is gone), DEADLINE_EXCEEDED (no moment within max_wait),
// RESOURCE_EXHAUSTED (too many wait), CANCELLED, FAILED_PRECONDITION (shut down), and with a
// server UNAVAILABLE.
class ThrottlerChannel {
 public:
  // Blocks until the moment; then runs `fn` on this thread and returns what it returned: Status
  // for void, else Result. An exception of `fn` goes through; the permits stay taken.
  template <typename Fn>
  throttler_internal::OutcomeOf<std::remove_reference_t<Fn>> Run(
      Fn&& fn, const StartOptions& options = {}) const {
    Status status = Start(options);
    if (!status.ok()) return status;
    return throttler_internal::Invoke(fn);
  }

  // Does not block (with InlineExecutor: but for `fn`, if its moment is now). `fn` runs on the
  // executor at its moment; the future has what it returned, what it threw, or why it did not run.
  // A `fn` may submit again.
  template <typename Fn>
  std::future<throttler_internal::OutcomeOf<std::decay_t<Fn>>> Submit(
      Fn&& fn, const StartOptions& options = {}) const {
    auto work =
        std::make_unique<throttler_internal::FunctionWork<std::decay_t<Fn>>>(std::forward<Fn>(fn));
    auto future = work->future();
    SubmitWork(std::move(work), options);
    return future;
  }

  // Runs `fn` now, on this thread, and returns zero; or how long to sleep before the next try. What
  // `fn` returns is dropped.
  template <typename Fn>
  Result<std::chrono::nanoseconds> TryRun(Fn&& fn, uint64_t permits = 1) const {
    Result<std::chrono::nanoseconds> wait = TryStart(permits);
    if (wait.ok() && wait->count() == 0) static_cast<void>(fn());
    return wait;
  }

  // For code that cannot be wrapped in a function. Start blocks until the moment; TryStart returns
  // zero (start now) or how long to sleep before the next try.
  Status Start(const StartOptions& options = {}) const;
  Result<std::chrono::nanoseconds> TryStart(uint64_t permits = 1) const;

  // Those of this channel that wait, as far as this handle and its copies put them there.
  size_t waiting() const;

 protected:
  ThrottlerChannel(std::shared_ptr<throttler_internal::Core> core,
                   std::shared_ptr<throttler_internal::ChannelState> state);

  void SubmitWork(std::unique_ptr<throttler_internal::Work> work,
                  const StartOptions& options) const;

  std::shared_ptr<throttler_internal::Core> core_;
  std::shared_ptr<throttler_internal::ChannelState> state_;

 private:
  friend class Throttler;
};

// The main channel, and what all channels share. Movable.
class Throttler final : public ThrottlerChannel {
 public:
  // In this process, without a server. NOT_FOUND: no such limit. INVALID_ARGUMENT: max_waiting 0.
  static Result<Throttler> Create(std::shared_ptr<Embedded> embedded, ThrottlerOptions options);
  // Against a server; the client outlives the throttler and its channels. That the limit exists is
  // found out by the first call.
  static Result<Throttler> Create(Client& client, ThrottlerOptions options);

  Throttler(Throttler&&) noexcept = default;
  Throttler& operator=(Throttler&& other) noexcept;
  // Shuts down as ThrottlerOptions::at_destruction says.
  ~Throttler();

  // NOT_FOUND, embedded: no such limit.
  Result<ThrottlerChannel> Channel(std::string limit, std::string key = {}) const;

  // What is asked from now on is refused; returns when nothing waits and no submitted function
  // runs any more. Called by a submitted function it does not wait for that one, nor for those
  // behind it. With kWait and a VirtualClock somebody else has to turn the clock.
  void Shutdown(AtShutdown what_waits);

  ThrottlerStats stats() const;

 private:
  friend class throttler_internal::Core;
  Throttler(std::shared_ptr<throttler_internal::Core> core,
            std::shared_ptr<throttler_internal::ChannelState> state, AtShutdown at_destruction);

  AtShutdown at_destruction_;
};

}  // namespace sluice

#endif  // SLUICE_THROTTLER_H_
