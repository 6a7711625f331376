// Throttler: for programs whose limited work is a function.
//
//   auto throttler = sluice::Throttler::Embedded({.limits = {{.name = "mail", .permits = 50}}});
//   (*throttler)->Run("mail", [&] { Send(message); });              // blocks until the moment
//   auto sent = (*throttler)->Submit("mail", [&] { return Send(message); });   // a future
//   if (!(*throttler)->TryRun("mail", [&] { Send(message); })) { ... not now ... }
//   auto sleep = (*throttler)->TryStart("mail");                    // zero: go; else how long
//
// A channel is a limit; one that names others in `charges` stays under those too, all or none. In
// a channel, work runs in the order in which it came, also when several fall on one instant; a slow
// channel does not hold up the others; work that does not wait does not overtake work that does.
//
// Embedded: the engine is in this process, and no server is needed. Limits can be changed while
// the throttler runs: work that waits then goes by the new figures.
//
// What is promised is about the moments that the throttler decides: no window of a limit is ever
// over, counted by them. A thread that is scheduled late runs late.
#ifndef SLUICE_THROTTLER_H_
#define SLUICE_THROTTLER_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <future>
#include <memory>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "sluice/status.h"

namespace sluice {

enum class ThrottleAlgorithm { kTokenBucket, kSlidingLog, kSlidingWindow, kFixedWindow };

struct ThrottleLimit {
  std::string name;
  ThrottleAlgorithm algorithm = ThrottleAlgorithm::kTokenBucket;
  uint64_t permits = 1;  // per period
  std::chrono::nanoseconds period = std::chrono::seconds(1);
  int64_t burst = -1;                     // token bucket; -1: the rate's permits
  uint64_t debt = 0;                      // token bucket
  std::vector<std::string> charges = {};  // other limits that this one stays under
};

// Time. Thread-safe.
class ThrottleClock {
 public:
  virtual ~ThrottleClock() = default;
  // Nanoseconds of a clock that never steps back.
  virtual int64_t NowNs() const = 0;
  // Calls `wake` at that moment, or as soon after it as can be, on a thread of the clock's. A later
  // call replaces an earlier one. Never calls it before it returned. Null: no more; when that has
  // returned no call is under way.
  virtual void WakeAt(const void* owner, int64_t at_ns, std::function<void()> wake) = 0;
};

// A clock that stands still until it is told to move; what falls due meanwhile runs on the thread
// that moves it, in order, each at its own moment.
class VirtualThrottleClock final : public ThrottleClock {
 public:
  VirtualThrottleClock();
  ~VirtualThrottleClock() override;
  int64_t NowNs() const override;
  void WakeAt(const void* owner, int64_t at_ns, std::function<void()> wake) override;
  void Advance(std::chrono::nanoseconds by);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// Runs what is given to it, in that order or all at once, as it likes. The default one is a single
// thread of the throttler's, which runs it in order.
using Executor = std::function<void(std::function<void()>)>;

// Cancels work that was submitted with it and has not begun: its permits come back, what waits
// behind it moves up, its future has std::future_errc::broken_promise. Copies are the same token.
class CancelToken {
 public:
  CancelToken();
  void Cancel();

 private:
  friend class Throttler;
  struct State;
  std::shared_ptr<State> state_;
};

struct ThrottlerOptions {
  std::vector<ThrottleLimit> limits;
  // Work that may wait in all: more is refused (RESOURCE_EXHAUSTED).
  size_t max_waiting = 100'000;
  // No work waits longer: it is refused (RESOURCE_EXHAUSTED). At most 24 h.
  std::chrono::nanoseconds max_wait = std::chrono::hours(24);
  // On destruction: waits for what is still to run (true), or drops it.
  bool finish_on_destruction = true;
  // Null: the machine's. Outlives the throttler.
  ThrottleClock* clock = nullptr;
  Executor executor = nullptr;
};

// Thread-safe.
class Throttler {
 public:
  // INVALID_ARGUMENT: a limit is bad; says which, and what would be right.
  static Result<std::unique_ptr<Throttler>> Embedded(ThrottlerOptions options);
  virtual ~Throttler() = default;

  // Zero: started, the permits are taken. Else how long to sleep before the next try. Takes no
  // lock. NOT_FOUND: no such channel. INVALID_ARGUMENT: permits that could never be granted.
  virtual Result<std::chrono::nanoseconds> TryStart(std::string_view channel,
                                                    uint64_t permits = 1) = 0;

  // Blocks until the moment, and returns with the permits taken. With a virtual clock another
  // thread must move it.
  virtual Status Start(std::string_view channel, uint64_t permits = 1) = 0;

  // Runs fn on this thread at its moment; returns what went wrong before. An exception of fn's is
  // the caller's.
  template <typename Fn>
  Status Run(std::string_view channel, Fn&& fn, uint64_t permits = 1) {
    const Result<std::chrono::nanoseconds> now = TryStart(channel, permits);
    if (!now.ok()) return now.status();
    if (now->count() != 0) {
      if (Status status = Start(channel, permits); !status.ok()) return status;
    }
    std::forward<Fn>(fn)();
    return Status();
  }

  // Runs fn now, on this thread, or not at all (false).
  template <typename Fn>
  Result<bool> TryRun(std::string_view channel, Fn&& fn, uint64_t permits = 1) {
    const Result<std::chrono::nanoseconds> now = TryStart(channel, permits);
    if (!now.ok()) return now.status();
    if (now->count() != 0) return false;
    std::forward<Fn>(fn)();
    return true;
  }

  // Runs fn on the executor at its moment. What fn throws reaches the future. fn may submit again.
  // RESOURCE_EXHAUSTED: too much waits, or it would wait too long. FAILED_PRECONDITION: Shutdown.
  template <typename Fn>
  auto Submit(std::string_view channel, Fn fn, uint64_t permits = 1, CancelToken* token = nullptr)
      -> Result<std::future<std::invoke_result_t<Fn&>>> {
    using Value = std::invoke_result_t<Fn&>;
    auto task = std::make_shared<std::packaged_task<Value()>>(std::move(fn));
    std::future<Value> future = task->get_future();
    Status status = Enqueue(channel, permits, [task] { (*task)(); }, token);
    if (!status.ok()) return status;
    return future;
  }

  // Adds or replaces a limit.
  virtual Status SetLimit(const ThrottleLimit& limit) = 0;

  // Takes no more work. `finish`: waits until what waits has run (on a virtual clock another thread
  // must move it); else drops it.
  virtual void Shutdown(bool finish) = 0;

  // Work that waits for its moment.
  virtual size_t waiting() const = 0;

 protected:
  virtual Status Enqueue(std::string_view channel, uint64_t permits, std::function<void()> run,
                         CancelToken* token) = 0;
  static const std::shared_ptr<CancelToken::State>& StateOf(CancelToken& token) {
    return token.state_;
  }
};

}  // namespace sluice

#endif  // SLUICE_THROTTLER_H_
