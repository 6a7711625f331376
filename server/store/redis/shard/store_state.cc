#include "server/store/redis/shard/store_state.h"

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/strings.h"
#include "server/store/redis/wire/parameters_text.h"

namespace sluice::store::redis {
namespace {

FenceCheckOptions FenceOptionsOf(const RedisStoreOptions& options, common::Log* log) {
  FenceCheckOptions fence;
  fence.name_space = options.name_space;
  // Where buckets may be evicted the fence may be, too; its loss does not make other buckets empty.
  fence.policy.after_loss = options.allow_eviction ? AfterLoss::kFull : options.after_data_loss;
  fence.policy.may_fail_over = options.url.topology == Topology::kSentinel;
  fence.policy.slots_move = options.url.topology == Topology::kCluster;
  fence.assumed_lag_us = options.assumed_lag_ns / 1000;
  fence.watch_clock = options.test_time == nullptr;
  fence.allow_unguarded = options.allow_unguarded;
  fence.log = log;
  return fence;
}

}  // namespace

bool RuleTable::Register(std::shared_ptr<const Rule> rule, int64_t now_ns) {
  auto entry = std::make_shared<RuleEntry>();
  entry->encoded_parameters = EncodeParameters(rule->parameters);
  entry->writer = absl::StrCat(instance_, ".", rule->id);
  const uint32_t id = rule->id;
  const bool split = rule->sharing == Sharing::kSplit;
  common::MutexLock lock(&mu_);
  const auto [known, first] = split_since_ns_.try_emplace(rule->limit_id);
  std::optional<int64_t>& since_ns = known->second;
  const bool was_split = since_ns.has_value();
  if (!split) {
    since_ns.reset();
  } else if (!was_split) {
    since_ns = first ? entry->split_since_ns : now_ns;
  }
  entry->split_since_ns = since_ns.value_or(entry->split_since_ns);
  entry->rule = std::move(rule);
  rules_[id] = std::move(entry);
  return was_split;
}

std::shared_ptr<const RuleEntry> RuleTable::Find(uint32_t rule_id) const {
  common::MutexLock lock(&mu_);
  const auto found = rules_.find(rule_id);
  return found == rules_.end() ? nullptr : found->second;
}

std::shared_ptr<const RuleEntry> RuleTable::NewerThan(const RuleEntry& entry,
                                                      std::string_view writer) const {
  const size_t dot = writer.find('.');
  uint32_t rule_id = 0;
  if (!WroteAs(writer) || dot == writer.npos ||
      !absl::SimpleAtoi(common::ToAbsl(writer.substr(dot + 1)), &rule_id) ||
      rule_id <= entry.rule->id) {
    return nullptr;
  }
  return Find(rule_id);
}

void RuleTable::DropUnused() {
  common::MutexLock lock(&mu_);
  absl::erase_if(rules_, [](const auto& one) {
    return one.second.use_count() == 1 && one.second->rule.use_count() == 1;
  });
}

StoreState::StoreState(const common::Clock& its_clock, RedisStoreOptions its_options,
                       common::Log* its_log, std::string instance)
    : clock(its_clock),
      options(std::move(its_options)),
      log(its_log),
      fence_options(FenceOptionsOf(options, log)),
      rules(std::move(instance)),
      mismatches(clock, log) {
  sharing.node_ttl_ns = options.node_ttl_ns;
}

}  // namespace sluice::store::redis
