// CallStats: what is counted of the calls of one event loop. Written by the loop's thread alone,
// without locks; read from anywhere, as some recent value of each counter.
#ifndef SLUICE_SERVER_TRANSPORT_H2_CALL_STATS_H_
#define SLUICE_SERVER_TRANSPORT_H2_CALL_STATS_H_

#include <array>
#include <atomic>
#include <bit>
#include <cstdint>
#include <vector>

namespace sluice::transport::h2 {

// One writer: loads and stores, no read-modify-write. Relaxed: a reader needs no order between
// counters.
class StatCounter {
 public:
  void Add(uint64_t count) {
    value_.store(value_.load(std::memory_order_relaxed) + count, std::memory_order_relaxed);
  }
  void Subtract(uint64_t count) {
    value_.store(value_.load(std::memory_order_relaxed) - count, std::memory_order_relaxed);
  }
  uint64_t value() const { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<uint64_t> value_{0};
};

// Time from a call's arrival to its answer, in buckets that are at most 25 % wide. The clock is
// read once for several calls, so times below some 20 us are rough.
class LatencyHistogram {
 public:
  // Up to 1 us, then four buckets to each doubling, up to 68 s.
  static constexpr size_t kBuckets = 4 * 26 + 2;

  static size_t BucketOf(uint64_t ns) {
    if (ns < kFloor) return 0;
    const int octave = std::bit_width(ns) - 1;
    const size_t bucket = 1 + (octave - 10) * 4 + ((ns >> (octave - 2)) & 3);
    return bucket < kBuckets ? bucket : kBuckets - 1;
  }
  // The least time that is beyond the bucket.
  static uint64_t UpperNs(size_t bucket) {
    if (bucket == 0) return kFloor;
    if (bucket == kBuckets - 1) return UINT64_MAX;
    const size_t octave = 10 + (bucket - 1) / 4;
    return (uint64_t{5} + (bucket - 1) % 4) << (octave - 2);
  }

  void Record(uint64_t ns) {
    counts_[BucketOf(ns)].Add(1);
    sum_ns_.Add(ns);
  }
  uint64_t count(size_t bucket) const { return counts_[bucket].value(); }
  uint64_t sum_ns() const { return sum_ns_.value(); }

 private:
  static constexpr uint64_t kFloor = 1024;
  std::array<StatCounter, kBuckets> counts_;
  StatCounter sum_ns_;
};

struct MethodCallStats {
  static constexpr size_t kCodes = 17;
  std::array<StatCounter, kCodes> codes;  // calls finished, by gRPC status
  LatencyHistogram latency;
  // Messages and their bytes, without framing.
  StatCounter messages_received;
  StatCounter messages_sent;
  StatCounter bytes_received;
  StatCounter bytes_sent;
};

struct CallStats {
  // One for each method of the table, by Method::index, and one more for unknown methods.
  explicit CallStats(size_t methods) : methods(methods + 1) {}
  std::vector<MethodCallStats> methods;
  StatCounter connections;           // open
  StatCounter connections_accepted;  // ever
  StatCounter streams;               // open
  StatCounter streams_accepted;      // ever
  StatCounter sheds;                 // calls refused because they waited too long
  StatCounter protocol_errors;       // connections that ended with an error of the peer
};

}  // namespace sluice::transport::h2

#endif  // SLUICE_SERVER_TRANSPORT_H2_CALL_STATS_H_
