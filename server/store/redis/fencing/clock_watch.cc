#include "server/store/redis/fencing/clock_watch.h"

#include <algorithm>

namespace sluice::store::redis {
namespace {

// The correction is lowered for a clock that was set back by more. A script that was on its way for
// up to a second, the longest whose grants reach a caller, does not decide by such a clock.
constexpr int64_t kLowerBeyondUs = 2 * ClockRange::kToleranceUs;

}  // namespace

void ClockWatch::Adopt(const Fence& fence, const ClockReading& reading) {
  // By a fence that this node wrote, the corrected time goes on as it expects.
  const bool goes_on = range_.known() && (fence.word == word_ || fence.word == ours_);
  word_ = fence.word;
  number_ = fence.number;
  correction_us_ = fence.correction_us;
  if (goes_on && !range_.IsBehind(Corrected(reading))) {
    See(reading);
  } else {
    range_.Begin(Corrected(reading));
  }
}

bool ClockWatch::See(const ClockReading& reading) {
  if (!range_.known()) return true;
  const ClockReading corrected = Corrected(reading);
  if (range_.IsAhead(corrected) || range_.IsBehind(corrected)) return false;
  range_.Narrow(corrected);
  return true;
}

ServerClock ClockWatch::ClockAt(int64_t our_us) const {
  ServerClock clock = {correction_us_};
  if (!range_.known()) return clock;
  clock.latest_us = range_.MostAt(our_us) + ClockRange::kToleranceUs + correction_us_;
  // What is decided while the clock is behind counts as of then. So all nodes must know of it.
  clock.least_us = range_.LeastAt(our_us) - ClockRange::kToleranceUs + correction_us_;
  return clock;
}

bool ClockWatch::Revise(const std::optional<Fence>& found, const ClockReading& reading,
                        const FencePolicy& policy, std::string_view word, FenceStep* step) {
  // Another node has replaced the fence since.
  if (found.has_value() && found->word != word_ && found->number > number_) return false;
  if (!range_.known()) return false;
  const ClockReading corrected = Corrected(reading);
  const bool ahead = range_.IsAhead(corrected);
  const bool set = ahead || range_.IsBehind(corrected);
  if (step->adopt && !set) return false;
  if (step->adopt && found.has_value()) {
    step->adopt = false;
    step->write = *found;
    ++step->write.number;
    step->write.word = std::string(word);
    step->why = "the clock was set";
  }
  step->write.correction_us = correction_us_;
  if (ahead || range_.IsBehind(corrected, kLowerBeyondUs)) {
    // From now on the corrected time is what it must be at least: it goes on a little late.
    step->write.correction_us =
        std::max<int64_t>(reading.redis_us - range_.WentOnAt(reading.sent_us), 0);
  }
  if (ahead && !step->floor_after_us.has_value() && policy.after_loss == AfterLoss::kEmpty) {
    CountDropped(reading, policy, step);
  }
  ours_ = step->write.word;
  return set;
}

// Redis drops keys by its own clock: those that were written before it was set are dropped early,
// now or later. All that they can have counted was granted until now.
void ClockWatch::CountDropped(const ClockReading& reading, const FencePolicy& policy,
                              FenceStep* step) const {
  Fence& fence = step->write;
  if (policy.slots_move) {
    // Where a slot goes, it is not known that keys are missing.
    fence.AddLost(Fence(fence));
    step->floor_after_us = 0;
    return;
  }
  fence.missing_floor_us =
      std::max({fence.missing_floor_us, fence.promised_us, range_.MostAt(reading.answered_us)});
  for (auto& [limit, times] : fence.limits) {
    if (times.Promised() <= fence.missing_floor_us) continue;
    times.floor_us = std::max(times.floor_us, times.promised_us);
  }
}

}  // namespace sluice::store::redis
