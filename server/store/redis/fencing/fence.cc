#include "server/store/redis/fencing/fence.h"

#include <algorithm>
#include <vector>

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
  return absl::StrCat(" ", fence.lag_us, " ", fence.promised_us, fence.durable ? " 1" : " 0");
}

// The node that wrote `found`, because data was lost, did not know of all promises.
bool LacksPromises(const Fence& found, const Fence& known, const FencePolicy& policy) {
  if (found.Same(known) || known.promised_us <= found.promised_us) return false;
  // Nothing was lost, or losses are configured not to matter.
  if (found.floor_us == 0 && policy.after_loss == AfterLoss::kFull) return false;
  return found.identity != known.identity || found.floor_us != known.floor_us;
}

}  // namespace

std::string Fence::Text() const {
  return absl::StrCat(BeforeFloor(*this), floor_us, AfterFloor(*this));
}

absl::StatusOr<Fence> Fence::Parse(std::string_view text) {
  const std::vector<absl::string_view> words = absl::StrSplit(common::ToAbsl(text), ' ');
  Fence fence;
  if (words.size() != 7 || words[0].empty() || words[2].empty() ||
      !ParseAll(words, 1, {&fence.number}) ||
      !ParseAll(words, 3, {&fence.floor_us, &fence.lag_us, &fence.promised_us}) ||
      std::min({fence.floor_us, fence.lag_us, fence.promised_us}) < 0) {
    return absl::InvalidArgumentError("not a fence of ours");
  }
  fence.identity = std::string(words[0]);
  fence.word = std::string(words[2]);
  fence.durable = words[6] == "1";
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
      step.floor_after_us.has_value() ? absl::StrCat(*step.floor_after_us) : ""};
  words.insert(words.end(), floor_keys.begin(), floor_keys.end());
  return words;
}

std::vector<std::string> RaisePromiseWords(std::string_view fence_key, std::string_view word,
                                           int64_t until_us) {
  return {"EVALSHA",
          TextOf(Script::kRaisePromise).sha,
          "1",
          std::string(fence_key),
          std::string(word),
          absl::StrCat(until_us)};
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
    step.write.promised_us = known->promised_us;
    step.write.floor_us = std::max(found->floor_us, known->promised_us);
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
  int64_t floor_us = 0;
  // The old primary may have had a fence that was not replicated in time.
  if (!found.has_value() && !known.has_value()) lag_us = server.max_lag_us;
  for (const auto& before : {found, known}) {
    if (!before.has_value()) continue;
    next.number = std::max(next.number, before->number + 1);
    next.promised_us = std::max(next.promised_us, before->promised_us);
    floor_us = std::max({floor_us, before->floor_us, before->promised_us});
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
  next.floor_us = floor_us;
  // If anything was promised, gives the nodes that know of it time to raise the floor.
  const int64_t margin_us = alone && next.promised_us == 0 ? 0 : kLagMarginUs;
  step.floor_after_us = (alone ? 0 : lag_us) + margin_us;
  step.why = alone ? "data may be lost" : "another primary";
  return step;
}

}  // namespace sluice::store::redis
