// ClientCore: what Client and its streams share: the connection, the options, and how the outcome
// of a call becomes what the caller sees.
#ifndef SLUICE_CLIENT_SRC_CLIENT_CORE_H_
#define SLUICE_CLIENT_SRC_CLIENT_CORE_H_

#include <functional>
#include <memory>
#include <utility>

#include "client/src/retry_policy.h"
#include "sluice/connection.h"

namespace sluice::client_internal {

// Whether no server decided, so that on_unavailable does.
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
    return {connection_->Now() + options.deadline.value_or(options_.deadline), options.server};
  }
  // Of one acquisition, which may be held.
  Call MakeCall(const CallOptions& options, const Acquisition& acquisition) const {
    Call call = MakeCall(options);
    if (acquisition.hold)
      call.deadline += std::max(acquisition.max_wait, std::chrono::nanoseconds(0));
    return call;
  }
  OnUnavailable Wish(const CallOptions& options) const {
    return options.on_unavailable.value_or(options_.on_unavailable);
  }

  // An answer as it is; a failure that means that no server decided, as on_unavailable wants it.
  Result<Decision> Settle(Result<Decision> result, OnUnavailable wish) const;

  // The pause before another attempt, or nothing.
  std::optional<std::chrono::nanoseconds> Pause(Operation operation, const Status& status,
                                                int attempts, const Call& call) const {
    return policy_.Pause(operation, status, attempts, call.deadline - connection_->Now(), Random());
  }

 private:
  const std::shared_ptr<Connection> connection_;
  const ClientOptions options_;
  const RetryPolicy policy_;
};

// A call with its further attempts. Lives in its own callbacks.
template <typename T>
class Attempts : public std::enable_shared_from_this<Attempts<T>> {
 public:
  using Start = std::function<void(const Call&, Callback<T>)>;
  // With the number of attempts that it took.
  using Done = std::function<void(Result<T>, int)>;

  static void Run(std::shared_ptr<ClientCore> core, Operation operation, const Call& call,
                  Start start, Done done) {
    std::make_shared<Attempts>(std::move(core), operation, call, std::move(start), std::move(done))
        ->Go();
  }

  Attempts(std::shared_ptr<ClientCore> core, Operation operation, const Call& call, Start start,
           Done done)
      : core_(std::move(core)),
        operation_(operation),
        call_(call),
        start_(std::move(start)),
        done_(std::move(done)) {}

 private:
  void Go() {
    ++made_;
    start_(call_,
           [self = this->shared_from_this()](Result<T> result) { self->Ended(std::move(result)); });
  }

  void Ended(Result<T> result) {
    if (!result.ok()) {
      const auto pause = core_->Pause(operation_, result.status(), made_, call_);
      if (pause.has_value()) {
        if (pause->count() == 0) return Go();
        return core_->connection().RunAfter(*pause,
                                            [self = this->shared_from_this()] { self->Go(); });
      }
    }
    done_(std::move(result), made_);
  }

  const std::shared_ptr<ClientCore> core_;
  const Operation operation_;
  const Call call_;
  const Start start_;
  const Done done_;
  int made_ = 0;  // attempts follow one another: no two threads at once
};

}  // namespace sluice::client_internal

#endif  // SLUICE_CLIENT_SRC_CLIENT_CORE_H_
