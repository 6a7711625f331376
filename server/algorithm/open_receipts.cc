#include "server/algorithm/open_receipts.h"

#include "common/bounds.h"
#include "server/algorithm/wide.h"

namespace sluice::algorithm {

void OpenReceipts::Clear() {
  receipts_.clear();
  head_ = 0;
}

void OpenReceipts::DropBefore(Iterator kept) {
  head_ = static_cast<size_t>(kept - receipts_.begin());
  if (empty()) {
    Clear();
  } else if (head_ > receipts_.size() / 2) {
    receipts_.erase(receipts_.begin(), kept);
    head_ = 0;
  }
}

bool OpenReceipts::Open(uint64_t id, uint64_t cost_or_when, uint64_t shortfall_or_permits) {
  const bool full = size() >= common::bounds::kMaxReceiptsPerBucket;
  if (full) DropBefore(first() + 1);
  receipts_.push_back({id, cost_or_when, shortfall_or_permits});
  return full;
}

void OpenReceipts::NoteShortfall(uint64_t shortfall_ticks) {
  for (auto it = receipts_.end(); it != first();) {
    --it;
    if (it->shortfall_or_permits <= shortfall_ticks) break;
    it->shortfall_or_permits = shortfall_ticks;
  }
  CloseWorthless();
}

std::optional<uint64_t> OpenReceipts::RefundTicks(uint64_t id) {
  const auto it = Find(id);
  if (it == receipts_.end()) return std::nullopt;
  const uint64_t given = std::min(it->cost_or_when, it->shortfall_or_permits);
  const uint64_t least_since = it->shortfall_or_permits - given;
  for (auto older = first(); older != it; ++older) {
    older->shortfall_or_permits = std::min(older->shortfall_or_permits, least_since);
  }
  for (auto newer = it + 1; newer != receipts_.end(); ++newer) {
    newer->shortfall_or_permits -= given;
  }
  receipts_.erase(it);
  CloseWorthless();
  return given;
}

void OpenReceipts::ForgiveTicks(uint64_t ticks) {
  for (auto it = first(); it != receipts_.end(); ++it) {
    it->cost_or_when -= std::min(it->cost_or_when, ticks);
  }
  ForgivePermits(ticks);
  CloseWorthless();
}

void OpenReceipts::ForgivePermits(uint64_t permits) {
  for (auto it = first(); it != receipts_.end(); ++it) {
    it->shortfall_or_permits -= std::min(it->shortfall_or_permits, permits);
  }
}

void OpenReceipts::Scale(uint64_t numerator, uint64_t denominator, uint64_t shortfall_ticks) {
  const auto scaled = [&](uint64_t ticks) {
    const Uint128 product = static_cast<Uint128>(ticks) * numerator / denominator;
    return static_cast<uint64_t>(std::min<Uint128>(product, shortfall_ticks));
  };
  for (auto it = first(); it != receipts_.end(); ++it) {
    it->cost_or_when = scaled(it->cost_or_when);
    it->shortfall_or_permits = scaled(it->shortfall_or_permits);
  }
  CloseWorthless();
}

std::optional<OpenReceipts::Receipt> OpenReceipts::Close(uint64_t id) {
  const auto it = Find(id);
  if (it == receipts_.end()) return std::nullopt;
  const Receipt receipt = *it;
  receipts_.erase(it);
  return receipt;
}

}  // namespace sluice::algorithm
