#include "common/net/handshake_slots.h"

#include <algorithm>

namespace sluice::net {
namespace {

// What a part of a handshake costs: one that is answered, since that takes a signature and a key
// exchange, and any other.
constexpr int64_t kAnswerUnits = 4 * WorkQueue::kTurnUnits;
constexpr int64_t kPartUnits = 64;

// While more workers wait for turns, handshakes pay less, at least a turn: they keep a seventh of
// the time of a loop that up to 32 connections keep busy.
constexpr size_t kFewWorkers = 8;

// A peer that has sent nothing for longer is silent. A busy one may need as long for its first
// bytes.
constexpr int64_t kSilentNs = 250'000'000;

}  // namespace

HandshakeSlots::Slot HandshakeSlots::Take(uint64_t peer) {
  ++held_[peer];
  return handshakes_.insert(handshakes_.end(), {.peer = peer, .since_ns = loop_.now_ns()});
}

void HandshakeSlots::OnInput(Slot slot) {
  Count(*slot, slot->stream->handshake_memory());
  if (slot->queued || !slot->stream->handshake_turn_due()) return;
  slot->queued = true;
  queue_.push_back(slot);
  loop_.work().Add(*this);
}

void HandshakeSlots::GiveBack(Slot slot) {
  const auto held = held_.find(slot->peer);
  if (--held->second == 0) held_.erase(held);
  if (slot->queued) queue_.remove(slot);
  if (queue_.empty()) LeaveQueue();
  Count(*slot, 0);
  handshakes_.erase(slot);
}

TlsStream& HandshakeSlots::Displaced() const {
  auto most = held_.begin();
  for (auto one = most; one != held_.end(); ++one) {
    if (one->second > most->second) most = one;
  }
  TlsStream* waits = nullptr;
  TlsStream* newest = nullptr;
  for (const Handshake& handshake : handshakes_) {
    if (handshake.peer != most->first) continue;
    newest = handshake.stream;
    const bool long_enough = loop_.now_ns() - handshake.since_ns > kSilentNs;
    if (long_enough && newest->silent()) return *newest;
    if (waits == nullptr && !handshake.queued) waits = newest;
  }
  return waits != nullptr ? *waits : *newest;
}

std::list<HandshakeSlots::Slot>::iterator HandshakeSlots::Next() {
  return std::min_element(queue_.begin(), queue_.end(), [this](const Slot& a, const Slot& b) {
    return held_.find(a->peer)->second < held_.find(b->peer)->second;
  });
}

void HandshakeSlots::Count(Handshake& handshake, size_t bytes) {
  memory_.Add(static_cast<int64_t>(bytes) - handshake.counted_bytes);
  handshake.counted_bytes = static_cast<int64_t>(bytes);
}

int64_t HandshakeSlots::AnswerUnits() const {
  const size_t waiting = std::max(loop_.work().size(), kFewWorkers);
  return std::max<int64_t>(kAnswerUnits * kFewWorkers / waiting, WorkQueue::kTurnUnits);
}

void HandshakeSlots::OnTurn() {
  const auto self = shared_from_this();  // the last handshake may end
  while (has_credit() && !queue_.empty()) {
    const auto next = Next();
    const Slot slot = *next;
    queue_.erase(next);
    slot->queued = false;
    Count(*slot, TlsStream::kHandshakeMemory);
    // May give the slot back.
    Spend(slot->stream->ContinueHandshake() ? AnswerUnits() : kPartUnits);
  }
  if (!queue_.empty()) loop_.work().Add(*this);
}

}  // namespace sluice::net
