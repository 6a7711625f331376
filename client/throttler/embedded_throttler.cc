// The throttler on an engine in this process.
#include <algorithm>
#include <array>
#include <atomic>
#include <deque>
#include <thread>

#include "absl/strings/str_cat.h"
#include "client/throttler/cancel_token_state.h"
#include "client/throttler/clocks.h"
#include "server/algorithm/parameters.h"
#include "server/common/bounds.h"
#include "server/common/clock.h"
#include "server/common/mutex.h"
#include "server/common/strings.h"
#include "server/engine/waiting_line.h"
#include "server/limits/limit_registry.h"
#include "server/service/registry_rules.h"
#include "server/store/memory/memory_store.h"
#include "sluice/throttler.h"

namespace sluice {
namespace {

Status ToStatus(const absl::Status& status) {
  if (status.ok()) return Status();
  return Status(static_cast<StatusCode>(status.code()), std::string(status.message()));
}

algorithm::Kind KindOf(ThrottleAlgorithm algorithm) {
  switch (algorithm) {
    case ThrottleAlgorithm::kTokenBucket:
      return algorithm::Kind::kTokenBucket;
    case ThrottleAlgorithm::kSlidingLog:
      return algorithm::Kind::kSlidingLog;
    case ThrottleAlgorithm::kSlidingWindow:
      return algorithm::Kind::kSlidingWindow;
    case ThrottleAlgorithm::kFixedWindow:
      return algorithm::Kind::kFixedWindow;
  }
  return algorithm::Kind::kTokenBucket;
}

limits::LimitSpec SpecOf(const ThrottleLimit& limit) {
  limits::LimitSpec spec;
  spec.name = limit.name;
  spec.algorithm = KindOf(limit.algorithm);
  spec.rate = {limit.permits, limit.period.count()};
  if (limit.burst >= 0) spec.burst = static_cast<uint64_t>(limit.burst);
  if (limit.debt > 0) spec.debt = limit.debt;
  spec.charges = limit.charges;
  return spec;
}

// The engine's view of a throttler's clock.
class EngineClock final : public common::Clock {
 public:
  explicit EngineClock(const ThrottleClock& clock) : clock_(clock) {}
  int64_t NowNs() const override { return clock_.NowNs(); }
  int64_t WallNs() const override { return clock_.NowNs() + wall_ahead_ns_; }

 private:
  const ThrottleClock& clock_;
  const int64_t wall_ahead_ns_ = common::SystemClock().WallNs() - clock_.NowNs();
};

// One thread that runs what it is given, in order.
class SerialExecutor {
 public:
  ~SerialExecutor() {
    {
      common::MutexLock lock(&mu_);
      stop_ = true;
      changed_.SignalAll();
    }
    if (thread_.joinable()) thread_.join();
  }
  void Add(std::function<void()> run) {
    common::MutexLock lock(&mu_);
    if (!thread_.joinable()) thread_ = std::thread([this] { Loop(); });
    queue_.push_back(std::move(run));
    changed_.SignalAll();
  }

 private:
  // Ends when told to and all has run.
  void Loop() {
    for (;;) {
      std::function<void()> run;
      {
        common::MutexLock lock(&mu_);
        while (queue_.empty() && !stop_) changed_.Wait(&mu_);
        if (queue_.empty()) return;
        run = std::move(queue_.front());
        queue_.pop_front();
      }
      run();
    }
  }

  common::Mutex mu_;
  common::CondVar changed_;
  bool stop_ ABSL_GUARDED_BY(mu_) = false;
  std::deque<std::function<void()>> queue_ ABSL_GUARDED_BY(mu_);
  std::thread thread_ ABSL_GUARDED_BY(mu_);
};

class InlineAcquire final : public store::AcquireOperation {
 public:
  void Done() override {}
};

// What one piece of work takes.
struct Take {
  std::array<store::Charge, common::bounds::kMaxCharges> charges;
  std::array<store::ChargeResult, common::bounds::kMaxCharges> results;
  store::Acquisition acquisition;
  // Keeps the charges' rules; null where the thread's own table does.
  std::shared_ptr<const limits::LimitTable> table;
};

class EmbeddedThrottler final : public Throttler, private engine::Alarm {
 public:
  explicit EmbeddedThrottler(ThrottlerOptions options)
      : options_(std::move(options)),
        own_clock_(options_.clock == nullptr ? std::make_unique<SystemThrottleClock>() : nullptr),
        clock_(options_.clock == nullptr ? *own_clock_ : *options_.clock),
        engine_clock_(clock_),
        store_(engine_clock_),
        registry_(&store_),
        rules_(registry_),
        line_(store_, engine_clock_, rules_, *this) {}

  ~EmbeddedThrottler() override {
    Shutdown(options_.finish_on_destruction);
    clock_.WakeAt(static_cast<const Throttler*>(this), 0, nullptr);
  }

  Status Init() {
    std::vector<limits::LimitSpec> specs;
    for (const ThrottleLimit& limit : options_.limits) specs.push_back(SpecOf(limit));
    return ToStatus(registry_.ApplyFile(std::move(specs), "options").status());
  }

  Result<std::chrono::nanoseconds> TryStart(std::string_view channel, uint64_t permits) override {
    Take take;
    if (Status status = Acquire(channel, permits, 0, /*keep=*/false, &take); !status.ok()) {
      return status;
    }
    if (take.acquisition.outcome == store::Outcome::kGranted) return std::chrono::nanoseconds(0);
    return std::chrono::nanoseconds(std::max<int64_t>(take.acquisition.retry_after_ns, 1));
  }

  Status Start(std::string_view channel, uint64_t permits) override {
    struct Gate {
      common::Mutex mu;
      common::CondVar changed;
      bool open ABSL_GUARDED_BY(mu) = false;
      bool dropped ABSL_GUARDED_BY(mu) = false;
    } gate;
    const auto answer = [&gate](bool dropped) {
      common::MutexLock lock(&gate.mu);
      gate.open = true;
      gate.dropped = dropped;
      gate.changed.SignalAll();
    };
    auto work = std::make_shared<Work>();
    work->throttler = this;
    work->run_here = [answer] { answer(false); };
    work->dropped = [answer] { answer(true); };
    if (Status status = Add(channel, permits, work); !status.ok()) return status;
    common::MutexLock lock(&gate.mu);
    while (!gate.open) gate.changed.Wait(&gate.mu);
    if (!gate.dropped) return Status();
    return Status(StatusCode::kCancelled,
                  "the throttler was shut down, or the limit changed so "
                  "that this would wait too long");
  }

  Status SetLimit(const ThrottleLimit& limit) override {
    const absl::Status status = registry_.Put(SpecOf(limit)).status();
    if (status.ok()) SetAt(clock_.NowNs());
    return ToStatus(status);
  }

  void Shutdown(bool finish) override {
    {
      common::MutexLock lock(&mu_);
      shut_down_ = true;
      while (finish && unfinished_ > 0) finished_.Wait(&mu_);
    }
    line_.Drain();
  }

  size_t waiting() const override { return line_.size(); }

 protected:
  Status Enqueue(std::string_view channel, uint64_t permits, std::function<void()> run,
                 CancelToken* token) override {
    auto work = std::make_shared<Work>();
    work->throttler = this;
    work->run = std::move(run);
    if (token != nullptr) {
      const auto& state = StateOf(*token);
      common::MutexLock lock(&state->mu);
      if (state->cancelled) return Status();  // its future is broken already
      // Before it can begin, so that a cancellation never comes too early.
      state->cancel.push_back([weak = std::weak_ptr<Work>(work)] {
        const std::shared_ptr<Work> work = weak.lock();
        if (work != nullptr) work->throttler->line_.Cancel(work.get());
      });
    }
    return Add(channel, permits, work);
  }

 private:
  struct Work final : engine::HeldCaller {
    void OnAnswer(engine::HeldOutcome outcome) override { throttler->Answer(this, outcome); }

    EmbeddedThrottler* throttler = nullptr;
    std::function<void()> run;       // on the executor
    std::function<void()> run_here;  // wakes who blocks
    std::function<void()> dropped;
    Take take;
    std::shared_ptr<Work> self;  // while it is in the line
  };

  // `keep`: the charges must outlive this call.
  Status Acquire(std::string_view channel, uint64_t permits, int64_t max_wait_ns, bool keep,
                 Take* take) {
    for (int attempt = 0; attempt < 8; ++attempt) {
      const std::shared_ptr<const limits::LimitTable>& table = registry_.Local();
      const limits::Limit* const limit = table->Find(channel);
      if (limit == nullptr) {
        return Status(StatusCode::kNotFound,
                      absl::StrCat("channel \"", common::ToAbsl(channel), "\": no such limit"));
      }
      size_t n = 0;
      take->charges[n++] = {&limit->RuleFor(""), "", permits};
      for (const limits::Limit* parent : limit->parents()) {
        take->charges[n++] = {&parent->RuleFor(""), "", permits};
      }
      for (size_t i = 0; i < n; ++i) {
        const uint64_t most = algorithm::MaxGrant(take->charges[i].rule->parameters);
        if (permits == 0 || permits > most) {
          return Status(
              StatusCode::kInvalidArgument,
              absl::StrCat("permits: ", permits, "; limit \"", take->charges[i].rule->limit_name,
                           "\" grants 1 to ", most, " at once"));
        }
      }
      if (keep) take->table = table;
      store::Acquisition& acquisition = take->acquisition;
      acquisition.charges = absl::MakeConstSpan(take->charges.data(), n);
      acquisition.results = take->results.data();
      acquisition.max_wait_ns = max_wait_ns;
      acquisition.want_receipt = keep;
      InlineAcquire operation;
      operation.acquisitions = absl::MakeSpan(&acquisition, 1);
      store_.Acquire(&operation);
      if (acquisition.outcome != store::Outcome::kStaleRule) return Status();
    }
    return Status(StatusCode::kAborted, "the limits keep changing; try again");
  }

  // Reserves, and takes it into the line. The order is the order of calls.
  Status Add(std::string_view channel, uint64_t permits, const std::shared_ptr<Work>& work) {
    const int64_t max_wait_ns =
        std::clamp<int64_t>(options_.max_wait.count(), 0, common::bounds::kMaxWaitNs);
    common::MutexLock lock(&mu_);
    if (shut_down_) {
      return Status(StatusCode::kFailedPrecondition, "the throttler was shut down");
    }
    if (line_.size() >= options_.max_waiting) {
      return Status(StatusCode::kResourceExhausted,
                    absl::StrCat("max_waiting: as many as ", options_.max_waiting, " wait"));
    }
    if (Status status = Acquire(channel, permits, max_wait_ns, /*keep=*/true, &work->take);
        !status.ok()) {
      return status;
    }
    store::Acquisition& acquisition = work->take.acquisition;
    if (acquisition.outcome != store::Outcome::kGranted) {
      return Status(
          StatusCode::kResourceExhausted,
          absl::StrCat("it would wait ", acquisition.retry_after_ns, " ns longer than max_wait"));
    }
    work->acquisition = &acquisition;
    work->until_ns = acquisition.now_ns + max_wait_ns;
    work->self = work;
    ++unfinished_;
    // Also what may run now goes through the line, behind what is about to be answered.
    if (line_.Hold(work.get())) return Status();
    --unfinished_;
    work->self = nullptr;
    return Status(StatusCode::kFailedPrecondition, "the throttler was shut down");
  }

  void Answer(Work* work, engine::HeldOutcome outcome) {
    const std::shared_ptr<Work> self = std::move(work->self);
    if (outcome != engine::HeldOutcome::kMoment) {
      if (self->dropped) self->dropped();
      self->run = nullptr;  // breaks the promise
      Finish();
    } else if (self->run_here) {
      self->run_here();
      Finish();
    } else {
      auto run = [this, run = std::move(self->run)]() mutable {
        run();
        run = nullptr;
        Finish();
      };
      if (options_.executor != nullptr) {
        options_.executor(std::move(run));
      } else {
        own_executor_.Add(std::move(run));
      }
    }
  }

  void Finish() {
    common::MutexLock lock(&mu_);
    --unfinished_;
    finished_.SignalAll();
  }

  // ---- engine::Alarm ----

  void SetAt(int64_t at_ns) override {
    common::MutexLock lock(&alarm_mu_);
    if (at_ns >= alarm_ns_) return;
    alarm_ns_ = at_ns;
    clock_.WakeAt(static_cast<const Throttler*>(this), at_ns, [this] { Wake(); });
  }
  void Wake() {
    {
      common::MutexLock lock(&alarm_mu_);
      alarm_ns_ = engine::WaitingLine::kNever;
    }
    const int64_t next_ns = line_.Advance();
    if (next_ns != engine::WaitingLine::kNever) SetAt(next_ns);
  }

  const ThrottlerOptions options_;
  const std::unique_ptr<SystemThrottleClock> own_clock_;
  ThrottleClock& clock_;
  const EngineClock engine_clock_;
  store::MemoryStore store_;
  limits::LimitRegistry registry_;
  service::RegistryRules rules_;

  common::Mutex alarm_mu_;
  int64_t alarm_ns_ ABSL_GUARDED_BY(alarm_mu_) = engine::WaitingLine::kNever;
  engine::WaitingLine line_;

  common::Mutex mu_;
  common::CondVar finished_;
  bool shut_down_ ABSL_GUARDED_BY(mu_) = false;
  // In the line, or given to the executor.
  size_t unfinished_ ABSL_GUARDED_BY(mu_) = 0;
  SerialExecutor own_executor_;
};

}  // namespace

CancelToken::CancelToken() : state_(std::make_shared<State>()) {}

void CancelToken::Cancel() {
  std::vector<std::function<void()>> cancel;
  {
    common::MutexLock lock(&state_->mu);
    state_->cancelled = true;
    cancel.swap(state_->cancel);
  }
  for (const auto& one : cancel) one();
}

Result<std::unique_ptr<Throttler>> Throttler::Embedded(ThrottlerOptions options) {
  auto throttler = std::make_unique<EmbeddedThrottler>(std::move(options));
  if (Status status = throttler->Init(); !status.ok()) return status;
  return std::unique_ptr<Throttler>(std::move(throttler));
}

}  // namespace sluice
