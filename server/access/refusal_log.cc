#include "server/access/refusal_log.h"

#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace sluice::access {
namespace {

constexpr int64_t kSecondNs = 1'000'000'000;

}  // namespace

void RefusalLog::Add(AuditRecord refused) {
  log_.Warning("admin_call_refused", {{"peer", refused.peer},
                                      {"client", refused.client.empty() ? "none" : refused.client},
                                      {"actor", refused.actor.empty() ? "none" : refused.actor},
                                      {"call", refused.call},
                                      {"error", refused.outcome.message()}});
  if (audit_ == nullptr) return;
  {
    const common::MutexLock lock(&mu_);
    const int64_t second = background_.clock().NowNs() / kSecondNs;
    if (second != second_) lines_ = 0;
    second_ = second;
    if (lines_ >= kLinesPerSecond || waiting_ >= kMostWaiting) {
      if (left_out_++ == 0) {
        background_.Post([this] { background_.ArmIn(timer_, kSecondNs); });
      }
      return;
    }
    ++lines_;
    ++waiting_;
  }
  background_.Post([this, refused = std::move(refused)] {
    Write(refused);
    const common::MutexLock lock(&mu_);
    --waiting_;
  });
}

void RefusalLog::Write(const AuditRecord& record) {
  // Not synced: whoever can send calls would make the disk busy.
  const absl::Status written = audit_->Append(record);
  if (written.ok()) return;
  log_.Error("audit_log_failed", {{"call", record.call}, {"error", written.message()}});
}

void RefusalLog::WriteLeftOut() {
  AuditRecord record;
  record.call = "refusals_left_out";
  {
    const common::MutexLock lock(&mu_);
    record.outcome = absl::ResourceExhaustedError(
        absl::StrCat(std::exchange(left_out_, 0), " refused calls were not written"));
  }
  Write(record);
}

}  // namespace sluice::access
