#include "server/store/redis/fencing/promise_keeper.h"

#include <algorithm>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/bounds.h"

namespace sluice::store::redis {
namespace {

// A promise is raised before it is used up, when less than a step is left, by two steps: so few
// grant times wait for a raise. The further ahead, the larger; but after a loss the limit is closed
// for two steps longer.
int64_t StepUs(int64_t ahead_us) {
  return ahead_us <= kNearPromiseUs ? kNearPromiseUs / 4 : std::max(kNearPromiseUs, ahead_us / 16);
}

// Promises that have passed are remembered for so long, since clocks may differ.
constexpr int64_t kRememberUs = 60'000'000;

}  // namespace

void PromiseKeeper::Adopt(const std::string& key, const Fence& fence,
                          const std::optional<Fence>& before) {
  Drop();
  adopted_ = true;
  key_ = key;
  fence_ = fence;
  // What was promised before still holds. If data was lost, the floors contain it.
  if (!before.has_value() || before->floor_us != fence_.floor_us) return;
  if (before->promised_us > fence_.promised_us) wanted_.all_us = before->promised_us;
  for (const auto& [limit, times] : before->limits) {
    if (times.Promised() <= fence_.PromisedTo(limit)) continue;
    wanted_.limits[limit].promised_us =
        std::max(times.promised_us, TimesOf(fence_.limits, limit).lifted_us + 1);
  }
  SendWanted();
}

void PromiseKeeper::Drop() {
  ++adoption_;
  adopted_ = false;
  raising_ = false;
  wanted_ = {};
  sent_ = {};
}

bool PromiseKeeper::MayPromise(absl::Span<const LimitPromise> promises, int64_t now_us) {
  if (!adopted_) return false;
  passed_us_ = std::max<int64_t>(now_us - kRememberUs, 0);
  bool may = true;
  for (const LimitPromise& promise : promises) {
    const bool hold = promise.hold_for_us > 0;
    const int64_t ahead_us = promise.until_us - now_us;
    std::string name =
        hold ? HoldsEntry(promise.limit, promise.hold_for_us) : std::string(promise.limit);
    const bool near = !hold && ahead_us <= kNearPromiseUs;
    const bool room = !near && HasRoom(name, hold);
    if (hold && !room) name = HoldsEntryOfAny(promise.hold_for_us);
    // Ends close no limit for longer than hold_for, so their steps need not be short.
    const int64_t step_us = StepUs(hold ? std::max(ahead_us, kNearPromiseUs + 1) : ahead_us);
    const int64_t promised_us = fence_.PromisedTo(name);
    may = may && promise.until_us <= promised_us;
    if (promise.until_us + step_us <= promised_us) continue;
    const int64_t to_us = promise.until_us + 2 * step_us;
    if (!hold && !room) {
      wanted_.all_us = std::max(wanted_.all_us, to_us);
    } else {
      int64_t& wanted_us = wanted_.limits[name].promised_us;
      // A promise that is made after a floor was lifted counts.
      wanted_us = std::max({wanted_us, to_us, TimesOf(fence_.limits, name).lifted_us + 1});
    }
  }
  SendWanted();
  return may;
}

bool PromiseKeeper::HasRoom(const std::string& name, bool hold) const {
  using common::bounds::kMaxLimitsPromised;
  // What is being raised is not in fence_ yet.
  const LimitTable* const tables[] = {&fence_.limits, &sent_.limits, &wanted_.limits};
  const auto knows = [&](const LimitTable* table) { return table->contains(name); };
  if (absl::c_any_of(tables, knows)) return true;
  size_t limits = 0;
  size_t holds = 0;
  for (const LimitTable* const table : tables) {
    for (const auto& [entry, times] : *table) {
      // An entry that is in an earlier table, too, was counted there.
      if (table != tables[0] && fence_.limits.contains(entry)) continue;
      if (table == tables[2] && sent_.limits.contains(entry)) continue;
      ++limits;
      if (absl::StrContains(entry, '#')) ++holds;
    }
  }
  // The other half is left to grant times: without room they are promised for all limits.
  return hold ? holds < kMaxLimitsPromised / 2 : limits < kMaxLimitsPromised;
}

void PromiseKeeper::SendWanted() {
  if (raising_ || wanted_.empty()) return;
  raising_ = true;
  sent_ = std::exchange(wanted_, {});
  Send(sent_, [this, of = adoption_](bool) {
    if (of != adoption_) return;
    raising_ = false;
    sent_ = {};
    SendWanted();
  });
}

void PromiseKeeper::Read() {
  if (adopted_) Send({}, [](bool) {});
}

void PromiseKeeper::Lift(const std::string& limit, const std::set<std::string>& holds,
                         int64_t until_us, absl::AnyInvocable<void(bool)> done) {
  if (!adopted_) return done(false);
  PromiseRaise raise;
  for (const std::string& name : holds) raise.limits[name].lifted_us = until_us;
  raise.limits[limit].lifted_us = until_us;
  const std::string prefix = absl::StrCat(limit, "#");
  for (const auto& [name, times] : fence_.limits) {
    if (absl::StartsWith(name, prefix)) raise.limits[name].lifted_us = until_us;
  }
  Send(raise, std::move(done));
}

void PromiseKeeper::Send(const PromiseRaise& raise, absl::AnyInvocable<void(bool)> done) {
  endpoint_.Call(RaisePromiseWords(key_, fence_, raise, passed_us_),
                 [this, of = adoption_, raise, done = std::move(done)](const Reply* reply) mutable {
                   if (of != adoption_ || reply == nullptr) return done(false);
                   if (reply->HasCode("NOSCRIPT")) {
                     endpoint_.LoadScripts();
                     return Send(raise, std::move(done));
                   }
                   absl::StatusOr<Fence> fence = Fence::Parse(reply->text);
                   const bool unchanged =
                       reply->type == Reply::Type::kInteger && reply->integer == 0;
                   // Replaced, or its slot was moved; or an error, which reading it shows.
                   if (!unchanged && !fence.ok()) {
                     owner_.OnFenceMissed();
                     return done(false);
                   }
                   if (!unchanged && fence->raises > fence_.raises) {
                     fence_ = *std::move(fence);
                     known_.OnRaise(key_, fence_);
                     owner_.OnRaised();
                   }
                   done(true);
                 });
}

}  // namespace sluice::store::redis
