// RefusalLog: writes admin calls that were refused to the log and to the audit log, a few in a
// second.
#ifndef SLUICE_SERVER_ACCESS_REFUSAL_LOG_H_
#define SLUICE_SERVER_ACCESS_REFUSAL_LOG_H_

#include <cstdint>

#include "absl/base/thread_annotations.h"
#include "common/log.h"
#include "common/mutex.h"
#include "common/net/event_loop.h"
#include "common/net/timer_wheel.h"
#include "server/access/audit_log.h"

namespace sluice::access {

// Thread-safe. Destroy it when `background` has stopped.
class RefusalLog {
 public:
  // Lines of the audit log in a second; another says how many calls were left out. Lines that wait
  // for the background loop.
  static constexpr int kLinesPerSecond = 10;
  static constexpr int kMostWaiting = 100;

  // `audit`: null: the log only. Lines are written on `background`, and not synced. All outlive it.
  RefusalLog(common::Log& log, AuditLog* audit, net::EventLoop& background)
      : log_(log), audit_(audit), background_(background) {}
  RefusalLog(const RefusalLog&) = delete;
  RefusalLog& operator=(const RefusalLog&) = delete;

  // Does not block. The line may be written after the caller was refused.
  void Add(AuditRecord refused);

 private:
  // On `background_`.
  void Write(const AuditRecord& record);
  void WriteLeftOut();

  common::Log& log_;
  AuditLog* const audit_;
  net::EventLoop& background_;
  common::Mutex mu_;
  int64_t second_ ABSL_GUARDED_BY(mu_) = -1;
  int lines_ ABSL_GUARDED_BY(mu_) = 0;    // of that second
  int waiting_ ABSL_GUARDED_BY(mu_) = 0;  // for the disk
  uint64_t left_out_ ABSL_GUARDED_BY(mu_) = 0;
  net::Timer timer_{net::Timer::To<&RefusalLog::WriteLeftOut>, this};  // of background_
};

}  // namespace sluice::access

#endif  // SLUICE_SERVER_ACCESS_REFUSAL_LOG_H_
