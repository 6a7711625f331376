#include "server/store/redis/fencing/fence.h"

#include <algorithm>
#include <bit>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/strings.h"
#include "server/store/redis/scripts/scripts.h"
#include "server/store/redis/wire/hash_slot.h"
#include "server/store/redis/wire/parameters_text.h"

namespace sluice::store::redis {

namespace {

std::string BeforeFloor(const Fence& fence) {
  return absl::StrCat(fence.identity, " ", fence.number, " ", fence.word, " ");
}

std::string AfterFloor(const Fence& fence) {
  std::string text =
      absl::StrCat(" ", fence.lag_us, " ", fence.promised_us, fence.durable ? " 1" : " 0");
  if (fence.correction_us > 0 || fence.missing_floor_us > 0) {
    absl::StrAppend(&text, ",", fence.correction_us, ",", fence.missing_floor_us);
  }
  if (fence.raises > 0 || !fence.limits.empty()) absl::StrAppend(&text, " ", fence.raises);
  for (const auto& [limit, times] : fence.limits) {
    absl::StrAppend(&text, " ", limit, " ", times.floor_us, " ", times.promised_us, " ",
                    times.lifted_us);
  }
  return text;
}

// Of single limits, for the notes of slots.
std::string FloorsOfLimits(const LimitTable& limits) {
  std::string all;
  for (const auto& [limit, times] : limits) {
    if (times.Floor() != 0) absl::StrAppend(&all, " ", limit, " ", times.Floor());
  }
  return all;
}

// The node that wrote `found`, because data was lost, did not know of all promises.
bool LacksPromises(const Fence& found, const Fence& known, const FencePolicy& policy) {
  // Each loss has a later floor than the one before.
  if (found.Same(known) || found.floor_us == known.floor_us) return false;
  // Losses are configured not to matter.
  if (found.floor_us == 0 && policy.after_loss == AfterLoss::kFull) return false;
  if (known.promised_us > found.floor_us) return true;
  return std::any_of(known.limits.begin(), known.limits.end(), [&](const auto& limit) {
    const LimitTimes& here = TimesOf(found.limits, limit.first);
    return limit.second.IfLost() > std::max({found.floor_us, here.floor_us, here.lifted_us});
  });
}

}  // namespace

const LimitTimes& TimesOf(const LimitTable& limits, std::string_view limit) {
  static const LimitTimes kNone;
  const auto found = limits.find(limit);
  return found == limits.end() ? kNone : found->second;
}

std::string HoldsEntry(std::string_view limit, int64_t hold_for_us) {
  return absl::StrCat(common::ToAbsl(limit), "#", hold_for_us);
}

std::string HoldsEntryOfAny(int64_t hold_for_us) {
  return HoldsEntry("", static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(hold_for_us))));
}

int64_t HoldForOf(std::string_view name) {
  int64_t hold_for_us = 0;
  const size_t mark = name.find('#');
  const bool holds = mark != std::string_view::npos &&
                     absl::SimpleAtoi(common::ToAbsl(name.substr(mark + 1)), &hold_for_us);
  return holds ? hold_for_us : 0;
}

int64_t FencingToken::OwnFloorOf(std::string_view limit) const {
  LimitTimes times;
  if (limits != nullptr) times = TimesOf(*limits, limit);
  if (slot != nullptr) {
    const auto noted = slot->limits.find(limit);
    if (noted != slot->limits.end()) times.floor_us = std::max(times.floor_us, noted->second);
  }
  return times.Floor();
}

int64_t FencingToken::LatestOwnOf(std::string_view limit) const {
  int64_t latest_us = OwnFloorOf(limit);
  ForEachHoldsFloor(limit,
                    [&](int64_t, int64_t floor_us) { latest_us = std::max(latest_us, floor_us); });
  return latest_us;
}

int64_t FencingToken::FloorOfSlots(const Rule& rule, int64_t floor_us) const {
  const int64_t own_us = rule.parameters.concurrency.hold_for_ns / 1000;
  int64_t latest_us = floor_us;
  const auto add = [&](int64_t hold_for_us, int64_t end_us) {
    if (floor_us > 0) end_us = std::min(end_us, floor_us + hold_for_us);
    latest_us = std::max(latest_us, end_us - own_us);
  };
  ForEachHoldsFloor(rule.limit_name, add);
  ForEachHoldsFloor("", add);
  return latest_us;
}

void FencingToken::ForEachHoldsFloor(
    std::string_view limit,
    absl::FunctionRef<void(int64_t hold_for_us, int64_t floor_us)> visit) const {
  if (limits == nullptr && slot == nullptr) return;
  const std::string prefix = absl::StrCat(common::ToAbsl(limit), "#");
  const auto visit_all = [&](const auto& table) {
    for (auto at = table.lower_bound(prefix);
         at != table.end() && absl::StartsWith(at->first, prefix); ++at) {
      int64_t hold_for_us = 0;
      if (!absl::SimpleAtoi(at->first.substr(prefix.size()), &hold_for_us)) continue;
      visit(hold_for_us, OwnFloorOf(at->first));
    }
  };
  if (limits != nullptr) visit_all(*limits);
  if (slot != nullptr) visit_all(slot->limits);
}

SlotFloors ParseSlotFloors(std::string_view note) {
  const std::vector<absl::string_view> words = absl::StrSplit(common::ToAbsl(note), ' ');
  SlotFloors floors;
  if (words.size() % 2 != 1 || !ParseAll(words, 0, {&floors.floor_us})) return {};
  for (size_t i = 1; i < words.size(); i += 2) {
    if (!ParseAll(words, i + 1, {&floors.limits[std::string(words[i])]})) return {};
  }
  return floors;
}

void Fence::Merge(const Fence& other) {
  promised_us = std::max(promised_us, other.promised_us);
  for (const auto& [limit, times] : other.limits) {
    LimitTimes& here = limits[limit];
    here.floor_us = std::max(here.floor_us, times.floor_us);
    here.promised_us = std::max(here.promised_us, times.promised_us);
    here.lifted_us = std::max(here.lifted_us, times.lifted_us);
  }
}

void Fence::AddFloorsIfLost(const Fence& other) {
  floor_us = std::max({floor_us, other.floor_us, other.promised_us});
  for (const auto& [limit, times] : other.limits) {
    if (times.IfLost() == 0) continue;
    LimitTimes& here = limits[limit];
    here.floor_us = std::max(here.floor_us, times.IfLost());
  }
}

void Fence::AddLost(const Fence& lost) {
  AddFloorsIfLost(lost);
  promised_us = std::max(promised_us, lost.promised_us);
  for (const auto& [limit, times] : lost.limits) {
    LimitTimes& here = limits[limit];
    here.lifted_us = std::max(here.lifted_us, times.lifted_us);
  }
}

std::string Fence::Text() const {
  return absl::StrCat(BeforeFloor(*this), floor_us, AfterFloor(*this));
}

absl::StatusOr<Fence> Fence::Parse(std::string_view text) {
  const std::vector<absl::string_view> words = absl::StrSplit(common::ToAbsl(text), ' ');
  Fence fence;
  const bool raised = words.size() > 7;
  if (words.size() < 7 || (words.size() - 7) % 4 != (raised ? 1 : 0) || words[0].empty() ||
      words[2].empty() || !ParseAll(words, 1, {&fence.number}) ||
      (raised && !ParseAll(words, 7, {&fence.raises})) ||
      !ParseAll(words, 3, {&fence.floor_us, &fence.lag_us, &fence.promised_us}) ||
      std::min({fence.floor_us, fence.lag_us, fence.promised_us}) < 0) {
    return absl::InvalidArgumentError("not a fence of ours");
  }
  for (size_t i = 8; i < words.size(); i += 4) {
    LimitTimes& times = fence.limits[std::string(words[i])];
    if (!ParseAll(words, i + 1, {&times.floor_us, &times.promised_us, &times.lifted_us})) {
      return absl::InvalidArgumentError("not a fence of ours");
    }
  }
  fence.identity = std::string(words[0]);
  fence.word = std::string(words[2]);
  const std::vector<absl::string_view> own = absl::StrSplit(words[6], ',');
  fence.durable = own[0] == "1";
  if ((own.size() != 1 && own.size() != 3) ||
      (own.size() == 3 && !ParseAll(own, 1, {&fence.correction_us, &fence.missing_floor_us})) ||
      std::min(fence.correction_us, fence.missing_floor_us) < 0) {
    return absl::InvalidArgumentError("not a fence of ours");
  }
  return fence;
}

std::string FenceKey(std::string_view name_space) {
  return absl::StrCat(common::ToAbsl(name_space), ":identity");
}

std::string FenceKeyInSlot(std::string_view name_space, uint16_t slot) {
  return absl::StrCat(FenceKey(name_space), ":{", TagOfSlot(slot), "}");
}

std::string WordKey(std::string_view fence_key, std::string_view word) {
  return absl::StrCat(common::ToAbsl(fence_key), ":", common::ToAbsl(word));
}

std::string FloorKey(std::string_view name_space, uint16_t slot) {
  return absl::StrCat(common::ToAbsl(name_space), ":floor:{", TagOfSlot(slot), "}");
}

std::vector<std::string> ReplaceFenceWords(const FenceStep& step, std::string_view fence_key,
                                           std::string_view found_text,
                                           absl::Span<const std::string> floor_keys) {
  const std::string next = WordKey(fence_key, step.write.word);
  const auto found = Fence::Parse(found_text);
  std::vector<std::string> words = {
      "EVALSHA",
      TextOf(Script::kReplaceFence).sha,
      "3",
      std::string(fence_key),
      found.ok() ? WordKey(fence_key, found->word) : next,
      next,
      std::string(found_text),
      BeforeFloor(step.write),
      AfterFloor(step.write),
      absl::StrCat(step.write.floor_us),
      step.floor_after_us.has_value()
          ? absl::StrCat(*step.floor_after_us - step.write.correction_us)
          : "",
      ""};
  words.back() = FloorsOfLimits(step.write.limits);
  words.insert(words.end(), floor_keys.begin(), floor_keys.end());
  return words;
}

std::vector<std::string> RaisePromiseWords(std::string_view fence_key, const Fence& known,
                                           const PromiseRaise& raise, int64_t passed_us) {
  std::vector<std::string> words = {"EVALSHA",
                                    TextOf(Script::kRaisePromise).sha,
                                    "1",
                                    std::string(fence_key),
                                    known.word,
                                    absl::StrCat(known.raises),
                                    absl::StrCat(raise.all_us),
                                    absl::StrCat(passed_us)};
  for (const auto& [limit, times] : raise.limits) {
    words.push_back(limit);
    words.push_back(absl::StrCat(times.promised_us));
    words.push_back(absl::StrCat(times.lifted_us));
  }
  return words;
}

FenceStep MovedFence(const Fence& known, std::string_view word) {
  FenceStep step;
  step.write = known;
  step.write.number = known.number + 1;
  step.write.word = std::string(word);
  step.why = "its slot was moved";
  return step;
}

int64_t OwnLagUs(const ServerInfo& server, const FencePolicy& policy) {
  return policy.may_fail_over || server.has_replicas || server.guarded ? server.max_lag_us : 0;
}

FenceStep NextFence(const ServerInfo& server, const std::optional<Fence>& found, bool word_stands,
                    const std::optional<Fence>& known, const FencePolicy& policy,
                    std::string_view word) {
  const bool loaded = found.has_value() && found->identity == server.identity && !word_stands;
  const bool forgotten =
      loaded || (known.has_value() &&
                 (!found.has_value() || (!found->Same(*known) && found->number <= known->number)));
  FenceStep step;
  if (found.has_value() && found->identity == server.identity && !forgotten) {
    step.adopt = !(known.has_value() && LacksPromises(*found, *known, policy));
    if (step.adopt) return step;
    step.write = *found;
    step.write.number = found->number + 1;
    step.write.word = std::string(word);
    step.write.AddLost(*known);
    step.why = "more was promised";
    return step;
  }

  const int64_t own_lag_us = OwnLagUs(server, policy);
  Fence& next = step.write;
  next.identity = server.identity;
  next.word = std::string(word);
  next.number = 1;
  next.lag_us = own_lag_us;
  next.durable = server.durable;
  if (!found.has_value() && !known.has_value() && !server.was_promoted) {
    step.why = "first start";
    return step;
  }

  // Until when the old primary may still grant, or promised grant times may come.
  int64_t lag_us = own_lag_us;
  Fence lost;
  // The old primary may have had a fence that was not replicated in time.
  if (!found.has_value() && !known.has_value()) lag_us = server.max_lag_us;
  for (const auto& before : {known, found}) {
    if (!before.has_value()) continue;
    next.correction_us = before->correction_us;
    next.missing_floor_us = std::max(next.missing_floor_us, before->missing_floor_us);
    next.number = std::max(next.number, before->number + 1);
    next.raises = std::max(next.raises, before->raises);
    next.Merge(*before);
    lost.AddLost(*before);
    next.floor_us = std::max(next.floor_us, before->floor_us);
    lag_us = std::max(lag_us, before->lag_us);
  }
  const bool same_server = known.has_value() && known->identity == server.identity;
  if (same_server) lag_us = 0;
  const bool alone = lag_us == 0;
  if (alone && !forgotten && found.has_value() && found->durable && server.durable) {
    step.why = "restarted with all its data";
    return step;
  }
  if (alone && policy.after_loss == AfterLoss::kFull) {
    step.why = "data lost, buckets are full as configured";
    return step;
  }
  next.floor_us = lost.floor_us;
  next.limits = std::move(lost.limits);
  // If anything was promised, gives the nodes that know of it time to raise the floor.
  const int64_t margin_us = alone && next.promised_us == 0 && next.raises == 0 ? 0 : kLagMarginUs;
  step.floor_after_us = (alone ? 0 : lag_us) + margin_us;
  step.why = alone ? "data may be lost" : "another primary";
  return step;
}

}  // namespace sluice::store::redis
