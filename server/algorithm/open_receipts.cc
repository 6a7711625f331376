#include "server/algorithm/open_receipts.h"

#include <algorithm>

#include "server/algorithm/wide.h"
#include "server/common/bounds.h"

namespace sluice::algorithm {
namespace {

using common::bounds::kMaxReceiptsPerBucket;

template <typename Receipt>
bool MakeRoom(std::vector<Receipt>* receipts) {
  if (receipts->size() < kMaxReceiptsPerBucket) return false;
  receipts->erase(receipts->begin());
  return true;
}

}  // namespace

void TokenReceipts::CloseWorthless() {
  size_t gone = 0;
  while (gone < receipts_.size() && receipts_[gone].least_shortfall_ticks == 0) ++gone;
  receipts_.erase(receipts_.begin(), receipts_.begin() + static_cast<std::ptrdiff_t>(gone));
}

void TokenReceipts::NoteShortfall(uint64_t shortfall_ticks) {
  for (auto it = receipts_.rbegin();
       it != receipts_.rend() && it->least_shortfall_ticks > shortfall_ticks; ++it) {
    it->least_shortfall_ticks = shortfall_ticks;
  }
  CloseWorthless();
}

bool TokenReceipts::Open(uint64_t id, uint64_t cost_ticks, uint64_t shortfall_after_ticks) {
  const bool evicted = MakeRoom(&receipts_);
  receipts_.push_back({id, cost_ticks, shortfall_after_ticks});
  return evicted;
}

std::optional<uint64_t> TokenReceipts::Refund(uint64_t id) {
  const auto it = std::find_if(receipts_.begin(), receipts_.end(),
                               [id](const Receipt& receipt) { return receipt.id == id; });
  if (it == receipts_.end()) return std::nullopt;
  const uint64_t given = std::min(it->cost_ticks, it->least_shortfall_ticks);
  receipts_.erase(it);
  for (Receipt& receipt : receipts_) {
    receipt.least_shortfall_ticks -= std::min(receipt.least_shortfall_ticks, given);
  }
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
  receipts_.push_back({id, when, permits});
  return evicted;
}

std::optional<CountedReceipts::Receipt> CountedReceipts::Close(uint64_t id) {
  const auto it = std::find_if(receipts_.begin(), receipts_.end(),
                               [id](const Receipt& receipt) { return receipt.id == id; });
  if (it == receipts_.end()) return std::nullopt;
  const Receipt receipt = *it;
  receipts_.erase(it);
  return receipt;
}

}  // namespace sluice::algorithm
