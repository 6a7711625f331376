// Metrics: every counter of the server, kept per thread without locks and summed when read.
//
//   metrics.Local().OfLimit(limit_id).granted.Add(1);          // the hot path: no locked
//   instruction metrics.Local().OfMethod(method).Finish(code, latency_ns);
//
// A thread writes its own shard only. Snapshot() sums all shards while they are written: each
// figure is one that was true within the reading, parameters among each other may be apart by what
// is being counted at that moment.
#ifndef SLUICE_COMMON_METRICS_H_
#define SLUICE_COMMON_METRICS_H_

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "common/histogram.h"
#include "common/mutex.h"
#include "common/per_thread.h"

namespace sluice::common {

// Of one limit. What names its fields is in admin.proto, message LimitStats.
struct LimitCounters {
  OwnedCounter granted;
  OwnedCounter denied;
  OwnedCounter shadow_denied;
  OwnedCounter permits_granted;
  OwnedCounter refunded_permits;
  OwnedCounter overflow_allowed;
  OwnedCounter overflow_denied;
  OwnedCounter allowed_while_unavailable;
  OwnedCounter denied_while_unavailable;
};

struct LimitTotals {
  uint64_t granted = 0;
  uint64_t denied = 0;
  uint64_t shadow_denied = 0;
  uint64_t permits_granted = 0;
  uint64_t refunded_permits = 0;
  uint64_t overflow_allowed = 0;
  uint64_t overflow_denied = 0;
  uint64_t allowed_while_unavailable = 0;
  uint64_t denied_while_unavailable = 0;
};

// gRPC status codes 0 to 16.
inline constexpr size_t kStatusCodes = 17;

// Of one RPC method.
struct MethodCounters {
  std::array<OwnedCounter, kStatusCodes> codes;
  Histogram latency;
  OwnedCounter bytes_received;
  OwnedCounter bytes_sent;
  OwnedCounter messages_received;
  OwnedCounter messages_sent;

  void Finish(int code, uint64_t latency_ns) {
    codes[static_cast<size_t>(code) < kStatusCodes ? code : 2].Add(1);
    latency.Record(latency_ns);
  }
};

struct MethodTotals {
  std::string method;
  std::array<uint64_t, kStatusCodes> codes{};
  HistogramTotals latency;
  uint64_t bytes_received = 0;
  uint64_t bytes_sent = 0;
  uint64_t messages_received = 0;
  uint64_t messages_sent = 0;
};

// Of one transport. What is open is accepted less closed; the two may be counted on different
// threads.
struct TransportCounters {
  OwnedCounter connections_accepted;
  OwnedCounter connections_closed;
  OwnedCounter connections_refused;  // over a bound, and closed at once
  OwnedCounter streams_accepted;
  OwnedCounter streams_closed;
  OwnedCounter sheds;
};

struct TransportTotals {
  std::string transport;
  uint64_t connections_accepted = 0;
  uint64_t connections_closed = 0;
  uint64_t connections_refused = 0;
  uint64_t streams_accepted = 0;
  uint64_t streams_closed = 0;
  uint64_t sheds = 0;
};

struct MetricsSnapshot {
  uint64_t granted = 0;  // acquisitions
  uint64_t denied = 0;
  std::vector<LimitTotals> limits;  // by limit_id
  std::vector<MethodTotals> methods;
  std::vector<TransportTotals> transports;
};

// Thread-safe.
class Metrics {
 public:
  static constexpr size_t kMaxMethods = 64;
  static constexpr size_t kMaxTransports = 4;

  // One thread's. Its methods are for that thread; the counters may be read by any.
  class Shard {
   public:
    Shard() = default;
    ~Shard();
    Shard(const Shard&) = delete;
    Shard& operator=(const Shard&) = delete;

    OwnedCounter granted;
    OwnedCounter denied;

    // Allocates the first time that the thread sees one of 256 neighbouring ids.
    LimitCounters& OfLimit(uint32_t limit_id) {
      LimitChunk* chunk = limits_[(limit_id / kChunk) % kChunks].load(std::memory_order_relaxed);
      if (chunk == nullptr) chunk = AddLimitChunk(limit_id);
      return (*chunk)[limit_id % kChunk];
    }
    // Allocates the first time.
    MethodCounters& OfMethod(uint32_t method) {
      MethodCounters* counters = methods_[method].load(std::memory_order_relaxed);
      return counters != nullptr ? *counters : AddMethod(method);
    }
    TransportCounters& OfTransport(uint32_t transport) { return transports_[transport]; }

   private:
    friend class Metrics;
    static constexpr size_t kChunk = 256;
    // Room for 2^20 limit names in the life of a process; those above share counters.
    static constexpr size_t kChunks = 4096;
    using LimitChunk = std::array<LimitCounters, kChunk>;

    LimitChunk* AddLimitChunk(uint32_t limit_id);
    MethodCounters& AddMethod(uint32_t method);

    // Written by the owner with release once filled in, read by others with acquire.
    std::array<std::atomic<LimitChunk*>, kChunks> limits_{};
    std::array<std::atomic<MethodCounters*>, kMaxMethods> methods_{};
    std::array<TransportCounters, kMaxTransports> transports_;
  };

  Metrics() = default;

  // While wiring: "/sluice.v1.RateLimiter/Acquire" -> index. The same name gives the same index.
  // REQUIRES: at most kMaxMethods names.
  uint32_t AddMethod(const std::string& name);
  // "grpc", "h2".
  uint32_t AddTransport(const std::string& name);

  // The calling thread's.
  Shard& Local() { return shards_.Local(); }

  // Sums. `limit_id_end`: counters of limit ids below it are given.
  MetricsSnapshot Snapshot(uint32_t limit_id_end) const;

 private:
  PerThread<Shard> shards_;
  mutable Mutex mu_;
  std::vector<std::string> methods_ ABSL_GUARDED_BY(mu_);
  std::vector<std::string> transports_ ABSL_GUARDED_BY(mu_);
};

}  // namespace sluice::common

#endif  // SLUICE_COMMON_METRICS_H_
