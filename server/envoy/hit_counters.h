// HitCounters: the counters of envoyproxy/ratelimit: hits of each limit, and errors of calls. Kept
// per thread, and summed when read.
#ifndef SLUICE_SERVER_ENVOY_HIT_COUNTERS_H_
#define SLUICE_SERVER_ENVOY_HIT_COUNTERS_H_

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/btree_map.h"
#include "absl/container/flat_hash_map.h"
#include "absl/functional/function_ref.h"
#include "common/histogram.h"
#include "common/mutex.h"
#include "common/per_thread.h"
#include "server/limits/limit_table.h"

namespace sluice::envoy {

// Of one limit, in hits. `Count` is OwnedCounter in a thread's shard and uint64_t in a sum.
template <typename Count>
struct HitCounts {
  Count total_hits{};
  Count over_limit{};
  Count near_limit{};
  Count within_limit{};
  Count shadow_mode{};

  auto Tie() { return std::tie(total_hits, over_limit, near_limit, within_limit, shadow_mode); }
};
using HitTotals = HitCounts<uint64_t>;

// Of calls.
template <typename Count>
struct CallCounts {
  Count redis_error{};
  Count service_error{};
  Count domain_not_found{};
  // Of Kuadrant's Reserve: granted, and over a limit; of its Commit: settled, and counted as
  // Report.
  Count reserved{};
  Count not_reserved{};
  Count committed{};
  Count reported{};

  auto Tie() {
    return std::tie(redis_error, service_error, domain_not_found, reserved, not_reserved, committed,
                    reported);
  }
};
using CallTotals = CallCounts<uint64_t>;

// The hits of all names, DOMAIN.KEY[_VALUE][.KEY[_VALUE]], sorted.
using HitsByName = absl::btree_map<std::string, HitTotals>;

// Thread-safe.
class HitCounters {
 public:
  // One thread's counters. Its methods are for that thread; any thread may read the counters.
  class Shard {
   public:
    ~Shard();

    CallCounts<common::OwnedCounter> calls;

    // Allocates when the thread first counts for one of 256 neighbouring ids.
    HitCounts<common::OwnedCounter>& OfLimit(uint32_t limit_id) {
      Chunk* chunk = limits_[limit_id / kChunk % kChunks].load(std::memory_order_relaxed);
      if (chunk == nullptr) chunk = AddChunk(limit_id);
      return (*chunk)[limit_id % kChunk];
    }

    // The counters whose name has values of the request. `identity` tells them apart; `name` makes
    // the name when the thread first counts for it. Null: there are too many, or the name is longer
    // than bounds::kMaxDescriptorBytes; a caller chooses its values.
    HitCounts<common::OwnedCounter>* Detailed(std::string_view identity,
                                              absl::FunctionRef<std::string()> name);

   private:
    friend class HitCounters;
    static constexpr size_t kChunk = 256;
    // As common::Metrics.
    static constexpr size_t kChunks = 4096;
    using Chunk = std::array<HitCounts<common::OwnedCounter>, kChunk>;
    struct Named {
      std::string name;
      HitCounts<common::OwnedCounter> counts;
    };

    Chunk* AddChunk(uint32_t limit_id);

    // The owner stores with release after filling in; other threads load with acquire.
    std::array<std::atomic<Chunk*>, kChunks> limits_{};
    // Readers hold it for a moment alone: the owner waits for it.
    mutable common::Mutex mu_;
    absl::flat_hash_map<std::string, std::unique_ptr<Named>> detailed_ ABSL_GUARDED_BY(mu_);
    // The same ones, in the order of their making. None is ever removed.
    std::vector<Named*> in_order_ ABSL_GUARDED_BY(mu_);
  };

  // The calling thread's shard.
  Shard& Local() { return shards_.Local(); }

  CallTotals Calls() const;
  // Reads the hits of all names, of the limits in a table and the detailed ones, a piece at a time.
  // Not thread-safe. The counters outlive it.
  class Reader {
   public:
    Reader(const HitCounters& counters, std::shared_ptr<const limits::LimitTable> table);

    // Returns false once all are read. Each piece takes well under a millisecond.
    bool ReadPiece();
    // REQUIRES: all are read.
    HitsByName Take() { return std::move(hits_); }

   private:
    static constexpr size_t kPiece = 256;

    bool ReadLimits();
    bool ReadDetailed();

    const HitCounters& counters_;
    const std::shared_ptr<const limits::LimitTable> table_;
    std::vector<Shard*> shards_;
    size_t limit_ = 0;     // of the configuration
    size_t shard_ = 0;     // whose detailed hits are being read
    size_t detailed_ = 0;  // of this shard
    HitsByName hits_;
  };

  // All that a Reader reads. Takes milliseconds for thousands of limits: not for an event loop that
  // serves requests.
  HitsByName Hits(std::shared_ptr<const limits::LimitTable> table) const;

 private:
  common::PerThread<Shard> shards_;
};

}  // namespace sluice::envoy

#endif  // SLUICE_SERVER_ENVOY_HIT_COUNTERS_H_
