// OpenCache: buckets as this shard last read or wrote them. One that another has not replaced
// since need not be sent again.
#ifndef SLUICE_SERVER_STORE_REDIS_COMMANDS_OPEN_CACHE_H_
#define SLUICE_SERVER_STORE_REDIS_COMMANDS_OPEN_CACHE_H_

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "common/strings.h"
#include "server/store/redis/wire/open_bucket.h"

namespace sluice::store::redis {

// Bounded by the bookings that it holds. Not thread-safe.
class OpenCache {
 public:
  struct Known {
    std::string state;
    OpenBucket bucket;
  };

  bool Has(std::string_view key) const { return buckets_.contains(common::ToAbsl(key)); }

  // Takes it out, to be changed. nullopt: it is not known.
  std::optional<Known> Take(std::string_view key) {
    const auto found = buckets_.find(common::ToAbsl(key));
    if (found == buckets_.end()) return std::nullopt;
    std::optional<Known> known = std::move(found->second);
    Erase(found, WeightOf(*known));
    return known;
  }

  void Put(std::string_view key, Known known) {
    weight_ += WeightOf(known);
    // Not moved from if there is one.
    const auto [place, added] = buckets_.try_emplace(std::string(key), std::move(known));
    if (!added) {
      weight_ -= WeightOf(place->second);
      place->second = std::move(known);
    }
    while (weight_ > kMaxWeight && buckets_.size() > 1) {
      auto victim = buckets_.begin();
      if (victim == place) ++victim;
      Erase(victim, WeightOf(victim->second));
    }
  }

 private:
  // In bookings, of at most 100 bytes.
  static constexpr size_t kWeight = 32;
  static constexpr size_t kMaxWeight = size_t{1} << 18;

  using Map = absl::flat_hash_map<std::string, Known>;

  static size_t WeightOf(const Known& known) { return kWeight + known.bucket.bookings(); }
  void Erase(Map::iterator place, size_t weight) {
    weight_ -= weight;
    buckets_.erase(place);
  }

  Map buckets_;
  size_t weight_ = 0;
};

}  // namespace sluice::store::redis

#endif  // SLUICE_SERVER_STORE_REDIS_COMMANDS_OPEN_CACHE_H_
