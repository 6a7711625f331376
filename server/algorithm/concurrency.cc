#include "server/algorithm/concurrency.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "server/algorithm/make_parameters.h"
#include "server/algorithm/wide.h"

namespace sluice::algorithm {

namespace bounds = common::bounds;

namespace {

// Ended holds that one change removes: a few microseconds. More than come with one change.
constexpr size_t kRemovedAtOnce = 128;

}  // namespace

uint64_t ConcurrencyState::Counted(const Concurrency&, int64_t now_ns) const {
  return holds_.permits() - holds_.EndedUpTo(ClampNow(now_ns)).permits;
}

bool ConcurrencyState::CanTake(const Concurrency& parameters, uint64_t permits,
                               int64_t now_ns) const {
  return Fits(Counted(parameters, now_ns), permits, parameters.permits);
}

bool ConcurrencyState::TryTake(const Concurrency& parameters, uint64_t permits, int64_t now_ns,
                               uint64_t id) {
  if (!CanTake(parameters, permits, now_ns)) return false;
  Take(parameters, permits, now_ns, now_ns, id);
  return true;
}

void ConcurrencyState::Take(const Concurrency& parameters, uint64_t permits, int64_t now_ns,
                            int64_t from_ns, uint64_t id) {
  holds_.RemoveEnded(ClampNow(now_ns), kRemovedAtOnce);
  holds_.Add({ClampNow(from_ns) + parameters.hold_for_ns, id, permits});
}

std::optional<uint64_t> ConcurrencyState::EndHold(uint64_t id, int64_t now_ns) {
  now_ns = ClampNow(now_ns);
  holds_.RemoveEnded(now_ns, kRemovedAtOnce);
  const std::optional<Hold> hold = holds_.Remove(id);
  if (!hold.has_value() || hold->end_ns <= now_ns) return std::nullopt;
  return hold->permits;
}

std::optional<int64_t> ConcurrencyState::Renew(const Concurrency& parameters, uint64_t id,
                                               int64_t now_ns) {
  now_ns = ClampNow(now_ns);
  holds_.RemoveEnded(now_ns, kRemovedAtOnce);
  std::optional<Hold> hold = Find(id, now_ns);
  if (!hold.has_value()) return std::nullopt;
  const int64_t end_ns = now_ns + parameters.hold_for_ns;
  if (end_ns <= hold->end_ns) return hold->end_ns;
  holds_.Remove(id);
  hold->end_ns = end_ns;
  holds_.Add(*hold);
  return end_ns;
}

std::optional<Hold> ConcurrencyState::Find(uint64_t id, int64_t now_ns) const {
  std::optional<Hold> hold = holds_.Find(id);
  if (hold.has_value() && hold->end_ns <= ClampNow(now_ns)) return std::nullopt;
  return hold;
}

int64_t ConcurrencyState::EarliestNs(const Concurrency& parameters, uint64_t permits,
                                     int64_t now_ns) const {
  if (permits > parameters.permits) return kNeverNs;
  now_ns = ClampNow(now_ns);
  const uint64_t room = parameters.permits - permits;
  if (holds_.permits() <= room) return now_ns;
  return std::max(now_ns, holds_.EndOfPermits(holds_.permits() - room));
}

Level ConcurrencyState::LevelAt(const Concurrency& parameters, int64_t now_ns) const {
  now_ns = ClampNow(now_ns);
  Level level;
  level.capacity = parameters.permits;
  level.remaining = RemainingOf(level.capacity, Counted(parameters, now_ns));
  if (!holds_.empty()) {
    level.reset_after_ns = std::max<int64_t>(holds_.back().end_ns - now_ns, 0);
  }
  if (level.remaining < 1) {
    level.next_permit_after_ns = EarliestNs(parameters, 1, now_ns) - now_ns;
  }
  return level;
}

bool ConcurrencyState::IsFull(const Concurrency&, int64_t now_ns) const {
  return holds_.empty() || holds_.back().end_ns <= ClampNow(now_ns);
}

int64_t ConcurrencyState::NextEndNs(int64_t now_ns) const {
  return holds_.FirstEndAfter(ClampNow(now_ns)).value_or(kNeverNs);
}

void ConcurrencyState::ToImage(BucketImage* image) const {
  image->holds.reserve(holds_.size());
  holds_.ForEach([&](const Hold& hold) { image->holds.push_back(hold); });
}

ConcurrencyState ConcurrencyState::FromImage(const Concurrency&, const BucketImage& image) {
  ConcurrencyState state;
  for (const Hold& hold : image.holds) state.holds_.Add(hold);
  return state;
}

absl::StatusOr<Parameters> MakeConcurrency(uint64_t permits, int64_t hold_for_ns) {
  if (permits == 0 || permits > bounds::kMaxPermits) {
    return absl::InvalidArgumentError(
        absl::StrCat("permits ", permits, ": must be from 1 to ", bounds::kMaxPermits));
  }
  if (hold_for_ns < bounds::kMinHoldForNs || hold_for_ns > bounds::kMaxHoldForNs) {
    return absl::InvalidArgumentError(absl::StrCat(
        "hold_for ", DurationText(hold_for_ns), ": must be from ",
        DurationText(bounds::kMinHoldForNs), " to ", DurationText(bounds::kMaxHoldForNs)));
  }
  Parameters parameters;
  parameters.kind = Kind::kConcurrency;
  parameters.concurrency = {permits, hold_for_ns};
  return parameters;
}

}  // namespace sluice::algorithm
