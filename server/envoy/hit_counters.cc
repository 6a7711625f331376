#include "server/envoy/hit_counters.h"

#include <utility>

#include "absl/container/btree_map.h"
#include "common/bounds.h"
#include "common/strings.h"
#include "server/envoy/matcher.h"

namespace sluice::envoy {
namespace {

template <typename To, typename From>
void AddTo(To& sums, From& counts) {
  std::apply(
      [&](auto&... sum) {
        std::apply([&](auto&... count) { ((sum += count.value()), ...); }, counts.Tie());
      },
      sums.Tie());
}

}  // namespace

HitCounters::Shard::~Shard() {
  for (const auto& chunk : limits_) delete chunk.load(std::memory_order_relaxed);
}

HitCounters::Shard::Chunk* HitCounters::Shard::AddChunk(uint32_t limit_id) {
  auto* const chunk = new Chunk();
  limits_[limit_id / kChunk % kChunks].store(chunk, std::memory_order_release);
  return chunk;
}

HitCounts<common::OwnedCounter>* HitCounters::Shard::Detailed(
    std::string_view identity, absl::FunctionRef<std::string()> name) {
  common::MutexLock lock(&mu_);
  const auto found = detailed_.find(common::ToAbsl(identity));
  if (found != detailed_.end()) return &found->second->counts;
  if (detailed_.size() >= common::bounds::kMaxDetailedCounters) return nullptr;
  auto named = std::make_unique<Named>();
  named->name = name();
  if (named->name.size() > common::bounds::kMaxDescriptorBytes) return nullptr;
  return &detailed_.emplace(std::string(identity), std::move(named)).first->second->counts;
}

CallTotals HitCounters::Calls() const {
  CallTotals totals;
  shards_.ForEach([&](Shard& shard) { AddTo(totals, shard.calls); });
  return totals;
}

std::vector<NamedHits> HitCounters::Hits(const limits::LimitTable& table) const {
  absl::btree_map<std::string, HitTotals> by_name;
  shards_.ForEach([&](Shard& shard) {
    if (const Matcher* const matcher = MatcherOf(table); matcher != nullptr) {
      for (const auto& match : matcher->limits()) {
        const limits::Limit* const limit = LimitOf(table, *match);
        if (limit == nullptr) continue;
        const uint32_t id = limit->limit_id();
        Shard::Chunk* const chunk =
            shard.limits_[id / Shard::kChunk % Shard::kChunks].load(std::memory_order_acquire);
        HitTotals& totals = by_name[match->metric_name];
        if (chunk != nullptr) AddTo(totals, (*chunk)[id % Shard::kChunk]);
      }
    }
    common::MutexLock lock(&shard.mu_);
    for (const auto& [_, named] : shard.detailed_) AddTo(by_name[named->name], named->counts);
  });
  std::vector<NamedHits> hits;
  hits.reserve(by_name.size());
  for (auto& [name, totals] : by_name) hits.push_back({totals, name});
  return hits;
}

}  // namespace sluice::envoy
