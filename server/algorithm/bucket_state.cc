#include "server/algorithm/bucket_state.h"

#include <algorithm>
#include <type_traits>
#include <utility>

#include "server/algorithm/carry_over.h"
#include "server/algorithm/wide.h"

namespace sluice::algorithm {
namespace {

// How much of a bucket is used, for carry-over between algorithms. numerator <= denominator.
struct UsedFraction {
  uint64_t numerator = 0;
  uint64_t denominator = 1;
};

UsedFraction UsedOf(uint64_t counted, uint64_t capacity) {
  return {std::min(counted, capacity), capacity};
}

uint64_t RoundedUp(UsedFraction used, uint64_t of) {
  return static_cast<uint64_t>(
      CeilDiv(static_cast<Uint128>(used.numerator) * of, used.denominator));
}

}  // namespace

BucketState::BucketState(const Parameters& parameters) {
  switch (parameters.kind) {
    case Kind::kTokenBucket:
      state_.emplace<uint64_t>(0);
      break;
    case Kind::kSlidingLog:
      state_.emplace<SlidingLogState>();
      break;
    case Kind::kSlidingWindow:
      state_.emplace<SlidingWindowState>();
      break;
    case Kind::kFixedWindow:
      state_.emplace<FixedWindowState>();
      break;
  }
}

BucketState BucketState::FromTat(uint64_t tat) {
  BucketState state{Parameters{}};
  state.state_ = tat;
  return state;
}

bool BucketState::CanTakePast(const Parameters& parameters, uint64_t permits, Moment at) const {
  switch (kind()) {
    case Kind::kTokenBucket: {
      uint64_t tat = std::get<uint64_t>(state_);
      return algorithm::TryTake(parameters.token_bucket, permits,
                                ToTicks(parameters.token_bucket, at.now_ns), &tat);
    }
    case Kind::kSlidingLog:
      return std::get<SlidingLogState>(state_).CanTake(parameters.sliding_log, permits, at.now_ns);
    case Kind::kSlidingWindow:
      return std::get<SlidingWindowState>(state_).CanTake(parameters.sliding_window, permits,
                                                          at.now_ns);
    case Kind::kFixedWindow:
      return std::get<FixedWindowState>(state_).CanTake(parameters.fixed_window, permits, at);
  }
  return false;
}

bool BucketState::TryTakePast(const Parameters& parameters, uint64_t permits, Moment at,
                              uint64_t receipt_id, bool* evicted) {
  CloseWorthless(parameters, at);
  uint64_t when = 0;
  switch (kind()) {
    case Kind::kTokenBucket: {
      auto& tat = std::get<uint64_t>(state_);
      const uint64_t now_ticks = ToTicks(parameters.token_bucket, at.now_ns);
      if (!algorithm::TryTake(parameters.token_bucket, permits, now_ticks, &tat)) return false;
      if (receipt_id != 0 &&
          token_receipts_.Open(receipt_id, permits * parameters.token_bucket.unit_ticks,
                               ShortfallTicks(tat, now_ticks)) &&
          evicted != nullptr) {
        *evicted = true;
      }
      return true;
    }
    case Kind::kSlidingLog:
      if (!std::get<SlidingLogState>(state_).TryTake(parameters.sliding_log, permits, at.now_ns,
                                                     &when)) {
        return false;
      }
      break;
    case Kind::kSlidingWindow:
      if (!std::get<SlidingWindowState>(state_).TryTake(parameters.sliding_window, permits,
                                                        at.now_ns, &when)) {
        return false;
      }
      break;
    case Kind::kFixedWindow:
      if (!std::get<FixedWindowState>(state_).TryTake(parameters.fixed_window, permits, at,
                                                      &when)) {
        return false;
      }
      break;
  }
  if (receipt_id != 0 && counted_receipts_.Open(receipt_id, when, permits) && evicted != nullptr) {
    *evicted = true;
  }
  return true;
}

int64_t BucketState::EarliestPastNs(const Parameters& parameters, uint64_t permits,
                                    Moment at) const {
  switch (kind()) {
    case Kind::kTokenBucket:
      return algorithm::EarliestNs(parameters.token_bucket, permits, std::get<uint64_t>(state_),
                                   at.now_ns);
    case Kind::kSlidingLog:
      return std::get<SlidingLogState>(state_).EarliestNs(parameters.sliding_log, permits,
                                                          at.now_ns);
    case Kind::kSlidingWindow:
      return std::get<SlidingWindowState>(state_).EarliestNs(parameters.sliding_window, permits,
                                                             at.now_ns);
    case Kind::kFixedWindow:
      return std::get<FixedWindowState>(state_).EarliestNs(parameters.fixed_window, permits, at);
  }
  return kNeverNs;
}

Level BucketState::LevelOfPastAt(const Parameters& parameters, Moment at) const {
  switch (kind()) {
    case Kind::kTokenBucket:
      return algorithm::LevelAt(parameters.token_bucket, std::get<uint64_t>(state_), at.now_ns);
    case Kind::kSlidingLog:
      return std::get<SlidingLogState>(state_).LevelAt(parameters.sliding_log, at.now_ns);
    case Kind::kSlidingWindow:
      return std::get<SlidingWindowState>(state_).LevelAt(parameters.sliding_window, at.now_ns);
    case Kind::kFixedWindow:
      return std::get<FixedWindowState>(state_).LevelAt(parameters.fixed_window, at);
  }
  return {};
}

bool BucketState::IsFull(const Parameters& parameters, Moment at) const {
  if (calendar_ != nullptr) return false;
  switch (kind()) {
    case Kind::kTokenBucket:
      return algorithm::IsFull(std::get<uint64_t>(state_),
                               ToTicks(parameters.token_bucket, at.now_ns));
    case Kind::kSlidingLog:
      return std::get<SlidingLogState>(state_).IsFull(parameters.sliding_log, at.now_ns);
    case Kind::kSlidingWindow:
      return std::get<SlidingWindowState>(state_).IsFull(parameters.sliding_window, at.now_ns);
    case Kind::kFixedWindow:
      return std::get<FixedWindowState>(state_).IsFull(parameters.fixed_window, at);
  }
  return true;
}

void BucketState::CloseWorthless(const Parameters& parameters, Moment at) {
  switch (kind()) {
    case Kind::kTokenBucket:
      if (token_receipts_.empty()) return;
      token_receipts_.NoteShortfall(
          ShortfallTicks(std::get<uint64_t>(state_), ToTicks(parameters.token_bucket, at.now_ns)));
      return;
    case Kind::kSlidingLog:
      counted_receipts_.CloseUncounted([&](uint64_t when) {
        return std::get<SlidingLogState>(state_).Counts(parameters.sliding_log, when, at.now_ns);
      });
      return;
    case Kind::kSlidingWindow:
      counted_receipts_.CloseUncounted([&](uint64_t when) {
        return std::get<SlidingWindowState>(state_).Counts(parameters.sliding_window, when,
                                                           at.now_ns);
      });
      return;
    case Kind::kFixedWindow:
      counted_receipts_.CloseUncounted([&](uint64_t when) {
        return std::get<FixedWindowState>(state_).Counts(parameters.fixed_window, when, at);
      });
      return;
  }
}

std::optional<uint64_t> BucketState::RefundPast(const Parameters& parameters, uint64_t receipt_id,
                                                Moment at, uint64_t* when) {
  CloseWorthless(parameters, at);
  if (kind() == Kind::kTokenBucket) {
    const std::optional<uint64_t> given = token_receipts_.Refund(receipt_id);
    if (!given.has_value()) return std::nullopt;
    std::get<uint64_t>(state_) -= *given;
    return *given / parameters.token_bucket.unit_ticks;
  }
  const std::optional<CountedReceipts::Receipt> receipt = counted_receipts_.Close(receipt_id);
  if (!receipt.has_value()) return std::nullopt;
  *when = receipt->when;
  switch (kind()) {
    case Kind::kSlidingLog:
      return std::get<SlidingLogState>(state_).Refund(parameters.sliding_log, receipt->when,
                                                      receipt->permits, at.now_ns);
    case Kind::kSlidingWindow:
      return std::get<SlidingWindowState>(state_).Refund(parameters.sliding_window, receipt->when,
                                                         receipt->permits, at.now_ns);
    case Kind::kFixedWindow:
      return std::get<FixedWindowState>(state_).Refund(parameters.fixed_window, receipt->when,
                                                       receipt->permits, at);
    case Kind::kTokenBucket:
      break;
  }
  return std::nullopt;
}

void BucketState::ConvertPast(const Parameters& from, const Parameters& to, Moment at,
                              int64_t moved_ns) {
  if (from == to) return;
  CloseWorthless(from, at);
  if (from.kind == to.kind) {
    switch (kind()) {
      case Kind::kTokenBucket: {
        const TokenBucket& old_parameters = from.token_bucket;
        const TokenBucket& parameters = to.token_bucket;
        auto& tat = std::get<uint64_t>(state_);
        tat = ConvertTat(old_parameters, parameters, tat, at.now_ns);
        const uint64_t lacking = ShortfallTicks(tat, ToTicks(parameters, at.now_ns));
        if (tat == kMaxTat) {
          // More is lacking than can be said; who gives back might give back what was not counted.
          token_receipts_.Clear();
        } else if (parameters.burst < old_parameters.burst) {
          token_receipts_.Scale(parameters.burst_ticks, old_parameters.burst_ticks, lacking);
        } else {
          token_receipts_.Scale(parameters.unit_ticks, old_parameters.unit_ticks, lacking);
        }
        break;
      }
      case Kind::kSlidingLog: {
        auto& log = std::get<SlidingLogState>(state_);
        log = log.ConvertTo(from.sliding_log, to.sliding_log, at.now_ns);
        counted_receipts_.Convert([&](uint64_t when) {
          return SlidingLogState::ConvertQuantum(from.sliding_log, to.sliding_log, when);
        });
        break;
      }
      case Kind::kSlidingWindow: {
        auto& window = std::get<SlidingWindowState>(state_);
        const int64_t now_ns = window.NotBefore(from.sliding_window, at.now_ns);
        window = window.ConvertTo(from.sliding_window, to.sliding_window, at.now_ns);
        counted_receipts_.Convert([&](uint64_t when) {
          return SlidingWindowState::ConvertIndex(from.sliding_window, to.sliding_window, when,
                                                  now_ns);
        });
        break;
      }
      case Kind::kFixedWindow: {
        auto& window = std::get<FixedWindowState>(state_);
        window = window.ConvertTo(from.fixed_window, to.fixed_window, at);
        break;
      }
    }
    CloseWorthless(to, at);
    return;
  }

  UsedFraction used;
  switch (from.kind) {
    case Kind::kTokenBucket: {
      const uint64_t lacking =
          ShortfallTicks(std::get<uint64_t>(state_), ToTicks(from.token_bucket, at.now_ns));
      const uint64_t burst_ticks = from.token_bucket.burst_ticks;
      // With nothing stored ever, whatever is owed is all.
      used = burst_ticks != 0 ? UsedOf(lacking, burst_ticks) : UsedOf(lacking, 1);
      break;
    }
    case Kind::kSlidingLog:
      used = UsedOf(std::get<SlidingLogState>(state_).Counted(from.sliding_log, at.now_ns),
                    from.sliding_log.rate.permits);
      break;
    case Kind::kSlidingWindow:
      used = UsedOf(std::get<SlidingWindowState>(state_).Counted(from.sliding_window, at.now_ns),
                    from.sliding_window.rate.permits);
      break;
    case Kind::kFixedWindow:
      used = UsedOf(std::get<FixedWindowState>(state_).Counted(from.fixed_window, at),
                    from.fixed_window.rate.permits);
      break;
  }
  at = {at.now_ns + moved_ns, at.wall_ns + moved_ns};
  // Permits of another algorithm come back at other times: their receipts are closed.
  state_ = BucketState(to).state_;
  token_receipts_.Clear();
  counted_receipts_.Clear();
  if (used.numerator == 0) return;
  switch (to.kind) {
    case Kind::kTokenBucket: {
      const TokenBucket& parameters = to.token_bucket;
      // A bucket that stores nothing can only owe.
      const uint64_t of = parameters.burst != 0 ? parameters.burst_ticks : parameters.debt_ticks;
      state_ = std::min(ToTicks(parameters, at.now_ns) + RoundedUp(used, of), kMaxTat);
      return;
    }
    case Kind::kSlidingLog:
      std::get<SlidingLogState>(state_).Add(
          to.sliding_log, RoundedUp(used, to.sliding_log.rate.permits), at.now_ns);
      return;
    case Kind::kSlidingWindow:
      std::get<SlidingWindowState>(state_).Add(
          to.sliding_window, RoundedUp(used, to.sliding_window.rate.permits), at.now_ns);
      return;
    case Kind::kFixedWindow:
      std::get<FixedWindowState>(state_).Add(to.fixed_window,
                                             RoundedUp(used, to.fixed_window.rate.permits), at);
      return;
  }
}

}  // namespace sluice::algorithm
