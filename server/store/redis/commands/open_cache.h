// OpenCache: buckets as this shard last read or wrote them, and the turns of the commands that
// decide on them. A bucket that was not replaced since then is not read again.
//
// Commands of one loop take turns at a bucket. If they went at once, all but one would find it
// replaced, and would read again what the cache had.
#ifndef SLUICE_SERVER_STORE_REDIS_COMMANDS_OPEN_CACHE_H_
#define SLUICE_SERVER_STORE_REDIS_COMMANDS_OPEN_CACHE_H_

#include <cstddef>
#include <deque>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/types/span.h"
#include "common/net/event_loop.h"
#include "common/strings.h"
#include "server/store/redis/wire/open_bucket.h"
#include "server/store/redis/wire/rule_entry.h"

namespace sluice::store::redis {

// Bounded by the bookings that it holds. Belongs to its loop.
class OpenCache final : private net::IterationHook {
 public:
  // A command that takes turns.
  class Turn {
   public:
    // Its turn has come, after Enter returned false. Not called within Enter or Leave.
    virtual void OnTurn() = 0;

   protected:
    ~Turn() = default;

   private:
    friend class OpenCache;
    size_t behind_ = 0;  // queues in which it is not the first
  };

  // Whether the bucket has bookings, holds or estimates, as far as is known: it is cached, or was
  // until its turn.
  bool Has(std::string_view key) const {
    if (buckets_.contains(common::ToAbsl(key))) return true;
    const auto queue = queues_.find(common::ToAbsl(key));
    return queue != queues_.end() && queue->second.taken;
  }

  // Takes it out, to be changed. nullopt: it is not known. Of one that has changed() only stored()
  // is as it is in Redis.
  std::optional<OpenBucket> Take(std::string_view key) {
    const auto found = buckets_.find(common::ToAbsl(key));
    if (found == buckets_.end()) return std::nullopt;
    std::optional<OpenBucket> bucket = std::move(found->second);
    Erase(found, WeightOf(*bucket));
    if (const auto queue = queues_.find(common::ToAbsl(key)); queue != queues_.end()) {
      queue->second.taken = true;
    }
    return bucket;
  }

  void Put(std::string_view key, OpenBucket bucket) {
    weight_ += WeightOf(bucket);
    // Not moved from if there is one.
    const auto [place, added] = buckets_.try_emplace(std::string(key), std::move(bucket));
    if (!added) {
      weight_ -= WeightOf(place->second);
      place->second = std::move(bucket);
    }
    while (weight_ > kMaxWeight && buckets_.size() > 1) {
      auto victim = buckets_.begin();
      if (victim == place) ++victim;
      Erase(victim, WeightOf(victim->second));
    }
  }

  // Queues for all the buckets. Returns whether they are free; else OnTurn follows. First come,
  // first served at each bucket; all are entered at once, so that no two wait for each other.
  bool Enter(Turn& turn, absl::Span<const Bucket> buckets) {
    turn.behind_ = 0;
    for (const Bucket& bucket : buckets) {
      std::deque<Turn*>& queue = queues_[bucket.keys[0]].turns;
      if (!queue.empty() && queue.back() == &turn) continue;  // the same bucket twice
      if (!queue.empty()) ++turn.behind_;
      queue.push_back(&turn);
    }
    return turn.behind_ == 0;
  }

  // Ends its turn, or its waiting.
  void Leave(Turn& turn, absl::Span<const Bucket> buckets, net::EventLoop& loop) {
    std::erase(ready_, &turn);
    for (const Bucket& bucket : buckets) {
      const auto found = queues_.find(bucket.keys[0]);
      if (found == queues_.end()) continue;
      std::deque<Turn*>& queue = found->second.turns;
      if (queue.front() != &turn) {
        std::erase(queue, &turn);
        continue;
      }
      queue.pop_front();
      found->second.taken = false;
      if (queue.empty()) {
        queues_.erase(found);
      } else if (--queue.front()->behind_ == 0) {
        ready_.push_back(queue.front());
        loop.AtIterationEnd(*this);
      }
    }
  }

 private:
  // In bookings, of at most 120 bytes.
  static constexpr size_t kWeight = 32;
  static constexpr size_t kMaxWeight = size_t{1} << 18;

  using Map = absl::flat_hash_map<std::string, OpenBucket>;
  struct Queue {
    std::deque<Turn*> turns;  // the first has its turn
    bool taken = false;       // it took the bucket out
  };

  static size_t WeightOf(const OpenBucket& bucket) {
    return kWeight + bucket.entries() + bucket.estimates() + kWeight * bucket.stored().run_chunks;
  }
  void Erase(Map::iterator place, size_t weight) {
    weight_ -= weight;
    buckets_.erase(place);
  }
  void OnIterationEnd() override {
    // One at a time: a turn may end others, and make further ones ready, which come later.
    for (size_t most = ready_.size(); most > 0 && !ready_.empty(); --most) {
      Turn* const turn = ready_.front();
      ready_.erase(ready_.begin());
      turn->OnTurn();
    }
  }

  Map buckets_;
  size_t weight_ = 0;
  absl::flat_hash_map<std::string, Queue> queues_;
  std::vector<Turn*> ready_;  // OnTurn is due
};

}  // namespace sluice::store::redis

#endif  // SLUICE_SERVER_STORE_REDIS_COMMANDS_OPEN_CACHE_H_
