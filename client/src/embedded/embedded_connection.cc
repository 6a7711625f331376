#include "sluice/embedded_connection.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <map>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "client/src/embedded/use_cases.h"
#include "common/mutex.h"

namespace sluice {
namespace embedded_internal {
namespace {

using common::MutexLock;
using std::chrono::nanoseconds;

Status FromAbsl(const absl::Status& status) {
  return Status(static_cast<StatusCode>(status.code()), std::string(status.message()));
}

Status ShutDown() { return Status(StatusCode::kCancelled, "the connection was shut down"); }

int64_t DeadlineNs(const Call& call) {
  return call.deadline == TimePoint::max() ? store::kNoDeadline
                                           : nanoseconds(call.deadline.time_since_epoch()).count();
}

// Truncates towards zero, so that both parts have the same sign, as on the wire.
service::WireDuration ToWire(nanoseconds time) {
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(time);
  return {seconds.count(), static_cast<int32_t>((time - seconds).count())};
}

Source ToSource(store::Source source) {
  switch (source) {
    case store::Source::kStore:
      return Source::kStore;
    case store::Source::kStoreUnavailable:
      return Source::kStoreUnavailable;
    case store::Source::kOverflow:
      return Source::kOverflow;
    case store::Source::kLocal:
      return Source::kLocal;
  }
  return Source::kUnspecified;
}

Reason ToReason(store::Reason reason) {
  switch (reason) {
    case store::Reason::kNone:
      return Reason::kNone;
    case store::Reason::kNotEnough:
      return Reason::kNotEnough;
    case store::Reason::kWaitingBound:
      return Reason::kWaitingBound;
    case store::Reason::kStoreUnavailable:
      return Reason::kStoreUnavailable;
    case store::Reason::kOverflow:
      return Reason::kOverflow;
    case store::Reason::kShadowDenied:
      return Reason::kShadowDenied;
    case store::Reason::kDeadlineTooShort:
      return Reason::kDeadlineTooShort;
    case store::Reason::kShareTooSmall:
      return Reason::kShareTooSmall;
  }
  return Reason::kNone;
}

// The call has views into the acquisition.
void Add(const Acquisition& acquisition, service::AcquireCall* call) {
  service::AcquisitionOptions options;
  options.max_wait = ToWire(acquisition.max_wait);
  options.hold = acquisition.hold;
  options.want_receipt = acquisition.want_receipt;
  options.force = acquisition.force;
  options.once = !acquisition.request_id.empty();
  if (acquisition.settle_within.count() != 0) {
    options.settle_within = ToWire(acquisition.settle_within);
  }
  call->BeginAcquisition(options);
  if (options.once) call->SetRequestId(acquisition.request_id);
  for (const Charge& charge : acquisition.charges) {
    call->AddCharge(charge.limit, charge.key, charge.permits);
  }
}

ChargeStatus StatusOf(const service::ChargeStatus& of) {
  ChargeStatus charge;
  auto& [remaining, capacity, reset_after, reason, limit, forgiven, held_for] = charge;
  remaining = of.level.remaining;
  capacity = of.level.capacity;
  reset_after = nanoseconds(of.level.reset_after_ns);
  reason = ToReason(of.reason);
  limit = of.limit;
  forgiven = of.forgiven;
  held_for = nanoseconds(of.held_for_ns);
  return charge;
}

Result<Decision> DecisionOf(const service::AcquireCall& call, size_t acquisition) {
  if (!call.status().ok()) return FromAbsl(call.status());
  const service::AcquisitionResult result = call.result(acquisition);
  if (!result.status.ok()) return FromAbsl(result.status);
  Decision decision;
  // All fields are named, so that a new one does not compile until it is set. `status` is of a
  // decision that no server made, and there is one server.
  auto& [granted, source, retry_after, wait, charges, receipt, repeated, status, server] = decision;
  granted = result.granted;
  source = ToSource(result.source);
  retry_after = nanoseconds(result.retry_after_ns);
  wait = nanoseconds(result.wait_ns);
  receipt = result.receipt;
  repeated = result.repeated;
  for (size_t i = 0; i < result.charges; ++i) {
    charges.push_back(StatusOf(call.charge(acquisition, i)));
  }
  return decision;
}

BucketStatus StatusOf(const service::BucketStatus& of) {
  BucketStatus bucket;
  bucket.limit = of.limit;
  bucket.key = of.key;
  bucket.status = FromAbsl(of.error);
  if (!of.error.ok()) return bucket;
  bucket.remaining = of.level.remaining;
  bucket.capacity = of.level.capacity;
  bucket.reset_after = nanoseconds(of.level.reset_after_ns);
  bucket.next_permit_after = nanoseconds(of.level.next_permit_after_ns);
  bucket.exists = of.exists;
  bucket.waiting = of.waiting;
  bucket.next_grant_after = nanoseconds(of.next_grant_after_ns);
  bucket.open_receipts = of.refundable.receipts;
  bucket.refundable = of.refundable.permits;
  bucket.holds = of.holds;
  bucket.next_end_after = nanoseconds(of.next_end_after_ns);
  bucket.source = ToSource(of.source);
  return bucket;
}

RefundOutcome ToOutcome(store::RefundOutcome outcome) {
  if (outcome == store::RefundOutcome::kRefunded) return RefundOutcome::kRefunded;
  if (outcome == store::RefundOutcome::kAlreadyRefunded) return RefundOutcome::kAlreadyRefunded;
  return RefundOutcome::kExpired;
}

SettleOutcome ToOutcome(store::SettleOutcome outcome) {
  if (outcome == store::SettleOutcome::kSettled) return SettleOutcome::kSettled;
  if (outcome == store::SettleOutcome::kAlreadySettled) return SettleOutcome::kAlreadySettled;
  if (outcome == store::SettleOutcome::kLate) return SettleOutcome::kLate;
  return SettleOutcome::kUnknown;
}

void Add(const Settlement& settlement, service::SettleCall* call) {
  call->BeginSettlement();
  call->SetReceipt(settlement.receipt);
  call->SetMore(settlement.more);
  for (const Charge& actual : settlement.actual) {
    call->AddActual(actual.limit, actual.key, actual.permits);
  }
}

Result<SettleResult> ResultOf(const service::SettleCall& call, size_t settlement) {
  const service::SettleCall::Result& of = call.result(settlement);
  if (!of.status.ok()) return FromAbsl(of.status);
  SettleResult result;
  result.outcome = ToOutcome(of.outcome);
  for (size_t i = 0; i < of.charges; ++i) {
    const service::SettledCharge& charge = call.charge(of.first_charge + i);
    result.charges.push_back({std::string(charge.limit), std::string(charge.key),
                              charge.permits.given_back, charge.permits.charged,
                              charge.permits.forgiven});
  }
  return result;
}

// The memory store answers within the call, so that a call's results can be read behind it.
template <typename Call>
void AlreadyAnswered(void*, Call*) {}

}  // namespace

// Thread-safe.
class EmbeddedConnection final : public Connection,
                                 public std::enable_shared_from_this<EmbeddedConnection> {
 public:
  explicit EmbeddedConnection(std::shared_ptr<Embedded> embedded)
      : embedded_(std::move(embedded)),
        limiter_(EmbeddedUseCases::Of(embedded_).limiter()),
        clock_(*embedded_->clock()) {}
  ~EmbeddedConnection() override { Shutdown(); }

  void Acquire(const Acquisition& acquisition, const Call& call, Callback<Decision> done) override {
    if (acquisition.hold) return Hold(acquisition, call, std::move(done));
    if (closed()) return done(ShutDown());
    service::AcquireCall asked;
    asked.Reset(service::AcquireCall::Form::kUnary, service::Utf8::kUnchecked);
    Add(acquisition, &asked);
    limiter_.Acquire(&asked, DeadlineNs(call), &AlreadyAnswered<service::AcquireCall>, nullptr);
    done(DecisionOf(asked, 0));
  }

  void AcquireBatch(std::span<const Acquisition> batch, const Call& call,
                    Callback<BatchDecisions> done) override {
    if (closed()) return done(ShutDown());
    service::AcquireCall asked;
    asked.Reset(service::AcquireCall::Form::kBatch, service::Utf8::kUnchecked);
    for (const Acquisition& acquisition : batch) Add(acquisition, &asked);
    limiter_.Acquire(&asked, DeadlineNs(call), &AlreadyAnswered<service::AcquireCall>, nullptr);
    if (!asked.status().ok()) return done(FromAbsl(asked.status()));
    BatchDecisions decisions;
    for (size_t i = 0; i < asked.size(); ++i) decisions.push_back(DecisionOf(asked, i));
    done(std::move(decisions));
  }

  void Query(std::span<const Bucket> buckets, const Call& call,
             Callback<std::vector<BucketStatus>> done) override {
    if (closed()) return done(ShutDown());
    service::QueryCall asked;
    asked.Reset(service::QueryCall::UnknownLimit::kFailsCall, service::Utf8::kUnchecked);
    for (const Bucket& bucket : buckets) asked.AddBucket(bucket.limit, bucket.key);
    limiter_.Query(&asked, DeadlineNs(call), &AlreadyAnswered<service::QueryCall>, nullptr);
    if (!asked.status().ok()) return done(FromAbsl(asked.status()));
    std::vector<BucketStatus> answers;
    answers.reserve(asked.size());
    for (size_t i = 0; i < asked.size(); ++i) answers.push_back(StatusOf(asked.bucket(i)));
    done(std::move(answers));
  }

  void Refund(std::string_view receipt, const Call& call, Callback<RefundResult> done) override {
    if (closed()) return done(ShutDown());
    service::RefundCall asked;
    asked.Reset(receipt);
    limiter_.Refund(&asked, DeadlineNs(call), &AlreadyAnswered<service::RefundCall>, nullptr);
    if (!asked.status().ok()) return done(FromAbsl(asked.status()));
    RefundResult result;
    result.outcome = ToOutcome(asked.outcome());
    for (size_t i = 0; i < asked.size(); ++i) {
      const service::RefundedCharge of = asked.charge(i);
      result.charges.push_back({std::string(of.limit), std::string(of.key), of.permits});
    }
    done(std::move(result));
  }

  void Renew(std::span<const std::string> receipts, const Call& call,
             Callback<std::vector<Renewal>> done) override {
    if (closed()) return done(ShutDown());
    service::RenewCall asked;
    asked.Reset();
    for (const std::string& receipt : receipts) asked.AddReceipt(receipt);
    limiter_.Renew(&asked, DeadlineNs(call), &AlreadyAnswered<service::RenewCall>, nullptr);
    if (!asked.status().ok()) return done(FromAbsl(asked.status()));
    std::vector<Renewal> renewals(asked.size());
    for (size_t i = 0; i < asked.size(); ++i) {
      const service::RenewCall::Result& of = asked.result(i);
      renewals[i].outcome = of.renewed ? RenewOutcome::kRenewed : RenewOutcome::kGone;
      renewals[i].held_for = nanoseconds(of.held_for_ns);
      renewals[i].status = FromAbsl(of.status);
    }
    done(std::move(renewals));
  }

  void Settle(const Settlement& settlement, const Call& call,
              Callback<SettleResult> done) override {
    if (closed()) return done(ShutDown());
    service::SettleCall asked;
    asked.Reset(service::SettleCall::Form::kUnary);
    Add(settlement, &asked);
    limiter_.Settle(&asked, DeadlineNs(call), &AlreadyAnswered<service::SettleCall>, nullptr);
    if (!asked.status().ok()) return done(FromAbsl(asked.status()));
    done(ResultOf(asked, 0));
  }

  void SettleBatch(std::span<const Settlement> batch, const Call& call,
                   Callback<BatchSettlements> done) override {
    if (closed()) return done(ShutDown());
    service::SettleCall asked;
    asked.Reset(service::SettleCall::Form::kBatch);
    for (const Settlement& settlement : batch) Add(settlement, &asked);
    limiter_.Settle(&asked, DeadlineNs(call), &AlreadyAnswered<service::SettleCall>, nullptr);
    if (!asked.status().ok()) return done(FromAbsl(asked.status()));
    BatchSettlements results;
    for (size_t i = 0; i < asked.size(); ++i) results.push_back(ResultOf(asked, i));
    done(std::move(results));
  }

  std::unique_ptr<StreamCall> OpenStream(StreamEvents events) override {
    events.on_closed(Status(StatusCode::kUnimplemented,
                            "an embedded engine has no streams; use Acquire or AcquireBatch"));
    return std::make_unique<NoStream>();
  }
  std::unique_ptr<WatchCall> Watch(std::span<const Bucket>, const WatchOptions&,
                                   WatchEvents events) override {
    events.on_closed(
        Status(StatusCode::kUnimplemented, "an embedded engine has no watches; use Query"));
    return std::make_unique<NoWatch>();
  }

  void RunAfter(nanoseconds delay, std::function<void()> fn) override {
    uint64_t id = 0;
    std::function<void()> at_once;
    {
      MutexLock lock(&mu_);
      if (closed_ || delay.count() <= 0) {
        at_once = std::move(fn);
      } else {
        id = ++last_timer_;
        timers_.emplace(id, std::move(fn));
      }
    }
    if (at_once != nullptr) return at_once();
    clock_.RunAt(clock_.Now() + delay, [weak = weak_from_this(), id] {
      if (const auto self = weak.lock(); self != nullptr) self->OnTimer(id);
    });
  }

  TimePoint Now() const override { return TimePoint(clock_.Now()); }
  TimePoint BootNow() const override { return TimePoint(clock_.Now()); }

  void Shutdown() override;

 private:
  struct NoStream final : StreamCall {
    void Send(std::span<const Acquisition>) override {}
    void Cancel() override {}
  };
  struct NoWatch final : WatchCall {
    void Cancel() override {}
  };

  // A call that may wait. Under mu_, but for `acquisition`, `call` and `done`.
  struct Held {
    enum class State : uint8_t {
      kOpen,
      kCancelling,  // Shutdown cancels it, and answers it
      kAnswered,    // and it has ended
    };
    std::shared_ptr<EmbeddedConnection> connection;
    Acquisition acquisition;
    Callback<Decision> done;
    service::AcquireCall call;
    State state = State::kOpen;
    std::map<uint64_t, Held*>::iterator place;
  };

  bool closed() const {
    MutexLock lock(&mu_);
    return closed_;
  }
  void Hold(const Acquisition& acquisition, const Call& call, Callback<Decision> done);
  void Answered(Held* held);
  static void Answer(std::unique_ptr<Held> held) { held->done(DecisionOf(held->call, 0)); }
  void OnTimer(uint64_t id);
  // Around callbacks that run on threads of the clock.
  void Begin() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    running_.push_back(std::this_thread::get_id());
  }
  void End() {
    MutexLock lock(&mu_);
    running_.erase(std::find(running_.begin(), running_.end(), std::this_thread::get_id()));
    changed_.SignalAll();
  }

  const std::shared_ptr<Embedded> embedded_;
  service::RateLimiter& limiter_;
  Clock& clock_;

  mutable common::Mutex mu_;
  common::CondVar changed_;
  bool closed_ ABSL_GUARDED_BY(mu_) = false;
  uint64_t last_held_ ABSL_GUARDED_BY(mu_) = 0;
  std::map<uint64_t, Held*> held_ ABSL_GUARDED_BY(mu_);
  uint64_t last_timer_ ABSL_GUARDED_BY(mu_) = 0;
  std::map<uint64_t, std::function<void()>> timers_ ABSL_GUARDED_BY(mu_);
  std::vector<std::thread::id> running_ ABSL_GUARDED_BY(mu_);
};

void EmbeddedConnection::Hold(const Acquisition& acquisition, const Call& call,
                              Callback<Decision> done) {
  auto owned = std::make_unique<Held>();
  owned->connection = shared_from_this();
  owned->acquisition = acquisition;
  owned->done = std::move(done);
  Held* const held = owned.release();  // Answered owns it
  held->call.Reset(service::AcquireCall::Form::kUnary, service::Utf8::kUnchecked);
  Add(held->acquisition, &held->call);
  bool open = false;
  {
    MutexLock lock(&mu_);
    open = !closed_;
    if (open) held->place = held_.emplace(++last_held_, held).first;
  }
  if (!open) {
    const std::unique_ptr<Held> refused(held);
    return refused->done(ShutDown());
  }
  limiter_.Acquire(
      &held->call, DeadlineNs(call),
      [](void* context, service::AcquireCall*) {
        auto* const one = static_cast<Held*>(context);
        const std::shared_ptr<EmbeddedConnection> connection = one->connection;
        connection->Answered(one);
      },
      held);
}

void EmbeddedConnection::Answered(Held* held) {
  {
    MutexLock lock(&mu_);
    if (held->state == Held::State::kCancelling) {
      held->state = Held::State::kAnswered;
      changed_.SignalAll();
      return;
    }
    held_.erase(held->place);
    Begin();
  }
  Answer(std::unique_ptr<Held>(held));
  End();
}

void EmbeddedConnection::OnTimer(uint64_t id) {
  std::function<void()> fn;
  {
    MutexLock lock(&mu_);
    const auto timer = timers_.find(id);
    if (timer == timers_.end()) return;
    fn = std::move(timer->second);
    timers_.erase(timer);
    Begin();
  }
  fn();
  End();
}

void EmbeddedConnection::Shutdown() {
  std::map<uint64_t, Held*> held;
  std::map<uint64_t, std::function<void()>> timers;
  {
    MutexLock lock(&mu_);
    closed_ = true;
    held.swap(held_);
    timers.swap(timers_);
    for (auto& [id, one] : held) one->state = Held::State::kCancelling;
  }
  for (auto& [id, one] : held) {
    limiter_.CancelHeld(&one->call);
    {
      // It may have its answer on another thread right now.
      MutexLock lock(&mu_);
      while (one->state != Held::State::kAnswered) changed_.Wait(&mu_);
    }
    Answer(std::unique_ptr<Held>(one));
  }
  for (auto& [id, fn] : timers) fn();
  MutexLock lock(&mu_);
  const std::thread::id self = std::this_thread::get_id();
  const auto other = [&](std::thread::id id) { return id != self; };
  if (std::find(running_.begin(), running_.end(), self) != running_.end()) return;
  while (std::any_of(running_.begin(), running_.end(), other)) changed_.Wait(&mu_);
}

}  // namespace embedded_internal

std::shared_ptr<Connection> ConnectEmbedded(std::shared_ptr<Embedded> embedded) {
  return std::make_shared<embedded_internal::EmbeddedConnection>(std::move(embedded));
}

}  // namespace sluice
