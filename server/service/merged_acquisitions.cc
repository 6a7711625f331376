#include "server/service/merged_acquisitions.h"

#include <algorithm>

#include "common/bounds.h"

namespace sluice::service {

constinit const store::Acquisition MergedAcquisitions::kUndecided;

void MergedAcquisitions::Clear() {
  items_.clear();
  decided_.clear();
  merged_.clear();
  results_.clear();
  merged_of_.clear();
  charged_by_.clear();
}

void MergedAcquisitions::Begin(bool want_receipt) {
  items_.push_back(
      {static_cast<uint32_t>(merged_of_.size()), 0, static_cast<uint32_t>(merged_.size()), 0});
  decided_.emplace_back().want_receipt = want_receipt;
}

void MergedAcquisitions::Add(const store::Rule& rule, std::string_view key, uint64_t permits) {
  Item& item = items_.back();
  if (++item.added > common::bounds::kMaxCharges) return;
  for (uint32_t m = 0; m < item.merged; ++m) {
    store::Charge& charge = merged_[item.first_merged + m];
    if (charge.rule->limit_id != rule.limit_id || charge.key != key) continue;
    if (__builtin_add_overflow(charge.permits, permits, &charge.permits)) {
      charge.permits = UINT64_MAX;
    }
    merged_of_.push_back(static_cast<uint8_t>(m));
    return;
  }
  merged_.push_back({&rule, key, permits});
  merged_of_.push_back(static_cast<uint8_t>(item.merged++));
}

void MergedAcquisitions::AddChargedBy(size_t by, const store::Rule& rule, std::string_view key,
                                      uint64_t permits) {
  Add(rule, key, permits);
  const Item& item = items_.back();
  if (item.added > common::bounds::kMaxCharges) return;
  charged_by_.resize(merged_.size());
  charged_by_[item.first_merged + merged_of_.back()] |=
      static_cast<uint16_t>(1u << merged_of_[item.first_added + by]);
}

void MergedAcquisitions::DropLast() {
  merged_of_.resize(items_.back().first_added);
  merged_.resize(items_.back().first_merged);
  charged_by_.resize(std::min(charged_by_.size(), merged_.size()));
  decided_.pop_back();
  items_.pop_back();
}

void MergedAcquisitions::Decide(store::Store& store, int64_t deadline) {
  if (items_.empty()) {
    Done();
    return;
  }
  // Only now the vectors no longer move.
  results_.resize(merged_.size());
  if (!charged_by_.empty()) charged_by_.resize(merged_.size());
  for (size_t i = 0; i < items_.size(); ++i) {
    decided_[i].charges =
        absl::MakeConstSpan(merged_.data() + items_[i].first_merged, items_[i].merged);
    decided_[i].results = results_.data() + items_[i].first_merged;
    if (!charged_by_.empty()) decided_[i].charged_by = charged_by_.data() + items_[i].first_merged;
  }
  acquisitions = absl::MakeSpan(decided_);
  deadline_ns = deadline;
  store.Acquire(this);
}

}  // namespace sluice::service
