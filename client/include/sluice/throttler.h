// Throttler: runs functions in order at the rate that a limit allows, never faster.
//
//   auto embedded = sluice::Embedded::Create({{.name = "mail", .rate = {50, 1s}}});
//   auto throttler = sluice::Throttler::Create(*embedded, {.limit = "mail"});
//   throttler->Run([&] { Send(message); });                  // blocks until it may run
//   auto sent = throttler->Submit([=] { Send(message); });   // runs it later, on an executor
//   if (throttler->TryStart()->count() == 0) Send(message);  // now, or not
//
// Throttler::Create(client, {...}) does the same with a server.
//
// Grant times. Each function gets the earliest grant time that the limit has left when it is
// submitted. Its permits are reserved then, so nothing polls. Within a channel, grant times follow
// the order of submission; a channel that waits for its own limit does not delay the others.
// Functions run in the order of their grant times, and with equal grant times in the order of
// submission. The limits hold for the grant times: a function that starts late adds the jitter of
// the executor and of the scheduler.
//
// Cost. Run, Start, TryRun and TryStart take no lock and allocate nothing while permits are
// available, if the throttler is embedded and its limit is a token bucket.
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

// The greatest StartOptions::max_wait.
inline constexpr std::chrono::nanoseconds kMaxThrottlerWait = std::chrono::hours(24);

struct StartOptions {
  uint64_t permits = 1;  // at least 1
  // How far ahead the grant time may be. 0: now, or DEADLINE_EXCEEDED. Negative or above
  // kMaxThrottlerWait: INVALID_ARGUMENT.
  std::chrono::nanoseconds max_wait = kMaxThrottlerWait;
  // Cancels it while it waits: CANCELLED, and the permits are refunded. In an embedded throttler
  // the functions and callers behind it move up; grant times from a server are final.
  std::stop_token cancel = {};
};

// What a shutdown does with the functions and callers that wait.
enum class AtShutdown {
  kWait,  // runs them first, at their grant times
  kDrop,  // ends them with CANCELLED and refunds their permits
};

struct ThrottlerOptions {
  // Limit and key of the main channel. Limits of other channels usually name this limit in their
  // `charges`.
  std::string limit = {};
  std::string key = {};
  // The most submitted functions and blocked callers that wait, over all channels. The next one
  // fails with RESOURCE_EXHAUSTED.
  size_t max_waiting = 100'000;
  // Null: a ThreadExecutor with one thread, so that functions run one after the other.
  std::shared_ptr<Executor> executor = {};
  AtShutdown at_destruction = AtShutdown::kWait;
  // Only with a server; null: a SystemClock. An embedded throttler uses the clock of its Embedded.
  std::shared_ptr<Clock> clock = {};
};

struct ThrottlerStats {
  size_t waiting = 0;  // functions and blocked callers before their grant times
  size_t running = 0;  // handed to the executor and not finished
  // Until the first grant time in the queue; absent if the queue is empty.
  std::optional<std::chrono::nanoseconds> next_grant_after = {};
  uint64_t finished = 0;   // submitted functions that have run
  uint64_t refused = 0;    // by max_waiting
  uint64_t denied = 0;     // no grant time within max_wait, or refused by the limit
  uint64_t cancelled = 0;  // by their tokens or by a shutdown
};

namespace throttler_internal {

class Core;
struct ChannelState;

// A function or a blocked caller. Either Run or Fail is called, once.
class Work {
 public:
  virtual ~Work() = default;
  virtual void Run() = 0;  // at the grant time; does not throw
  virtual void Fail(Status status) = 0;
};

// The type that reports a function's result: Status for void and Status, Result<T> for T and
// Result<T>.
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

// One limit and key of a throttler. A handle: cheap to copy, and usable after the throttler was
// shut down, when all calls fail with FAILED_PRECONDITION. Thread-safe.
//
// Errors of all calls:
//   INVALID_ARGUMENT     permits is 0 or more than the limit can ever grant; max_wait is invalid
//   NOT_FOUND            the limit was deleted
//   DEADLINE_EXCEEDED    no grant time within max_wait
//   RESOURCE_EXHAUSTED   too many functions and callers wait
//   CANCELLED            by StartOptions::cancel or a shutdown
//   FAILED_PRECONDITION  the throttler is shut down
//   UNAVAILABLE          no server decided
class ThrottlerChannel {
 public:
  // Blocks until the grant time, then runs `fn` on this thread and returns its result: a Status for
  // void, else a Result. Passes on an exception of `fn`; its permits stay taken.
  template <typename Fn>
  throttler_internal::OutcomeOf<std::remove_reference_t<Fn>> Run(
      Fn&& fn, const StartOptions& options = {}) const {
    Status status = Start(options);
    if (!status.ok()) return status;
    return throttler_internal::Invoke(fn);
  }

  // Runs `fn` on the executor at its grant time. The future has its result, its exception, or the
  // error that kept it from running. Does not block, unless an InlineExecutor runs `fn` at once.
  // `fn` may call Submit.
  template <typename Fn>
  std::future<throttler_internal::OutcomeOf<std::decay_t<Fn>>> Submit(
      Fn&& fn, const StartOptions& options = {}) const {
    auto work =
        std::make_unique<throttler_internal::FunctionWork<std::decay_t<Fn>>>(std::forward<Fn>(fn));
    auto future = work->future();
    SubmitWork(std::move(work), options);
    return future;
  }

  // Runs `fn` now, on this thread, and returns zero; or returns the time to sleep before the next
  // try. Ignores the result of `fn`.
  template <typename Fn>
  Result<std::chrono::nanoseconds> TryRun(Fn&& fn, uint64_t permits = 1) const {
    Result<std::chrono::nanoseconds> wait = TryStart(permits);
    if (wait.ok() && wait->count() == 0) static_cast<void>(fn());
    return wait;
  }

  // For code that cannot be wrapped in a function. Start blocks until the grant time. TryStart
  // returns zero (start now) or the time to sleep before the next try.
  Status Start(const StartOptions& options = {}) const;
  Result<std::chrono::nanoseconds> TryStart(uint64_t permits = 1) const;

  // The functions and callers that wait through this handle and its copies.
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

// The main channel, which owns the throttler. Movable.
class Throttler final : public ThrottlerChannel {
 public:
  // In this process, without a server. NOT_FOUND: the limit does not exist. INVALID_ARGUMENT:
  // max_waiting is 0, or the key is too long.
  static Result<Throttler> Create(std::shared_ptr<Embedded> embedded, ThrottlerOptions options);
  // With a server. The client outlives the throttler and its channels. The first call reports a
  // limit that does not exist. INVALID_ARGUMENT: max_waiting is 0.
  static Result<Throttler> Create(Client& client, ThrottlerOptions options);

  Throttler(Throttler&&) noexcept = default;
  Throttler& operator=(Throttler&& other) noexcept;
  // Shuts down by ThrottlerOptions::at_destruction.
  ~Throttler();

  // Another limit or key, with the same executor and queue. NOT_FOUND, if embedded: the limit does
  // not exist.
  Result<ThrottlerChannel> Channel(std::string limit, std::string key = {}) const;

  // Refuses new calls, and returns when no function or caller waits or runs. If a submitted
  // function calls it, it does not wait for that function, nor for functions behind it. With kWait
  // and a VirtualClock, another thread has to advance the clock.
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
