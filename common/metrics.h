// Metrics: the server's counters, kept per thread without locks and summed when read.
//
//   metrics.Local().OfLimit(limit_id).granted.Add(1);   // the hot path: no locked instruction
//   metrics.Local().OfMethod(method).Finish(code, latency_ns);
//
// A thread writes only its own shard. Snapshot() sums all shards while they are written: each sum
// was true at some moment of the reading, but different sums at different moments.
#ifndef SLUICE_COMMON_METRICS_H_
#define SLUICE_COMMON_METRICS_H_

#include <array>
#include <atomic>
#include <cstdint>
#include <string>
#include <tuple>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "common/histogram.h"
#include "common/mutex.h"
#include "common/per_thread.h"

namespace sluice::common {

// The counts of one limit, as in admin.proto, message LimitStats. `Count` is OwnedCounter in a
// thread's shard and uint64_t in a sum; so are those below.
template <typename Count>
struct LimitCounts {
  Count granted{};
  Count denied{};
  Count shadow_denied{};
  Count permits_granted{};
  Count refunded_permits{};
  Count overflow_allowed{};
  Count overflow_denied{};
  Count allowed_while_unavailable{};
  Count denied_while_unavailable{};
  Count bookings_denied{};  // over a bound on bookings

  // All of them.
  auto Tie() {
    return std::tie(granted, denied, shadow_denied, permits_granted, refunded_permits,
                    overflow_allowed, overflow_denied, allowed_while_unavailable,
                    denied_while_unavailable, bookings_denied);
  }
};
using LimitCounters = LimitCounts<OwnedCounter>;
using LimitTotals = LimitCounts<uint64_t>;

// gRPC status codes 0 to 16.
inline constexpr size_t kStatusCodes = 17;

// The counts of one RPC method.
template <typename Count>
struct MethodCounts {
  std::array<Count, kStatusCodes> codes{};
  Count bytes_received{};
  Count bytes_sent{};
  Count messages_received{};
  Count messages_sent{};

  auto Tie() { return std::tie(bytes_received, bytes_sent, messages_received, messages_sent); }
};

struct MethodCounters : MethodCounts<OwnedCounter> {
  Histogram latency;

  void Finish(int code, uint64_t latency_ns) {
    codes[static_cast<size_t>(code) < kStatusCodes ? code : 2].Add(1);
    latency.Record(latency_ns);
  }
};

struct MethodTotals : MethodCounts<uint64_t> {
  std::string method;
  HistogramTotals latency;
};

// The counts of one transport. Open connections and streams are those accepted less those closed;
// the two may be counted on different threads.
template <typename Count>
struct TransportCounts {
  Count connections_accepted{};
  Count connections_closed{};
  Count connections_refused{};    // over a bound, and closed at once
  Count connections_displaced{};  // closed to make room for others
  Count handshakes_displaced{};   // of TLS, the same
  Count streams_accepted{};
  Count streams_closed{};
  Count sheds{};
  Count calls_refused_over_memory{};
  Count connections_closed_over_memory{};
  Count stalls{};  // calls or connections that were ended since the peer took no answer

  auto Tie() {
    return std::tie(connections_accepted, connections_closed, connections_refused,
                    connections_displaced, handshakes_displaced, streams_accepted, streams_closed,
                    sheds, calls_refused_over_memory, connections_closed_over_memory, stalls);
  }
};
using TransportCounters = TransportCounts<OwnedCounter>;

// The steps of an event loop: pieces of work between which others have their turn.
enum class Step : uint8_t {
  kInput,   // one descriptor was ready: reading, and what the input asks for, within a turn
  kTurn,    // a connection went on with work that did not fit its last turn
  kTask,    // up to 16 tasks that other threads posted
  kTimer,   // up to 8 timers that were due
  kOutput,  // up to 16 streams sent their output, or one ended
};
inline constexpr std::array<const char*, 5> kStepNames{"input", "turn", "task", "timer", "output"};

struct TransportTotals : TransportCounts<uint64_t> {
  std::string transport;
};

struct MetricsSnapshot {
  uint64_t granted = 0;  // acquisitions
  uint64_t denied = 0;
  std::vector<LimitTotals> limits;  // by limit_id
  std::vector<MethodTotals> methods;
  std::vector<TransportTotals> transports;
  std::array<HistogramTotals, kStepNames.size()> steps;  // CPU time, by Step
};

// Thread-safe.
class Metrics {
 public:
  // More names than a server has: each call has one over gRPC and one over HTTP.
  static constexpr size_t kMaxMethods = 128;
  // data, admin, http, metrics, ratelimit_http, ratelimit_debug.
  static constexpr size_t kMaxTransports = 8;

  // One thread's counters. Its methods are for that thread; any thread may read the counters.
  class Shard {
   public:
    ~Shard();

    OwnedCounter granted;
    OwnedCounter denied;

    // Allocates when the thread first counts for one of 256 neighbouring ids.
    LimitCounters& OfLimit(uint32_t limit_id) {
      LimitChunk* chunk = limits_[(limit_id / kChunk) % kChunks].load(std::memory_order_relaxed);
      if (chunk == nullptr) chunk = AddLimitChunk(limit_id);
      return (*chunk)[limit_id % kChunk];
    }
    // Allocates when the thread first counts for the method.
    MethodCounters& OfMethod(uint32_t method) {
      MethodCounters* counters = methods_[method].load(std::memory_order_relaxed);
      return counters != nullptr ? *counters : AddMethod(method);
    }
    TransportCounters& OfTransport(uint32_t transport) { return transports_[transport]; }
    Histogram& OfStep(Step step) { return steps_[static_cast<size_t>(step)]; }

   private:
    friend class Metrics;
    static constexpr size_t kChunk = 256;
    // Room for 2^20 limit names in the life of a process; later ones share counters.
    static constexpr size_t kChunks = 4096;
    using LimitChunk = std::array<LimitCounters, kChunk>;

    LimitChunk* AddLimitChunk(uint32_t limit_id);
    MethodCounters& AddMethod(uint32_t method);

    // The owner stores with release after filling in; other threads load with acquire.
    std::array<std::atomic<LimitChunk*>, kChunks> limits_{};
    std::array<std::atomic<MethodCounters*>, kMaxMethods> methods_{};
    std::array<TransportCounters, kMaxTransports> transports_;
    std::array<Histogram, kStepNames.size()> steps_;
  };

  // "/sluice.v1.RateLimiter/Acquire" -> index. The same name gives the same index. Of more than
  // kMaxMethods names, the last share an index.
  uint32_t AddMethod(const std::string& name);
  // The same for the port of a server, as "data" or "admin", and kMaxTransports.
  uint32_t AddTransport(const std::string& name);

  // The calling thread's shard.
  Shard& Local() { return shards_.Local(); }

  // Sums over all threads; of limits, those with ids below `limit_id_end`.
  MetricsSnapshot Snapshot(uint32_t limit_id_end) const;
  // Of limits alone: those with ids from `first_id` to below `end_id`, in this order.
  std::vector<LimitTotals> LimitSums(uint32_t first_id, uint32_t end_id) const;

 private:
  PerThread<Shard> shards_;
  mutable Mutex mu_;
  std::vector<std::string> methods_ ABSL_GUARDED_BY(mu_);
  std::vector<std::string> transports_ ABSL_GUARDED_BY(mu_);
};

}  // namespace sluice::common

#endif  // SLUICE_COMMON_METRICS_H_
