#include "server/algorithm/open_receipts.h"

#include <algorithm>

#include "common/bounds.h"
#include "server/algorithm/wide.h"

namespace sluice::algorithm {
namespace {

using common::bounds::kMaxReceiptsPerBucket;

template <typename Receipt>
bool MakeRoom(ReceiptQueue<Receipt>* receipts) {
  if (receipts->size() < kMaxReceiptsPerBucket) return false;
  receipts->DropOldest(1);
  return true;
}

}  // namespace

void TokenReceipts::CloseWorthless() {
  const auto worth = std::find_if(receipts_.begin(), receipts_.end(), [](const Receipt& receipt) {
    return receipt.least_shortfall_ticks != 0;
  });
  receipts_.DropOldest(static_cast<size_t>(worth - receipts_.begin()));
}

void TokenReceipts::NoteShortfall(uint64_t shortfall_ticks) {
  for (auto it = receipts_.end(); it != receipts_.begin();) {
    --it;
    if (it->least_shortfall_ticks <= shortfall_ticks) break;
    it->least_shortfall_ticks = shortfall_ticks;
  }
  CloseWorthless();
}

bool TokenReceipts::Open(uint64_t id, uint64_t cost_ticks, uint64_t shortfall_after_ticks) {
  const bool evicted = MakeRoom(&receipts_);
  receipts_.Append({id, cost_ticks, shortfall_after_ticks});
  return evicted;
}

std::optional<uint64_t> TokenReceipts::Refund(uint64_t id) {
  const auto it = std::find_if(receipts_.begin(), receipts_.end(),
                               [id](const Receipt& receipt) { return receipt.id == id; });
  if (it == receipts_.end()) return std::nullopt;
  const uint64_t given = std::min(it->cost_ticks, it->least_shortfall_ticks);
  const uint64_t least_since = it->least_shortfall_ticks - given;
  for (auto older = receipts_.begin(); older != it; ++older) {
    older->least_shortfall_ticks = std::min(older->least_shortfall_ticks, least_since);
  }
  for (auto newer = it + 1; newer != receipts_.end(); ++newer) {
    newer->least_shortfall_ticks -= given;
  }
  receipts_.Erase(it);
  CloseWorthless();
  return given;
}

void TokenReceipts::Scale(uint64_t numerator, uint64_t denominator, uint64_t shortfall_ticks) {
  const auto scaled = [&](uint64_t ticks) {
    const Uint128 product = static_cast<Uint128>(ticks) * numerator / denominator;
    return static_cast<uint64_t>(std::min<Uint128>(product, shortfall_ticks));
  };
  for (Receipt& receipt : receipts_) {
    receipt.cost_ticks = scaled(receipt.cost_ticks);
    receipt.least_shortfall_ticks = scaled(receipt.least_shortfall_ticks);
  }
  CloseWorthless();
}

bool CountedReceipts::Open(uint64_t id, uint64_t when, uint64_t permits) {
  const bool evicted = MakeRoom(&receipts_);
  receipts_.Append({id, when, permits});
  return evicted;
}

std::optional<CountedReceipts::Receipt> CountedReceipts::Close(uint64_t id) {
  const auto it = std::find_if(receipts_.begin(), receipts_.end(),
                               [id](const Receipt& receipt) { return receipt.id == id; });
  if (it == receipts_.end()) return std::nullopt;
  const Receipt receipt = *it;
  receipts_.Erase(it);
  return receipt;
}

}  // namespace sluice::algorithm
