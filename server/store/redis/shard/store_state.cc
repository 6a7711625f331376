#include "server/store/redis/shard/store_state.h"

namespace sluice::store::redis {
namespace {

FenceCheckOptions FenceOptionsOf(const RedisStoreOptions& options, common::Log* log) {
  FenceCheckOptions fence;
  fence.name_space = options.name_space;
  // Where buckets may be evicted the fence may be, too; its loss does not make other buckets empty.
  fence.policy.after_loss = options.allow_eviction ? AfterLoss::kFull : options.after_data_loss;
  fence.policy.may_fail_over = options.url.topology == Topology::kSentinel;
  fence.assumed_lag_us = options.assumed_lag_ns / 1000;
  fence.allow_unguarded = options.allow_unguarded;
  fence.log = log;
  return fence;
}

}  // namespace

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
