#include "server/transport/grpc/health_service.h"

#include <memory>
#include <optional>
#include <utility>

#include "common/errors.h"
#include "common/mutex.h"
#include "server/transport/grpc/call_context.h"

namespace sluice::transport {

using ::grpc::health::v1::HealthCheckRequest;
using ::grpc::health::v1::HealthCheckResponse;

::grpc::ServerUnaryReactor* HealthService::Check(::grpc::CallbackServerContext* context,
                                                 const HealthCheckRequest* request,
                                                 HealthCheckResponse* response) {
  ::grpc::ServerUnaryReactor* const reactor = context->DefaultReactor();
  const Serving serving = board_.Get(request->service());
  if (serving == Serving::kServiceUnknown) {
    reactor->Finish(ToGrpc(common::errors::NoSuchService(request->service())));
    return reactor;
  }
  response->set_status(static_cast<HealthCheckResponse::ServingStatus>(serving));
  reactor->Finish(::grpc::Status::OK);
  return reactor;
}

// Shared by grpc++ (until OnDone) and the board (until Unwatch or Close).
class HealthService::WatchReactor final : public ::grpc::ServerWriteReactor<HealthCheckResponse>,
                                          public HealthWatcher {
 public:
  explicit WatchReactor(HealthBoard& board) : board_(board) {}

  void Begin(std::shared_ptr<WatchReactor> self, const std::string& service) {
    self_ = self;
    board_.Watch(service, std::move(self));
  }

  void OnChange(Serving now) override {
    {
      common::MutexLock lock(&mu_);
      next_ = now;
    }
    Advance();
  }
  void OnClose() override { Stop(common::errors::Draining()); }

  void OnWriteDone(bool ok) override {
    {
      common::MutexLock lock(&mu_);
      writing_ = false;
      if (!ok) next_.reset();
    }
    if (ok) {
      Advance();
    } else {
      OnCancel();
    }
  }
  void OnCancel() override {
    board_.Unwatch(this);
    {
      common::MutexLock lock(&mu_);
      next_.reset();  // nobody listens
    }
    Stop(absl::CancelledError("the watcher left"));
  }
  void OnDone() override {
    board_.Unwatch(this);
    const std::shared_ptr<WatchReactor> self = std::move(self_);
  }

 private:
  void Stop(const absl::Status& status) {
    {
      common::MutexLock lock(&mu_);
      if (!end_.has_value()) end_ = status;
    }
    Advance();
  }

  // Does the next thing, if nothing is under way: tell the latest state, then end.
  void Advance() {
    std::optional<absl::Status> end;
    {
      common::MutexLock lock(&mu_);
      if (writing_ || finished_) return;
      if (next_.has_value()) {
        writing_ = true;
        response_.set_status(static_cast<HealthCheckResponse::ServingStatus>(*next_));
        next_.reset();
      } else if (end_.has_value()) {
        finished_ = true;
        end = end_;
      } else {
        return;
      }
    }
    if (end.has_value()) {
      Finish(ToGrpc(*end));
    } else {
      StartWrite(&response_);
    }
  }

  HealthBoard& board_;
  std::shared_ptr<WatchReactor> self_;
  HealthCheckResponse response_;  // of the write under way

  common::Mutex mu_;
  std::optional<Serving> next_ ABSL_GUARDED_BY(mu_);
  std::optional<absl::Status> end_ ABSL_GUARDED_BY(mu_);
  bool writing_ ABSL_GUARDED_BY(mu_) = false;
  bool finished_ ABSL_GUARDED_BY(mu_) = false;
};

::grpc::ServerWriteReactor<HealthCheckResponse>* HealthService::Watch(
    ::grpc::CallbackServerContext*, const HealthCheckRequest* request) {
  auto watch = std::make_shared<WatchReactor>(board_);
  WatchReactor* const reactor = watch.get();
  reactor->Begin(std::move(watch), request->service());
  return reactor;
}

}  // namespace sluice::transport
