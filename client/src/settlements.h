// Settlements: sends the settlements of one estimate, one after the other; the last one until it is
// answered.
//
// A settlement names the total that the work used, so it can be repeated if its answer is lost. Of
// several that wait while one is in flight, only the newest is sent.
#ifndef SLUICE_CLIENT_SRC_SETTLEMENTS_H_
#define SLUICE_CLIENT_SRC_SETTLEMENTS_H_

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "client/src/client_core.h"
#include "common/mutex.h"
#include "sluice/connection.h"
#include "sluice/estimate.h"

namespace sluice::client_internal {

enum class SettlementKind : uint8_t { kMore, kLast, kRefund };

// Thread-safe.
class Settlements : public std::enable_shared_from_this<Settlements> {
 public:
  using Kind = SettlementKind;

  // REQUIRES: `decision` is the server's grant of the acquisition, and has just arrived.
  Settlements(std::shared_ptr<ClientCore> core, Acquisition acquisition, const Decision& decision,
              EstimateOptions options);

  // The first charge, with another number of permits.
  Charge OfFirst(uint64_t permits) const {
    return {asked_.front().limit, asked_.front().key, permits};
  }

  // `done` may be null; else it runs once, within the call or later. `accepted` runs before
  // anything is sent, unless it fails at once.
  void Send(Kind kind, std::vector<Charge> actual, const CallOptions& options,
            Callback<SettleResult> done, const std::function<void()>& accepted);
  // The guard is destroyed: settles as its options say, unless that was done. REQUIRES: the last
  // call.
  void Drop();

 private:
  enum class State : uint8_t {
    kOpen,    // the work goes on
    kEnding,  // a last settlement, or a refund, was sent or will be
    kEnded,   // and the server has answered
  };
  // What is sent, and its callers.
  struct Task {
    Kind kind = Kind::kMore;
    std::vector<Charge> actual;
    Call call;
    std::vector<Callback<SettleResult>> done;
    // The guard is destroyed, so it is repeated until it is answered.
    bool dropped = false;
    int failures = 0;
  };

  Status Check(Kind kind, const std::vector<Charge>& actual) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // The task that is to be sent now; nullopt: it waits for the one under way.
  std::optional<Task> Enqueue(Task task) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // What Drop sends.
  Task Last() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Go(const std::shared_ptr<Task>& task);
  void Ended(const std::shared_ptr<Task>& task, Result<SettleResult> result);
  void Retry(const std::shared_ptr<Task>& task);
  void Note(const Task& task, const Result<SettleResult>& result)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Attempts of a dropped estimate go to the server that granted and to any, in turn: servers may
  // have one store or several.
  bool Anywhere(const Task& task) const {
    return task.failures % 2 != 0 && core_->connection().servers() > 1;
  }
  TimePoint Now() const { return core_->connection().BootNow(); }

  const std::shared_ptr<ClientCore> core_;
  const std::vector<Charge> asked_;
  const std::vector<Charge> unused_;  // actuals of work that took nothing
  const std::chrono::nanoseconds settle_within_;
  const std::string receipt_;
  const uint32_t server_;
  const TimePoint granted_at_;
  const EstimateOptions options_;

  common::Mutex mu_;
  State state_ ABSL_GUARDED_BY(mu_) = State::kOpen;
  Kind ending_ ABSL_GUARDED_BY(mu_) = Kind::kLast;  // of kEnding and kEnded
  // What calls have named, the newest number of each bucket; and without those that the server may
  // yet refuse.
  std::vector<Charge> reported_ ABSL_GUARDED_BY(mu_);
  std::vector<Charge> accepted_ ABSL_GUARDED_BY(mu_);
  bool under_way_ ABSL_GUARDED_BY(mu_) = false;
  std::optional<Task> next_ ABSL_GUARDED_BY(mu_);  // behind the one under way
  TimePoint until_ ABSL_GUARDED_BY(mu_);           // it is repeated until then
};

}  // namespace sluice::client_internal

#endif  // SLUICE_CLIENT_SRC_SETTLEMENTS_H_
