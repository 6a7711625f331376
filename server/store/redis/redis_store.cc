#include "server/store/redis/redis_store.h"

#include <random>
#include <utility>

#include "absl/hash/hash.h"
#include "absl/strings/str_cat.h"
#include "server/common/strings.h"
#include "server/store/redis/bucket_wire.h"
#include "server/store/redis/shard.h"

namespace sluice::store {
namespace {

uint64_t RandomWord() {
  std::random_device random;
  return uint64_t{random()} << 32 | random();
}

}  // namespace

RedisStore::RedisStore(const common::Clock& clock, RedisStoreOptions options, common::Log* log)
    : clock_(clock),
      options_(std::move(options)),
      log_(log),
      instance_(absl::StrCat(absl::Hex(RandomWord(), absl::kZeroPad16))),
      // Receipts of several nodes lie in one bucket: serials from random beginnings do not meet.
      next_receipt_(RandomWord() >> 2 | 1) {}

absl::StatusOr<std::unique_ptr<RedisStore>> RedisStore::Create(
    const common::Clock& clock, absl::Span<net::EventLoop* const> loops, net::Resolver& resolver,
    RedisStoreOptions options, common::Log* log) {
  std::shared_ptr<const net::TlsContext> tls;
  if (options.url.tls) {
    auto made = net::TlsContext::Create(net::TlsContext::Role::kClient, options.url.tls_options);
    if (!made.ok()) return made.status();
    tls = *std::move(made);
  }
  std::unique_ptr<RedisStore> store(new RedisStore(clock, std::move(options), log));
  redis::ConnectionOptions connection;
  connection.url = store->options_.url;
  connection.tls = std::move(tls);
  connection.allow_eviction = store->options_.allow_eviction;
  for (net::EventLoop* loop : loops) {
    store->shards_.push_back(std::make_unique<redis::Shard>(*store, *loop, resolver, connection));
  }
  for (const auto& shard : store->shards_) shard->Connect();
  return store;
}

RedisStore::~RedisStore() = default;

absl::Status RedisStore::AwaitFirstConnection() {
  common::MutexLock lock(&mu_);
  while (!first_connection_) connected_.Wait(&mu_);
  return first_status_;
}

void RedisStore::FirstConnection(const absl::Status& status) {
  common::MutexLock lock(&mu_);
  if (first_connection_) return;
  first_connection_ = true;
  first_status_ = status;
  connected_.SignalAll();
}

void RedisStore::Register(std::shared_ptr<const Rule> rule) {
  auto entry = std::make_shared<redis::RuleEntry>();
  entry->figures = redis::Figures(rule->parameters);
  entry->writer = absl::StrCat(instance_, ".", rule->id);
  const uint32_t id = rule->id;
  entry->rule = std::move(rule);
  common::MutexLock lock(&mu_);
  rules_[id] = std::move(entry);
}

std::shared_ptr<const redis::RuleEntry> RedisStore::Find(uint32_t rule_id) const {
  common::MutexLock lock(&mu_);
  const auto found = rules_.find(rule_id);
  return found == rules_.end() ? nullptr : found->second;
}

redis::Shard& RedisStore::ShardFor(std::string_view limit, std::string_view key) {
  if (shards_.size() == 1) return *shards_[0];
  for (const auto& shard : shards_) {
    if (shard->loop().InLoopThread()) return *shard;
  }
  // The same bucket on the same loop, so that its callers gather.
  const size_t hash = absl::HashOf(common::ToAbsl(limit), common::ToAbsl(key));
  return *shards_[hash % shards_.size()];
}

void RedisStore::Acquire(AcquireOperation* operation) {
  if (operation->acquisitions.empty()) return operation->Done();
  const Charge& first = operation->acquisitions[0].charges[0];
  ShardFor(first.rule->limit_name, first.key).Start(operation);
}

void RedisStore::Query(QueryOperation* operation) {
  if (operation->items.empty()) return operation->Done();
  const QueryItem& first = operation->items[0];
  ShardFor(first.rule->limit_name, first.key).Start(operation);
}

void RedisStore::Refund(RefundOperation* operation) {
  const Charge& first = operation->charges[0];
  ShardFor(first.rule->limit_name, first.key).Start(operation);
}

void RedisStore::Reset(const Rule& rule, std::string_view key, void (*done)(void*, bool existed),
                       void* context) {
  ShardFor(rule.limit_name, key)
      .Start(redis::Shard::ResetCall{Find(rule.id), std::string(key), done, context});
}

StoreStats RedisStore::Stats() const {
  // What Redis holds is not known here.
  return {};
}

bool RedisStore::Maintain() {
  // Rules that nobody else holds: of limits that changed, and are decided by no more.
  common::MutexLock lock(&mu_);
  for (auto it = rules_.begin(); it != rules_.end();) {
    const auto current = it++;
    if (current->second.use_count() == 1 && current->second->rule.use_count() == 1) {
      rules_.erase(current);
    }
  }
  return false;
}

}  // namespace sluice::store
