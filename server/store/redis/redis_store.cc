#include "server/store/redis/redis_store.h"

#include <algorithm>
#include <random>
#include <utility>

#include "absl/hash/hash.h"
#include "absl/strings/str_cat.h"
#include "common/strings.h"
#include "server/store/redis/shard/shard.h"
#include "server/store/redis/sharing/node_registry.h"
#include "server/store/redis/wire/stored_bucket.h"

namespace sluice::store {
namespace {

constexpr int64_t kAgreeEveryNs = 10'000'000'000;
constexpr int64_t kRetryAgreeNs = 1'000'000'000;
constexpr size_t kMaxLocalBuckets = size_t{1} << 20;
// Ids of bookings count microseconds since 2025, and so many in each: they last for 35 years.
constexpr int64_t kBookingsSinceNs = 1'735'689'600'000'000'000;
constexpr uint64_t kBookingsPerUs = uint64_t{1} << 14;

uint64_t RandomWord() {
  std::random_device random;
  return uint64_t{random()} << 32 | random();
}

}  // namespace

namespace {

redis::FenceCheckOptions FenceCheckOf(const RedisStoreOptions& options, common::Log* log) {
  redis::FenceCheckOptions identification;
  identification.name_space = options.name_space;
  // Where buckets may be evicted the fence may be, which empties none of the others.
  identification.policy.after_loss =
      options.allow_eviction ? redis::AfterLoss::kFull : options.after_data_loss;
  identification.policy.may_fail_over = options.url.topology == redis::Topology::kSentinel;
  identification.assumed_lag_us = options.assumed_lag_ns / 1000;
  identification.allow_unguarded = options.allow_unguarded;
  identification.log = log;
  return identification;
}

}  // namespace

RedisStore::RedisStore(const common::Clock& clock, RedisStoreOptions options, common::Log* log)
    : clock_(clock),
      options_(std::move(options)),
      log_(log),
      instance_(absl::StrCat(absl::Hex(RandomWord(), absl::kZeroPad16))),
      availability_(clock, log, options_.url.ToString(),
                    [this] {
                      redis::CircuitBreaker::Decided decided;
                      for (const auto& shard : shards_) {
                        decided.allowed += shard->counters().allowed_away.value();
                        decided.denied += shard->counters().denied_away.value();
                      }
                      return decided;
                    }),
      config_mismatch_(clock, log),
      identification_(FenceCheckOf(options_, log)),
      split_(kMaxLocalBuckets),
      away_(kMaxLocalBuckets),
      // Receipts of several nodes lie in one bucket: serials from random beginnings do not meet.
      next_receipt_(RandomWord() >> 2 | 1),
      booking_tag_(RandomWord() % kBookingsPerUs) {}

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
  redis::EndpointOptions endpoint;
  endpoint.connection.url = store->options_.url;
  endpoint.connection.tls = std::move(tls);
  endpoint.connection.allow_eviction = store->options_.allow_eviction;
  // When Redis is back all nodes are to know within a time to live: who is exact again waits no
  // longer for what the others granted.
  endpoint.connection.most_pause_ns =
      std::min(endpoint.connection.most_pause_ns, store->options_.node_ttl_ns / 4);
  endpoint.max_in_flight = store->options_.max_in_flight;
  endpoint.max_connections = store->options_.max_connections;
  endpoint.budget_ns = store->options_.budget_ns;
  endpoint.log = log;
  endpoint.availability = &store->availability_;
  for (net::EventLoop* loop : loops) {
    store->shards_.push_back(std::make_unique<redis::Shard>(*store, *loop, resolver, endpoint));
  }
  store->nodes_ = std::make_unique<redis::Nodes>(clock, *store->shards_[0], *loops[0],
                                                 store->options_.name_space, store->instance_,
                                                 store->options_.node_ttl_ns, store->away_, log);
  {
    common::MutexLock lock(&store->mu_);
    for (const auto& shard : store->shards_) store->unconnected_.insert(shard.get());
  }
  for (const auto& shard : store->shards_) shard->Connect();
  return store;
}

RedisStore::~RedisStore() = default;

absl::Status RedisStore::AwaitFirstConnections() {
  common::MutexLock lock(&mu_);
  while (!first_told_) connected_.Wait(&mu_);
  return first_status_;
}

void RedisStore::AwaitNodes() { nodes_->AwaitFirst(2 * options_.node_ttl_ns); }

void RedisStore::Leave() { nodes_->Leave(); }

void RedisStore::Connected(const redis::Shard& shard, const absl::Status& status) {
  if (!status.ok()) return TellFirstConnections(status);
  nodes_->Back();
  {
    common::MutexLock lock(&mu_);
    unconnected_.erase(&shard);
  }
  if (options_.receipt_key.proposal == nullptr) return TellFirstConnections(absl::OkStatus());
  receipt_key_agreed_.store(false);
  AgreeOnReceiptKey();
}

void RedisStore::AgreeOnReceiptKey() {
  if (agreeing_.exchange(true)) return;
  const std::string key = absl::StrCat(options_.name_space, ":receipt-key");
  // Two commands: SET takes NX and GET together from Redis 7 on only. Between them nobody changes
  // what is there.
  Call(key, {"SET", key, options_.receipt_key.proposal(), "NX"}, [](const redis::Reply*) {});
  Call(key, {"GET", key}, [this](const redis::Reply* reply) {
    if (reply != nullptr && reply->type == redis::Reply::Type::kString) {
      const absl::Status status = options_.receipt_key.agreed(reply->text);
      if (!status.ok() && log_ != nullptr) {
        log_->Error("redis_receipt_key",
                    {{"error", status.message()},
                     {"key", absl::StrCat(options_.name_space, ":receipt-key")}});
      }
      receipt_key_agreed_.store(true);
    } else if (reply != nullptr && reply->is_error() && log_ != nullptr) {
      log_->Error(
          "redis_receipt_key",
          {{"error", reply->text}, {"key", absl::StrCat(options_.name_space, ":receipt-key")}});
    }
    agreed_at_ns_.store(clock_.NowNs());
    agreeing_.store(false);
    TellFirstConnections(absl::OkStatus());
  });
}

void RedisStore::TellFirstConnections(const absl::Status& status) {
  common::MutexLock lock(&mu_);
  if (first_told_ || (status.ok() && !unconnected_.empty())) return;
  first_told_ = true;
  first_status_ = status;
  // Of one server its endpoint has said it. Sentinels and a Cluster's servers are asked first whom
  // to ask: while they name nobody there is no server that could be away.
  if (!status.ok() && !availability_.Health().away && log_ != nullptr) {
    log_->Warning("redis_away", {{"error", status.message()}, {"store", options_.url.ToString()}});
  }
  connected_.SignalAll();
}

void RedisStore::Register(std::shared_ptr<const Rule> rule) {
  auto entry = std::make_shared<redis::RuleEntry>();
  entry->encoded_parameters = redis::EncodeParameters(rule->parameters);
  entry->writer = absl::StrCat(instance_, ".", rule->id);
  const uint32_t id = rule->id;
  const bool needs_nodes = rule->sharing != Sharing::kExact || rule->split_when_store_unavailable;
  entry->rule = std::move(rule);
  {
    common::MutexLock lock(&mu_);
    rules_[id] = std::move(entry);
  }
  if (needs_nodes) nodes_->Start();
}

uint64_t RedisStore::NewBooking(int64_t now_ns, uint64_t after) {
  const int64_t since_ns = std::max<int64_t>(now_ns - kBookingsSinceNs, 0);
  const uint64_t by_time = static_cast<uint64_t>(since_ns / 1000) * kBookingsPerUs + booking_tag_;
  uint64_t last = last_booking_.load(std::memory_order_relaxed);
  uint64_t id;
  do {
    id = std::max({by_time, last + 1, after + 1});
  } while (!last_booking_.compare_exchange_weak(last, id, std::memory_order_relaxed));
  return id;
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

void RedisStore::Move(MoveOperation* operation) {
  const Charge& first = operation->charges[0];
  ShardFor(first.rule->limit_name, first.key).Start(operation);
}

void RedisStore::Rebook(RebookOperation* operation) {
  if (operation->items.empty()) {
    operation->status = RebookStatus::kDone;
    return operation->Done();
  }
  // A limit that nodes came to share otherwise while callers waited: its buckets are no longer in
  // Redis, where nothing is booked ahead for it.
  for (const Rebooking& item : operation->items) {
    for (const Charge& charge : item.charges) {
      if (charge.rule->sharing == Sharing::kExact && !charge.rule->split_when_store_unavailable)
        continue;
      operation->status = RebookStatus::kUnsupported;
      return operation->Done();
    }
  }
  const Charge& first = operation->items[0].charges[0];
  ShardFor(first.rule->limit_name, first.key).Start(operation);
}

void RedisStore::Reset(const Rule& rule, std::string_view key, ResetDone done, void* context) {
  ShardFor(rule.limit_name, key)
      .Start(redis::ResetCall{Find(rule.id), std::string(key), done, context});
}

void RedisStore::Call(std::string_view key, std::vector<std::string> words,
                      absl::AnyInvocable<void(const redis::Reply*)> done) {
  ShardFor("", key).Start(redis::Call{std::string(key), std::move(words), std::move(done)});
}

void RedisStore::AddOvershoot(uint32_t limit_id, uint64_t permits) {
  common::MutexLock lock(&mu_);
  overshoot_[limit_id] += permits;
}

uint64_t RedisStore::OvershootPermits(uint32_t limit_id) const {
  common::MutexLock lock(&mu_);
  const auto found = overshoot_.find(limit_id);
  return found == overshoot_.end() ? 0 : found->second;
}

StoreStats RedisStore::Stats() const {
  // What Redis holds is not known here.
  StoreStats stats;
  for (const auto& shard : shards_) {
    const redis::ShardCounters& counters = shard->counters();
    stats.commands += counters.commands.value();
    stats.decisions += counters.decisions.value();
    stats.unanswered += counters.lost.value();
    stats.errors += counters.errors.value();
    stats.conversions += counters.conversions.value();
  }
  if (nodes_->started()) {
    const std::shared_ptr<const redis::Nodes::View> view = nodes_->view();
    for (const StoreNode& node : view->nodes) stats.nodes += node.lapsed ? 0 : 1;
  }
  return stats;
}

StoreHealth RedisStore::Health() const {
  StoreHealth health = availability_.Health();
  health.differing = config_mismatch_.Differing();
  if (nodes_->started()) health.nodes = nodes_->view()->nodes;
  if (health.away || Stats().commands > 0) return health;
  common::MutexLock lock(&mu_);
  if (!first_told_ || first_status_.ok()) return health;
  // No server was named yet: see TellFirstConnections.
  health.away = true;
  health.times_unavailable = 1;
  health.why = std::string(first_status_.message());
  return health;
}

bool RedisStore::Maintain() {
  if (nodes_->started()) {
    const auto view = nodes_->view();
    split_.Sweep(view->strict, view->lenient, {clock_.NowNs(), clock_.WallNs()});
  }
  if (options_.receipt_key.proposal != nullptr && !availability_.Health().away) {
    // Also when all is well: somebody may have flushed it.
    const int64_t every_ns = receipt_key_agreed_.load() ? kAgreeEveryNs : kRetryAgreeNs;
    if (clock_.NowNs() - agreed_at_ns_.load() >= every_ns) AgreeOnReceiptKey();
  }
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
