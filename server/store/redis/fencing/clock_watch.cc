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

ClockWatch::Seen ClockWatch::See(const ClockReading& reading) {
  if (!range_.known()) return Seen::kExpected;
  const ClockReading corrected = Corrected(reading);
  if (range_.IsAhead(corrected)) return Seen::kSet;
  if (range_.IsBehind(corrected)) {
    if (correction_us_ > 0 && range_.IsBehind(corrected, kLowerBeyondUs)) return Seen::kSet;
    range_.Begin(corrected);
    return Seen::kBack;
  }
  range_.Narrow(corrected);
  return Seen::kExpected;
}

ServerClock ClockWatch::ClockAt(int64_t our_us) const {
  ServerClock clock = {correction_us_};
  if (!range_.known()) return clock;
  clock.latest_us = range_.MostAt(our_us) + ClockRange::kToleranceUs + correction_us_;
  // What is decided while the clock is behind counts as of then. So it must not be decided if a
  // smaller correction will follow.
  if (correction_us_ > 0) {
    clock.least_us = range_.LeastAt(our_us) - ClockRange::kToleranceUs + correction_us_;
  }
  return clock;
}

void ClockWatch::Revise(const std::optional<Fence>& found, const ClockReading& reading,
                        const FencePolicy& policy, std::string_view word, FenceStep* step) {
  // Another node has replaced the fence since.
  if (found.has_value() && found->word != word_ && found->number > number_) return;
  if (!range_.known()) return;
  const ClockReading corrected = Corrected(reading);
  const bool ahead = range_.IsAhead(corrected);
  int64_t correction_us = correction_us_;
  if (ahead || range_.IsBehind(corrected, kLowerBeyondUs)) {
    // From now on the corrected time is what it must be at least: it goes on a little late.
    correction_us = std::max<int64_t>(reading.redis_us - range_.WentOnAt(reading.sent_us), 0);
  }
  if (step->adopt) {
    if (correction_us == correction_us_) return;
    step->adopt = false;
    step->write = *found;
    ++step->write.number;
    step->write.word = std::string(word);
    step->why = "the clock was set";
  }
  // Redis has dropped keys that it took for expired.
  if (ahead && !step->floor_after_us.has_value() && policy.after_loss == AfterLoss::kEmpty) {
    step->write.AddLost(Fence(step->write));
    step->floor_after_us = 0;
  }
  step->write.correction_us = correction_us;
  ours_ = step->write.word;
}

}  // namespace sluice::store::redis
