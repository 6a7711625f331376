#include "server/algorithm/open_receipts.h"

#include "common/bounds.h"
#include "server/algorithm/wide.h"

namespace sluice::algorithm {
namespace {

// No cost, and no permits of a receipt, with that on top, overflow: they are less.
constexpr uint64_t kMostForgiven = uint64_t{1} << 63;

}  // namespace

void OpenReceipts::List::Clear() {
  slots.clear();
  sums.clear();
  least = forgiven = most_permits = 0;
  head = not_kept_head = open = not_kept = 0;
  late.clear();
}

bool OpenReceipts::List::Open(const Slot& slot) {
  const bool closes_older = !slot.kept && not_kept >= common::bounds::kMaxReceiptsPerBucket;
  if (closes_older) CloseOldestNotKept();
  slots.emplace_back();
  Place(slot, slots.size() - 1);
  ++open;
  if (!slot.kept) ++not_kept;
  return closes_older;
}

void OpenReceipts::List::CloseOldestNotKept() {
  while (!slots[not_kept_head].open || slots[not_kept_head].kept) ++not_kept_head;
  Close(not_kept_head);
}

void OpenReceipts::List::Place(Slot slot, size_t place) {
  slot.greatest = static_cast<uint32_t>(place);
  if (place > 0 && slots[slots[place - 1].greatest].id >= slot.id) {
    slot.greatest = slots[place - 1].greatest;
    late[slot.id] = static_cast<uint32_t>(place);
  }
  slots[place] = slot;
}

void OpenReceipts::List::Close(size_t place) {
  slots[place].open = false;
  --open;
  if (!slots[place].kept) --not_kept;
  if (!late.empty() && slots[place].greatest != place) late.erase(slots[place].id);
}

size_t OpenReceipts::List::Find(uint64_t id) const {
  if (!late.empty()) {
    const auto found = late.find(id);
    if (found != late.end()) return found->second;
  }
  const auto found = std::lower_bound(
      slots.begin() + head, slots.end(), id,
      [this](const Slot& slot, uint64_t of) { return slots[slot.greatest].id < of; });
  const bool is = found != slots.end() && found->id == id && found->open;
  return is ? found - slots.begin() : slots.size();
}

uint64_t OpenReceipts::List::LeastOf(size_t place) const {
  uint64_t sum = 0;
  for (size_t block = 0; block < place / kBlock; ++block) sum += sums[block];
  for (size_t i = place / kBlock * kBlock; i <= place; ++i) sum += slots[i].step_or_permits;
  return sum;
}

void OpenReceipts::List::TakeStepsBefore(size_t place, uint64_t ticks) {
  least -= ticks;
  while (ticks > 0) {
    uint64_t& sum = sums[(place - 1) / kBlock];
    if (sum == 0) {
      place = (place - 1) / kBlock * kBlock;
      continue;
    }
    uint64_t& step = slots[--place].step_or_permits;
    const uint64_t taken = std::min(step, ticks);
    step -= taken;
    sum -= taken;
    ticks -= taken;
  }
}

void OpenReceipts::List::TakeFirstSteps(uint64_t ticks) {
  ticks = std::min(ticks, least);
  least -= ticks;
  for (size_t place = head; ticks > 0;) {
    uint64_t& sum = sums[place / kBlock];
    if (sum == 0) {
      place = (place / kBlock + 1) * kBlock;
      continue;
    }
    uint64_t& step = slots[place++].step_or_permits;
    const uint64_t taken = std::min(step, ticks);
    step -= taken;
    sum -= taken;
    ticks -= taken;
  }
}

void OpenReceipts::List::AddUpSteps() {
  sums.assign((slots.size() + kBlock - 1) / kBlock, 0);
  least = 0;
  for (size_t i = 0; i < slots.size(); ++i) {
    sums[i / kBlock] += slots[i].step_or_permits;
    least += slots[i].step_or_permits;
  }
}

void OpenReceipts::List::PackIfSparse(bool has_steps) {
  constexpr size_t kFewSlots = 16;
  if (open == 0) return Clear();
  if (slots.size() <= 2 * size_t{open} + kFewSlots) return;
  uint64_t steps = 0;  // of closed slots: the next open one has them
  size_t to = 0;
  late.clear();
  for (size_t from = head; from < slots.size(); ++from) {
    Slot slot = slots[from];
    if (has_steps) steps += slot.step_or_permits;
    if (!slot.open) continue;
    if (has_steps) slot.step_or_permits = std::exchange(steps, 0);
    Place(slot, to++);
  }
  slots.resize(to);
  head = not_kept_head = 0;
  if (has_steps) AddUpSteps();
}

void OpenReceipts::List::ApplyForgiven(uint64_t Slot::* field) {
  for (Slot& slot : slots) slot.*field = Worth(slot.*field);
  most_permits = Worth(most_permits);
  forgiven = 0;
}

bool OpenReceipts::Drop(uint64_t id) {
  if (list_ == nullptr) return false;
  const size_t place = list_->Find(id);
  if (place == list_->slots.size()) return false;
  list_->Close(place);
  if (list_->open == 0) list_->Clear();
  return true;
}

void OpenReceipts::KeepNoLonger(uint64_t id) {
  if (list_ == nullptr) return;
  List& list = *list_;
  const size_t place = list.Find(id);
  if (place == list.slots.size() || !list.slots[place].kept) return;
  list.slots[place].kept = false;
  list.not_kept_head = std::min(list.not_kept_head, static_cast<uint32_t>(place));
  if (++list.not_kept > common::bounds::kMaxReceiptsPerBucket) list.CloseOldestNotKept();
}

void OpenReceipts::DropKept() {
  if (kept() == 0) return;
  for (size_t place = 0; place < list_->slots.size(); ++place) {
    if (list_->slots[place].open && list_->slots[place].kept) list_->Close(place);
  }
  if (list_->open == 0) list_->Clear();
}

// ---- Of a token bucket

bool OpenReceipts::OpenTicks(uint64_t id, uint64_t cost, uint64_t shortfall, Kept kept) {
  List& list = this->list();
  list.PackIfSparse(/*has_steps=*/true);
  if (list.least > shortfall) list.TakeStepsBefore(list.slots.size(), list.least - shortfall);
  const uint64_t step = shortfall - list.least;
  const bool closed_older =
      list.Open({id, cost + list.forgiven, step, /*open=*/true, kept == Kept::kYes});
  if (list.slots.size() > list.sums.size() * kBlock) list.sums.push_back(0);
  list.sums.back() += step;
  list.least = shortfall;
  return closed_older;
}

void OpenReceipts::NoteShortfall(uint64_t shortfall_ticks) {
  if (empty()) return;
  List& list = *list_;
  if (list.least > shortfall_ticks) {
    list.TakeStepsBefore(list.slots.size(), list.least - shortfall_ticks);
  }
  CloseWorthless();
}

std::optional<uint64_t> OpenReceipts::RefundTicks(uint64_t id, uint64_t keep_ticks) {
  if (empty()) return std::nullopt;
  List& list = *list_;
  const size_t place = list.Find(id);
  if (place == list.slots.size()) return std::nullopt;
  const uint64_t cost = list.Worth(list.slots[place].cost_or_when);
  const uint64_t given = std::min(cost - std::min(cost, keep_ticks), list.LeastOf(place));
  list.TakeStepsBefore(place + 1, given);
  list.Close(place);
  if (list.open == 0) {
    list.Clear();
  } else {
    CloseWorthless();
  }
  return given;
}

void OpenReceipts::Forgive(uint64_t Slot::* field, uint64_t amount) {
  List& list = *list_;
  if (amount > kMostForgiven - list.forgiven) list.ApplyForgiven(field);
  list.forgiven += amount;
}

void OpenReceipts::ForgiveTicks(uint64_t ticks) {
  if (empty() || ticks == 0) return;
  Forgive(&Slot::cost_or_when, ticks);
  list_->TakeFirstSteps(ticks);
  CloseWorthless();
}

void OpenReceipts::Scale(uint64_t numerator, uint64_t denominator, uint64_t shortfall_ticks) {
  if (empty()) return;
  List& list = *list_;
  const auto scaled = [&](uint64_t ticks) {
    const Uint128 product = static_cast<Uint128>(ticks) * numerator / denominator;
    return static_cast<uint64_t>(std::min<Uint128>(product, shortfall_ticks));
  };
  list.ApplyForgiven(&Slot::cost_or_when);
  uint64_t least = 0;
  uint64_t scaled_least = 0;
  for (Slot& slot : list.slots) {
    slot.cost_or_when = scaled(slot.cost_or_when);
    least += slot.step_or_permits;
    const uint64_t before = std::exchange(scaled_least, scaled(least));
    slot.step_or_permits = scaled_least - before;
  }
  list.AddUpSteps();
  CloseWorthless();
}

// ---- Of a log or a window

bool OpenReceipts::OpenPermits(uint64_t id, uint64_t when, uint64_t permits, Kept kept) {
  List& list = this->list();
  list.PackIfSparse(/*has_steps=*/false);
  list.most_permits = std::max(list.most_permits, permits + list.forgiven);
  return list.Open({id, when, permits + list.forgiven, /*open=*/true, kept == Kept::kYes});
}

std::optional<OpenReceipts::Receipt> OpenReceipts::Close(uint64_t id) {
  if (empty()) return std::nullopt;
  const size_t place = list_->Find(id);
  if (place == list_->slots.size()) return std::nullopt;
  const Slot& slot = list_->slots[place];
  const Receipt receipt = {slot.id, slot.cost_or_when, list_->Worth(slot.step_or_permits)};
  list_->Close(place);
  if (list_->open == 0) list_->Clear();
  return receipt;
}

void OpenReceipts::ForgivePermits(uint64_t permits) {
  if (empty()) return;
  // What is more than any receipt is worth changes nothing.
  permits = std::min(permits, list_->Worth(list_->most_permits));
  if (permits != 0) Forgive(&Slot::step_or_permits, permits);
}

}  // namespace sluice::algorithm
