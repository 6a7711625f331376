#include "server/envoy/hit_counters.h"

#include <algorithm>
#include <utility>

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
  // A table that grows hashes all its names again, which takes milliseconds if they are long.
  if (detailed_.empty()) detailed_.reserve(common::bounds::kMaxDetailedCounters);
  auto named = std::make_unique<Named>();
  named->name = name();
  if (named->name.size() > common::bounds::kMaxDescriptorBytes) return nullptr;
  in_order_.push_back(named.get());
  return &detailed_.emplace(std::string(identity), std::move(named)).first->second->counts;
}

CallTotals HitCounters::Calls() const {
  CallTotals totals;
  shards_.ForEach([&](Shard& shard) { AddTo(totals, shard.calls); });
  return totals;
}

HitCounters::Reader::Reader(const HitCounters& counters,
                            std::shared_ptr<const limits::LimitTable> table)
    : counters_(counters), table_(std::move(table)) {
  // A shard lives as long as the counters.
  counters_.shards_.ForEach([this](Shard& shard) { shards_.push_back(&shard); });
}

bool HitCounters::Reader::ReadPiece() { return ReadLimits() || ReadDetailed(); }

bool HitCounters::Reader::ReadLimits() {
  const Matcher* const matcher = MatcherOf(*table_);
  const size_t all = matcher == nullptr ? 0 : matcher->limits().size();
  if (limit_ == all) return false;
  for (const size_t end = std::min(all, limit_ + kPiece); limit_ < end; ++limit_) {
    const MatchedLimit& match = *matcher->limits()[limit_];
    const limits::Limit* const limit = LimitOf(*table_, match);
    if (limit == nullptr) continue;
    HitTotals& totals = hits_[match.metric_name];
    const uint32_t id = limit->limit_id();
    for (const Shard* shard : shards_) {
      Shard::Chunk* const chunk =
          shard->limits_[id / Shard::kChunk % Shard::kChunks].load(std::memory_order_acquire);
      if (chunk != nullptr) AddTo(totals, (*chunk)[id % Shard::kChunk]);
    }
  }
  return true;
}

bool HitCounters::Reader::ReadDetailed() {
  if (shard_ == shards_.size()) return false;
  std::vector<Shard::Named*> piece;
  {
    const Shard& shard = *shards_[shard_];
    common::MutexLock lock(&shard.mu_);
    const auto begin = shard.in_order_.begin() + static_cast<ptrdiff_t>(detailed_);
    const size_t size = std::min(kPiece, shard.in_order_.size() - detailed_);
    piece.assign(begin, begin + static_cast<ptrdiff_t>(size));
  }
  for (Shard::Named* named : piece) AddTo(hits_[named->name], named->counts);
  detailed_ += piece.size();
  if (piece.empty()) {
    ++shard_;
    detailed_ = 0;
  }
  return true;
}

HitsByName HitCounters::Hits(std::shared_ptr<const limits::LimitTable> table) const {
  Reader reader(*this, std::move(table));
  while (reader.ReadPiece()) {
  }
  return reader.Take();
}

}  // namespace sluice::envoy
