#include "server/store/redis/redis_store.h"

#include <algorithm>
#include <utility>

#include "absl/hash/hash.h"
#include "absl/strings/str_cat.h"
#include "common/random.h"
#include "common/strings.h"
#include "server/store/redis/commands/operations.h"
#include "server/store/redis/connection/circuit_breaker.h"
#include "server/store/redis/shard/secret_agreement.h"
#include "server/store/redis/shard/shard.h"
#include "server/store/redis/shard/store_state.h"

namespace sluice::store {
namespace {

redis::EndpointOptions EndpointOptionsOf(const RedisStoreOptions& options, common::Log* log) {
  redis::EndpointOptions endpoint;
  endpoint.connection.url = options.url;
  endpoint.connection.allow_eviction = options.allow_eviction;
  // When Redis is available again all nodes find that within a time to live, so that no node waits
  // longer for what the others granted.
  endpoint.connection.most_pause_ns =
      std::min(endpoint.connection.most_pause_ns, options.node_ttl_ns / 4);
  endpoint.max_in_flight = options.max_in_flight;
  endpoint.max_script_runs = options.max_script_runs;
  endpoint.max_connections = options.max_connections;
  endpoint.budget_ns = options.budget_ns;
  endpoint.log = log;
  return endpoint;
}

}  // namespace

RedisStore::RedisStore(const common::Clock& clock, RedisStoreOptions options, common::Log* log)
    : state_(std::make_unique<redis::StoreState>(clock, std::move(options), log,
                                                 common::RandomName())),
      breaker_(std::make_unique<redis::CircuitBreaker>(
          clock, log, state_->options.url.ToString(),
          [this] {
            redis::CircuitBreaker::Decided decided;
            for (const auto& shard : shards_) {
              decided.allowed += shard->counters().allowed_unavailable.value();
              decided.denied += shard->counters().denied_unavailable.value();
            }
            return decided;
          })),
      receipt_key_(std::make_unique<redis::SecretAgreement>(
          state_->options.receipt_key, absl::StrCat(state_->options.name_space, ":receipt-key"),
          clock, log,
          [this](const std::string& key, std::vector<std::string> words,
                 redis::RawCommand::Done done) { Call(key, std::move(words), std::move(done)); })) {
}

absl::StatusOr<std::unique_ptr<RedisStore>> RedisStore::Create(
    const common::Clock& clock, absl::Span<net::EventLoop* const> loops, net::Resolver& resolver,
    RedisStoreOptions options, common::Log* log) {
  redis::EndpointOptions endpoint = EndpointOptionsOf(options, log);
  if (options.url.tls) {
    auto tls = net::TlsContext::Create(net::TlsContext::Role::kClient, options.url.tls_options);
    if (!tls.ok()) return tls.status();
    endpoint.connection.tls = *std::move(tls);
  }
  std::unique_ptr<RedisStore> store(new RedisStore(clock, std::move(options), log));
  endpoint.breaker = store->breaker_.get();
  for (net::EventLoop* loop : loops) {
    const size_t number = store->shards_.size();
    store->shards_.push_back(
        std::make_unique<redis::Shard>(*store->state_, *loop, resolver, endpoint,
                                       [store = store.get(), number](const absl::Status& status) {
                                         store->OnConnected(*store->shards_[number], status);
                                       }));
  }
  redis::SharingState& sharing = store->state_->sharing;
  sharing.loops = loops.size();
  sharing.nodes = std::make_unique<redis::NodeRegistry>(
      *store->shards_[0], store->state_->rules.instance(), sharing.node_ttl_ns, sharing.unavailable,
      sharing.split, log);
  {
    common::MutexLock lock(&store->mu_);
    for (const auto& shard : store->shards_) store->unconnected_.insert(shard.get());
  }
  for (const auto& shard : store->shards_) shard->Connect();
  return store;
}

// The nodes use the first shard.
RedisStore::~RedisStore() { state_->sharing.nodes.reset(); }

absl::Status RedisStore::AwaitFirstConnections() {
  common::MutexLock lock(&mu_);
  while (!first_known_) connected_.Wait(&mu_);
  return first_status_;
}

void RedisStore::AwaitNodes() {
  state_->sharing.nodes->AwaitFirst(2 * state_->options.node_ttl_ns);
}

void RedisStore::SetMaxLocalBytes(size_t bytes) { state_->sharing.SetMaxLocalBytes(bytes); }

void RedisStore::Leave(int64_t most_ns) { state_->sharing.nodes->Leave(most_ns); }

void RedisStore::OnConnected(const redis::Shard& shard, const absl::Status& status) {
  if (!status.ok()) return OnFirstConnection(status);
  state_->sharing.nodes->OnAvailable();
  {
    common::MutexLock lock(&mu_);
    unconnected_.erase(&shard);
  }
  if (!receipt_key_->needed()) return OnFirstConnection(absl::OkStatus());
  receipt_key_->Renew();
  receipt_key_->Start([this] { OnFirstConnection(absl::OkStatus()); });
}

void RedisStore::OnFirstConnection(const absl::Status& status) {
  common::MutexLock lock(&mu_);
  if (first_known_ || (status.ok() && !unconnected_.empty())) return;
  first_known_ = true;
  first_status_ = status;
  // The endpoint of a single server has logged this. Sentinels and Cluster servers are first asked
  // for the primaries: until they name one there is no endpoint.
  if (!status.ok() && !breaker_->Health().unavailable && state_->log != nullptr) {
    state_->log->Warning("redis_unavailable",
                         {{"error", status.message()}, {"store", state_->options.url.ToString()}});
  }
  connected_.SignalAll();
}

void RedisStore::Register(std::shared_ptr<const Rule> rule) {
  const bool needs_nodes = rule->sharing != Sharing::kExact || rule->split_when_store_unavailable;
  const bool was_split = state_->rules.Register(rule, state_->clock.NowNs());
  redis::NodeRegistry& nodes = *state_->sharing.nodes;
  if (needs_nodes) nodes.Start();
  if (was_split && rule->sharing != Sharing::kSplit) nodes.DebitSplit(std::move(rule));
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
  ShardFor(operation->acquisitions[0].charges[0]).Run([operation](redis::Shard& shard) {
    shard.Begin(operation);
  });
}

void RedisStore::Query(QueryOperation* operation) {
  if (operation->items.empty()) return operation->Done();
  const QueryItem& first = operation->items[0];
  ShardFor(first.rule->limit_name, first.key).Run([operation](redis::Shard& shard) {
    shard.Begin(operation);
  });
}

void RedisStore::Refund(RefundOperation* operation) {
  ShardFor(operation->charges[0]).Run([operation](redis::Shard& shard) { shard.Begin(operation); });
}

void RedisStore::Settle(SettleOperation* operation) {
  ShardFor(operation->charges[0]).Run([operation](redis::Shard& shard) { shard.Begin(operation); });
}

void RedisStore::Renew(RenewOperation* operation) {
  if (operation->items.empty()) return operation->Done();
  ShardFor(operation->items[0].charges[0]).Run([operation](redis::Shard& shard) {
    redis::StartRenew(shard, operation);
  });
}

void RedisStore::Holds(HoldsOperation* operation) {
  ShardFor(operation->rule->limit_name, operation->key).Run([operation](redis::Shard& shard) {
    redis::StartHolds(shard, operation);
  });
}

void RedisStore::Move(MoveOperation* operation) {
  ShardFor(operation->charges[0]).Run([operation](redis::Shard& shard) {
    redis::StartMove(shard, operation);
  });
}

void RedisStore::Rebook(RebookOperation* operation) {
  if (operation->items.empty()) {
    operation->status = RebookStatus::kDone;
    return operation->Done();
  }
  // The limit's sharing changed while callers waited: its buckets are no longer in Redis, which
  // takes no bookings for it.
  for (const Rebooking& item : operation->items) {
    for (const Charge& charge : item.charges) {
      if (charge.rule->sharing == Sharing::kExact && !charge.rule->split_when_store_unavailable)
        continue;
      operation->status = RebookStatus::kUnsupported;
      return operation->Done();
    }
  }
  ShardFor(operation->items[0].charges[0]).Run([operation](redis::Shard& shard) {
    redis::StartRebook(shard, operation);
  });
}

void RedisStore::Reset(const Rule& rule, std::string_view key, ResetDone done, void* context) {
  ShardFor(rule.limit_name, key)
      .Run([entry = state_->rules.Find(rule.id), key = std::string(key), done,
            context](redis::Shard& shard) {
        shard.Reset(*entry->rule, key,
                    [done, context](ResetOutcome outcome) { done(context, outcome); });
      });
}

void RedisStore::LiftFloor(std::string_view limit, FloorDone done) {
  shards_[0]->Run([limit = std::string(limit), done = std::move(done),
                   now_us = state_->clock.WallNs() / 1000](redis::Shard& shard) mutable {
    shard.router().LiftFloor(limit, now_us, [done = std::move(done)](int64_t floor_us) mutable {
      done(floor_us < 0 ? std::nullopt : std::optional(floor_us * 1000));
    });
  });
}

void RedisStore::Call(std::string_view key, std::vector<std::string> words,
                      absl::AnyInvocable<void(const redis::Reply*)> done) {
  ShardFor("", key).Run([key = std::string(key), words = std::move(words),
                         done = std::move(done)](redis::Shard& shard) mutable {
    redis::RawCommand::Start(shard, std::move(key), std::move(words), std::move(done));
  });
}

uint64_t RedisStore::OvershootPermits(uint32_t limit_id) const {
  return state_->sharing.overshoot.Of(limit_id);
}

StoreStats RedisStore::Stats() const {
  // What Redis holds is not known here.
  StoreStats stats;
  for (const auto& shard : shards_) {
    const redis::ShardCounters& counters = std::as_const(*shard).counters();
    stats.commands += counters.commands.value();
    stats.decisions += counters.decisions.value();
    stats.unanswered += counters.lost.value();
    stats.errors += counters.errors.value();
    stats.conversions += counters.conversions.value();
    stats.clock_jumps += counters.clock_jumps.value();
  }
  const redis::NodeRegistry& nodes = *state_->sharing.nodes;
  if (nodes.started()) {
    const std::shared_ptr<const redis::NodeRegistry::View> view = nodes.view();
    for (const StoreNode& node : view->nodes) stats.nodes += node.lapsed ? 0 : 1;
  }
  return stats;
}

StoreHealth RedisStore::Health() const {
  StoreHealth health = breaker_->Health();
  health.differing = state_->mismatches.Differing();
  const redis::NodeRegistry& nodes = *state_->sharing.nodes;
  if (nodes.started()) health.nodes = nodes.view()->nodes;
  if (health.unavailable || Stats().commands > 0) return health;
  common::MutexLock lock(&mu_);
  if (!first_known_ || first_status_.ok()) return health;
  // No server was named yet: see OnFirstConnection.
  health.unavailable = true;
  health.times_unavailable = 1;
  health.why = std::string(first_status_.message());
  return health;
}

bool RedisStore::Maintain() {
  redis::SharingState& sharing = state_->sharing;
  if (sharing.nodes->started()) {
    const auto view = sharing.nodes->view();
    const algorithm::Moment at = {state_->clock.NowNs(), state_->clock.WallNs()};
    sharing.split.Sweep(view->membership.strict(), view->membership.lenient(), at);
    sharing.unavailable.Sweep(view->local, view->local, at);
  }
  if (receipt_key_->needed() && !breaker_->Health().unavailable) receipt_key_->Maintain();
  state_->rules.DropUnused();
  return false;
}

}  // namespace sluice::store
