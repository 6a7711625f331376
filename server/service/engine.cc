#include "server/service/engine.h"

#include <utility>

#include "common/bounds.h"
#include "common/errors.h"

namespace sluice::service {

constinit const store::Acquisition AcquireWork::kUndecided;

void AcquireWork::Clear() {
  items_.clear();
  decided_.clear();
  merged_.clear();
  results_.clear();
  merged_of_.clear();
}

void AcquireWork::Begin(int64_t max_wait_ns, bool want_receipt) {
  Item& item = items_.emplace_back();
  item.first_requested = static_cast<uint32_t>(merged_of_.size());
  item.first_merged = static_cast<uint32_t>(merged_.size());
  max_wait_ns_ = max_wait_ns;
  want_receipt_ = want_receipt;
}

void AcquireWork::Add(const store::Rule& rule, std::string_view key, uint64_t permits) {
  Item& item = items_.back();
  ++item.requested;
  if (!item.status.ok() || item.requested > common::bounds::kMaxCharges) return;
  if (permits == 0) {
    item.status = common::errors::PermitsZero(rule.limit_name);
    return;
  }
  for (uint32_t m = 0; m < item.merged; ++m) {
    store::Charge& charge = merged_[item.first_merged + m];
    if (charge.rule->limit_id != rule.limit_id || charge.key != key) continue;
    if (__builtin_add_overflow(charge.permits, permits, &charge.permits)) {
      item.status =
          common::errors::PermitsSumOverflow(rule.limit_name, algorithm::MaxGrant(rule.parameters));
    }
    merged_of_.push_back(static_cast<uint8_t>(m));
    return;
  }
  merged_.push_back({&rule, key, permits});
  merged_of_.push_back(static_cast<uint8_t>(item.merged++));
}

void AcquireWork::Fail(absl::Status status) {
  if (items_.back().status.ok()) items_.back().status = std::move(status);
}

absl::Status AcquireWork::End() {
  Item& item = items_.back();
  if (item.status.ok() && item.requested == 0) item.status = common::errors::NoCharges();
  if (item.requested > common::bounds::kMaxCharges) {
    item.status = common::errors::TooManyCharges(item.requested, common::bounds::kMaxCharges);
  }
  for (uint32_t m = 0; m < item.merged && item.status.ok(); ++m) {
    const store::Charge& charge = merged_[item.first_merged + m];
    const uint64_t most = algorithm::MaxGrant(charge.rule->parameters);
    if (charge.permits > most) {
      item.status =
          common::errors::PermitsAboveCapacity(charge.rule->limit_name, charge.permits, most);
    }
  }
  if (!item.status.ok()) {
    merged_.resize(item.first_merged);
    merged_of_.resize(item.first_requested);
    item.requested = item.merged = 0;
    return item.status;
  }
  item.decided = static_cast<uint32_t>(decided_.size());
  store::Acquisition& acquisition = decided_.emplace_back();
  acquisition.max_wait_ns = max_wait_ns_;
  acquisition.want_receipt = want_receipt_;
  return absl::OkStatus();
}

void AcquireWork::Seal() {
  results_.resize(merged_.size());
  for (const Item& item : items_) {
    if (!item.status.ok()) continue;
    store::Acquisition& acquisition = decided_[item.decided];
    acquisition.charges = absl::MakeConstSpan(merged_.data() + item.first_merged, item.merged);
    acquisition.results = results_.data() + item.first_merged;
  }
  acquisitions = absl::MakeSpan(decided_);
}

void Engine::Acquire(AcquireWork* work, int64_t deadline_ns) {
  work->Seal();
  work->deadline_ns = deadline_ns;
  if (work->acquisitions.empty()) {
    work->Done();
    return;
  }
  store_.Acquire(work);
}

}  // namespace sluice::service
