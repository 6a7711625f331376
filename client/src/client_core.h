// ClientCore: the state that a Client shares with its streams and calls: the connection, the
// options and the retry policy.
#ifndef SLUICE_CLIENT_SRC_CLIENT_CORE_H_
#define SLUICE_CLIENT_SRC_CLIENT_CORE_H_

#include <algorithm>
#include <functional>
#include <memory>
#include <utility>

#include "client/src/retry_policy.h"
#include "client/src/transport/time_after.h"
#include "sluice/connection.h"

namespace sluice::client_internal {

// Whether the status means that no server decided, so that on_unavailable decides.
bool IsUnavailable(const Status& status);

// Thread-safe.
class ClientCore {
 public:
  ClientCore(std::shared_ptr<Connection> connection, ClientOptions options)
      : connection_(std::move(connection)),
        options_(std::move(options)),
        policy_(options_.retry, connection_->servers()) {}

  Connection& connection() const { return *connection_; }
  const ClientOptions& options() const { return options_; }
  const RetryPolicy& policy() const { return policy_; }

  Call MakeCall(const CallOptions& options) const {
    return {After(connection_->Now(), options.deadline.value_or(options_.deadline)),
            options.server};
  }
  // Adds max_wait to the deadline of an acquisition with hold.
  Call MakeCall(const CallOptions& options, const Acquisition& acquisition) const {
    Call call = MakeCall(options);
    if (acquisition.hold) {
      call.deadline =
          After(call.deadline, std::max(acquisition.max_wait, std::chrono::nanoseconds(0)));
    }
    return call;
  }
  // The call, with the time in which its attempts may be made.
  Call Bounded(Operation operation, Call call) const {
    if (operation == Operation::kAcquireOnce) {
      call.deadline = std::min(call.deadline, After(connection_->Now(), kRepeatWithin));
    }
    return call;
  }
  // The call for its `attempt`-th attempt, counted from 1.
  Call CallOfAttempt(Operation operation, int attempt, const Call& call) const {
    if (operation != Operation::kAcquireOnce) return call;
    const TimePoint now = connection_->Now();
    return {now + policy_.TimeOf(operation, attempt, call.deadline - now), call.server};
  }
  // Whether acquisitions without a request id get one.
  bool ExactlyOnce(const CallOptions& options) const {
    return options.exactly_once.value_or(options_.exactly_once);
  }
  OnUnavailable OnUnavailableOf(const CallOptions& options) const {
    return options.on_unavailable.value_or(options_.on_unavailable);
  }

  // Replaces an error for which IsUnavailable is true by the decision of on_unavailable.
  Result<Decision> Settle(Result<Decision> result, OnUnavailable on_unavailable) const;
  // The same for each acquisition of a batch of `size`.
  Result<BatchDecisions> SettleBatch(Result<BatchDecisions> result, size_t size,
                                     OnUnavailable on_unavailable) const;

  // The pause before another attempt; absent: do not retry.
  std::optional<std::chrono::nanoseconds> Pause(Operation operation, const Status& status,
                                                int attempts, const Call& call) const {
    return policy_.Pause(operation, status, attempts, call.deadline - connection_->Now(), Random());
  }

 private:
  const std::shared_ptr<Connection> connection_;
  const ClientOptions options_;
  const RetryPolicy policy_;
};

// Why the call is to be retried, if the policy agrees; OK: it is not.
template <typename T>
Status FailureOf(Operation, const Result<T>& result) {
  return result.status();
}
// The whole batch is sent again, since what was granted is only repeated.
inline Status FailureOf(Operation operation, const Result<BatchDecisions>& result) {
  if (!result.ok() || operation != Operation::kAcquireOnce) return result.status();
  for (const Result<Decision>& one : *result) {
    if (!one.ok() && one.status().code() == StatusCode::kUnavailable) return one.status();
  }
  return Status();
}

// Says of a failed call that an attempt before its last one may have been executed.
template <typename T>
void MarkMaybeExecuted(Result<T>* result) {
  if (result->ok() || !IsUnavailable(result->status())) return;
  *result = Status::MaybeExecuted(result->status().code(), result->status().message());
}
inline void MarkMaybeExecuted(Result<BatchDecisions>* result) {
  if (!result->ok()) return MarkMaybeExecuted<BatchDecisions>(result);
  for (Result<Decision>& one : **result) MarkMaybeExecuted(&one);
}

// A call with its retries. Its callbacks keep it alive. `Start` is called as
// start(const Call&, Callback<T>), `Done` as done(Result<T>, number of attempts).
template <typename T, typename Start, typename Done>
class Attempts : public std::enable_shared_from_this<Attempts<T, Start, Done>> {
 public:
  Attempts(std::shared_ptr<ClientCore> core, Operation operation, const Call& call, Start start,
           Done done)
      : core_(std::move(core)),
        operation_(operation),
        call_(core_->Bounded(operation, call)),
        start_(std::move(start)),
        done_(std::move(done)) {}

  void Go() {
    ++made_;
    start_(core_->CallOfAttempt(operation_, made_, call_),
           [self = this->shared_from_this()](Result<T> result) { self->Ended(std::move(result)); });
  }

 private:
  void Ended(Result<T> result) {
    if (const Status failed = FailureOf(operation_, result); !failed.ok()) {
      const auto pause = core_->Pause(operation_, failed, made_, call_);
      if (pause.has_value()) {
        // Of a batch that was answered, some acquisitions may have been granted.
        may_have_executed_ |= failed.may_have_executed() || result.ok();
        if (pause->count() == 0) return Go();
        return core_->connection().RunAfter(*pause,
                                            [self = this->shared_from_this()] { self->Go(); });
      }
    }
    if (may_have_executed_) MarkMaybeExecuted(&result);
    done_(std::move(result), made_);
  }

  const std::shared_ptr<ClientCore> core_;
  const Operation operation_;
  const Call call_;
  const Start start_;
  const Done done_;
  int made_ = 0;                    // not shared: attempts do not overlap
  bool may_have_executed_ = false;  // an attempt that was repeated
};

template <typename T, typename Start, typename Done>
void RunAttempts(std::shared_ptr<ClientCore> core, Operation operation, const Call& call,
                 Start start, Done done) {
  std::make_shared<Attempts<T, Start, Done>>(std::move(core), operation, call, std::move(start),
                                             std::move(done))
      ->Go();
}

}  // namespace sluice::client_internal

#endif  // SLUICE_CLIENT_SRC_CLIENT_CORE_H_
